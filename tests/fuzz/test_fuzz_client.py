"""Mutated answers of a hostile server: a client follows them or ends with one line, and writes nowhere else."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

import grpc
import pytest
from google.protobuf.message import DecodeError
from hostile_server import (
    SESSION,
    UPLOAD,
    Failure,
    Replies,
    hollow_daemon,
    honest_replies,
    hostile_server,
)
from mutations import NOT_TEXT, TEXTS, mutate_field, mutated_bytes, with_invalid_field
from server_state import resident_bytes

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import Connection
from feddbp_client.daemon.reply_checks import checked_config
from feddbp_client.daemon.transfers import pushed_download
from feddbp_common.errors import ExitCode, FedDBPError
from feddbp_common.wire import PayloadRules, PrototypeRule

KINDS: Final[dict[str, Any]] = {
    "GetRun": pb.GetRunResponse,
    "Join": pb.JoinResponse,
    "Follow": pb.RoundEvent,
    "Download": pb.DownloadPart,
    "Report": pb.ReportResponse,
    "Upload": pb.UploadReceipt,
}
RULES: Final = PayloadRules(prototypes=PrototypeRule(classes=5, width=8), prototypes_required=False)
MEMORY_BOUND = 200e6
"""Bytes by which the process of the client may grow."""


# --- replies ---


def mutated_replies(random: Random) -> Iterator[tuple[str, dict[str, Replies]]]:
    """Honest replies but for those of one method, without end, the same for the same seed.

    Every other server is of an earlier version, of which clients use Download and Report.
    """
    while True:
        method = random.choices(list(KINDS), weights=(6, 3, 6, 5, 1, 3))[0]
        replies: dict[str, Replies] = honest_replies(earlier=method in ("Download", "Report") or random.random() < 0.5)
        messages = [message for message in replies[method] if isinstance(message, bytes)]
        change = random.choices(_CHANGES, weights=(8, 4, 2, 2, 2, 1))[0]
        replies[method] = change(method, messages, random)
        yield method, replies


def _with_field(method: str, messages: list[bytes], random: Random) -> Replies:
    """One to three fields of a message have odd values."""
    hit = random.randrange(len(messages))
    message = KINDS[method].FromString(messages[hit])
    if message.DESCRIPTOR.fields:
        for _ in range(random.randint(1, 3)):
            mutate_field(message, random)
    return [*messages[:hit], message.SerializeToString(), *messages[hit + 1 :]]


def _with_bytes(method: str, messages: list[bytes], random: Random) -> Replies:
    hit = random.randrange(len(messages))
    return [*messages[:hit], mutated_bytes(messages[hit], random), *messages[hit + 1 :]]


def _with_invalid_encoding(method: str, messages: list[bytes], random: Random) -> Replies:
    hit = random.randrange(len(messages))
    return [*messages[:hit], with_invalid_field(messages[hit], range(1, 8), random), *messages[hit + 1 :]]


def _reordered(method: str, messages: list[bytes], random: Random) -> Replies:
    """Messages are missing, repeated or in another order."""
    return random.choices(messages, k=random.randint(1, 2 * len(messages)))


def _failed(method: str, messages: list[bytes], random: Random) -> Replies:
    """The call ends with any status, any text, and any refusal."""
    code = random.choice([code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
    reason: Any = random.choice((*pb.RefusalReason.values(), 99, 2**31 - 1))
    text = random.choice(TEXTS)[:2_000]
    refusal = pb.Refusal(reason=reason, field=text[:500], current_round=random.choice((0, 2**32 - 1)))
    if random.random() < 0.5:
        refusal.retry_after.seconds = random.choice((-1, 0, 1, 2**31, 2**62))
        refusal.retry_after.nanos = random.choice((-(2**31), 0, 2**31 - 1))
    attached = random.choice((b"", refusal.SerializeToString(), mutated_bytes(refusal.SerializeToString(), random)))
    return [*messages[: random.randint(0, len(messages))], Failure(code, text, attached)]


def _not_text(method: str, messages: list[bytes], random: Random) -> Replies:
    return [random.choice(NOT_TEXT) * random.choice((1, 1_000)) for _ in messages]


_CHANGES: Final = (_with_field, _with_bytes, _with_invalid_encoding, _reordered, _failed, _not_text)


def check_error(error: FedDBPError) -> str:
    """Every end of a client is one printable line, with a stated exit code."""
    assert error.exit_code in ExitCode
    assert str(error)
    assert str(error).isprintable(), ascii(error)
    assert len(str(error)) < 1_500
    return f"{type(error).__name__} ({error.exit_code.name.lower()})"


def show(tally: Counter[str]) -> None:
    print("".join(f"\n{end:<42}{times:>8}" for end, times in [*tally.most_common(), ("all", tally.total())]))


# --- tests ---


@pytest.mark.parametrize(
    "replies", [2_000, pytest.param(100_000, marks=[pytest.mark.full, pytest.mark.timeout(3600)])], ids=str
)
async def test_no_answer_crashes_a_call(replies: int) -> None:
    tally: Counter[str] = Counter()
    before = resident_bytes(os.getpid())
    async with hostile_server() as server:
        connection = Connection(server.address)
        for _, (method, mutated) in zip(range(replies), mutated_replies(Random(17)), strict=False):
            server.begin(mutated)
            try:
                async with asyncio.timeout(60):
                    await call(connection, method)
                tally["accepted"] += 1
            except FedDBPError as error:
                tally[check_error(error)] += 1
        await connection.close()
    assert resident_bytes(os.getpid()) - before < MEMORY_BOUND
    show(tally)
    assert tally["InvalidReplyError (invalid_reply)"] > replies / 10


async def call(connection: Connection, method: str) -> None:
    match method:
        case "GetRun":
            checked_config(await connection.get_run())
        case "Join":
            await connection.join(pb.JoinRequest())
        case "Follow":
            async for event in connection.follow(SESSION):
                pushed_download(event, RULES)
                break
        case "Download":
            await connection.download(SESSION, 0, RULES)
        case "Report":
            await connection.report(pb.ReportRequest(session=SESSION))
        case "Upload":
            await connection.upload(SESSION, 0, UPLOAD)


@pytest.mark.parametrize(
    "sessions", [200, pytest.param(10_000, marks=[pytest.mark.full, pytest.mark.timeout(3600)])], ids=str
)
async def test_whole_sessions_with_a_hostile_server_end_in_order(
    sessions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally: Counter[str] = Counter()
    async with hostile_server() as server:
        server.upload_wait = 0.2
        for number, (_, mutated) in zip(range(sessions), mutated_replies(Random(23)), strict=False):
            server.begin(mutated)
            around = tmp_path / str(number)
            tally[await _end_of_session(server.address, around / "a" / "state", monkeypatch)] += 1
            assert _escaped(around) == []
            shutil.rmtree(around, ignore_errors=True)
    show(tally)
    assert len(tally) > 2


async def _end_of_session(address: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    async with hollow_daemon(address, state_dir, monkeypatch) as daemon:
        try:
            async with asyncio.timeout(60):
                return (await daemon.run()).name.lower()
        except FedDBPError as error:
            return check_error(error)


def _escaped(around: Path) -> list[Path]:
    """Files that a client has written outside of RUN/client-0 in its state directory."""
    state_dir = around / "a" / "state"
    files = [path for path in around.rglob("*") if path.is_file()]
    return [path for path in files if path.parent.parent.parent != state_dir]


def test_the_mutations_cover_every_reply_and_every_change() -> None:
    drawn = [method for _, (method, _) in zip(range(200), mutated_replies(Random(1)), strict=False)]
    assert set(drawn) == set(KINDS)
    with pytest.raises(DecodeError):
        pb.JoinResponse.FromString(NOT_TEXT[0])


def test_honest_replies_name_every_method() -> None:
    replies: Mapping[str, Replies] = honest_replies()
    assert set(replies) == {*KINDS, "Leave"}
