"""Aggregation: the strategy runs in a thread of its own and reads uploads one by one, from the cache or the store."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.run import RunConfig, Sources
from feddbp_common.errors import PayloadError, ProtocolViolationError
from feddbp_common.methods.sums import HOLDERS, Means, flattened, unflattened
from feddbp_common.wire import Encoded, Payload, check_values, decode, encode
from feddbp_common.wire.codec import prototype_bytes
from feddbp_common.wire.payload import Norms
from feddbp_server.aggregation.comparison import ComparedPrototypes, compare
from feddbp_server.aggregation.layouts import LayoutAgreement
from feddbp_server.aggregation.screening import Screening, screen
from feddbp_server.aggregation.sums import Opening, OpenSum, SumFailedError, open_plain_sum
from feddbp_server.store import AggregateRecord, Jobs, Store, UploadRecord
from feddbp_server.strategies import RunFacts, Shapes, Strategy, UnusableStateError, Upload

LabelCounts = Callable[[int], Sequence[int]]
"""A client's training samples per class, by client id."""

_REPLY_INLINE_BYTES: Final = 256 << 10
"""Up to this size of a client's upload its reply is computed on the event loop: a thread would cost more."""
_GROUP_UPLOADS: Final = 16
"""Uploads read from the store at a time; two groups bound the memory of closing a round."""
_NORMS_INLINE_BYTES: Final = 1 << 20
"""Norms of uploads that have at most this size once they are expanded are computed as they arrive, on the event loop;
closing a round then need not wait for them."""


@dataclass(frozen=True, kw_only=True)
class GlobalState:
    """The result of aggregation after a round, in every form in which it is needed."""

    payload: Payload
    encoded: Encoded
    """As stored."""
    reply: Encoded
    """As sent to clients without an upload so far; to every client where replies are not personalised."""
    screening: Screening = field(default_factory=Screening)
    """Of the uploads from which it was made."""

    def record(self, *, completed_rounds: int) -> AggregateRecord:
        return AggregateRecord(
            completed_rounds=completed_rounds,
            manifest=self.encoded.manifest.SerializeToString(),
            body=self.encoded.body(),
        )


@dataclass(frozen=True, kw_only=True)
class KeptUpload:
    """What stays in memory of an upload: what aggregation and the client's next reply read."""

    payload: Payload
    norms: Norms | None
    """None if they are computed when the round closes."""


