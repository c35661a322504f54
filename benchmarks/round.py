"""A round without training against a bare grpc.aio server that moves the same bytes: time, server CPU, server memory.

A round begins with every client holding its state and ends with every client holding the next one. Both servers run all
the time, and rounds alternate between them, so that other load on the machine affects both alike.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TypeAlias

from benchmarks import bars
from benchmarks.bare import BareClient
from benchmarks.light_client import SteadyClient
from benchmarks.measurement import Measurement
from benchmarks.servers import cpu_seconds, peak_bytes, running_server
from feddbp_client.daemon.connection import Connection, ServerUnavailableError
from feddbp_common.rpc.credentials import ClientCredentials, client_subject
from feddbp_common.wire import Encoded

PROCESSES = 20
"""Processes of clients, at most."""
REPETITIONS = 3
"""Of a comparison, with new servers: where memory happens to lie is worth ten percent of a server's CPU time."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One comparison: how many clients, and whether with mutual TLS."""

    clients: int
    rounds: int
    """Of each repetition."""
    tls: bool = False
    classes: int = 100

    @property
    def name(self) -> str:
        return f"N={self.clients}, C={self.classes}{', mTLS' if self.tls else ''}"

    def server_options(self) -> tuple[object, ...]:
        run = ("--clients", self.clients, "--min-clients", self.clients, "--rounds", self.rounds + 1)
        task = ("--dataset", "custom", "--classes", self.classes, "--round-deadline", "0", "--log-level", "warning")
        return (*run, *task)


SETTINGS = (
    Setting(clients=20, rounds=30),
    Setting(clients=4, rounds=30),
    Setting(clients=100, rounds=8),
    Setting(clients=20, rounds=20, tls=True),
)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one round costs."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Costs of each round with the bare server and with ours, in pairs, and both servers' peak memory."""

    setting: Setting
    pairs: Sequence[tuple[Cost, Cost]]
    bare_bytes: int
    our_bytes: int

    def time_ratio(self) -> float:
        return median(ours.seconds / bare.seconds for bare, ours in self.pairs)

    def cpu_ratio(self) -> float:
        # of the sums: the accounting of short times on a busy machine is coarse
        return sum(ours.cpu_seconds for _, ours in self.pairs) / sum(bare.cpu_seconds for bare, _ in self.pairs)

    def detail(self) -> str:
        times = [1000 * median(pair[side].seconds for pair in self.pairs) for side in (0, 1)]
        cpu = [1000 * median(pair[side].cpu_seconds for pair in self.pairs) for side in (0, 1)]
        return (
            f"{len(self.pairs)} rounds: {times[1]:.0f} ms against {times[0]:.0f} ms, "
            f"server CPU {cpu[1]:.0f} ms against {cpu[0]:.0f} ms, "
            f"peak {self.our_bytes / 1e6:.0f} MB against {self.bare_bytes / 1e6:.0f} MB"
        )


# --- clients ---


class RoundClient(SteadyClient):
    """Does one round at a time."""

    def __init__(self, client_id: int, connection: Connection) -> None:
        super().__init__(client_id, connection)
        self._events = connection.follow("")
        self._bytes_down = 0

    async def begin(self) -> Encoded:
        """Joins, when the server wants it to, and takes the first round's state; returns what it will upload."""
        while True:
            try:
                await self.join()
                break
            except ServerUnavailableError as error:
                if error.retry_after is None:
                    raise
                await asyncio.sleep(error.retry_after.total_seconds())
        self._events = self._connection.follow(self.session)
        await self._take_state()
        return self.encoded_upload(0)

    async def do_round(self) -> None:
        encoded = self.encoded_upload(self.rounds_done)
        size = encoded.manifest.total_bytes
        await self.upload_and_report(self.rounds_done, encoded, bytes_down=self._bytes_down, bytes_up=size)
        self.rounds_done += 1
        await self._take_state()

    async def _take_state(self) -> None:
        async for event in self._events:
            if event.HasField("round_opened") and event.round_opened.round == self.rounds_done:
                self._bytes_down = (await self.state_of(event, self.rounds_done)).message_bytes
                return


async def _work(ours: str, bare: str, ids: range, certs: Path | None) -> None:
    credentials = ClientCredentials(certs=certs)
    clients = [RoundClient(number, Connection(ours, client_id=number, credentials=credentials)) for number in ids]
    encoded = await asyncio.gather(*(client.begin() for client in clients))
    bare_clients = (
        [] if bare == "-" else [BareClient(credentials.channel(bare, client_subject(n)), encoded[0]) for n in ids]
    )
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        if line.strip() == "ours":
            await asyncio.gather(*(client.do_round() for client in clients))
        else:
            await asyncio.gather(*(client.do_round() for client in bare_clients))
        print("done", flush=True)


