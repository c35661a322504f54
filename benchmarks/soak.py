"""A long run against a server process: no errors, and memory and database do not grow with the rounds.

`python -m benchmarks.soak` runs 200 light clients for 300 rounds with C=100; `--thousand` runs 1,000 connected clients
and measures from round 3 to round 50. Every client has its own connection.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import grpc
from rich.console import Console

from benchmarks import bars
from benchmarks.light_client import SteadyClient
from benchmarks.measurement import Measurement, table_of
from benchmarks.servers import RunningServer, running_server
from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import Connection
from feddbp_common.artifacts import AUDIT_NAME, DATABASE_NAME
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.rpc.credentials import ClientCredentials

WORKERS = 2
"""Number of processes that run the clients."""
INTERVALS = 7
"""Number of intervals of rounds that are compared; each is long enough to average out the timing of uploads."""
ROUNDS_ON_DISK = 6
"""The database holds the last two uploads of each client; the WAL holds those of the open round and the one before."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The size of the run, and the round from which memory must not grow."""

    clients: int
    rounds: int
    dataset: str
    flat_from: int

    @property
    def config(self) -> RunConfig:
        return RunConfig(clients=self.clients, rounds=self.rounds, data=DataConfig(dataset=self.dataset))

    @property
    def round_bytes(self) -> int:
        """Bytes that all clients upload in a round: prototypes and Fisher scores in float32."""
        shape = self.config.exchange_shape
        return self.clients * 2 * 4 * shape.classes * shape.feature_dim

    def server_options(self) -> tuple[object, ...]:
        run = ("--clients", self.clients, "--rounds", self.rounds, "--dataset", self.dataset)
        return (*run, "--min-clients", self.clients, "--round-deadline", "10m", "--log-level", "warning")


THOUSAND = Plan(clients=1000, rounds=51, dataset="digits", flat_from=3)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Memory and disk usage of the server in one round."""

    round: int
    seconds: float
    """Since the start, at the opening of the round."""
    mean: float
    """Mean resident bytes over the round; a single reading depends on the uploads in progress."""
    peak: int
    """Maximum resident bytes."""
    database: int
    """Maximum bytes of the database files."""
    readings: int = 1

    def merged_with(self, later: Sample) -> Sample:
        readings = self.readings + later.readings
        return replace(
            self,
            mean=(self.mean * self.readings + later.mean * later.readings) / readings,
            peak=max(self.peak, later.peak),
            database=max(self.database, later.database),
            readings=readings,
        )


# --- clients ---


class OwnConnection(ClientCredentials):
    """Credentials whose channels do not share a connection, as channels to the same address do by default."""

    def channel(self, address: str, subject: str, options: Sequence[tuple[str, int]] = ()) -> grpc.aio.Channel:
        return super().channel(address, subject, [*options, ("grpc.use_local_subchannel_pool", 1)])


class _Sampler:
    """Samples memory and disk usage of the server every 50 ms and keeps one sample per round."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._started = time.perf_counter()
        self.samples: list[Sample] = []

    async def on_event(self, event: pb.RoundEvent) -> None:
        if event.HasField("round_opened") or event.HasField("final_evaluation"):
            number = event.round_opened.round if event.HasField("round_opened") else event.final_evaluation.round
            self.samples.append(self._read(number))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            if self.samples:
                self.samples[-1] = self.samples[-1].merged_with(self._read(self.samples[-1].round))

    def _read(self, number: int) -> Sample:
        resident = _resident(self._server)
        return Sample(
            round=number,
            seconds=time.perf_counter() - self._started,
            mean=float(resident),
            peak=resident,
            database=_on_disk(self._server),
        )


async def _run_clients(address: str, ids: range, server: RunningServer) -> dict[str, object]:
    """Runs clients to the end of the run; the first one also samples the server."""
    sampler = _Sampler(server)
    sampling = asyncio.create_task(sampler.run())
    clients = [
        SteadyClient(number, Connection(address, client_id=number, credentials=OwnConnection())) for number in ids
    ]
    # a server that too many clients join at once refuses some with a time to retry
    running = (client.run_reconnecting(sampler.on_event if client is clients[0] else None) for client in clients)
    ends = await asyncio.gather(*running, return_exceptions=True)
    sampling.cancel()
    errors = [repr(end) for end in ends if not isinstance(end, pb.RunEnded) or end.outcome != pb.RUN_OUTCOME_FINISHED]
    return {
        "errors": errors,
        "rounds_done": sum(client.rounds_done for client in clients),
        "samples": [asdict(sample) for sample in sampler.samples],
    }


def _resident(server: RunningServer) -> int:
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _on_disk(server: RunningServer) -> int:
    size = 0
    for path in server.state_dir.glob(f"{DATABASE_NAME}*"):
        with suppress(FileNotFoundError):  # the WAL is removed when the server ends
            size += path.stat().st_size
    return size


