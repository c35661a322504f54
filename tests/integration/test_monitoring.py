"""Metrics of a live server: their values, their documentation, and their errors."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import subprocess
import sys

import pytest
from light_runs import Crowd, Gate, exits, federation_of, start_server
from metrics import Scraped, documented, scrape
from processes import Federation, wait_until

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.artifacts import ENDPOINT_NAME
from feddbp_common.errors import ExitCode

CLIENTS, ROUNDS = 3, 3
RUN = ("--clients", CLIENTS, "--rounds", ROUNDS, "--min-clients", CLIENTS, "--metrics-port", 0, "--linger", "5s")
FEDERATION = "feddbp.v1.Federation"


async def scraped(running: Federation) -> Scraped:
    return await asyncio.to_thread(scrape, running.state_dir)


async def scraped_when(running: Federation, value: float, name: str, **labels: str) -> Scraped:
    """The first scrape in which a metric has this value."""

    def matching() -> Scraped | None:
        newest = scrape(running.state_dir)
        return newest if newest.value(name, **labels) == value else None

    found: Scraped = await asyncio.to_thread(wait_until, matching, f"{name} of {value}")
    return found


async def test_metrics_follow_a_run_and_every_metric_is_documented(running_federation: Federation) -> None:
    server = await start_server(running_federation, *RUN)
    before = await scraped(running_federation)
    assert before.value("feddbp_phase", phase="waiting") == 1
    assert before.value("feddbp_mean_accuracy") is None
    gate = Gate(at_round=2)
    async with Crowd(running_federation.address, range(CLIENTS), on_event={0: gate}) as crowd:
        await gate.reached.wait()
        found = await scraped_when(running_federation, 2, "feddbp_clients", state="uploaded")
        gate.opened.set()
        await crowd.ended()
    await exits(server, 0)
    assert found.kinds() == documented()
    assert found.value("feddbp_run_info", method="feddbp") == 1
    assert (found.value("feddbp_round"), found.value("feddbp_rounds")) == (2, ROUNDS)
    assert found.value("feddbp_phase", phase="collecting") == 1
    assert sum(found.value("feddbp_phase", **labels) or 0 for labels in found.labels("feddbp_phase")) == 1
    assert found.value("feddbp_clients", state="training") == 1
    assert found.value("feddbp_clients_missing") == 1
    assert found.value("feddbp_mean_accuracy") is None  # no client of the crowd has test samples
    assert found.value("feddbp_mean_accuracy_clients") == 0
    assert found.value("feddbp_uploads_accepted_total") == 2 * CLIENTS + 2
    reported = [line for line in running_federation.metrics() if line["round"] < 2 or line["client"] != 0]
    reported = [line for line in reported if line["round"] < ROUNDS]
    for way in ("bytes_up", "bytes_down"):
        assert found.value(f"feddbp_{way}_total") == sum(line[way] for line in reported)
    assert found.value("feddbp_storage_trouble") == 0
    for phase in ("collecting", "aggregating"):
        assert found.value("feddbp_phase_seconds_count", phase=phase) == 2
    assert found.value("feddbp_aggregation_seconds_count") == 2
    assert found.value("feddbp_aggregation_seconds_bucket", le="+Inf") == 2
    uploads = {"service": FEDERATION, "method": "Upload"}
    assert found.value("feddbp_grpc_calls_handled_total", code="OK", **uploads) == 2 * CLIENTS + 2
    assert found.value("feddbp_grpc_call_seconds_count", **uploads) == 2 * CLIENTS + 2
    assert (found.value("feddbp_grpc_messages_received_total", **uploads) or 0) >= 2 * (2 * CLIENTS + 2)
    follows = {"service": FEDERATION, "method": "Follow"}
    assert found.value("feddbp_grpc_calls_started_total", **follows) == CLIENTS
    assert found.value("feddbp_grpc_calls_handled_total", **follows) is None  # still open


async def test_refusals_are_counted_by_method_and_reason(running_federation: Federation) -> None:
    await start_server(running_federation, *RUN)
    header = pb.UploadPart(header=pb.UploadHeader(session="unknown"))
    async with federation_of(running_federation.address) as stub:
        for call in (stub.Upload(iter([header])), stub.Leave(pb.LeaveRequest(session="unknown"))):
            with pytest.raises(Exception, match="this session is unknown"):
                await call
    for method in ("Upload", "Leave"):  # handled only a moment after its caller has the answer
        labels = {"method": method, "code": "UNAUTHENTICATED"}
        found = await scraped_when(running_federation, 1, "feddbp_grpc_calls_handled_total", **labels)
    assert found.value("feddbp_calls_refused_total", method="Upload", reason="stale_session") == 1
    assert found.value("feddbp_calls_refused_total", method="Upload", reason="invalid_payload") == 0
    assert found.value("feddbp_calls_refused_total", method="Leave", reason="stale_session") == 1


async def test_storage_trouble_is_exported(running_federation: Federation) -> None:
    server = await start_server(running_federation, *RUN)
    # writes beyond a file's first kilobytes fail, as on a full disk
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (64 << 10, resource.RLIM_INFINITY))
    async with Crowd(running_federation.address, range(CLIENTS)):
        await scraped_when(running_federation, 1, "feddbp_storage_trouble")


def test_without_a_port_there_are_no_metrics(running_federation: Federation) -> None:
    server = running_federation.server()
    assert "metrics" not in server.log
    assert "metrics_port" not in json.loads((running_federation.state_dir / ENDPOINT_NAME).read_text())


def test_a_server_without_metrics_does_not_import_their_packages() -> None:
    script = (
        "import asyncio, sys, tempfile, pathlib\n"
        "from feddbp_server.app import Server\n"
        "from feddbp_server.config import ListenConfig, ServerConfig\n"
        "async def main():\n"
        "    Server(ServerConfig(listen=ListenConfig(state_dir=pathlib.Path(tempfile.mkdtemp()))))\n"
        "asyncio.run(main())\n"
        "print({'prometheus_client', 'http.server', 'feddbp_server.metrics'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"


def test_a_metrics_port_in_use_is_one_line_and_exit_code_2(running_federation: Federation) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        options = ("--port", 0, "--metrics-port", port)
        server = running_federation.start("feddbp_server.cli", *options, name="server")
        server.expect_exit(2)
    assert server.log == f"feddbp-server: error: cannot serve metrics on 127.0.0.1:{port}: Address already in use\n"


def test_metrics_end_with_the_server(running_federation: Federation) -> None:
    server = running_federation.server("--metrics-port", 0)
    assert scrape(running_federation.state_dir).value("feddbp_round") == 0
    server.terminate()
    server.expect_exit(ExitCode.INTERRUPTED)
    with pytest.raises(OSError, match="refused"):
        scrape(running_federation.state_dir)
