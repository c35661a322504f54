"""Honest clients train to the end of a run in the middle of a flood, with the same bits, also if the server is killed.

One client of the run has a second half that floods the server under the client's own id and token.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from benchmarks.light_client import LightClient
from floods import FLOODS, Flood
from light_runs import Crowd, Gate, exits, features_used_by, start_server, undisturbed_outcome
from processes import PATIENCE, Command, Federation, Outcome
from server_state import peak_resident_bytes, resident_bytes

from feddbp_client.daemon.connection import Connection
from feddbp_common.artifacts import ENDPOINT_NAME
from feddbp_common.rpc.credentials import ClientCredentials

CLIENTS = 4
MEMBER = 3
"""The client whose other half floods the server."""
RUN = (
    *("--clients", CLIENTS, "--min-clients", CLIENTS, "--rounds", 3, "--round-deadline", 0, "--lease", "1s"),
    *("--dataset", "custom", "--classes", 4, "--feature-dim", 2048, "--set", "k_top=3"),
)
MOST_GROWTH = 96e6
"""Bytes of memory that a server may take during a flood beyond what it had before."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return undisturbed_outcome(tmp_path_factory.mktemp("undisturbed"), *RUN, clients=CLIENTS)


class Scene:
    """A run in its second round, which one honest client holds open, and the floods of its server."""

    def __init__(self, running: Federation, tokens: Path) -> None:
        self.running = running
        self.gate = Gate(at_round=1)
        self.crowd = Crowd(running.address, range(CLIENTS), on_event={0: self.gate})
        for number in range(CLIENTS):
            access = ClientCredentials(token_file=tokens / f"client-{number}")
            connection = Connection(
                running.address, client_id=number, credentials=access, used_features=features_used_by(number)
            )
            self.crowd.connections[number] = connection
            self.crowd.clients[number] = LightClient(number, connection)
        self.floods: list[Flood] = []

    @asynccontextmanager
    async def flooded(self, kinds: Iterable[str]) -> AsyncIterator[None]:
        member = self.crowd.clients[MEMBER]
        run_id = (await member.describe()).run_id
        self.floods = [Flood(kind, self.running.address, member, token=f"t{MEMBER}", run_id=run_id) for kind in kinds]
        self.find_metrics()
        tasks = [asyncio.create_task(flood.run()) for flood in self.floods]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(flood.close() for flood in self.floods))
        assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended

    def find_metrics(self) -> None:
        """A server that was started again has another port for them."""
        endpoint = json.loads((self.running.state_dir / ENDPOINT_NAME).read_text())
        for flood in self.floods:
            flood.metrics_port = endpoint["metrics_port"]

    async def made(self, calls: int) -> None:
        """Waits until every flood has made so many calls more."""
        async with asyncio.timeout(PATIENCE * (1 + calls / 1000)):
            await asyncio.gather(*(flood.made(flood.calls + calls) for flood in self.floods))


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """A directory with the server's list of tokens, and a file for the token of each client."""
    directory = tmp_path / "tokens"
    directory.mkdir()
    lines = [f"client-{number} t{number}\n" for number in range(CLIENTS)]
    (directory / "list").write_text("".join([*lines, "operator top-secret\n"]))
    for number in range(CLIENTS):
        (directory / f"client-{number}").write_text(f"t{number}\n")
    return directory


async def finish_flooded(
    running: Federation, tokens: Path, kinds: Sequence[str], calls: int, *, kill: bool
) -> tuple[Command, Scene]:
    """Runs from start to end with floods from the second round on; the server may be killed in their middle."""
    options = (*RUN, "--token-file", tokens / "list", "--metrics-port", 0, "--chunk-wait", "1s", "--header-wait", "2s")
    server = await start_server(running, *options, forked=False)
    before, scene = resident_bytes(server.process.pid), Scene(running, tokens)
    async with scene.crowd:
        await asyncio.wait_for(scene.gate.reached.wait(), PATIENCE)
        async with scene.flooded(kinds):
            await scene.made(calls)
            if kill:
                server.kill()
                server = await start_server(running, *options, forked=False)
                scene.find_metrics()
                await scene.made(calls)
            scene.gate.opened.set()
            await scene.crowd.ended(2 * PATIENCE)
            grown = peak_resident_bytes(server.process.pid) - before
    made = {kind: flood.calls for kind, flood in zip(kinds, scene.floods, strict=True)}
    print(f"\n{made}: {grown / 1e6:.1f} MB more at most than {before / 1e6:.1f} MB")
    assert grown < MOST_GROWTH
    return server, scene


@pytest.mark.parametrize("calls", [200, pytest.param(5_000, marks=[pytest.mark.full, pytest.mark.timeout(900)])])
@pytest.mark.parametrize("kind", FLOODS)
async def test_a_flood_changes_no_bit_of_a_run(
    kind: str, calls: int, running_federation: Federation, tokens: Path, undisturbed: Outcome
) -> None:
    server, _ = await finish_flooded(running_federation, tokens, [kind], calls, kill=False)
    await exits(server, 0)
    assert "Traceback" not in server.log
    assert running_federation.outcome() == undisturbed


@pytest.mark.parametrize(
    ("kinds", "calls"),
    [
        (list(FLOODS), 50),
        *(pytest.param([kind], 1_000, marks=[pytest.mark.full, pytest.mark.timeout(900)]) for kind in FLOODS),
        pytest.param(list(FLOODS), 2_000, marks=[pytest.mark.full, pytest.mark.timeout(1800)]),
    ],
    ids=lambda value: "all at once" if value == list(FLOODS) else None,
)
async def test_a_server_that_is_killed_in_the_middle_of_a_flood_loses_nothing(
    kinds: list[str], calls: int, running_federation: Federation, tokens: Path, undisturbed: Outcome
) -> None:
    server, _ = await finish_flooded(running_federation, tokens, kinds, calls, kill=True)
    await exits(server, 0)
    assert running_federation.outcome() == undisturbed