def _start_clients(server: RunningServer, ids: range) -> subprocess.Popen[str]:
    words = [server.address, str(server.pid), str(server.state_dir), str(ids.start), str(ids.stop)]
    command = [sys.executable, "-m", "benchmarks.soak", "--as-clients", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


# --- the run ---


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a soak run."""

    samples: list[Sample]
    errors: list[str]
    rounds_done: int
    refusals: int
    exit_code: int
    seconds: float

    @property
    def all_errors(self) -> int:
        return len(self.errors) + self.refusals + (self.exit_code != 0)


def soak(plan: Plan) -> Outcome:
    """Runs a server and, in other processes, its clients until the end of the run."""
    _raise_file_limit()
    share = -(-plan.clients // WORKERS)
    started = time.perf_counter()
    with running_server(*plan.server_options()) as server:
        workers = [
            _start_clients(server, range(start, min(start + share, plan.clients)))
            for start in range(0, plan.clients, share)
        ]
        try:
            _show_progress(plan, server, workers)
            reports = [_report_of(worker) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        exit_code = server.process.wait(60)
        audit = (server.state_dir / AUDIT_NAME).read_text()
        return Outcome(
            samples=[Sample(**sample) for sample in reports[0]["samples"]],
            errors=[error for report in reports for error in report["errors"]],
            rounds_done=sum(report["rounds_done"] for report in reports),
            refusals=sum(_is_error(json.loads(line)) for line in audit.splitlines()),
            exit_code=exit_code,
            seconds=time.perf_counter() - started,
        )


def _is_error(entry: dict[str, Any]) -> bool:
    """A refusal, unless it tells a client when to join."""
    return entry["what"] == "refused" and (entry["call"], entry["reason"]) != ("Join", "busy")


def _report_of(worker: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = worker.communicate()
    if worker.returncode != 0:
        raise RuntimeError(f"a client process ended with exit code {worker.returncode}; its error is above")
    report: dict[str, Any] = json.loads(output)
    return report


def _raise_file_limit() -> None:
    """Raises the limit on open files, because every connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _show_progress(plan: Plan, server: RunningServer, workers: list[subprocess.Popen[str]]) -> None:
    started = time.perf_counter()
    while any(worker.poll() is None for worker in workers) and server.process.poll() is None:
        time.sleep(min(10.0, 1.0 + (time.perf_counter() - started) / 10))
        with suppress(FileNotFoundError):  # the server may end at any time
            seconds = time.perf_counter() - started
            accepted = (server.state_dir / AUDIT_NAME).read_bytes().count(b'"accepted"')
            print(
                f"{seconds:6.0f}s  {accepted / plan.clients:6.1f} of {plan.rounds} rounds  "
                f"{_resident(server) / 1e6:6.1f} MB resident  {_on_disk(server) / 1e6:7.1f} MB on disk",
                flush=True,
            )


def measurements(plan: Plan, outcome: Outcome) -> list[Measurement]:
    flat = [sample for sample in outcome.samples if sample.round >= plan.flat_from]
    intervals = [fmean(sample.mean for sample in interval) for interval in _intervals(flat)]
    peak = max(sample.peak for sample in flat)
    database = max(sample.database for sample in outcome.samples)
    per_round = (outcome.samples[-1].seconds - outcome.samples[0].seconds) / plan.rounds
    return [
        Measurement(
            question=f"{plan.clients} clients, {plan.rounds} rounds, {plan.dataset}: errors",
            value=outcome.all_errors,
            bar=0,
            unit="",
            detail=f"{outcome.rounds_done} client rounds in {outcome.seconds:.0f}s, {per_round:.2f}s a round, "
            f"{plan.round_bytes * plan.rounds / 1e9:.1f} GB uploaded",
        ),
        Measurement(
            question=f"resident memory from round {plan.flat_from} on: mean of the last {len(flat) // INTERVALS} "
            "rounds over that of the first",
            value=intervals[-1] / intervals[0],
            bar=bars.FLAT_MEMORY,
            detail=f"{intervals[0] / 1e6:.1f} MB, then {intervals[-1] / 1e6:.1f} MB; at most {peak / 1e6:.1f} MB",
        ),
        Measurement(
            question=f"the same in {INTERVALS} intervals: highest mean over their median",
            value=max(intervals) / median(intervals),
            bar=bars.FLAT_MEMORY,
            detail=", ".join(f"{interval / 1e6:.0f}" for interval in intervals) + " MB",
        ),
        Measurement(
            question="database and its log against the uploads of one round",
            value=database / plan.round_bytes,
            bar=ROUNDS_ON_DISK,
            detail=f"at most {database / 1e6:.1f} MB, {outcome.samples[-1].database / 1e6:.1f} MB at the end",
        ),
    ]


def _intervals(samples: list[Sample]) -> list[list[Sample]]:
    """Splits the samples into intervals of equal length; the remainder at the start is left out."""
    length = max(len(samples) // INTERVALS, 1)
    return [samples[start : start + length] for start in range(len(samples) % length, len(samples), length)]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--dataset", default="cifar100")
    parser.add_argument("--flat-from", type=int, default=20, help="round from which memory must not grow")
    parser.add_argument("--thousand", action="store_true", help="1,000 connected clients, from round 3 to round 50")
    parser.add_argument("--samples", type=Path, help="file for the server's memory by round, as JSON lines")
    parser.add_argument("--as-clients", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.as_clients is not None:
        address, pid, state_dir, first, last = given.as_clients
        server = RunningServer(address, int(pid), Path(state_dir))
        print(json.dumps(asyncio.run(_run_clients(address, range(int(first), int(last)), server))))
        return 0
    custom = Plan(clients=given.clients, rounds=given.rounds, dataset=given.dataset, flat_from=given.flat_from)
    plan = THOUSAND if given.thousand else custom
    outcome = soak(plan)
    if given.samples is not None:
        given.samples.write_text("".join(f"{json.dumps(asdict(sample))}\n" for sample in outcome.samples))
    measured = measurements(plan, outcome)
    Console().print(table_of(measured))
    for error in outcome.errors[:10]:
        print(error)
    return 0 if all(measurement.holds for measurement in measured) else 1


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
