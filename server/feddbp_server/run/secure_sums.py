"""The secure sum of the open round: collects the messages of each step, and decides when a step is over.

Every message and every decision is durable before a client receives it, so that a server that was killed continues with
the same roster, the same shares and the same survivors. Clients answer once; a second roster or a second set of
survivors would end in a sum that nobody opens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import ProtocolViolationError
from feddbp_common.fault_injection import fault_point
from feddbp_common.secure_sums.digests import SumContext
from feddbp_common.secure_sums.identity import Verifier, check_signature
from feddbp_common.secure_sums.messages import Advertisement, Reveal, Roster
from feddbp_common.secure_sums.proto import (
    check_shares,
    check_signature_length,
    keys_from_proto,
    reveal_from_proto,
)
from feddbp_common.secure_sums.server import Secrets, check_reveal, unmasked_sum
from feddbp_server.aggregation.sums import Opening, SumAbortedError, SumFailedError
from feddbp_server.run.admission.limits import Limits
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.run.concurrency import Broadcast
from feddbp_server.run.participants import Candidates
from feddbp_server.store import Jobs, SumRecord

Clients = frozenset[int]


class SumStep(StrEnum):
    """The steps, in their order; each takes one message of every client."""

    KEYS = "keys"
    """Decides the roster."""
    SHARES = "shares"
    """Decides the clients whose terms may be summed: those whose secrets can be rebuilt."""
    UPLOADED = "uploaded"
    """Decides the survivors: it has no message but the upload itself."""
    SIGNATURE = "signature"
    REVEAL = "reveal"


@dataclass
class _Sum:
    """The sum of one round, as far as it has come."""

    context: SumContext
    given: dict[SumStep, dict[int, bytes]] = field(default_factory=lambda: {step: {} for step in SumStep})
    decided: dict[SumStep, Clients] = field(default_factory=dict)
    begun: dict[SumStep, float] = field(default_factory=dict)
    """When the first message of a step was received, by the server's clock."""
    over: bool = False
    _roster: Roster | None = None

    def restore(self, records: Iterable[SumRecord]) -> None:
        for record in records:
            if record.client_id is None:
                self.decided[SumStep(record.step)] = _ids_in(record.body)
            else:
                self.given[SumStep(record.step)][record.client_id] = record.body

    def roster(self, verifier: Verifier) -> Roster:
        """The keys of the clients in the sum, once they are decided."""
        if self._roster is None:
            keys = (self.advertisement(client_id) for client_id in self.decided[SumStep.KEYS])
            self._roster = Roster.checked(self.context, keys, verifier)
        return self._roster

    def advertisement(self, client_id: int) -> Advertisement:
        return keys_from_proto(pb.SumKeys.FromString(self.given[SumStep.KEYS][client_id]))

    def reveals(self) -> dict[int, Reveal]:
        return {
            client_id: reveal_from_proto(pb.SumReveal.FromString(body))
            for client_id, body in self.given[SumStep.REVEAL].items()
        }


