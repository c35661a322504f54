"""The secure sum of the open round: collects the messages of each step, and decides when a step is over.

Every message and every decision is durable before anybody is told of it, so that a server that was killed goes on with
the same roster, the same shares and the same survivors. Clients answer once; a second roster or a second set of
survivors would end in a sum that nobody opens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import ProtocolViolationError
from feddbp_common.fault_injection import fault_point
from feddbp_common.secure_sums import MIN_CLIENTS
from feddbp_common.secure_sums.digests import Attempt
from feddbp_common.secure_sums.identity import Verifier, check_signature
from feddbp_common.secure_sums.messages import Advertisement, Reveal, Roster
from feddbp_common.secure_sums.proto import (
    check_shares,
    check_signature_length,
    keys_from_proto,
    reveal_from_proto,
)
from feddbp_common.secure_sums.server import check_reveal, unmasked_sum
from feddbp_server.aggregation.sums import Opening, SumFailedError
from feddbp_server.run.engine import Broadcast
from feddbp_server.run.limits import Limits
from feddbp_server.run.refusals import RefusedError
from feddbp_server.store import Jobs, SumRecord

log = logging.getLogger("feddbp.server")

Clients = frozenset[int]


class Step(StrEnum):
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

    attempt: Attempt
    given: dict[Step, dict[int, bytes]] = field(default_factory=lambda: {step: {} for step in Step})
    decided: dict[Step, Clients] = field(default_factory=dict)
    begun: dict[Step, float] = field(default_factory=dict)
    """When the first message of a step was received, by the server's clock."""
    over: bool = False
    _roster: Roster | None = None

    def restore(self, records: Iterable[SumRecord]) -> None:
        for record in records:
            if record.client_id is None:
                self.decided[Step(record.step)] = _ids_in(record.body)
            else:
                self.given[Step(record.step)][record.client_id] = record.body

    def roster(self, verifier: Verifier) -> Roster:
        """The keys of the clients in the sum, once they are decided."""
        if self._roster is None:
            keys = (self.advertisement(client_id) for client_id in self.decided[Step.KEYS])
            self._roster = Roster.checked(self.attempt, keys, verifier)
        return self._roster

    def advertisement(self, client_id: int) -> Advertisement:
        return keys_from_proto(pb.SumKeys.FromString(self.given[Step.KEYS][client_id]))

    def reveals(self) -> dict[int, Reveal]:
        return {
            client_id: reveal_from_proto(pb.SumReveal.FromString(body))
            for client_id, body in self.given[Step.REVEAL].items()
        }


