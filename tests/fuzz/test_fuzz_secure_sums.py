"""Forged messages of secure sums: a server takes none that spoils a sum, and a client reveals nothing after one."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from mutations import mutate_field, mutated_bytes

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.secure_round import SecureRound, SumParty
from feddbp_client.daemon.sum_journal import SumJournal
from feddbp_common.errors import FedDBPError
from feddbp_common.secure_sums.client import SumClient
from feddbp_common.secure_sums.digests import SumContext
from feddbp_common.secure_sums.fixed_point import from_fixed, to_fixed
from feddbp_common.secure_sums.identity import Signer, Verifier
from feddbp_common.secure_sums.messages import Roster
from feddbp_common.secure_sums.proto import keys_from_proto, keys_to_proto, reveal_to_proto
from feddbp_lab.pki.certificates import Authority
from feddbp_server.aggregation.sums import Opening
from feddbp_server.run.admission.limits import DEFAULT_LIMITS
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.run.participants import Candidates
from feddbp_server.run.secure_sums import SecureSums
from feddbp_server.store import MemoryStore, StoreWriter

HONEST = 6
LIAR = HONEST
"""A member with a certificate of its own."""
CONTEXT: Final = SumContext(run_id="run", round=1, config_sha256=bytes(32), state_sha256=bytes(32))
EVERYONE = Candidates(admitted=lambda: frozenset(range(HONEST + 1)), awaited=lambda: frozenset(range(HONEST)))
"""The server waits for the honest members alone."""
LIMITS = replace(DEFAULT_LIMITS, sum_hold=timedelta(0))
"""So that no call waits for the others."""
Advance = Callable[[pb.AdvanceSumRequest], Awaitable[pb.AdvanceSumResponse]]


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Signer], bytes]:
    """The signers of all members, and the authority."""
    directory = tmp_path_factory.mktemp("certs")
    authority = Authority.create(directory)
    signers = []
    for number in range(HONEST + 1):
        authority.issue_party(f"client-{number}")
        pem, key = ((directory / f"client-{number}.{kind}").read_bytes() for kind in ("pem", "key"))
        signers.append(Signer.load(pem, key))
    return signers, (directory / "ca.pem").read_bytes()


def sum_client(number: int, signers: list[Signer]) -> SumClient:
    return SumClient(client_id=number, root=secrets.token_bytes(32), context=CONTEXT, signer=signers[number])


def mutated(message: pb.AdvanceSumRequest | pb.AdvanceSumResponse, random: Random) -> bytes | None:
    """Some bytes or fields of a message changed; None if they are no message any more."""
    if random.random() < 0.4:
        changed = mutated_bytes(message.SerializeToString(), random)
    else:
        copy = type(message).FromString(message.SerializeToString())
        for _ in range(random.randint(1, 3)):
            mutate_field(copy, random)
        changed = copy.SerializeToString()
    try:
        type(message).FromString(changed)
    except DecodeError:
        return None
    return changed


def check_line(error: Exception) -> None:
    assert str(error).isprintable(), ascii(error)
    assert len(str(error)) < 1_000


# --- a lying member ---


class ForgedSum:
    """A sum of honest clients, whose server gets forged messages of a member before and after each step."""

    def __init__(self, parties: tuple[list[Signer], bytes], random: Random, forgeries: int) -> None:
        signers, authority = parties
        self._random = random
        self._forgeries = forgeries
        self.tally: Counter[str] = Counter()
        self.clients = {number: sum_client(number, signers) for number in range(HONEST)}
        self.liar = sum_client(LIAR, signers)
        self.verifier = Verifier(authority)
        self.store = StoreWriter(MemoryStore())
        self.sums = SecureSums(self.store, authority=authority, least=HONEST, limits=LIMITS, clock=time.monotonic)

    async def give(self, number: int, request: pb.AdvanceSumRequest) -> pb.AdvanceSumResponse:
        return await self.sums.advance(number, request, CONTEXT, EVERYONE)

    async def step(self, requests: dict[int, pb.AdvanceSumRequest]) -> dict[int, pb.AdvanceSumResponse]:
        """The answers of a step to the honest clients, with forgeries in between."""
        for number, request in requests.items():
            await self._forge(list(requests.values()))
            await self.give(number, request)
        await self._forge(list(requests.values()))
        return {number: await self.give(number, request) for number, request in requests.items()}

    async def _forge(self, honest: list[pb.AdvanceSumRequest]) -> None:
        own = pb.AdvanceSumRequest(round=1, keys=keys_to_proto(self.liar.advertisement()))
        for _ in range(self._forgeries):
            changed = mutated(self._random.choice([own, *honest]), self._random)
            if changed is None or (forged := pb.AdvanceSumRequest.FromString(changed)).keys == own.keys:
                continue  # with its own keys it would be an honest member
            try:
                answer = await self.give(LIAR, forged)
            except RefusedError as error:
                check_line(error)
                self.tally["refused"] += 1
            else:
                self.tally[answer.WhichOneof("answer") or "nothing"] += 1

    async def run(self) -> tuple[Roster, frozenset[int]]:
        """All steps; returns the roster and the survivors."""
        answers = await self.step(
            {
                number: pb.AdvanceSumRequest(round=1, keys=keys_to_proto(client.advertisement()))
                for number, client in self.clients.items()
            }
        )
        roster = self.clients[0].roster(map(keys_from_proto, answers[0].roster.keys), self.verifier)
        answers = await self.step(
            {
                number: pb.AdvanceSumRequest(round=1, shares=pb.SumShares(by_client=client.shares(roster)))
                for number, client in self.clients.items()
            }
        )
        received = {number: dict(answer.shares.by_client) for number, answer in answers.items()}
        masked = {
            number: client.masked(to_fixed(np.full(3, float(number)), parties=HONEST), roster, received[number])
            for number, client in self.clients.items()
        }
        opening = await self._opened(roster, received)
        total = opening.total(masked[number] for number in sorted(opening.clients))
        assert np.array_equal(from_fixed(total), np.full(3, float(sum(opening.clients))))
        return roster, opening.clients

    async def _opened(self, roster: Roster, received: dict[int, dict[int, bytes]]) -> Opening:
        everyone = frozenset(self.clients)
        await self.sums._survivors(await self.sums._sum_of(CONTEXT), everyone)
        answers = await self.step(
            {number: pb.AdvanceSumRequest(round=1, uploaded=pb.SumUploaded()) for number in everyone}
        )
        assert frozenset(answers[0].survivors.client_ids) == everyone
        answers = await self.step(
            {
                number: pb.AdvanceSumRequest(
                    round=1, signature=client.sign_survivors(roster, received[number], everyone)
                )
                for number, client in self.clients.items()
            }
        )
        reveals = {}
        for number, client in self.clients.items():
            reveal = client.reveal(roster, received[number], everyone, dict(answers[number].signatures.by_client))
            reveals[number] = pb.AdvanceSumRequest(round=1, reveal=reveal_to_proto(reveal))
        await self.step(reveals)
        return await self.sums.open(CONTEXT, everyone)


@pytest.mark.parametrize("forgeries", [10, pytest.param(1_000, marks=pytest.mark.full)], ids=str)
async def test_forged_messages_of_a_member_do_not_spoil_a_sum(
    forgeries: int, parties: tuple[list[Signer], bytes]
) -> None:
    forged = ForgedSum(parties, Random(29), forgeries)
    roster, clients = await forged.run()
    await forged.store.close()
    print(f"\n{dict(forged.tally)}")
    assert set(roster.advertisements) == clients == frozenset(range(HONEST))
    assert forged.tally["refused"] > forgeries


# --- a lying server ---


class LyingServer:
    """Answers client 0 as an honest server does, but for one answer."""

    def __init__(self, peers: dict[int, SumClient], verifier: Verifier, lie_at: int, random: Random) -> None:
        self._peers = peers
        self._verifier = verifier
        self._lie_at = lie_at
        self._random = random
        self._answers = 0
        self._received: dict[int, dict[int, bytes]] = {}
        self._roster: Roster | None = None
        self.lied = False
        self.revealed: pb.SumReveal | None = None

    async def advance(self, request: pb.AdvanceSumRequest) -> pb.AdvanceSumResponse:
        kind = request.WhichOneof("step")
        assert kind is not None
        honest: pb.AdvanceSumResponse = getattr(self, f"_on_{kind}")(request)
        self._answers += 1
        if self._answers - 1 == self._lie_at:
            changed = mutated(honest, self._random)
            if changed is not None:
                lie = pb.AdvanceSumResponse.FromString(changed)
                self.lied = lie != honest
                return lie
        return honest

    def _on_keys(self, request: pb.AdvanceSumRequest) -> pb.AdvanceSumResponse:
        keys = [request.keys, *(keys_to_proto(peer.advertisement()) for peer in self._peers.values())]
        self._roster = self._peers[1].roster(map(keys_from_proto, keys), self._verifier)
        return pb.AdvanceSumResponse(roster=pb.SumRoster(keys=keys))

    def _on_shares(self, request: pb.AdvanceSumRequest) -> pb.AdvanceSumResponse:
        assert self._roster is not None
        given = {number: peer.shares(self._roster) for number, peer in self._peers.items()}
        given[0] = dict(request.shares.by_client)
        self._received = {
            receiver: {sender: shares[receiver] for sender, shares in given.items() if receiver in shares}
            for receiver in given
        }
        return pb.AdvanceSumResponse(shares=pb.SumShares(by_client=self._received[0]))

    def _on_uploaded(self, _: pb.AdvanceSumRequest) -> pb.AdvanceSumResponse:
        return pb.AdvanceSumResponse(survivors=pb.SumSurvivors(client_ids=[0, *self._peers]))

    def _on_signature(self, request: pb.AdvanceSumRequest) -> pb.AdvanceSumResponse:
        assert self._roster is not None
        everyone = frozenset((0, *self._peers))
        signed = {
            number: peer.sign_survivors(self._roster, self._received[number], everyone)
            for number, peer in self._peers.items()
        }
        return pb.AdvanceSumResponse(signatures=pb.SumSignatures(by_client={0: request.signature, **signed}))

    def _on_reveal(self, request: pb.AdvanceSumRequest) -> pb.AdvanceSumResponse:
        self.revealed = request.reveal
        return pb.AdvanceSumResponse(over=pb.SumOver())


@pytest.mark.parametrize(
    "sums", [60, pytest.param(5_000, marks=[pytest.mark.full, pytest.mark.timeout(1800)])], ids=str
)
async def test_a_client_ends_a_sum_in_order_whatever_the_server_answers(
    sums: int, parties: tuple[list[Signer], bytes], tmp_path: Path
) -> None:
    signers, authority = parties
    random, tally = Random(41), Counter[str]()
    peers = {number: sum_client(number, signers) for number in range(1, HONEST)}
    for number in range(sums):
        server = LyingServer(peers, Verifier(authority), random.randrange(5), random)
        directory = tmp_path / str(number)
        directory.mkdir()
        secure = SecureRound(
            0,
            CONTEXT,
            journal=SumJournal(directory),
            party=SumParty(signer=signers[0], verifier=Verifier(authority), clients=HONEST + 1, least=HONEST),
            advance=server.advance,
        )
        try:
            await secure.agree()
            await secure.open()
        except FedDBPError as error:
            check_line(error)
            tally[type(error).__name__] += 1
        else:
            tally["opened"] += 1
        if server.revealed is not None:  # shares of one secret of each peer, never of both
            assert set(server.revealed.seeds).isdisjoint(server.revealed.mask_keys)
            assert len(server.revealed.seeds) >= HONEST // 2 + 1
    print(f"\n{dict(tally)}")
    assert tally["ProtocolViolationError"] > sums / 10
