"""A long run under a real server: zero errors, memory and database that do not grow by the round.

`python -m benchmarks.soak` runs 200 light clients for 300 rounds of C=100; `--thousand` measures the other bar we hold
ourselves to: 1,000 connected clients, from round 3 to round 50. Every client has a connection of its own.
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

from benchmarks.light_client import LightClient
from benchmarks.measurement import Measurement, table_of
from benchmarks.servers import RunningServer, running_server
from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import Connection
from feddbp_common.config.run import DataConfig, RunConfig
from feddbp_common.rpc.credentials import ClientCredentials
from feddbp_common.wire import Encoded

HELPERS = 2
"""Processes the clients are spread over."""
FLAT = 1.05
"""Flat within five percent."""
STRETCHES = 7
"""Into which the rounds are divided: over one of them the chance of who sends when has evened out."""
ROUNDS_ON_DISK = 6
"""The database holds each client's last two contributions; its log those of the open round and the one before."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run, and from which round on memory has to be flat."""

    clients: int
    rounds: int
    dataset: str
    flat_from: int

    @property
    def config(self) -> RunConfig:
        return RunConfig(clients=self.clients, rounds=self.rounds, data=DataConfig(dataset=self.dataset))

    @property
    def round_bytes(self) -> int:
        """What all clients together upload in a round: prototypes and Fisher scores in float32."""
        shape = self.config.exchange_shape
        return self.clients * 2 * 4 * shape.classes * shape.feature_dim

    def server_options(self) -> tuple[object, ...]:
        run = ("--clients", self.clients, "--rounds", self.rounds, "--dataset", self.dataset)
        return (*run, "--min-clients", self.clients, "--round-deadline", "10m", "--log-level", "warning")


