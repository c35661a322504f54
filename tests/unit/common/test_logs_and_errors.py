from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import grpc
import pytest

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.atomic_files import replace_text
from feddbp_common.config.command_line import run_command
from feddbp_common.errors import ConfigurationError, ExitCode, FedDBPError, PayloadError, PayloadTooLargeError, one_line
from feddbp_common.logs import configure_logging
from feddbp_common.rpc.failures import REFUSAL_METADATA_KEY, refusal_in


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """Returns what was logged; the original handlers are restored afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield lambda: capsys.readouterr().err
    root.handlers[:] = handlers
    root.setLevel(level)
    for package in ("feddbp", "feddbp_client"):
        logging.getLogger(package).setLevel(logging.NOTSET)
    logging.captureWarnings(False)


def test_a_json_log_has_one_object_per_line(stderr: Callable[[], str]) -> None:
    configure_logging(as_json=True, level="debug")
    log = logging.getLogger("feddbp.sample")
    log.debug("round %d\nis open", 3)
    try:
        raise ValueError("odd")
    except ValueError:
        log.exception("failed")
    first, second = map(json.loads, stderr().splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("debug", "feddbp.sample", r"round 3\nis open")
    assert datetime.fromisoformat(first["at"]).tzinfo is not None
    assert "ValueError: odd" in second["exception"]


def test_a_plain_log_omits_records_below_the_level(stderr: Callable[[], str]) -> None:
    configure_logging(as_json=False, level="warning")
    logging.getLogger("feddbp.sample").info("detail")
    logging.getLogger("feddbp.sample").warning("disk is full")
    (line,) = stderr().splitlines()
    assert line.endswith("WARNING disk is full")


def test_logging_can_be_reconfigured(stderr: Callable[[], str]) -> None:
    configure_logging(as_json=False)
    configure_logging(as_json=True)
    logging.getLogger("feddbp.sample").info("once")
    assert json.loads(stderr())["message"] == "once"


def test_a_debug_log_has_no_details_of_libraries(stderr: Callable[[], str]) -> None:
    configure_logging(as_json=False, level="debug")
    for name in ("feddbp.client", "feddbp_client.data", "library"):
        logging.getLogger(name).debug("detail of %s", name)
    assert [line.partition("DEBUG ")[2].strip() for line in stderr().splitlines()] == [
        "detail of feddbp.client",
        "detail of feddbp_client.data",
    ]


def test_warnings_and_the_error_that_ends_a_command_are_json_if_the_log_is(stderr: Callable[[], str]) -> None:
    def failing(_: object) -> int:
        configure_logging(as_json=True)
        warnings.warn("lr_scheduler was called too early", UserWarning, stacklevel=1)
        raise ConfigurationError("no data")

    def faulty(_: object) -> int:
        return 1 // 0

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert run_command("brew", failing, []) == 2
        assert run_command("brew", faulty, []) == 1
    warning, error, fault = map(json.loads, stderr().splitlines())
    assert "lr_scheduler was called too early" in warning["message"]
    assert (error["level"], error["logger"], error["message"]) == ("error", "brew", "error: no data")
    assert "ZeroDivisionError" in fault["message"]
    assert "Traceback" in fault["exception"]


def test_errors_have_one_base_class_and_exit_codes_do_not_change() -> None:
    assert issubclass(ConfigurationError, FedDBPError)
    assert issubclass(PayloadTooLargeError, PayloadError)
    assert (FedDBPError.exit_code, ConfigurationError.exit_code) == (1, 2)
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0,
        "FAILURE": 1,
        "USAGE": 2,
        "UNREACHABLE": 3,
        "REFUSED": 4,
        "RUN_FAILED": 5,
        "INVALID_REPLY": 6,
        "INTERRUPTED": 130,
    }


def test_a_payload_error_names_field_and_reason() -> None:
    error = PayloadError("counts", "class 2 has 0 samples")
    assert (error.field, error.reason, str(error)) == (
        "counts",
        "class 2 has 0 samples",
        "counts: class 2 has 0 samples",
    )


def failed_call(*metadata: tuple[str, str | bytes]) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        grpc.StatusCode.FAILED_PRECONDITION, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), "no"
    )


def test_the_refusal_is_read_from_the_trailing_metadata() -> None:
    refusal = pb.Refusal(reason=pb.REFUSAL_REASON_WRONG_ROUND, field="round", current_round=7)
    error = failed_call(("other", "x"), (REFUSAL_METADATA_KEY, refusal.SerializeToString()))
    assert refusal_in(error) == refusal


@pytest.mark.parametrize("metadata", [(), (("other", "x"),), ((REFUSAL_METADATA_KEY, b"\xff\xff\xff"),)])
def test_a_missing_or_damaged_refusal_is_none(metadata: tuple[tuple[str, bytes], ...]) -> None:
    assert refusal_in(failed_call(*metadata)) is None


def test_a_file_is_replaced_atomically_without_leftover_files(tmp_path: Path) -> None:
    target = tmp_path / "summary.json"
    target.write_text("old")
    with target.open() as reader:
        replace_text(target, "größer")
        assert reader.read() == "old"
    assert target.read_text(encoding="utf-8") == "größer"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("text", "whole", "first"),
    [("", "ValueError", "ValueError"), (" \n\n", "ValueError", "ValueError"), ("\n a   b\tc\n  d", "a b c d", "a b c")],
)
def test_the_error_of_a_library_is_told_in_one_line(text: str, whole: str, first: str) -> None:
    assert one_line(ValueError(text)) == whole
    assert one_line(ValueError(text), first=True) == first