class SecureSums:
    """Owns the sum of the round that is open."""

    def __init__(
        self,
        store: Jobs,
        *,
        authority: bytes,
        least: int,
        limits: Limits,
        clock: Callable[[], float],
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`least` is the fewest clients of a sum; `stopping` tells whether sums are not to be opened any more."""
        self._store = store
        self._least = least
        self._stopping = stopping
        self._verifier = Verifier(authority)
        self._limits = limits
        self._clock = clock
        self._current: _Sum | None = None
        self._changed = Broadcast()
        self._lock = asyncio.Lock()

    async def advance(
        self, client_id: int, request: pb.AdvanceSumRequest, context: SumContext, candidates: Candidates
    ) -> pb.AdvanceSumResponse:
        """Takes a client's message and answers once its step is over.

        Holds the call for a while, then tells the client to call again.
        """
        step, message = _message_of(request)
        try:
            return await self._advance(client_id, step, message, await self._sum_of(context), candidates)
        except ProtocolViolationError as error:
            raise RefusedError(pb.REFUSAL_REASON_INVALID_REQUEST, f"{step}: {error}", field=step) from None

    async def _advance(
        self, client_id: int, step: SumStep, message: bytes, current: _Sum, candidates: Candidates
    ) -> pb.AdvanceSumResponse:
        excluded = _excluded(current, step, client_id)
        if excluded:
            return pb.AdvanceSumResponse(excluded=pb.SumExcluded(reason=excluded))
        await self._take(current, step, client_id, message)
        deadline = self._clock() + self._limits.sum_hold.total_seconds()
        while True:
            changed = self._changed.upcoming()
            await self._decide(current, candidates)
            answer = self._answer(current, step, client_id) or self._too_few_left(current, candidates)
            left = deadline - self._clock()
            if answer is not None or left <= 0:
                return answer or pb.AdvanceSumResponse(pending=pb.SumPending())
            until_late = self._time_left(current, step)
            with suppress(TimeoutError):  # a step that is late already waits for messages alone
                await asyncio.wait_for(changed.wait(), min(left, until_late) if until_late > 0 else left)

    async def open(self, context: SumContext, uploaded: Clients) -> Opening:
        """Has the clients open the sum of those that have uploaded."""
        current = await self._sum_of(context)
        survivors = await self._survivors(current, uploaded)
        sharing, roster = current.decided[SumStep.SHARES], current.roster(self._verifier)
        deadline = self._clock() + self._limits.sum_wait.total_seconds()
        await self._until_given(current, SumStep.SIGNATURE, roster.threshold, deadline)
        needed, deadline = roster.threshold, self._clock() + self._limits.sum_wait.total_seconds()
        while True:
            await self._until_given(current, SumStep.REVEAL, needed, deadline)
            reveals = current.reveals()
            try:
                secrets = await asyncio.to_thread(
                    Secrets.rebuilt, roster=roster, sharing=sharing, survivors=survivors, reveals=reveals
                )
            except ProtocolViolationError:  # some lie: another client's shares may tell which
                if len(reveals) == len(survivors):
                    raise
                needed = len(reveals) + 1
            else:
                return Opening(
                    clients=survivors, total=partial(unmasked_sum, roster=roster, sharing=sharing, secrets=secrets)
                )

    def wake(self) -> None:
        """Lets a sum notice that the server stops, the run is over, or other clients are left in the round."""
        self._changed.publish()

    def close(self, round_number: int) -> None:
        """Ends a round's sum: clients that wait for a step of it receive that it is over."""
        if self._current is not None and self._current.context.round == round_number:
            self._current.over = True
            self._changed.publish()

    async def _sum_of(self, context: SumContext) -> _Sum:
        async with self._lock:
            if self._current is None or self._current.context != context:
                current = _Sum(context)
                current.restore(await self._store.run(lambda store: store.sum_records(context.round)))
                for step in SumStep:
                    if current.given[step]:
                        current.begun[step] = self._clock()
                self._current = current
            return self._current

    # --- messages ---

    async def _take(self, current: _Sum, step: SumStep, client_id: int, message: bytes) -> None:
        if step is SumStep.UPLOADED:
            return
        if client_id not in current.given[step]:
            self._check(current, step, client_id, message)
            kept = await self._save(current, step, client_id, message)
            current.given[step].setdefault(client_id, kept)
            current.begun.setdefault(step, self._clock())
            fault_point("server.sum.taken")
            self._changed.publish()
        if current.given[step][client_id] != message:
            raise ProtocolViolationError(f"client {client_id} has given something else before")

    def _check(self, current: _Sum, step: SumStep, client_id: int, message: bytes) -> None:
        """Refuses what would spoil the sum for the others."""
        if step is SumStep.KEYS:
            own = keys_from_proto(pb.SumKeys.FromString(message))
            if own.client_id != client_id:
                raise ProtocolViolationError(f"client {client_id} gives the keys of client {own.client_id}")
            own.check(current.context, self._verifier.public_key(client_id, own.certificate))
            return
        roster = current.roster(self._verifier)
        if step is SumStep.SHARES:
            check_shares(pb.SumShares.FromString(message), roster.advertisements.keys() - {client_id})
        elif step is SumStep.SIGNATURE:
            check_signature_length(message)
            signed = roster.survivors_digest(current.decided[SumStep.UPLOADED])
            check_signature(roster.signing_keys[client_id], message, signed, of=f"client {client_id}'s survivors")
        elif step is SumStep.REVEAL:
            check_reveal(
                reveal_from_proto(pb.SumReveal.FromString(message)),
                client_id=client_id,
                sharing=current.decided[SumStep.SHARES],
                survivors=current.decided[SumStep.UPLOADED],
            )

    async def _save(self, current: _Sum, step: SumStep, client_id: int | None, body: bytes) -> bytes:
        record = SumRecord(current.context.round, step, client_id, body)
        return await self._store.run(lambda store: store.save_sum_record(record))

    # --- decisions ---

    async def _decide(self, current: _Sum, candidates: Candidates) -> None:
        """Decides the roster, and who shares, once all have answered, or enough have and the rest is silent."""
        async with self._lock:
            if SumStep.KEYS not in current.decided:
                given = candidates.admitted() & current.given[SumStep.KEYS].keys()
                everyone = candidates.awaited() <= given
                if len(given) >= self._least and (everyone or self._is_late(current, SumStep.KEYS)):
                    await self._settle(current, SumStep.KEYS, given)
            if SumStep.KEYS in current.decided and SumStep.SHARES not in current.decided:
                roster = current.decided[SumStep.KEYS]
                given = candidates.admitted() & current.given[SumStep.SHARES].keys()
                everyone = candidates.awaited() & roster <= given
                enough = len(given) >= current.roster(self._verifier).threshold
                if enough and (everyone or self._is_late(current, SumStep.SHARES)):
                    await self._settle(current, SumStep.SHARES, given)

    async def _settle(self, current: _Sum, step: SumStep, clients: Clients) -> None:
        current.decided[step] = _ids_in(await self._save(current, step, None, _packed_ids(clients)))
        fault_point("server.sum.decided")
        self._changed.publish()

    async def _survivors(self, current: _Sum, uploaded: Clients) -> Clients:
        async with self._lock:
            if SumStep.UPLOADED not in current.decided:
                if SumStep.SHARES not in current.decided:
                    raise SumFailedError("its clients did not get to agree on a sum")
                survivors = uploaded & current.decided[SumStep.SHARES]
                needed = current.roster(self._verifier).threshold
                if len(survivors) < needed:
                    raise SumFailedError(f"{len(survivors)} clients have uploaded; {needed} have to")
                await self._settle(current, SumStep.UPLOADED, survivors)
            survivors = current.decided[SumStep.UPLOADED]
            if not survivors <= uploaded:
                raise SumFailedError(f"the upload of client {min(survivors - uploaded)} is missing")
            return survivors

    async def _until_given(self, current: _Sum, step: SumStep, needed: int, deadline: float) -> None:
        while len(current.given[step]) < needed:
            changed, left = self._changed.upcoming(), deadline - self._clock()
            if self._stopping():
                raise SumAbortedError("the server stops, or the run is over")
            if left <= 0:
                raise SumFailedError(f"{len(current.given[step])} clients gave their {step}; {needed} have to")
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), left)

    def _is_late(self, current: _Sum, step: SumStep) -> bool:
        return self._time_left(current, step) <= 0

    def _time_left(self, current: _Sum, step: SumStep) -> float:
        """Until a step that has begun does without the clients that are silent."""
        return current.begun.get(step, self._clock()) + self._limits.sum_wait.total_seconds() - self._clock()

    # --- answers ---

    def _answer(self, current: _Sum, step: SumStep, client_id: int) -> pb.AdvanceSumResponse | None:
        """None while the step is not over."""
        if current.over or current is not self._current:
            return pb.AdvanceSumResponse(over=pb.SumOver())
        excluded = _excluded(current, step, client_id)
        if excluded:
            return pb.AdvanceSumResponse(excluded=pb.SumExcluded(reason=excluded))
        match step:
            case SumStep.KEYS if SumStep.KEYS in current.decided:
                keys = (current.given[SumStep.KEYS][peer] for peer in sorted(current.decided[SumStep.KEYS]))
                return pb.AdvanceSumResponse(roster=pb.SumRoster(keys=map(pb.SumKeys.FromString, keys)))
            case SumStep.SHARES if SumStep.SHARES in current.decided:
                return pb.AdvanceSumResponse(shares=pb.SumShares(by_client=_shares_for(client_id, current)))
            case SumStep.UPLOADED if SumStep.UPLOADED in current.decided:
                return pb.AdvanceSumResponse(
                    survivors=pb.SumSurvivors(client_ids=sorted(current.decided[SumStep.UPLOADED]))
                )
            case SumStep.SIGNATURE if len(current.given[step]) >= current.roster(self._verifier).threshold:
                return pb.AdvanceSumResponse(signatures=pb.SumSignatures(by_client=current.given[step]))
            case SumStep.REVEAL:
                return pb.AdvanceSumResponse(over=pb.SumOver())
        return None

    def _too_few_left(self, current: _Sum, candidates: Candidates) -> pb.AdvanceSumResponse | None:
        """Excludes a client that waits for a roster or shares which those left in the round can no longer give.

        Who has left or skipped a round does not come back into it, also not after a restart. Clients that are only
        disconnected may: for them a step waits.
        """
        if SumStep.SHARES in current.decided:
            return None
        left, needed = candidates.admitted(), self._least
        if SumStep.KEYS in current.decided:
            left, needed = left & current.decided[SumStep.KEYS], current.roster(self._verifier).threshold
        if len(left) >= needed:
            return None
        reason = f"a sum needs {needed} clients, and {len(left)} are left in the round"
        return pb.AdvanceSumResponse(excluded=pb.SumExcluded(reason=reason))


