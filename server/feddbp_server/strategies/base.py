"""The server's half of a method: how uploads are aggregated, and what each client receives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from feddbp_common.config.exchange import AggregationConfig, PrivacyConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.errors import FedDBPError, PayloadError
from feddbp_common.methods import ExchangeShape, MethodSettings
from feddbp_common.wire import Payload, PayloadRules, WireType, check_values

SettingsT = TypeVar("SettingsT", bound=MethodSettings)

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Shapes of tensors by name."""


@dataclass(frozen=True, kw_only=True)
class Upload:
    """One client's upload in the round that closes."""

    client_id: int
    payload: Payload
    label_counts: Sequence[int]
    """The client's training samples per class, as it declared them when it joined."""

    @property
    def samples(self) -> int:
        return sum(self.label_counts)


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The facts of a run that a strategy may use."""

    shape: ExchangeShape
    seed: int
    rounds: int
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """How clients train."""
    wire_type: WireType = WireType.FLOAT32
    """The element type of replies on the wire."""
    aggregation: AggregationConfig = field(default_factory=AggregationConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)

    @classmethod
    def of(cls, config: RunConfig) -> RunFacts:
        return cls(
            shape=config.exchange_shape,
            seed=config.seed,
            rounds=config.rounds,
            training=config.training,
            wire_type=config.wire_type,
            aggregation=config.aggregation,
            privacy=config.privacy,
        )


class UnusableStateError(FedDBPError):
    """Clients could not use the state after a round; the run continues in another one."""

    def __init__(self, reason: str, *, instead: Payload) -> None:
        super().__init__(reason)
        self.instead = instead


class Strategy(ABC, Generic[SettingsT]):
    """The server's half of a method. Its `state` between rounds is a payload, so that it is stored like one."""

    aggregates_prototypes_only: bool = False
    """Aggregation reads only prototypes, so that the rest of each upload need not be loaded."""
    personalises: bool = False
    """A reply depends on the client's own last upload."""
    compresses_uploads: bool = False
    """The values that are averaged have to be `expanded` from an upload."""

    def __init__(self, settings: SettingsT, facts: RunFacts) -> None:
        self.settings = settings
        self.facts = facts

    def initial(self) -> Payload:
        """The state before the first round."""
        return Payload()

    def layout(self, shapes: Shapes) -> Shapes:
        """The shapes in which all clients of a run must agree, though no rule fixes them.

        The majority of the first round decides them: uploads of other shapes are left out of its average, and refused
        on their headers from then on. An upload for which this raises PayloadError is refused in any round.
        """
        return {}

    def expanded(self, payload: Payload) -> Payload:
        """An upload with the values that are averaged, from which its norms are taken; called in any thread."""
        return payload

    def expanded_bytes(self, payload: Payload) -> int:
        """The size of what `expanded` gives, which may be hundreds of times that of the upload."""
        return payload.nbytes

    def kept_part(self, upload: Payload) -> Payload:
        """The part of an upload that aggregation and the client's next reply read; the rest need not stay in memory.

        Called in any thread, also while another one aggregates.
        """
        prototypes = upload.prototypes
        if self.personalises or not self.aggregates_prototypes_only or prototypes is None:
            return upload
        # a copy: a view would keep the whole body alive
        return Payload(prototypes=replace(prototypes, vectors=prototypes.vectors.copy()))

    @abstractmethod
    def aggregate(self, state: Payload, /, uploads: Iterable[Upload], *, round_number: int) -> Payload:
        """The state after a round. Uploads come in the order of client ids, each read once."""

    def from_means(self, state: Payload, /, means: Payload, *, round_number: int) -> Payload:
        """The state after a round whose uploads were only summed; `means` has what was shared, in its expanded form."""
        raise FedDBPError(f"{type(self).__name__} needs each upload by itself")

    def check_sendable(self, payload: Payload, rules: PayloadRules, *, otherwise: str, instead: Payload) -> None:
        """Raises unless a payload meets the rules: means of admitted values do, trained or summed values may not.

        Otherwise every client would fail on it, one by one and without the reason. `instead` is the state in which the
        run continues: it must not end because of what a member uploads.
        """
        try:
            check_values(payload, rules, real_type=self.facts.wire_type)
        except PayloadError as error:
            raise UnusableStateError(f"{otherwise}; {error}", instead=instead) from error

    def kept_channels(self, own_upload: Payload) -> npt.NDArray[np.bool_] | None:
        """Marks, for every class of an upload, the channels in which its client keeps its own values."""
        return None

    @abstractmethod
    def reply(self, state: Payload, /, own_upload: Payload | None) -> Payload:
        """What a client receives at the start of a round."""
