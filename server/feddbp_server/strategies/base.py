"""What a method is on the server: how uploads become what the server knows, and what of it each client receives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeAlias, TypeVar

from feddbp_common.config.run import RunConfig, TrainingConfig
from feddbp_common.errors import FedDBPError, PayloadError
from feddbp_common.methods import ExchangeShape, MethodSettings
from feddbp_common.wire import Payload, PayloadRules, WireType, check_values

SettingsT = TypeVar("SettingsT", bound=MethodSettings)

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Shapes of tensors by name."""


@dataclass(frozen=True, kw_only=True)
class Upload:
    """One client's contribution to the round that closes."""

    client_id: int
    payload: Payload
    label_counts: Sequence[int]
    """The client's training samples per class, as it declared them when it joined."""

    @property
    def samples(self) -> int:
        return sum(self.label_counts)


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What a strategy may know of the run."""

    shape: ExchangeShape
    seed: int
    rounds: int
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """How the clients train."""
    wire_type: WireType = WireType.FLOAT32
    """In which replies travel."""

    @classmethod
    def of(cls, config: RunConfig) -> RunFacts:
        return cls(
            shape=config.exchange_shape,
            seed=config.seed,
            rounds=config.rounds,
            training=config.training,
            wire_type=config.wire_type,
        )


class Strategy(ABC, Generic[SettingsT]):
    """The server's half of a method. What it knows between rounds is a payload, so that it is stored like any other."""

    aggregates_prototypes_only: ClassVar[bool] = False
    """Aggregation looks at nothing but prototypes, so the rest of each upload need not be read."""
    personalises: bool = False
    """A reply depends on the client's own last upload."""

    def __init__(self, settings: SettingsT, facts: RunFacts) -> None:
        self.settings = settings
        self.facts = facts

    def initial(self) -> Payload:
        """What the server knows before the first round."""
        return Payload()

    def layout(self, shapes: Shapes) -> Shapes:
        """What of an upload's tensors all clients of a run must have alike, though no rule can say what it is.

        An upload that differs from those before it is refused on its header, and so is one this cannot make sense of:
        raise PayloadError.
        """
        return {}

    @abstractmethod
    def aggregate(self, known: Payload, uploads: Iterable[Upload], *, round_number: int) -> Payload:
        """What the server knows once a round has closed. Uploads come in the order of client ids, each read once."""

    def check_sendable(self, payload: Payload, rules: PayloadRules, *, otherwise: str) -> None:
        """For what the server trains or adds up: means of what was let in are within all bounds, this may not be.

        Clients would be refused it, or refuse it themselves, one by one and without knowing the reason.
        """
        try:
            check_values(payload, rules, real_type=self.facts.wire_type)
        except PayloadError as error:
            raise FedDBPError(f"{otherwise}; {error}") from error

    @abstractmethod
    def reply(self, known: Payload, own_upload: Payload | None) -> Payload:
        """What a client receives at the start of a round."""