_BASIS: Final[Mapping[SumStep, SumStep]] = {
    SumStep.KEYS: SumStep.KEYS,
    SumStep.SHARES: SumStep.KEYS,
    SumStep.UPLOADED: SumStep.SHARES,
    SumStep.SIGNATURE: SumStep.UPLOADED,
    SumStep.REVEAL: SumStep.UPLOADED,
}
"""The step whose decision says who may give a message of a step."""


def _excluded(current: _Sum, step: SumStep, client_id: int) -> str:
    """Why a client is left out of the sum; empty if it is not."""
    basis = _BASIS[step]
    admitted = current.decided.get(basis)
    if admitted is None and basis is not step:
        return f"the step before {step} is not over"
    if admitted is not None and client_id not in admitted:
        return _late(basis)
    if (
        step is SumStep.SHARES
        and SumStep.SHARES in current.decided
        and client_id not in current.decided[SumStep.SHARES]
    ):
        return _late(step)
    return ""


def _late(step: SumStep) -> str:
    return f"its {'upload' if step is SumStep.UPLOADED else step} did not arrive in time"


def _shares_for(client_id: int, current: _Sum) -> dict[int, bytes]:
    return {
        peer: pb.SumShares.FromString(current.given[SumStep.SHARES][peer]).by_client[client_id]
        for peer in current.decided[SumStep.SHARES]
        if peer != client_id
    }


def _message_of(request: pb.AdvanceSumRequest) -> tuple[SumStep, bytes]:
    kind = request.WhichOneof("step")
    if kind is None:
        raise RefusedError(pb.REFUSAL_REASON_INVALID_REQUEST, "step: the request says nothing", field="step")
    if kind == "signature":
        return SumStep.SIGNATURE, request.signature
    message = getattr(request, kind)
    return SumStep(kind), message.SerializeToString(deterministic=True)


def _packed_ids(clients: Clients) -> bytes:
    return pb.SumSurvivors(client_ids=sorted(clients)).SerializeToString()


def _ids_in(body: bytes) -> Clients:
    return frozenset(pb.SumSurvivors.FromString(body).client_ids)
