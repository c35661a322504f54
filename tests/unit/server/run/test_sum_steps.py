"""The server's side of a secure sum: what a member may give, who is left out, and what a restart remembers."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.secure_sums.client import SumClient
from feddbp_common.secure_sums.digests import SumContext
from feddbp_common.secure_sums.fixed_point import Words, from_fixed, to_fixed
from feddbp_common.secure_sums.identity import Signer, Verifier
from feddbp_common.secure_sums.messages import Roster
from feddbp_common.secure_sums.proto import keys_from_proto, keys_to_proto, reveal_to_proto
from feddbp_lab.pki.certificates import Authority
from feddbp_server.aggregation.sums import SumAbortedError, SumFailedError
from feddbp_server.run.admission.limits import DEFAULT_LIMITS
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.run.participants import Candidates
from feddbp_server.run.secure_sums import SecureSums
from feddbp_server.store import MemoryStore, StoreWriter

CLIENTS = 5
EVERYONE = frozenset(range(CLIENTS))
CONTEXT = SumContext(run_id="run", round=1, config_sha256=bytes(32), state_sha256=bytes(32))
LIMITS = replace(DEFAULT_LIMITS, sum_wait=timedelta(seconds=0.1), sum_hold=timedelta(seconds=60))


def among(clients: frozenset[int]) -> Candidates:
    return Candidates(admitted=lambda: clients, awaited=lambda: clients)


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certs")
    authority = Authority.create(directory)
    for client_id in range(CLIENTS + 1):
        authority.issue_party(f"client-{client_id}")
    return directory


class Members:
    """The clients of a sum, and the server that they talk to."""

    def __init__(self, certs: Path, *, wait: timedelta = timedelta(seconds=60)) -> None:
        self._certs = certs
        self.store = StoreWriter(MemoryStore())
        self.authority = (certs / "ca.pem").read_bytes()
        self.limits = replace(LIMITS, sum_wait=wait)
        self.sums = self.restarted()
        self.verifier = Verifier(self.authority)
        self.clients = {number: self.client(number) for number in range(CLIENTS)}

    def restarted(self) -> SecureSums:
        return SecureSums(self.store, authority=self.authority, least=CLIENTS, limits=self.limits, clock=time.monotonic)

    def client(self, number: int, context: SumContext = CONTEXT) -> SumClient:
        pem, key = ((self._certs / f"client-{number}.{kind}").read_bytes() for kind in ("pem", "key"))
        signer = Signer.load(pem, key)
        return SumClient(client_id=number, root=secrets.token_bytes(32), context=context, signer=signer)

    async def give(self, number: int, **step: Any) -> pb.AdvanceSumResponse:
        request = pb.AdvanceSumRequest(round=1, **step)
        return await self.sums.advance(number, request, CONTEXT, among(EVERYONE))

    async def give_all(self, steps: Mapping[int, Mapping[str, Any]]) -> dict[int, pb.AdvanceSumResponse]:
        answers = await asyncio.gather(*(self.give(number, **step) for number, step in steps.items()))
        return dict(zip(steps, answers, strict=True))

    def keys(self, number: int) -> pb.SumKeys:
        return keys_to_proto(self.clients[number].advertisement())

    async def agreed(self) -> tuple[Roster, dict[int, dict[int, bytes]]]:
        """The roster, and the shares that each client has received."""
        answers = await self.give_all({number: {"keys": self.keys(number)} for number in self.clients})
        roster = self.clients[0].roster(map(keys_from_proto, answers[0].roster.keys), self.verifier)
        shares = {
            number: {"shares": pb.SumShares(by_client=client.shares(roster))} for number, client in self.clients.items()
        }
        answers = await self.give_all(shares)
        return roster, {number: dict(answer.shares.by_client) for number, answer in answers.items()}


@pytest.fixture
def members(certs: Path) -> Members:
    return Members(certs)


def vector(number: int) -> Words:
    return to_fixed(np.random.default_rng(number).standard_normal(9), parties=CLIENTS)


async def test_a_sum_is_opened_by_its_members(members: Members) -> None:
    roster, received = await members.agreed()
    masked = {
        number: client.masked(vector(number), roster, received[number]) for number, client in members.clients.items()
    }
    opening = asyncio.create_task(members.sums.open(CONTEXT, EVERYONE))
    answers = await members.give_all({number: {"uploaded": pb.SumUploaded()} for number in EVERYONE})
    survivors = frozenset(answers[0].survivors.client_ids)
    assert survivors == EVERYONE
    signed = {
        number: {"signature": client.sign_survivors(roster, received[number], survivors)}
        for number, client in members.clients.items()
    }
    answers = await members.give_all(signed)
    reveals = {}
    for number, client in members.clients.items():
        signatures = dict(answers[number].signatures.by_client)
        reveals[number] = {"reveal": reveal_to_proto(client.reveal(roster, received[number], survivors, signatures))}
    answers = await members.give_all(reveals)
    assert all(answer.HasField("over") for answer in answers.values())
    opened = await opening
    total = opened.total(masked[number] for number in sorted(opened.clients))
    assert np.array_equal(from_fixed(total), from_fixed(sum(map(vector, EVERYONE), np.zeros(9, np.uint64))))


# --- what a member may not give ---


async def refused(members: Members, number: int, reason: str, **step: Any) -> None:
    with pytest.raises(RefusedError, match=reason):
        await members.give(number, **step)


async def test_keys_that_would_spoil_the_roster_are_refused(members: Members) -> None:
    good = members.keys(0)
    await refused(members, 1, "client 1 gives the keys of client 0", keys=good)
    unsigned = pb.SumKeys()
    unsigned.CopyFrom(good)
    unsigned.signature = b""
    await refused(members, 0, "signature has 0 bytes", keys=unsigned)
    unsigned.signature = b"x" * 70
    await refused(members, 0, "signature of client 0's keys does not fit", keys=unsigned)
    exchanged = pb.SumKeys()
    exchanged.CopyFrom(good)
    exchanged.mask_key = bytes(32)
    await refused(members, 0, "signature of client 0's keys does not fit", keys=exchanged)
    foreign = pb.SumKeys()
    foreign.CopyFrom(good)
    foreign.certificate = members.keys(1).certificate
    await refused(members, 0, "is that of client-1", keys=foreign)


@pytest.mark.parametrize(
    "other",
    [
        replace(CONTEXT, round=0),
        replace(CONTEXT, run_id="another"),
        replace(CONTEXT, config_sha256=bytes([1]) * 32),
        replace(CONTEXT, state_sha256=bytes([1]) * 32),
    ],
    ids=["round", "run", "configuration", "state"],
)
async def test_keys_of_another_round_run_configuration_or_state_are_refused(
    members: Members, other: SumContext
) -> None:
    replayed = keys_to_proto(members.client(0, other).advertisement())
    await refused(members, 0, "signature of client 0's keys does not fit", keys=replayed)


async def test_a_member_gives_each_message_once(members: Members) -> None:
    await members.agreed()
    members.clients[0] = members.client(0)  # it has lost its secret
    await refused(members, 0, "has given something else before", keys=members.keys(0))


async def test_shares_are_for_every_peer(members: Members) -> None:
    answers = await members.give_all({number: {"keys": members.keys(number)} for number in EVERYONE})
    roster = members.clients[0].roster(map(keys_from_proto, answers[0].roster.keys), members.verifier)
    shares = members.clients[0].shares(roster)
    short = pb.SumShares(by_client={peer: share[:-1] for peer, share in shares.items()})
    await refused(members, 0, "a share has 81 bytes, not 82", shares=short)
    del shares[1]
    await refused(members, 0, "not for every peer", shares=pb.SumShares(by_client=shares))


async def test_survivors_are_signed_and_opened_as_they_were_announced(members: Members) -> None:
    roster, received = await members.agreed()
    opening = asyncio.create_task(members.sums.open(CONTEXT, EVERYONE - {4}))
    await members.give_all({number: {"uploaded": pb.SumUploaded()} for number in EVERYONE - {4}})
    client = members.clients[0]
    other = client.sign_survivors(roster, received[0], EVERYONE)
    await refused(members, 0, "survivors does not fit", signature=other)
    both = pb.SumReveal(seeds={number: bytes(33) for number in EVERYONE}, mask_keys={4: bytes(33)})
    await refused(members, 0, "not asked for, or not all", reveal=both)
    outside = await members.give(4, uploaded=pb.SumUploaded())
    assert list(outside.survivors.client_ids) == [0, 1, 2, 3]
    late = await members.give(4, signature=other)
    assert late.excluded.reason == "its upload did not arrive in time"
    opening.cancel()


async def test_a_request_without_a_message_is_refused(members: Members) -> None:
    await refused(members, 0, "says nothing")


# --- lost members ---


async def test_a_silent_client_is_left_out_and_receives_why(certs: Path) -> None:
    members = Members(certs, wait=timedelta(seconds=0.05))
    members.clients[5] = members.client(5)
    everyone = frozenset(range(6))

    async def give(number: int) -> pb.AdvanceSumResponse:
        request = pb.AdvanceSumRequest(round=1, keys=members.keys(number))
        return await members.sums.advance(number, request, CONTEXT, among(everyone))

    answers = await asyncio.gather(*map(give, range(CLIENTS)))
    assert [len(answer.roster.keys) for answer in answers] == [CLIENTS] * CLIENTS
    late = await give(5)
    assert late.excluded.reason == "its keys did not arrive in time"


async def test_too_few_uploads_give_no_sum(members: Members) -> None:
    await members.agreed()
    with pytest.raises(SumFailedError, match="3 clients have uploaded; 4 have to"):
        await members.sums.open(CONTEXT, frozenset({0, 1, 2}))


async def test_fewer_clients_than_a_sum_takes_get_no_roster(certs: Path) -> None:
    members = Members(certs, wait=timedelta(seconds=0))
    members.limits = replace(members.limits, sum_hold=timedelta(seconds=0.05))
    members.sums = members.restarted()
    answers = await members.give_all({number: {"keys": members.keys(number)} for number in range(CLIENTS - 1)})
    assert all(answer.HasField("pending") for answer in answers.values())


async def test_a_client_that_an_operator_blocks_is_not_in_the_roster(certs: Path) -> None:
    members = Members(certs)
    members.clients[5] = members.client(5)
    admitted = frozenset(range(6))

    async def give(number: int) -> pb.AdvanceSumResponse:
        request = pb.AdvanceSumRequest(round=1, keys=members.keys(number))
        candidates = Candidates(admitted=lambda: admitted, awaited=lambda: admitted)
        return await members.sums.advance(number, request, CONTEXT, candidates)

    waiting = [asyncio.create_task(give(number)) for number in (5, 0, 1, 2, 3)]
    await asyncio.sleep(0)
    admitted = EVERYONE
    answer = await give(4)
    assert [keys.client_id for keys in answer.roster.keys] == sorted(EVERYONE)
    await asyncio.gather(*waiting)


async def test_clients_that_wait_for_a_roster_learn_that_too_few_are_left(members: Members) -> None:
    left = EVERYONE
    candidates = Candidates(admitted=lambda: left, awaited=lambda: left)

    async def give(number: int) -> pb.AdvanceSumResponse:
        request = pb.AdvanceSumRequest(round=1, keys=members.keys(number))
        return await members.sums.advance(number, request, CONTEXT, candidates)

    waiting = [asyncio.create_task(give(number)) for number in range(4)]
    while not await has_keys_of(members, range(4)):
        pass
    assert not any(task.done() for task in waiting)  # client 4 may be back
    left = EVERYONE - {4}
    members.sums.wake()
    for answer in await asyncio.gather(*waiting):
        assert answer.excluded.reason == "a sum needs 5 clients, and 4 are left in the round"
    members.sums = members.restarted()
    assert (await give(0)).HasField("excluded")


async def has_keys_of(members: Members, clients: Iterable[int]) -> bool:
    records = await members.store.run(lambda store: store.sum_records(CONTEXT.round))
    return {record.client_id for record in records} >= set(clients)


@pytest.mark.parametrize(("gone", "goes_on"), [({4}, True), ({3, 4}, False)])
async def test_shares_are_exchanged_down_to_the_threshold_and_no_further(
    members: Members, gone: set[int], goes_on: bool
) -> None:
    answers = await members.give_all({number: {"keys": members.keys(number)} for number in EVERYONE})
    roster = members.clients[0].roster(map(keys_from_proto, answers[0].roster.keys), members.verifier)
    left = among(EVERYONE - gone)

    async def give(number: int) -> pb.AdvanceSumResponse:
        shares = pb.SumShares(by_client=members.clients[number].shares(roster))
        return await members.sums.advance(number, pb.AdvanceSumRequest(round=1, shares=shares), CONTEXT, left)

    answers_of_left = await asyncio.gather(*map(give, sorted(EVERYONE - gone)))
    for answer in answers_of_left:
        if goes_on:
            assert set(answer.shares.by_client) < EVERYONE - gone
        else:
            assert answer.excluded.reason == "a sum needs 4 clients, and 3 are left in the round"


async def test_a_sum_that_is_shared_goes_on_whoever_leaves(members: Members) -> None:
    await members.agreed()
    opening = asyncio.create_task(members.sums.open(CONTEXT, EVERYONE))
    request = pb.AdvanceSumRequest(round=1, uploaded=pb.SumUploaded())
    answer = await members.sums.advance(0, request, CONTEXT, among(frozenset({0})))
    assert set(answer.survivors.client_ids) == EVERYONE
    opening.cancel()


async def test_a_sum_is_not_given_up_because_the_server_stops(members: Members) -> None:
    stops = False
    members.sums = SecureSums(
        members.store,
        authority=members.authority,
        least=CLIENTS,
        limits=members.limits,
        clock=time.monotonic,
        stopping=lambda: stops,
    )
    await members.agreed()
    opening = asyncio.create_task(members.sums.open(CONTEXT, EVERYONE))
    await members.give(0, uploaded=pb.SumUploaded())
    stops = True
    members.sums.wake()
    with pytest.raises(SumAbortedError):
        await opening


async def test_a_round_that_never_agreed_gives_no_sum(members: Members) -> None:
    with pytest.raises(SumFailedError, match="did not get to agree"):
        await members.sums.open(CONTEXT, EVERYONE)


async def test_clients_that_wait_are_told_when_the_round_is_over(members: Members) -> None:
    await members.agreed()
    waiting = asyncio.create_task(members.give(0, uploaded=pb.SumUploaded()))
    await asyncio.sleep(0)
    members.sums.close(CONTEXT.round)
    assert (await waiting).HasField("over")


# --- restarts ---


async def test_a_restarted_server_has_the_same_roster_and_shares(members: Members) -> None:
    roster, received = await members.agreed()
    members.sums = members.restarted()
    answer = await members.give(0, keys=members.keys(0))
    again = members.clients[0].roster(map(keys_from_proto, answer.roster.keys), members.verifier)
    assert again.digest == roster.digest
    answer = await members.give(0, shares=pb.SumShares(by_client=members.clients[0].shares(roster)))
    assert dict(answer.shares.by_client) == received[0]


async def test_a_restarted_server_keeps_to_its_survivors(members: Members) -> None:
    await members.agreed()
    opening = asyncio.create_task(members.sums.open(CONTEXT, EVERYONE - {4}))
    await members.give(0, uploaded=pb.SumUploaded())
    opening.cancel()
    members.sums = members.restarted()
    opening = asyncio.create_task(members.sums.open(CONTEXT, EVERYONE))  # the upload of client 4 came after all
    answer = await members.give(0, uploaded=pb.SumUploaded())
    assert list(answer.survivors.client_ids) == [0, 1, 2, 3]
    opening.cancel()