class Aggregator:
    """Owns the global state, the strategy that advances it, and the cache of uploads."""

    def __init__(
        self,
        config: RunConfig,
        store: Jobs,
        *,
        cache_bytes: int,
        open_sum: OpenSum = open_plain_sum,
    ) -> None:
        self._store = store
        self._config = config
        self.upload_rules = config.upload_rules
        strategy_type = config.method_spec.load_strategy()
        self._strategy: Strategy = strategy_type(  # type: ignore[type-arg]
            config.settings, RunFacts.of(config)
        )
        self._state = self._encoded_state(self._strategy.initial())
        self._layouts = LayoutAgreement(_as_they_are if config.sends_terms else self._strategy.layout)
        self._open_sum = open_sum
        self._sends_terms = config.sends_terms
        self._cache = UploadCache(cache_bytes)
        self._norms: dict[int, tuple[int, Norms]] = {}
        """By client id, the norms of its last upload and its round; others are computed when the round closes."""

    @property
    def sha256(self) -> str:
        """Digest of the global state; for prototype methods, of the global prototypes.

        Empty while the state is, which it always is for a method that exchanges nothing.
        """
        manifest = self._state.encoded.manifest
        return manifest.sha256.hex() if manifest.total_bytes else ""

    @property
    def reply_sha256(self) -> bytes:
        """Digest of what clients receive, where all receive the same."""
        return self._state.reply.manifest.sha256

    async def restore(self) -> None:
        record = await self._store.run(lambda store: store.aggregate())
        if record is not None:
            self.adopt(self._encoded_state(decode(pb.Manifest.FromString(record.manifest), record.body)))
        await self._restore_layout(0 if record is None else record.completed_rounds)

    def check_layout(self, manifest: pb.Manifest) -> None:
        """Refuses an upload whose tensors cannot be averaged with those of most clients."""
        if self.upload_rules.tensors:
            self._layouts.check(manifest)

    async def _restore_layout(self, open_round: int) -> None:
        """Decides it again by the last round that was closed, whose uploads are still there."""
        if open_round and self.upload_rules.tensors:
            self._layouts.settle(await self._store.run(lambda store: store.uploads(open_round - 1)))

    def kept_part(self, payload: Payload) -> KeptUpload:
        """What stays in memory of an upload, for `cache`; may be called in any thread."""
        if self._sends_terms:
            return KeptUpload(payload=payload, norms=None)
        kept = self._strategy.kept_part(payload)
        is_small = self._expanded_bytes(kept) <= _NORMS_INLINE_BYTES
        return KeptUpload(payload=kept, norms=self._expanded(kept).norms() if is_small else None)

    def cache(self, round_number: int, client_id: int, upload: KeptUpload) -> None:
        """Keeps an upload that is stored, as far as there is room."""
        self._cache.add(round_number, client_id, upload.payload)
        if upload.norms is not None:
            self._norms[client_id] = round_number, upload.norms

    def forget(self, round_number: int, client_id: int) -> None:
        """Takes an upload that was deleted from the store out of the cache, too."""
        self._cache.remove(round_number, client_id)
        of_round, _ = self._norms.get(client_id, (None, None))
        if of_round == round_number:
            del self._norms[client_id]

    async def close_round(self, round_number: int, label_counts: LabelCounts) -> GlobalState:
        """The global state after the round; in force only after `adopt`. Rounds without exchange leave it as it is."""
        if not self._config.exchanges_in(round_number):
            return replace(self._state, screening=Screening())
        records = await self._store.run(lambda store: store.uploads(round_number))
        if self._sends_terms:
            return await self._close_sum(round_number, records)
        counts = {record.client_id: label_counts(record.client_id) for record in records}
        loop = asyncio.get_running_loop()
        return await asyncio.to_thread(self._aggregated, round_number, records, counts, loop)

    async def _close_sum(self, round_number: int, records: list[UploadRecord]) -> GlobalState:
        unlike = self._layouts.settle(records)
        uploaded = frozenset(record.client_id for record in records) - unlike.keys()
        screening = Screening(left_out=unlike)
        try:
            opening = await self._open_sum(round_number, uploaded)
            summed = [record for record in records if record.client_id in opening.clients]
            loop = asyncio.get_running_loop()
            state = await asyncio.to_thread(self._summed, round_number, summed, opening, loop)
        except (SumFailedError, ProtocolViolationError, PayloadError) as error:
            return replace(self._state, screening=replace(screening, unusable=str(error)))
        return replace(self._encoded_state(state), screening=screening)

    def _summed(
        self, round_number: int, records: list[UploadRecord], opening: Opening, loop: asyncio.AbstractEventLoop
    ) -> Payload:
        payloads = (payload for _, payload in self._payloads(round_number, records, loop))
        total = opening.total(flattened(payload.tensors) for payload in payloads)
        declared = pb.Manifest.FromString(records[0].manifest).tensors
        shapes = {tensor.name: tuple(tensor.shape) for tensor in declared}
        weights = self._config.method_spec.sum_weights(self._config.settings)
        assert weights is not None  # checked with the configuration
        means = Means.of(unflattened(total, shapes), weights, clients=len(records))
        # a mean of values that clients may send is one that they may send
        check_values(means.payload(), self._config.expanded_rules, real_type=self._config.wire_type)
        state = self._strategy.from_means(self._state.payload, means.payload(), round_number=round_number)
        if means.holders is None:
            return state
        return replace(state, tensors={**state.tensors, HOLDERS: means.holders})

    def _aggregated(
        self,
        round_number: int,
        records: list[UploadRecord],
        label_counts: Mapping[int, Sequence[int]],
        loop: asyncio.AbstractEventLoop,
    ) -> GlobalState:
        unlike = self._layouts.settle(records) if self.upload_rules.tensors else {}
        records = [record for record in records if record.client_id not in unlike]
        screening = screen(
            self._norms_in(round_number, records, loop),
            {record.client_id: sum(label_counts[record.client_id]) for record in records},
            self._config.aggregation,
        )
        kept = [record for record in records if record.client_id not in screening.left_out]
        uploads = (
            screening.admit(
                Upload(client_id=client_id, payload=payload, label_counts=label_counts[client_id]),
                self._expanded(payload) if client_id in screening.clipped else None,
            )
            for client_id, payload in self._payloads(round_number, kept, loop)
        )
        screening = replace(screening, left_out={**unlike, **screening.left_out})
        try:
            state = self._strategy.aggregate(self._state.payload, uploads, round_number=round_number)
        except UnusableStateError as error:
            state, screening = error.instead, replace(screening, unusable=str(error))
        return replace(self._encoded_state(state), screening=screening)

    def _norms_in(
        self, round_number: int, records: list[UploadRecord], loop: asyncio.AbstractEventLoop
    ) -> dict[int, Norms]:
        """The norms of a round's uploads; those that were not computed on arrival need another pass over them."""
        known = {client_id: norms for client_id, (of_round, norms) in self._norms.items() if of_round == round_number}
        others = [record for record in records if record.client_id not in known]
        for client_id, payload in self._payloads(round_number, others, loop):
            known[client_id] = self._expanded(payload).norms()
        return {record.client_id: known[record.client_id] for record in records}

    def _expanded(self, payload: Payload) -> Payload:
        return self._strategy.expanded(payload) if self._strategy.compresses_uploads else payload

    def _expanded_bytes(self, payload: Payload) -> int:
        return self._strategy.expanded_bytes(payload) if self._strategy.compresses_uploads else payload.nbytes

    def _payloads(
        self, round_number: int, records: list[UploadRecord], loop: asyncio.AbstractEventLoop
    ) -> Iterator[tuple[int, Payload]]:
        """The uploads of a round by client id, from the cache or, a group ahead, from the store; for a thread."""
        groups = [records[start : start + _GROUP_UPLOADS] for start in range(0, len(records), _GROUP_UPLOADS)]

        def fetch(group: list[UploadRecord]) -> Future[list[tuple[int, Payload]]]:
            found = ((record.client_id, self._cache.get(round_number, record.client_id)) for record in group)
            cached = {client_id: payload for client_id, payload in found if payload is not None}
            if len(cached) == len(group):
                return _done(list(cached.items()))
            return asyncio.run_coroutine_threadsafe(self._store.run(functools.partial(self._read, group, cached)), loop)

        fetched = fetch(groups[0]) if groups else _done([])
        for following in (*groups[1:], []):
            arrived = fetched.result()
            fetched = fetch(following)  # read while the strategy computes
            yield from arrived

    def adopt(self, state: GlobalState) -> None:
        self._state = state

    async def download(
        self, client_id: int, round_number: int, label_counts: LabelCounts, excluded: frozenset[int] = frozenset()
    ) -> Encoded:
        """What a client receives at the start of a round, computed on request: there are no copies per client.

        `excluded` are the clients whose newest upload nobody receives anything of: they receive the global state.
        """
        state = self._state  # before anything is awaited: a round may close meanwhile
        sources = self._config.sources_of(client_id, round_number - 1) if round_number else Sources.ALL
        if not self._strategy.personalises and sources is Sources.ALL:
            return state.reply
        if client_id in excluded:
            return state.reply
        own = self._cache.last_before(round_number, client_id)
        if own is None:
            own = await self._store.run(lambda store: self._last_upload(store, client_id, round_number))
        if own is None:
            return state.reply
        if sources is Sources.ALL:
            if own.nbytes <= _REPLY_INLINE_BYTES:
                return self._encoded_reply(state.payload, own)
            return await asyncio.to_thread(self._encoded_reply, state.payload, own)
        payloads = {client_id: own}
        if sources is Sources.FINISHED:
            finished = await self._store.run(lambda store: self._finished_uploads(store, round_number))
            payloads |= {number: payload for number, payload in finished.items() if number not in excluded}
        uploads = [
            Upload(client_id=number, payload=payload, label_counts=label_counts(number))
            for number, payload in sorted(payloads.items())
        ]
        return await asyncio.to_thread(self._reply_of, uploads, round_number - 1, own)

    async def compared(self, client_id: int) -> ComparedPrototypes | None:
        """How a client's last upload differs from the global prototypes; None without either."""
        shared = self._state.payload.prototypes
        own = await self._store.run(lambda store: self._last_upload(store, client_id, self._config.rounds))
        if own is None or shared is None:
            return None
        return await asyncio.to_thread(compare, client_id, own, shared, self._strategy.kept_channels(own))

    def _reply_of(self, uploads: list[Upload], round_number: int, own: Payload) -> Encoded:
        """What a client would receive if these uploads alone were those of the round."""
        expanded = {upload.client_id: self._expanded(upload.payload) for upload in uploads}
        screening = screen(
            {client_id: payload.norms() for client_id, payload in expanded.items()},
            {upload.client_id: upload.samples for upload in uploads},
            self._config.aggregation,
        )
        admitted = (screening.admit(upload, expanded[upload.client_id]) for upload in uploads)
        try:
            state = self._strategy.aggregate(self._strategy.initial(), admitted, round_number=round_number)
        except UnusableStateError as error:
            state = error.instead
        return self._encoded_reply(state, own)

    def _encoded_state(self, payload: Payload) -> GlobalState:
        """Encodes a state once: what cannot be encoded fails the round here instead of every download."""
        return GlobalState(payload=payload, encoded=encode(payload), reply=self._encoded_reply(payload, None))

    def _encoded_reply(self, state: Payload, own_upload: Payload | None) -> Encoded:
        return encode(self._strategy.reply(state, own_upload), real_type=self._config.wire_type)

    def _read(
        self, records: list[UploadRecord], cached: Mapping[int, Payload], store: Store
    ) -> list[tuple[int, Payload]]:
        return [(record.client_id, cached.get(record.client_id) or self._payload(store, record)) for record in records]

    def _payload(self, store: Store, record: UploadRecord) -> Payload:
        manifest = pb.Manifest.FromString(record.manifest)
        if self._strategy.aggregates_prototypes_only and not self._sends_terms:
            body = store.upload_body(record, limit=prototype_bytes(manifest))
            return decode(manifest, body, prototypes_only=True)
        return decode(manifest, store.upload_body(record))

    def _last_upload(self, store: Store, client_id: int, round_number: int) -> Payload | None:
        record = store.last_upload_before(client_id, round_number)
        if record is None:
            return None
        return decode(pb.Manifest.FromString(record.manifest), store.upload_body(record))

    def _finished_uploads(self, store: Store, round_number: int) -> dict[int, Payload]:
        """The last upload of every client that is no newcomer, by client id."""
        config = self._config
        finished = (number for number in range(config.clients) if not config.is_newcomer(number))
        records = (store.last_upload_before(number, round_number) for number in finished)
        return {record.client_id: self._payload(store, record) for record in records if record is not None}