class Workers:
    """Processes of clients that all do a round when told to."""

    def __init__(self, ours: str, bare: str, clients: int, certs: Path | None, *, processes: int = PROCESSES) -> None:
        share = -(-clients // processes)
        words = [sys.executable, "-m", "benchmarks.round", ours, bare, str(certs or "-")]
        self._processes = [
            subprocess.Popen(
                [*words, str(first), str(min(first + share, clients))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for first in range(0, clients, share)
        ]
        self._await("ready")

    def do_round(self, which: str) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{which}\n")
            process.stdin.flush()
        self._await("done")

    def _await(self, word: str) -> None:
        for process in self._processes:
            assert process.stdout is not None
            if process.stdout.readline().strip() != word:
                raise RuntimeError("a process of clients has failed; its error is above")

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


# --- the comparison ---

ServerOf: TypeAlias = Callable[["Setting", Path | None], AbstractContextManager[tuple[str, int]]]
"""Starts a server for a setting, with certificates or without; gives its address and process id."""


def bare_server(clients: int, certs: Path | None) -> AbstractContextManager[tuple[str, int]]:
    return listening_process("benchmarks.bare", str(clients), str(certs or "-"))


@contextmanager
def listening_process(module: str, *words: str) -> Iterator[tuple[str, int]]:
    """Address and process id of a module that prints the port it listens on."""
    process = subprocess.Popen([sys.executable, "-m", module, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"127.0.0.1:{int(process.stdout.readline())}", process.pid
    finally:
        process.kill()
        process.communicate()


@contextmanager
def product(setting: Setting, certs: Path | None) -> Iterator[tuple[str, int]]:
    """Address and process id of our server."""
    secured = () if certs is None else ("--certs", certs)
    with running_server(*setting.server_options(), *secured) as server:
        yield server.address, server.pid


def compare(setting: Setting, server: ServerOf = product) -> Comparison:
    """Rounds of a server that our clients can use against rounds of the bare one, in turns."""
    parts = [_compare_once(setting, server) for _ in range(REPETITIONS)]
    return Comparison(
        setting=setting,
        pairs=[pair for part in parts for pair in part.pairs],
        bare_bytes=max(part.bare_bytes for part in parts),
        our_bytes=max(part.our_bytes for part in parts),
    )


def _compare_once(setting: Setting, server: ServerOf) -> Comparison:
    with ExitStack() as stack:
        certs = _certificates(stack, setting.clients) if setting.tls else None
        our_address, our_pid = stack.enter_context(server(setting, certs))
        bare_address, bare_pid = stack.enter_context(bare_server(setting.clients, certs))
        workers = Workers(our_address, bare_address, setting.clients, certs)
        stack.callback(workers.kill)
        pids = {"bare": bare_pid, "ours": our_pid}
        pairs = []
        for number in range(setting.rounds):
            order = ("bare", "ours") if number % 2 else ("ours", "bare")
            costs = {which: _round(workers, which, pids[which]) for which in order}
            pairs.append((costs["bare"], costs["ours"]))
        return Comparison(
            setting=setting,
            pairs=pairs[setting.rounds // 10 :],
            bare_bytes=peak_bytes(bare_pid),
            our_bytes=peak_bytes(our_pid),
        )


def _round(workers: Workers, which: str, pid: int) -> Cost:
    cpu, started = cpu_seconds(pid), time.perf_counter()
    workers.do_round(which)
    return Cost(seconds=time.perf_counter() - started, cpu_seconds=cpu_seconds(pid) - cpu)


def _certificates(stack: ExitStack, clients: int) -> Path:
    from feddbp_lab.pki.certificates import Authority

    directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    authority = Authority.create(directory)
    lifetime = timedelta(days=1)
    authority.issue_server(["127.0.0.1"], lifetime=lifetime)
    for number in range(clients):
        authority.issue_party(client_subject(number), lifetime=lifetime)
    return directory


def measure() -> list[Measurement]:
    measured = []
    for setting in SETTINGS:
        comparison = compare(setting)
        is_target = setting == SETTINGS[0]
        extra = (comparison.our_bytes - comparison.bare_bytes) / 1e6
        name = f"round without training against bare grpc.aio, {setting.name}"
        measured += [
            Measurement(question=name, value=comparison.time_ratio(), bar=bars.ROUND_TIME, detail=comparison.detail()),
            Measurement(question=f"{name}: server CPU", value=comparison.cpu_ratio(), bar=bars.ROUND_CPU),
        ]
        if is_target:
            measured.append(
                Measurement(
                    question=f"{name}: peak memory above bare", value=extra, bar=bars.ROUND_MEMORY_MB, unit="MB"
                )
            )
    return measured


if __name__ == "__main__":
    ours_, bare_, certs_, first_, last_ = sys.argv[1:]
    asyncio.run(_work(ours_, bare_, range(int(first_), int(last_)), None if certs_ == "-" else Path(certs_)))
