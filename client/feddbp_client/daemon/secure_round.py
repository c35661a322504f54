"""A client's part in the secure sum of one round: agrees with its peers, masks its term, helps to open the sum."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import CallRefusedError, Connection
from feddbp_client.daemon.sum_journal import SkippedSumError, SumJournal
from feddbp_common.config.run import RunConfig
from feddbp_common.errors import FedDBPError, ProtocolViolationError
from feddbp_common.fault_injection import fault_point
from feddbp_common.methods.sums import flattened, unflattened
from feddbp_common.printable import printable
from feddbp_common.secure_sums.client import SumClient
from feddbp_common.secure_sums.digests import SumContext
from feddbp_common.secure_sums.identity import Signer, Verifier
from feddbp_common.secure_sums.messages import Roster
from feddbp_common.secure_sums.proto import check_shares, keys_from_proto, keys_to_proto, reveal_to_proto
from feddbp_common.wire import Payload

log = logging.getLogger("feddbp.client")

_PENDING_SECONDS: Final = 0.1

Advance: TypeAlias = Callable[[pb.AdvanceSumRequest], Awaitable[pb.AdvanceSumResponse]]
"""Gives the server a message; the session and the round are filled in."""


class ExcludedError(FedDBPError):
    """This client has no part in the sum."""


class SumOverError(FedDBPError):
    """The sum needs nothing more of this client, because the round is closed."""


@dataclass(frozen=True, kw_only=True)
class SumParty:
    """Who takes part: what a client signs and checks with, and among whom."""

    signer: Signer
    verifier: Verifier
    clients: int
    """Of the run."""
    least: int
    """Clients of a sum below which this one takes no part."""


class SecureRound:
    """Owns a client's secret of one round. Every step may be repeated, and gives the same bytes."""

    def __init__(
        self, client_id: int, context: SumContext, *, journal: SumJournal, party: SumParty, advance: Advance
    ) -> None:
        root = journal.begin(context.round, context.state_sha256)
        self._party = party
        self._id = client_id
        self._journal = journal
        self._advance = advance
        self._client = SumClient(client_id=client_id, root=root, context=context, signer=party.signer)
        self._roster: Roster | None = None
        self._received: dict[int, bytes] = {}
        self.bytes_up = 0
        self.bytes_down = 0
        """Of all messages so far."""

    async def agree(self) -> None:
        """Exchanges keys and shares with the peers."""
        own = keys_to_proto(self._client.advertisement())
        answer = await self._step(pb.AdvanceSumRequest(keys=own), "roster")
        keys = map(keys_from_proto, answer.roster.keys)
        roster = self._client.roster(keys, self._party.verifier, least=self._party.least)
        if max(roster.advertisements) >= self._party.clients:
            raise ProtocolViolationError(f"client {max(roster.advertisements)} is none of the run's")
        self._journal.agree_roster(roster.digest)
        fault_point("client.sum.agreed")
        shares = pb.AdvanceSumRequest(shares=pb.SumShares(by_client=self._client.shares(roster)))
        answer = await self._step(shares, "shares")
        check_shares(answer.shares, answer.shares.by_client)
        received = dict(answer.shares.by_client)
        self._client.check_received(roster, received)
        self._roster, self._received = roster, received
        fault_point("client.sum.shared")

    def masked(self, term: Payload) -> Payload:
        """A term under this client's masks; it may be sent after `sending`."""
        assert self._roster is not None  # agreed
        vector = self._client.masked(flattened(term.tensors), self._roster, self._received)
        return replace(term, tensors=unflattened(vector, {name: words.shape for name, words in term.tensors.items()}))

    def sending(self, sha256: bytes) -> None:
        """Notes the masked term that is sent, the only one of this round; raises if another was."""
        self._journal.agree_upload(sha256)

    async def open(self) -> None:
        """Helps to open the sum of those that have uploaded, this client among them."""
        if self._roster is None:
            await self.agree()
        roster = self._roster
        assert roster is not None
        answer = await self._step(pb.AdvanceSumRequest(uploaded=pb.SumUploaded()), "survivors")
        survivors = frozenset(answer.survivors.client_ids)
        signature = self._client.sign_survivors(roster, self._received, survivors)
        self._journal.agree_survivors(survivors)
        fault_point("client.sum.signed")
        answer = await self._step(pb.AdvanceSumRequest(signature=signature), "signatures")
        reveal = self._client.reveal(roster, self._received, survivors, dict(answer.signatures.by_client))
        fault_point("client.sum.revealing")
        await self._step(pb.AdvanceSumRequest(reveal=reveal_to_proto(reveal)), "over")

    async def _step(self, request: pb.AdvanceSumRequest, expected: str) -> pb.AdvanceSumResponse:
        while True:
            answer = await self._advance(request)
            self.bytes_up += request.ByteSize()
            self.bytes_down += answer.ByteSize()
            kind = answer.WhichOneof("answer")
            if kind == expected:
                return answer
            if kind == "excluded":
                raise ExcludedError(f"it has no part in the sum: {printable(answer.excluded.reason)}")
            if kind == "over":
                raise SumOverError("the round is closed")
            if kind != "pending":
                raise ProtocolViolationError(f"the server answers {request.WhichOneof('step')} with {kind}")
            await asyncio.sleep(_PENDING_SECONDS)  # of a server that does not hold the call