def _as_they_are(shapes: Shapes) -> Shapes:
    return shapes


def _done(result: list[tuple[int, Payload]]) -> Future[list[tuple[int, Payload]]]:
    future: Future[list[tuple[int, Payload]]] = Future()
    future.set_result(result)
    return future


class UploadCache:
    """The last upload of as many clients as there is room for, so that closing a round need not read it back.

    A client's upload stays until its next one replaces it: memory that is freed and allocated again in every round
    would make the server's size swing by as much as it caches.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._payloads: dict[int, tuple[int, Payload]] = {}

    def add(self, round_number: int, client_id: int, payload: Payload) -> None:
        self._forget(client_id)
        size = payload.nbytes
        if size > self._room:
            self._forget_all_but(round_number)
        if size <= self._room:
            self._room -= size
            self._payloads[client_id] = round_number, payload

    def get(self, round_number: int, client_id: int) -> Payload | None:
        of_round, payload = self._payloads.get(client_id, (None, None))
        return payload if of_round == round_number else None

    def remove(self, round_number: int, client_id: int) -> None:
        if self.get(round_number, client_id) is not None:
            self._forget(client_id)

    def last_before(self, round_number: int, client_id: int) -> Payload | None:
        """A client's last upload if it is of an earlier round; None if it is not known here."""
        of_round, payload = self._payloads.get(client_id, (round_number, None))
        return payload if of_round < round_number else None

    def _forget_all_but(self, round_number: int) -> None:
        for client_id in [number for number, (of_round, _) in self._payloads.items() if of_round != round_number]:
            self._forget(client_id)

    def _forget(self, client_id: int) -> None:
        if client_id in self._payloads:
            _, payload = self._payloads.pop(client_id)
            self._room += payload.nbytes
