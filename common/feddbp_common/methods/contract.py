"""The contract between a method's strategy and its trainer: settings, and rules for uploads and downloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from feddbp_common.config.types import FrozenModel
from feddbp_common.wire import Payload, PayloadRules

if TYPE_CHECKING:
    from feddbp_common.methods.payload_size import PayloadSize

CollectMode = Literal["post", "running", "last_epoch"]
"""When class means are computed: after training, over all steps of the round, or over those of the last epoch."""
EqualImages = Literal["nothing", "channels", "shape"]
"""What images of all clients of a run have in common."""


class MethodSettings(FrozenModel):
    """Base of every method's hyper-parameters; fields carry a description and the paper's default."""


class CollectingSettings(MethodSettings):
    """Settings of a method whose clients upload class means."""

    collect: CollectMode = Field(
        "post",
        description="when class means are computed: after training in eval mode, or in train mode over all steps of "
        "the round (running) or of its last epoch, as some published code does",
    )


MOST_CHANNELS: Final = 16
"""Upper bound on the channels of an image; satellite images have about a dozen."""


@dataclass(frozen=True, kw_only=True)
class ExchangeShape:
    """The properties of a run that determine the size of its payloads."""

    classes: int
    feature_dim: int
    clients: int = 1
    """Bounds downloads that grow with the number of clients; the default is the tightest bound."""
    image_size: int | None = None
    """Side of all images; None if clients may differ. Methods that share a network need it."""
    channels: int | None = None
    """Channels of all images; None if clients may differ."""
    top_channels_only: bool = False
    """Fisher scores are sent as the indices of the most important channels."""
    guide: str = "guide_large"
    """The network that all clients have in common, for methods that exchange one."""
    fusion_at_client: bool = False
    """Clients fuse their own prototypes with the global ones themselves, so that Fisher scores are not sent."""


_COMMON_LOSS_TERMS: Final = {"total": "weighted total", "ce": "cross-entropy"}

Rules = Callable[[Any, ExchangeShape], PayloadRules]

CLIPPING_RULES: Final = ("mean", "clipped")
"""Rules of aggregation that need nothing of a strategy: they leave uploads as they are, or scale them."""
ALL_RULES: Final = ("mean", "median", "trimmed_mean", "clipped")
"""Rules of a method that averages what clients upload."""


def _clipping_rules(_: MethodSettings) -> tuple[str, ...]:
    return CLIPPING_RULES


def all_rules(_: MethodSettings) -> tuple[str, ...]:
    return ALL_RULES


def never(_: MethodSettings) -> bool:
    return False


def always(_: MethodSettings) -> bool:
    return True


def _unlike_images(_: MethodSettings) -> EqualImages:
    return "nothing"


@dataclass(frozen=True, kw_only=True)
class SumWeights:
    """How a client counts where the server needs nothing but sums over clients: once, or by its samples."""

    prototypes_by_samples: bool = False
    """By the samples of each class, else once for each class that it has."""
    tensors_by_samples: bool = False
    """By all of its samples."""


def _more_than_sums(_: MethodSettings) -> SumWeights | None:
    return None


@dataclass(frozen=True)
class Expansion:
    """Of compressed uploads: the values that are averaged."""

    apply: Callable[[Payload], Payload]
    rules: Rules
    """For what `apply` gives."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A named set of settings."""

    settings: Mapping[str, Any]
    description: str


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method. Strategy and trainer are named, not imported: a server must not load torch, nor a client the server."""

    name: str
    title: str
    reference: str
    settings: type[MethodSettings]
    upload_rules: Rules
    download_rules: Rules
    strategy: str
    """The server's part, as `module:class`."""
    trainer: str
    """The client's part, as `module:class`."""
    up: PayloadSize | None = None
    down: PayloadSize | None = None
    """Sizes of uploads and downloads, for comparing methods; None if unknown."""
    needs_equal_heads: bool = False
    """Heads are exchanged, so every client must have a linear one."""
    common_architecture: bool = False
    """All clients train the run's guide, and nothing of their own."""
    fixed_network: Callable[[Any], str] | None = None
    """Given the settings: the network of all clients, which is never trained. None if every client trains its own."""
    equal_images: Callable[[Any], EqualImages] = _unlike_images
    """Given the settings: what images of all clients must have in common, as a network that needs it is shared."""
    fuses: bool = False
    """A client's own prototypes are fused with the global ones, by the server or by the client."""
    exchanges_weights: Callable[[Any], bool] = never
    """Given the settings: whether clients begin a round with weights that they receive."""
    subtracts_own_upload: Callable[[Any], bool] = never
    """Given the settings: whether a reply is the global state without the client's own share of it."""
    has_history: Callable[[Any], bool] = never
    """Given the settings: whether the server's state depends on rounds before the last, and not on uploads alone."""
    aggregation_rules: Callable[[Any], tuple[str, ...]] = _clipping_rules
    """Given the settings: the rules of aggregation that make sense for this method."""
    sum_weights: Callable[[Any], SumWeights | None] = _more_than_sums
    """Given the settings: how clients count in sums, if sums are all that the server needs; None if it needs more."""
    expansion: Expansion | None = None
    """None if uploads are averaged as they are."""
    presets: Mapping[str, Preset] = field(default_factory=dict)
    """By name; a run's method may be given as `NAME:PRESET`."""
    loss_terms: Mapping[str, str] = field(default_factory=dict)
    """Names for people of the terms of its local loss, by those under which they are reported."""

    @property
    def all_loss_terms(self) -> dict[str, str]:
        return {**_COMMON_LOSS_TERMS, **self.loss_terms}

    def loss_term(self, name: str) -> str:
        """What a term of the local loss is called in pictures; not checked, since a client may report any name."""
        return self.all_loss_terms.get(name, name.replace("_", " "))

    def load_strategy(self) -> Any:
        return _load(self.strategy)

    def load_trainer(self) -> Any:
        return _load(self.trainer)


def nothing(_: MethodSettings, __: ExchangeShape) -> PayloadRules:
    """Rules for a direction in which nothing is sent."""
    return PayloadRules()


def _load(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)