class SecureRounds:
    """Owns a client's part in the secure sums of a run: at most one round at a time, which survives a restart."""

    def __init__(
        self, client_id: int, run_id: str, config: RunConfig, *, directory: Path, connection: Connection, least: int = 0
    ) -> None:
        """`least` is the number of clients below which this one adds nothing to a sum, whatever the run's is."""
        self._id = client_id
        self._run_id = run_id
        self._config_sha256 = config.sum_sha256
        self._connection = connection
        signer, verifier = connection.sum_identity()
        least = max(least, config.least_summed)
        self._party = SumParty(signer=signer, verifier=verifier, clients=config.clients, least=least)
        self._journal = SumJournal(directory)
        self._session = ""
        self._round: tuple[int, SecureRound] | None = None

    def start_session(self, session: str) -> None:
        self._session = session

    async def agree(self, round_number: int, state_sha256: bytes) -> SecureRound:
        """Agrees with the peers on the sum of a round.

        Raises:
            SkippedSumError: the client cannot take part, and should skip the round.
        """
        try:
            secure = self._begin(round_number, state_sha256)
            await secure.agree()
        except (ExcludedError, SumOverError, ProtocolViolationError) as error:
            raise SkippedSumError(str(error)) from None
        except CallRefusedError as error:
            if error.reason != pb.REFUSAL_REASON_INVALID_REQUEST:
                raise
            raise SkippedSumError(str(error)) from None
        return secure

    def sending(self, round_number: int, sha256: bytes) -> None:
        """Notes the masked term of a round before it is sent, also again after a restart.

        Raises:
            SkippedSumError: another one was sent.
        """
        state = self._journal.state_of(round_number)
        try:
            if state is None:
                raise ProtocolViolationError("what is known of this round's sum is lost")
            self._begin(round_number, state).sending(sha256)
        except ProtocolViolationError as error:
            raise SkippedSumError(str(error)) from None

    async def open(self, round_number: int) -> None:
        """Helps to open the sum of a round that this client has uploaded to, also after a restart."""
        state = self._journal.state_of(round_number)
        if state is None:
            return
        secure = self._begin(round_number, state)
        try:
            await secure.open()
        except SumOverError:
            pass
        except CallRefusedError as error:
            if error.reason != pb.REFUSAL_REASON_INVALID_REQUEST:
                raise
            log.error("client %d cannot help to open the sum of round %d: %s", self._id, round_number + 1, error)
        except (ExcludedError, ProtocolViolationError) as error:
            log.error("client %d does not help to open the sum of round %d: %s", self._id, round_number + 1, error)

    def _begin(self, round_number: int, state_sha256: bytes) -> SecureRound:
        if self._round is None or self._round[0] != round_number:
            context = SumContext(
                run_id=self._run_id,
                round=round_number,
                config_sha256=self._config_sha256,
                state_sha256=state_sha256,
            )

            def advance(request: pb.AdvanceSumRequest) -> Awaitable[pb.AdvanceSumResponse]:
                request.session, request.round = self._session, round_number
                return self._connection.advance_sum(request)

            secure = SecureRound(self._id, context, journal=self._journal, party=self._party, advance=advance)
            self._round = round_number, secure
        return self._round[1]
