"""Ctrl-C and SIGTERM of real servers and clients: one line each, no traceback, the same exit code."""

from __future__ import annotations

import json
import signal
from collections import Counter

import pytest
from light_runs import exits, start_client, start_server, status_when
from processes import Federation

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.artifacts import AUDIT_NAME
from feddbp_common.errors import ExitCode

LONG_RUN = ("--clients", 2, "--min-clients", 2, "--rounds", 2, "--local-epochs", 10_000, "--alpha", 5.0)
GOODBYES = {
    signal.SIGINT: "SIGINT: leaving the run with clients 0-1; the same command joins it again",
    signal.SIGTERM: "SIGTERM: stopping clients 0-1 without leaving the run; the same command resumes",
}


def is_training(status: pb.RunStatus) -> bool:
    return any(client.progress.epochs_done for client in status.clients)


@pytest.mark.parametrize("number", GOODBYES, ids=lambda number: number.name)
async def test_clients_that_train_stop_in_good_order(number: signal.Signals, running_federation: Federation) -> None:
    server = await start_server(running_federation, *LONG_RUN)
    clients = await start_client(running_federation, "0,1")
    await status_when(running_federation.address, is_training, "training")
    clients.process.send_signal(number)
    await exits(clients, ExitCode.INTERRUPTED)
    assert clients.log.splitlines()[-1].endswith(GOODBYES[number])
    server.process.send_signal(number)
    await exits(server, ExitCode.INTERRUPTED)
    line = f"{number.name}: stopping; the run resumes when the server is started again"
    assert server.log.splitlines()[-1].endswith(line)
    for log in (clients.log, server.log):
        assert "Traceback" not in log
        assert "ERROR" not in log
    audit = (running_federation.state_dir / AUDIT_NAME).read_text().splitlines()
    written = Counter(json.loads(entry)["what"] for entry in audit)
    assert written["left"] == (2 if number == signal.SIGINT else 0)
    assert not written.keys() & {"refused", "failed"}
