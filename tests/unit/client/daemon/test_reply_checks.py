"""Invalid answers of a server end a client with one line that names the field, and nothing is written elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from hostile_server import RUN_ID, SESSION, Failure, hollow_daemon, honest_replies, hostile_server

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import CallRefusedError
from feddbp_client.daemon.reply_checks import InvalidReplyError
from feddbp_common.artifacts import CLIENT_FORMAT_NAME, SESSION_NAME
from feddbp_common.errors import ConfigurationError, ExitCode, FedDBPError

Change = Callable[[Any], object]
KINDS: dict[str, Any] = {
    "GetRun": pb.GetRunResponse,
    "Join": pb.JoinResponse,
    "Follow": pb.RoundEvent,
    "Download": pb.DownloadPart,
    "Upload": pb.UploadReceipt,
}


def changed(method: str, change: Change, *, number: int = 0) -> dict[str, Any]:
    """Honest replies, but for one message of a method."""
    replies = {name: list(messages) for name, messages in honest_replies(earlier=method == "Download").items()}
    message = KINDS[method].FromString(replies[method][number])
    change(message)
    replies[method][number] = message.SerializeToString()
    return dict(replies)


async def end_of(replies: dict[str, Any], state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> FedDBPError | ExitCode:
    async with hostile_server(replies) as server, hollow_daemon(server.address, state_dir, monkeypatch) as daemon:
        try:
            return await daemon.run()
        except FedDBPError as error:
            return error


@pytest.mark.parametrize("earlier", [False, True], ids=["this version", "an earlier one"])
async def test_an_honest_server_is_followed_to_the_end(
    earlier: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await end_of(honest_replies(earlier=earlier), tmp_path, monkeypatch) is ExitCode.OK


@pytest.mark.parametrize(
    ("method", "field", "change"),
    [
        ("GetRun", "run_id", lambda m: setattr(m, "run_id", "../../../x")),
        ("GetRun", "run_id", lambda m: setattr(m, "run_id", "/tmp/x")),
        ("GetRun", "run_id", lambda m: setattr(m, "run_id", "a\0b")),
        ("GetRun", "run_id", lambda m: setattr(m, "run_id", "")),
        ("GetRun", "run_id", lambda m: setattr(m, "run_id", "..")),
        ("GetRun", "run_id", lambda m: setattr(m, "run_id", "x" * 65)),
        ("GetRun", "run_id", lambda m: setattr(m, "run_id", "data-cache")),
        ("GetRun", "software_version", lambda m: setattr(m, "software_version", "1\n2")),
        ("GetRun", "features", lambda m: m.features.extend(["x"] * 2000)),
        ("GetRun", "config.method", lambda m: m.ClearField("config")),
        ("GetRun", "config", lambda m: m.config.method_settings.update({"tau": float("nan")})),
        ("GetRun", "config", lambda m: m.config.added_settings.update({"training.ema": float("inf")})),
        ("GetRun", "config", lambda m: widen(m)),
        ("GetRun", "config", lambda m: setattr(m.config.training, "feature_dim", 65_535)),
        ("GetRun", "config.data.class_names", lambda m: m.config.data.class_names.__setitem__(0, "\x1b[2J")),
        ("GetRun", "config.method", lambda m: setattr(m.config, "method", "\x1b]0;title\x07")),
        ("Join", "session", lambda m: setattr(m, "session", "")),
        ("Join", "session", lambda m: setattr(m, "session", "a\nb")),
        ("Join", "lease", lambda m: setattr(m.lease, "seconds", 2**60)),
        ("Join", "lease", lambda m: setattr(m.lease, "seconds", -1)),
        ("Follow", "event", lambda m: m.ClearField("round_opened")),
        ("Follow", "deadline", lambda m: setattr(m.round_opened.deadline, "seconds", 2**60)),
        ("Follow", "round", lambda m: setattr(m.round_opened, "round", 1)),  # in a run of one
        ("Follow", "round", lambda m: setattr(m.final_evaluation, "round", 2)),
        ("Follow", "outcome", lambda m: setattr(m.run_ended, "outcome", 99)),
        ("Follow", "counts", lambda m: m.state.manifest.prototypes.counts.extend([2**32 - 1] * 5)),
        ("Follow", "total_bytes", lambda m: setattr(m.state.manifest, "total_bytes", 2**63)),
        ("Follow", "body", lambda m: setattr(m.state, "body", m.state.body[:-1])),
        ("Follow", "sha256", lambda m: setattr(m.state, "body", bytes(len(m.state.body)))),
        ("Download", "counts", lambda m: m.manifest.prototypes.counts.extend([2**32 - 1] * 5)),
        ("Download", "total_bytes", lambda m: setattr(m.manifest, "total_bytes", 2**63)),
        ("Download", "sha256", lambda m: setattr(m.manifest, "sha256", bytes(32))),
        ("Download", "manifest", lambda m: m.ClearField("manifest")),
        ("Upload", "round", lambda m: setattr(m, "round", 2**32 - 1)),
        ("Upload", "sha256", lambda m: m.ClearField("sha256")),
    ],
)
async def test_an_invalid_reply_ends_the_client_with_its_field(
    method: str, field: str, change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_dir = tmp_path / "a" / "b" / "state"
    error = await end_of(changed(method, change), state_dir, monkeypatch)
    assert isinstance(error, InvalidReplyError), error
    assert (error.call, error.field, error.exit_code) == (method, field, ExitCode.INVALID_REPLY)
    assert str(error).isprintable()
    assert len(str(error)) < 700
    assert written_outside(state_dir, tmp_path) == []


def written_outside(state_dir: Path, around: Path) -> list[Path]:
    return [path for path in around.rglob("*") if path.is_file() and state_dir not in path.parents]


def widen(described: pb.GetRunResponse) -> None:
    described.config.data.classes = 65536
    described.config.training.feature_dim = 8192
    described.config.data.ClearField("class_names")


async def test_a_chunk_is_not_replaced_by_a_second_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = honest_replies(earlier=True)
    replies["Download"] = [replies["Download"][0]] * 2
    error = await end_of(replies, tmp_path, monkeypatch)
    assert isinstance(error, InvalidReplyError)
    assert error.field == "part"


async def test_the_reason_of_a_refusal_is_one_printable_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = pb.Refusal(reason=pb.REFUSAL_REASON_UNKNOWN_CLIENT, field="\x1b[31m").SerializeToString()
    forged = "no\n12:00:00 INFO    the run finished\x1b[2J" + "x" * 5000
    replies = {**honest_replies(), "Join": [Failure(grpc.StatusCode.INVALID_ARGUMENT, forged, refusal)]}
    error = await end_of(replies, tmp_path, monkeypatch)
    assert isinstance(error, CallRefusedError)
    assert str(error).startswith(r"no\n12:00:00 INFO    the run finished\x1b[2Jxxx")
    assert len(str(error)) == 500
    assert error.field == r"\x1b[31m"


# --- whose directory it is ---


async def test_a_foreign_server_that_names_the_same_run_gets_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await end_of(honest_replies(), tmp_path, monkeypatch) is ExitCode.OK
    directory = tmp_path / RUN_ID / "client-0"
    assert json.loads((directory / SESSION_NAME).read_text())["session"] == SESSION
    before = (directory / CLIENT_FORMAT_NAME).read_text()
    async with hostile_server() as foreign, hollow_daemon(foreign.address, tmp_path, monkeypatch) as daemon:
        with pytest.raises(ConfigurationError, match=r"belongs to the server 127\.0\.0\.1:.*--server-moved"):
            await daemon.run()
        assert "Join" not in foreign.requests
    assert (directory / CLIENT_FORMAT_NAME).read_text() == before


async def test_a_server_that_has_moved_gets_the_session_once_its_operator_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await end_of(honest_replies(), tmp_path, monkeypatch) is ExitCode.OK
    async with hostile_server() as moved:
        for says_so in (True, False):  # from then on it belongs to the new address
            async with hollow_daemon(moved.address, tmp_path, monkeypatch, server_moved=says_so) as daemon:
                assert await daemon.run() is ExitCode.OK
        joins = [pb.JoinRequest.FromString(request) for request in moved.requests["Join"]]
    assert [join.previous_session for join in joins] == [SESSION, SESSION]


async def test_a_directory_of_an_earlier_version_is_bound_to_the_server_it_is_used_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / RUN_ID / "client-0" / CLIENT_FORMAT_NAME
    mark.parent.mkdir(parents=True)
    mark.write_text(json.dumps({"format": 2, "software_version": "0.2.0"}))
    (mark.parent / SESSION_NAME).write_text(json.dumps({"session": SESSION}))
    async with hostile_server() as server, hollow_daemon(server.address, tmp_path, monkeypatch) as daemon:
        assert await daemon.run() is ExitCode.OK
        assert pb.JoinRequest.FromString(server.requests["Join"][0]).previous_session == SESSION
        assert json.loads(mark.read_text())["server"] == server.address
