"""`python -m benchmarks.secure_sums`: what a round costs under masks, against one of plain sums; both over mutual TLS.

All clients are in this process: its CPU time is that of all of them. A round begins and ends with every client
holding its state.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.light_client import LightClient
from benchmarks.servers import cpu_seconds, peak_bytes, running_server
from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import Connection
from feddbp_common.rpc.credentials import ClientCredentials, client_subject
from feddbp_lab.pki.certificates import Authority

CLASSES, ROUNDS = 100, 3
SIZES = (20, 100)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of a round, on average; and the server's peak memory."""

    seconds: float
    server_cpu: float
    client_cpu: float
    """Of one client."""
    server_bytes: int


def main() -> None:
    table = Table("secure against plain sums", "a round", "server CPU", "CPU of a client", "server's peak memory")
    with tempfile.TemporaryDirectory() as directory:
        certs = Path(directory)
        authority = Authority.create(certs)
        authority.issue_server(["127.0.0.1"])
        for client_id in range(max(SIZES)):
            authority.issue_party(client_subject(client_id))
        for clients in SIZES:
            plain, secure = (_cost_of(clients, certs, sums) for sums in (("--sums", "fixed"), ("--secure-sums",)))
            table.add_row(
                f"{clients} clients, C={CLASSES}",
                _compared(plain.seconds, secure.seconds),
                _compared(plain.server_cpu, secure.server_cpu),
                _compared(plain.client_cpu, secure.client_cpu),
                f"{secure.server_bytes / 1e6:.0f} MB against {plain.server_bytes / 1e6:.0f} MB",
            )
    Console().print(table)


def _compared(plain: float, secure: float) -> str:
    return f"{secure / plain:.1f} x: {1000 * secure:.0f} ms against {1000 * plain:.0f} ms"


def _cost_of(clients: int, certs: Path, options: Sequence[object]) -> Cost:
    run = ("--clients", clients, "--min-clients", clients, "--rounds", ROUNDS + 1, "--fusion", "client")
    task = ("--dataset", "custom", "--classes", CLASSES, "--round-deadline", "0", "--log-level", "warning")
    with running_server(*run, *task, "--certs", certs, *options) as server:
        return asyncio.run(_rounds(clients, server.address, certs, server.pid))


async def _rounds(clients: int, address: str, certs: Path, pid: int) -> Cost:
    access = ClientCredentials(certs=certs)
    connections = [Connection(address, client_id=number, credentials=access) for number in range(clients)]
    marks: list[tuple[float, float, float]] = []
    begun: dict[int, int] = {}
    peaks: list[int] = []

    async def note(event: pb.RoundEvent) -> None:
        """Marks the time at which the last client has a round's state; the first round is not measured."""
        number = event.final_evaluation.round or event.round_opened.round
        if number:
            begun[number] = begun.get(number, 0) + 1
            if begun[number] == clients:
                marks.append((time.perf_counter(), cpu_seconds(pid), time.process_time()))
                peaks.append(peak_bytes(pid))

    await asyncio.gather(*(LightClient(number, link).run(note) for number, link in enumerate(connections)))
    await asyncio.gather(*(link.close() for link in connections))
    seconds, server, client = (after - before for before, after in zip(marks[0], marks[-1], strict=True))
    rounds = len(marks) - 1
    return Cost(
        seconds=seconds / rounds,
        server_cpu=server / rounds,
        client_cpu=client / rounds / clients,
        server_bytes=peaks[-1],
    )


if __name__ == "__main__":
    main()
