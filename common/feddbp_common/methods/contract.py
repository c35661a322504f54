"""What the two halves of a method agree on: its settings, and what may travel between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from feddbp_common.config.types import FrozenModel
from feddbp_common.wire import PayloadRules

if TYPE_CHECKING:
    from feddbp_common.methods.payload_size import PayloadSize

CollectMode = Literal["post", "running", "last_epoch"]
"""When class means are taken: after training, over the whole round's steps, or over the last epoch's."""


class MethodSettings(FrozenModel):
    """Base of every method's hyper-parameters; fields carry a description and the paper's default."""


class CollectingSettings(MethodSettings):
    """Settings of a method whose clients upload means by class."""

    collect: CollectMode = Field(
        "post",
        description="class means are taken after training in eval mode, or in train mode over the whole round's "
        "steps (running) or the last epoch's, as some published code does",
    )


@dataclass(frozen=True, kw_only=True)
class ExchangeShape:
    """What of a run decides how large its payloads are."""

    classes: int
    feature_dim: int
    clients: int = 1
    """Bounds what the server may pass on of several clients; the default is the narrowest bound."""
    image_size: int | None = None
    """Side of every client's images, as far as that is known; methods that share a network need it."""
    channels: int | None = None
    """The same of their colours."""
    top_channels_only: bool = False
    """Fisher scores travel as the indices of the most important channels."""


Rules = Callable[[Any, ExchangeShape], PayloadRules]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Settings of a method that are best changed together."""

    settings: Mapping[str, Any]
    description: str


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method by name. Its halves are named, not imported: the server must not load torch, nor clients the server."""

    name: str
    title: str
    reference: str
    settings: type[MethodSettings]
    upload_rules: Rules
    download_rules: Rules
    strategy: str
    """The server's half, as `module:class`."""
    trainer: str
    """The client's half, as `module:class`."""
    up: PayloadSize | None = None
    down: PayloadSize | None = None
    """What they weigh, for whoever compares methods; None where a method does not say."""
    needs_equal_heads: bool = False
    """Heads themselves travel, so every client must have a linear one."""
    presets: Mapping[str, Preset] = field(default_factory=dict)
    """By name; `NAME:PRESET` stands for the method with these settings wherever a run is configured."""

    def load_strategy(self) -> Any:
        return _load(self.strategy)

    def load_trainer(self) -> Any:
        return _load(self.trainer)


def nothing(_: MethodSettings, __: ExchangeShape) -> PayloadRules:
    """Rules of a direction in which nothing travels."""
    return PayloadRules()


def _load(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)