class SecureSums:
    """Owns the sum of the round that is open."""

    def __init__(self, store: Jobs, *, authority: bytes, limits: Limits, clock: Callable[[], float]) -> None:
        self._store = store
        self._verifier = Verifier(authority)
        self._limits = limits
        self._clock = clock
        self._current: _Sum | None = None
        self._changed = Broadcast()
        self._lock = asyncio.Lock()

    async def advance(
        self, client_id: int, request: pb.AdvanceSumRequest, attempt: Attempt, awaited: Callable[[], Clients]
    ) -> pb.AdvanceSumResponse:
        """Takes a client's message and answers once its step is over; `awaited` are the clients that may be in the sum.

        Holds the call for a while, then tells the client to call again.
        """
        current = await self._sum_of(attempt)
        step, message = _message_of(request)
        excluded = _excluded(current, step, client_id)
        if excluded:
            return pb.AdvanceSumResponse(excluded=pb.SumExcluded(reason=excluded))
        try:
            await self._take(current, step, client_id, message)
        except ProtocolViolationError as error:
            raise RefusedError(pb.REFUSAL_REASON_INVALID_REQUEST, f"{step}: {error}", field=step) from None
        give_up = self._clock() + self._limits.sum_hold.total_seconds()
        while True:
            changed = self._changed.upcoming()
            await self._decide(current, awaited)
            answer = self._answer(current, step, client_id)
            left = give_up - self._clock()
            if answer is not None or left <= 0:
                return answer or pb.AdvanceSumResponse(pending=pb.SumPending())
            until_late = self._time_left(current, step)
            with suppress(TimeoutError):  # a step that is late already waits for messages alone
                await asyncio.wait_for(changed.wait(), min(left, until_late) if until_late > 0 else left)

    async def open(self, attempt: Attempt, uploaded: Clients) -> Opening:
        """Has the clients open the sum of those that have uploaded."""
        current = await self._sum_of(attempt)
        survivors = await self._survivors(current, uploaded)
        sharing, roster = current.decided[Step.SHARES], current.roster(self._verifier)
        for step in (Step.SIGNATURE, Step.REVEAL):
            await self._until_enough(current, step, roster.threshold)
        reveals = current.reveals()
        return Opening(
            clients=survivors,
            total=partial(unmasked_sum, roster=roster, sharing=sharing, survivors=survivors, reveals=reveals),
        )

    def close(self, round_number: int) -> None:
        """Ends a round's sum: clients that wait for a step of it are told so."""
        if self._current is not None and self._current.attempt.round == round_number:
            self._current.over = True
            self._changed.publish()

    async def _sum_of(self, attempt: Attempt) -> _Sum:
        async with self._lock:
            if self._current is None or self._current.attempt != attempt:
                current = _Sum(attempt)
                current.restore(await self._store.run(lambda store: store.sum_records(attempt.round)))
                for step in Step:
                    if current.given[step]:
                        current.begun[step] = self._clock()
                self._current = current
            return self._current

    # --- messages ---

    async def _take(self, current: _Sum, step: Step, client_id: int, message: bytes) -> None:
        if step is Step.UPLOADED:
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

    def _check(self, current: _Sum, step: Step, client_id: int, message: bytes) -> None:
        """Refuses what would spoil the sum for the others."""
        if step is Step.KEYS:
            own = keys_from_proto(pb.SumKeys.FromString(message))
            if own.client_id != client_id:
                raise ProtocolViolationError(f"client {client_id} gives the keys of client {own.client_id}")
            key = self._verifier.public_key(client_id, own.certificate)
            check_signature(key, own.signature, own.signed_part(current.attempt), of=f"client {client_id}'s keys")
            return
        roster = current.roster(self._verifier)
        if step is Step.SHARES:
            check_shares(pb.SumShares.FromString(message), roster.advertisements.keys() - {client_id})
        elif step is Step.SIGNATURE:
            check_signature_length(message)
            signed = roster.survivors_digest(current.decided[Step.UPLOADED])
            check_signature(roster.signing_keys[client_id], message, signed, of=f"client {client_id}'s survivors")
        elif step is Step.REVEAL:
            check_reveal(
                reveal_from_proto(pb.SumReveal.FromString(message)),
                client_id=client_id,
                sharing=current.decided[Step.SHARES],
                survivors=current.decided[Step.UPLOADED],
            )

    async def _save(self, current: _Sum, step: Step, client_id: int | None, body: bytes) -> bytes:
        record = SumRecord(current.attempt.round, step, client_id, body)
        return await self._store.run(lambda store: store.save_sum_record(record))

    # --- decisions ---

    async def _decide(self, current: _Sum, awaited: Callable[[], Clients]) -> None:
        """Decides the roster, and who shares, once all have answered, or enough have and the rest is silent."""
        async with self._lock:
            if Step.KEYS not in current.decided:
                given = frozenset(current.given[Step.KEYS])
                if len(given) >= MIN_CLIENTS and (awaited() <= given or self._is_late(current, Step.KEYS)):
                    await self._settle(current, Step.KEYS, given)
            if Step.KEYS in current.decided and Step.SHARES not in current.decided:
                roster, given = current.decided[Step.KEYS], frozenset(current.given[Step.SHARES])
                enough = len(given) >= current.roster(self._verifier).threshold
                if enough and (roster <= given or self._is_late(current, Step.SHARES)):
                    await self._settle(current, Step.SHARES, given)

    async def _settle(self, current: _Sum, step: Step, clients: Clients) -> None:
        current.decided[step] = _ids_in(await self._save(current, step, None, _packed_ids(clients)))
        fault_point("server.sum.decided")
        self._changed.publish()

    async def _survivors(self, current: _Sum, uploaded: Clients) -> Clients:
        async with self._lock:
            if Step.UPLOADED not in current.decided:
                if Step.SHARES not in current.decided:
                    raise SumFailedError("its clients did not get to agree on a sum")
                survivors = uploaded & current.decided[Step.SHARES]
                needed = current.roster(self._verifier).threshold
                if len(survivors) < needed:
                    raise SumFailedError(f"{len(survivors)} clients have uploaded; {needed} have to")
                await self._settle(current, Step.UPLOADED, survivors)
            survivors = current.decided[Step.UPLOADED]
            if not survivors <= uploaded:
                raise SumFailedError(f"the upload of client {min(survivors - uploaded)} is missing")
            return survivors

    async def _until_enough(self, current: _Sum, step: Step, needed: int) -> None:
        give_up = self._clock() + self._limits.sum_wait.total_seconds()
        while len(current.given[step]) < needed:
            changed, left = self._changed.upcoming(), give_up - self._clock()
            if left <= 0:
                raise SumFailedError(f"{len(current.given[step])} clients gave their {step}; {needed} have to")
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), left)

    def _is_late(self, current: _Sum, step: Step) -> bool:
        return self._time_left(current, step) <= 0

    def _time_left(self, current: _Sum, step: Step) -> float:
        """Until a step that has begun does without the clients that are silent."""
        return current.begun.get(step, self._clock()) + self._limits.sum_wait.total_seconds() - self._clock()

    # --- answers ---

    def _answer(self, current: _Sum, step: Step, client_id: int) -> pb.AdvanceSumResponse | None:
        """None while the step is not over."""
        if current.over or current is not self._current:
            return pb.AdvanceSumResponse(over=pb.SumOver())
        excluded = _excluded(current, step, client_id)
        if excluded:
            return pb.AdvanceSumResponse(excluded=pb.SumExcluded(reason=excluded))
        match step:
            case Step.KEYS if Step.KEYS in current.decided:
                keys = (current.given[Step.KEYS][peer] for peer in sorted(current.decided[Step.KEYS]))
                return pb.AdvanceSumResponse(roster=pb.SumRoster(keys=map(pb.SumKeys.FromString, keys)))
            case Step.SHARES if Step.SHARES in current.decided:
                return pb.AdvanceSumResponse(shares=pb.SumShares(by_client=_shares_for(client_id, current)))
            case Step.UPLOADED if Step.UPLOADED in current.decided:
                return pb.AdvanceSumResponse(
                    survivors=pb.SumSurvivors(client_ids=sorted(current.decided[Step.UPLOADED]))
                )
            case Step.SIGNATURE if len(current.given[step]) >= current.roster(self._verifier).threshold:
                return pb.AdvanceSumResponse(signatures=pb.SumSignatures(by_client=current.given[step]))
            case Step.REVEAL:
                return pb.AdvanceSumResponse(over=pb.SumOver())
        return None