THOUSAND = Plan(clients=1000, rounds=51, dataset="digits", flat_from=3)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The server in one round."""

    round: int
    seconds: float
    """Since the start, at the opening of the round."""
    mean: float
    """Bytes it had resident on average over the round: at any one moment it depends on who is sending just then."""
    peak: int
    """The most it had resident."""
    database: int
    """The most its files took."""
    looks: int = 1

    def joined_by(self, later: Sample) -> Sample:
        looks = self.looks + later.looks
        return replace(
            self,
            mean=(self.mean * self.looks + later.mean * later.looks) / looks,
            peak=max(self.peak, later.peak),
            database=max(self.database, later.database),
            looks=looks,
        )


# --- clients ---


class _OwnConnection(ClientCredentials):
    """Channels to one address share a connection unless they are told not to."""

    def channel(self, address: str, subject: str, options: Sequence[tuple[str, int]] = ()) -> grpc.aio.Channel:
        return super().channel(address, subject, [*options, ("grpc.use_local_subchannel_pool", 1)])


class _SoakingClient(LightClient):
    """Uploads the same in every round: what it says does not matter here, and making it up takes time."""

    def __init__(self, client_id: int, connection: Connection) -> None:
        super().__init__(client_id, connection)
        self._made_up: Encoded | None = None

    def encoded_upload(self, round_number: int) -> Encoded:
        if self._made_up is None:
            self._made_up = super().encoded_upload(0)
        return self._made_up


class _Watch:
    """Looks at the server many times a second, and keeps one sample a round."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._started = time.perf_counter()
        self.samples: list[Sample] = []

    async def on_event(self, event: pb.RoundEvent) -> None:
        if event.HasField("round_opened") or event.HasField("final_evaluation"):
            number = event.round_opened.round if event.HasField("round_opened") else event.final_evaluation.round
            self.samples.append(self._look(number))

    async def keep_looking(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            if self.samples:
                self.samples[-1] = self.samples[-1].joined_by(self._look(self.samples[-1].round))

    def _look(self, number: int) -> Sample:
        resident = _resident(self._server)
        return Sample(
            round=number,
            seconds=time.perf_counter() - self._started,
            mean=float(resident),
            peak=resident,
            database=_on_disk(self._server),
        )


async def _be_clients(address: str, ids: range, server: RunningServer) -> dict[str, object]:
    """Runs clients to the end; the first one also looks after the server."""
    watch = _Watch(server)
    looking = asyncio.create_task(watch.keep_looking())
    clients = [_SoakingClient(number, Connection(address, client_id=number, access=_OwnConnection())) for number in ids]
    ends = await asyncio.gather(
        *(client.run(watch.on_event if client is clients[0] else None) for client in clients), return_exceptions=True
    )
    looking.cancel()
    errors = [repr(end) for end in ends if isinstance(end, BaseException) or end.outcome != pb.RUN_OUTCOME_FINISHED]
    return {
        "errors": errors,
        "rounds_done": sum(client.rounds_done for client in clients),
        "samples": [asdict(sample) for sample in watch.samples],
    }


def _resident(server: RunningServer) -> int:
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _on_disk(server: RunningServer) -> int:
    size = 0
    for path in server.state_dir.glob("run.sqlite3*"):
        with suppress(FileNotFoundError):  # the log is removed when the server ends
            size += path.stat().st_size
    return size


def _start_clients(server: RunningServer, ids: range) -> subprocess.Popen[str]:
    words = [server.address, str(server.pid), str(server.state_dir), str(ids.start), str(ids.stop)]
    command = [sys.executable, "-m", "benchmarks.soak", "--as-clients", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


# --- the run ---


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a soak came to."""

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
    """One server, the clients in processes of their own, from the first join to the end of the run."""
    _raise_file_limit()
    share = -(-plan.clients // HELPERS)
    started = time.perf_counter()
    with running_server(*plan.server_options()) as server:
        helpers = [
            _start_clients(server, range(start, min(start + share, plan.clients)))
            for start in range(0, plan.clients, share)
        ]
        try:
            _show_progress(plan, server, helpers)
            reports = [_report_of(helper) for helper in helpers]
        finally:
            for helper in helpers:
                helper.kill()
                helper.wait()
        exit_code = server.process.wait(60)
        audit = (server.state_dir / "audit.jsonl").read_text()
        return Outcome(
            samples=[Sample(**sample) for sample in reports[0]["samples"]],
            errors=[error for report in reports for error in report["errors"]],
            rounds_done=sum(report["rounds_done"] for report in reports),
            refusals=audit.count('"what": "refused"'),
            exit_code=exit_code,
            seconds=time.perf_counter() - started,
        )


def _report_of(helper: subprocess.Popen[str]) -> dict[str, Any]:
    said, _ = helper.communicate()
    if helper.returncode != 0:
        raise RuntimeError(f"a process of clients ended with {helper.returncode}; its complaint is above")
    report: dict[str, Any] = json.loads(said)
    return report


def _raise_file_limit() -> None:
    """A connection is a file, and there are more of them than a shell allows by default."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _show_progress(plan: Plan, server: RunningServer, helpers: list[subprocess.Popen[str]]) -> None:
    started = time.perf_counter()
    while any(helper.poll() is None for helper in helpers) and server.process.poll() is None:
        time.sleep(min(10.0, 1.0 + (time.perf_counter() - started) / 10))
        with suppress(FileNotFoundError):  # it may end at any moment
            seconds = time.perf_counter() - started
            accepted = (server.state_dir / "audit.jsonl").read_bytes().count(b'"accepted"')
            print(
                f"{seconds:6.0f}s  {accepted / plan.clients:6.1f} of {plan.rounds} rounds  "
                f"{_resident(server) / 1e6:6.1f} MB resident  {_on_disk(server) / 1e6:7.1f} MB on disk",
                flush=True,
            )


def measurements(plan: Plan, outcome: Outcome) -> list[Measurement]:
    flat = [sample for sample in outcome.samples if sample.round >= plan.flat_from]
    stretches = [fmean(sample.mean for sample in stretch) for stretch in _stretches(flat)]
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
            question=f"resident memory from round {plan.flat_from} on: mean of the last {len(flat) // STRETCHES} "
            "rounds over that of the first",
            value=stretches[-1] / stretches[0],
            bar=FLAT,
            detail=f"{stretches[0] / 1e6:.1f} MB, then {stretches[-1] / 1e6:.1f} MB; at most {peak / 1e6:.1f} MB",
        ),
        Measurement(
            question=f"the same in {STRETCHES} stretches: highest mean over their median",
            value=max(stretches) / median(stretches),
            bar=FLAT,
            detail=", ".join(f"{stretch / 1e6:.0f}" for stretch in stretches) + " MB",
        ),
        Measurement(
            question="database and its log against the uploads of one round",
            value=database / plan.round_bytes,
            bar=ROUNDS_ON_DISK,
            detail=f"at most {database / 1e6:.1f} MB, {outcome.samples[-1].database / 1e6:.1f} MB at the end",
        ),
    ]


def _stretches(samples: list[Sample]) -> list[list[Sample]]:
    """Rounds next to each other, as many in each; what is left over is of the first and does not count."""
    length = max(len(samples) // STRETCHES, 1)
    return [samples[start : start + length] for start in range(len(samples) % length, len(samples), length)]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--dataset", default="cifar100")
    parser.add_argument("--flat-from", type=int, default=20, help="round from which memory has to be flat")
    parser.add_argument("--thousand", action="store_true", help="1,000 connected clients, from round 3 to round 50")
    parser.add_argument("--samples", type=Path, help="file to write the server's memory by round to, as JSON lines")
    parser.add_argument("--as-clients", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.as_clients is not None:
        address, pid, state_dir, first, last = given.as_clients
        server = RunningServer(address, int(pid), Path(state_dir))
        print(json.dumps(asyncio.run(_be_clients(address, range(int(first), int(last)), server))))
        return 0
    asked = Plan(clients=given.clients, rounds=given.rounds, dataset=given.dataset, flat_from=given.flat_from)
    plan = THOUSAND if given.thousand else asked
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