_BASIS: Final[Mapping[Step, Step]] = {
    Step.KEYS: Step.KEYS,
    Step.SHARES: Step.KEYS,
    Step.UPLOADED: Step.SHARES,
    Step.SIGNATURE: Step.UPLOADED,
    Step.REVEAL: Step.UPLOADED,
}
"""The step whose decision says who may give a message of a step."""


def _excluded(current: _Sum, step: Step, client_id: int) -> str:
    """Why the sum goes on without a client; empty if it does not."""
    basis = _BASIS[step]
    admitted = current.decided.get(basis)
    if admitted is None and basis is not step:
        return f"the step before {step} is not over"
    if admitted is not None and client_id not in admitted:
        return f"the others went on without its {basis}"
    if step is Step.SHARES and Step.SHARES in current.decided and client_id not in current.decided[Step.SHARES]:
        return f"the others went on without its {step}"
    return ""


def _shares_for(client_id: int, current: _Sum) -> dict[int, bytes]:
    return {
        peer: pb.SumShares.FromString(current.given[Step.SHARES][peer]).by_client[client_id]
        for peer in current.decided[Step.SHARES]
        if peer != client_id
    }


def _message_of(request: pb.AdvanceSumRequest) -> tuple[Step, bytes]:
    kind = request.WhichOneof("step")
    if kind is None:
        raise RefusedError(pb.REFUSAL_REASON_INVALID_REQUEST, "step: the request says nothing", field="step")
    if kind == "signature":
        return Step.SIGNATURE, request.signature
    message = getattr(request, kind)
    return Step(kind), message.SerializeToString(deterministic=True)


def _packed_ids(clients: Clients) -> bytes:
    return pb.SumSurvivors(client_ids=sorted(clients)).SerializeToString()


def _ids_in(body: bytes) -> Clients:
    return frozenset(pb.SumSurvivors.FromString(body).client_ids)
