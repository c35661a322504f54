"""The dashboard in a real Chromium: a run watched from its first round to its end, and finished runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chromium import Watched, browser_page
from foreign_text import FOREIGN, results_with
from light_runs import Crowd, Gate, exits, start_server
from processes import Command, Federation, federation, wait_until

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import Connection
from feddbp_common.artifacts import METRICS_NAME, ROUNDS_NAME, SERVER_LOCK_NAME, SUMMARY_NAME
from feddbp_common.file_lock import FileLock
from feddbp_common.printable import printable

CLASS_NAMES = ('<img src=x onerror="window.pwned=1">', "[/b]", "$\\frac{$", "horse")
ARCHITECTURE = "<script>window.pwned=1</script>"
RUN = ("--clients", 3, "--rounds", 3, "--min-clients", 3, "--feature-dim", 64, "--set", "k_top=5", "--lease", "1s")
DATA = ("--dataset", "custom", "--class-names", ",".join(CLASS_NAMES))


class HostileConnection(Connection):
    """Joins with names that would be markup if a page did not escape them."""

    async def join(self, request: pb.JoinRequest) -> pb.JoinResponse:
        request.capabilities.architecture = ARCHITECTURE
        request.capabilities.device = "$\\frac{$ [/b]"
        return await super().join(request)


def page_address(command: Command) -> str:
    def printed() -> str:
        lines = [line for line in command.log.splitlines() if line.startswith("feddbp dashboard: http")]
        return lines[0].partition(": ")[2] if lines else ""

    return str(wait_until(printed, "the address of the page"))


async def start_dashboard(running: Federation, *arguments: object) -> str:
    command = running.start("feddbp_lab.cli", "dashboard", *arguments, "--port", 0, name="dashboard")
    return await asyncio.to_thread(page_address, command)


async def press(watched: Watched, action: str) -> None:
    """Presses a button and confirms."""
    await watched.page.locator(f"#do-{action}").click()
    await watched.page.locator("#confirm-yes").click()
    await watched.page.locator("#confirm").wait_for(state="hidden")


async def test_a_run_is_watched_from_its_first_round_to_its_end(tmp_path: Path) -> None:
    with federation(tmp_path) as running:
        server = await start_server(running, *RUN, *DATA, "--share-prototypes-with-operators")
        url = await start_dashboard(running, running.state_dir, "--server", running.address)
        gate = Gate(at_round=1)
        async with browser_page(url) as watched:
            page = watched.page
            await watched.shows("#top-title", "waiting for clients")
            assert "key=" not in page.url

            crowd = Crowd(running.address, range(3), on_event={1: gate})
            hostile = HostileConnection(running.address, client_id=0)
            crowd.clients[0]._connection = hostile
            async with crowd:
                await asyncio.wait_for(gate.reached.wait(), 60)
                await watched.shows("#tiles", "Round2 of 3")
                await watched.shows("#client-table", ARCHITECTURE)
                await watched.shows("#timeline-note", "round 1 took")

                await press(watched, "pause")
                await watched.shows("#top-title", "paused")
                await press(watched, "resume")
                await watched.shows("#top-title", "training")

                await crowd.lose(1)
                await watched.shows("#missing-list", "client 1 is disconnected")
                await watched.shows("#client-table tr[data-key='1']", "disconnected")

                await page.locator("#do-stop").click()
                await page.keyboard.press("Escape")
                await page.locator("#confirm").wait_for(state="hidden")

                async with Crowd(running.address, [1]) as again:
                    await again.ended()
                    await crowd.ended()
            await hostile.close()
            await exits(server, 0)
            await watched.shows("#top-title", "finished")
            await watched.shows("#map-out", "after round 3")
            await watched.shows("#own-distances", CLASS_NAMES[0])
            await watched.shows("#accuracy-note", "over 3 of 3 clients after round 3")
            await page.locator("#controls button").first.wait_for(state="detached")
            assert await page.evaluate("window.pwned") is None
            assert await page.locator("img, main script").count() == 0
            assert watched.problems == []

        async with browser_page(url.partition("?")[0], width=390, dark=True) as visitor:
            await visitor.shows("#top-title", "finished")
            assert not await visitor.has_session()
            assert await visitor.page.evaluate("document.documentElement.scrollWidth") == 390
            assert visitor.problems == []


def write_run(
    directory: Path,
    *,
    clients: int,
    rounds: int,
    method: str = "feddbp",
    gone_after: Mapping[int, int] | None = None,
    **options: Any,
) -> None:
    """The files of a finished run with made-up results; `gone_after` has the last rounds of clients that left."""
    last_rounds = gone_after or {}
    directory.mkdir(parents=True, exist_ok=True)
    lines = [
        {
            "client": client,
            "round": number,
            "accuracy": (client % 7 + number) / (rounds + 7),
            "inference": "prototype",
            "accuracies": {"prototype": 0.5},
            "test_samples": 10,
            "losses": {"total": 1.0 / (number + 1), "l_s": 0.1, "constructor": 1.0} if number < rounds else {},
            "seconds": {"evaluate": 0.1, "train": 1.0, "collect": 0.1},
            "bytes_up": 1000,
            "bytes_down": 1000,
        }
        for number in range(rounds + 1)
        for client in range(clients)
        if number <= last_rounds.get(client, rounds)
    ]
    point = {"round": rounds, "weighted": 0.7, "unweighted": 0.7, "std_over_clients": 0.1, "clients": clients}
    per_client = {"architecture": "net", "parameters": 1, "classes_held": 3, "train_samples": 90, "test_samples": 10}
    summary: dict[str, Any] = {
        "method": method,
        "dataset": "digits",
        "clients": clients,
        "rounds": rounds,
        "seed": 0,
        "outcome": "finished",
        "reason": "",
        "completed_rounds": rounds,
        "accuracy": {"best": point, "last": point},
        "bytes_up": 1,
        "bytes_down": 1,
        "seconds": 10.0,
        "prototypes_sha256": "",
        "run_id": f"{method}-0",
        "per_client": [{"client": number, "accuracy": 0.5, **per_client} for number in range(clients)],
        "curve": [{**point, "round": number} for number in range(rounds + 1)],
        "config": {"method": method, "clients": clients, "rounds": rounds, "data": {"dataset": "digits"}, **options},
    }
    (directory / METRICS_NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (directory / SUMMARY_NAME).write_text(json.dumps(summary))


async def test_a_folder_of_runs_is_browsed_and_a_thousand_clients_scroll(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "many", clients=1000, rounds=3)
    write_run(tmp_path / "runs" / "many-local", clients=1000, rounds=3, method="local")
    write_run(tmp_path / "runs" / "other", clients=2, rounds=3, exchange="off")
    (tmp_path / "runs" / "many" / ROUNDS_NAME).write_text("[]\n")
    write_run(tmp_path / "runs" / "torn", clients=2, rounds=3)
    (tmp_path / "runs" / "torn" / SUMMARY_NAME).write_text("{")
    with federation(tmp_path) as running:
        url = await start_dashboard(running, tmp_path / "runs")
        async with browser_page(url) as watched:
            page = watched.page
            await watched.shows("#run-table", "many-local")
            await watched.shows("#compare-legend", "many-local")
            await watched.shows("#run-table", "FedDBP, no exchange")
            await watched.shows("#damaged-runs", "torn cannot be read: the results in")
            await page.locator("#run-table a", has_text="many").first.click()
            await watched.shows("#clients-note", "1,000 clients")
            await watched.shows("#notice", "rounds.jsonl: 1 damaged line was left out")
            assert await page.locator("#client-table tbody tr").count() < 100
            await page.locator("#client-scroll").evaluate("element => { element.scrollTop = element.scrollHeight }")
            await watched.shows("#client-table tbody", "client 999")
            await page.locator("#client-table thead button", has_text="Accuracy").click()
            await page.locator("#client-table th[aria-sort=descending]").wait_for()
            await page.locator("#client-filter").fill("client 77")
            await watched.shows("#clients-note", "19 of 1,000 clients")
            await watched.shows("#gain-legend", "of 1,000 clients better")
            await watched.shows("#prototypes", "No prototypes were kept")
            await watched.shows("#loss-legend", "weighted totalprototype distance, shared branchconstructor")
            assert watched.problems == []


async def test_runs_that_come_later_and_new_results_are_listed_without_a_reload(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    for name in ("first", "second"):
        write_run(folder / name, clients=2, rounds=3)
    with federation(tmp_path) as running:
        url = await start_dashboard(running, folder)
        async with browser_page(url) as watched:
            page = watched.page
            await watched.shows("#list-note", "2 runs")
            tick = page.locator("#run-table input").first
            await tick.uncheck()
            write_run(folder / "another", clients=2, rounds=4)
            await watched.shows("#list-note", "3 runs")
            await watched.shows("#run-table", "4 / 4")
            write_run(folder / "second", clients=2, rounds=5)
            await watched.shows("#run-table", "5 / 5")
            assert await page.locator("#run-table input:checked").count() == 1
            assert await page.locator("#run-table tr:has-text('first') input").evaluate(
                "tick => tick === document.activeElement"
            )
            await page.locator("#run-table a", has_text="second").click()
            await watched.shows("#tiles", "5 of 5")
            assert watched.problems == []


def change_summary(directory: Path, **changed: Any) -> None:
    path = directory / SUMMARY_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


async def test_a_run_that_has_not_begun_has_no_time_and_is_of_no_earlier_version(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "early"
    write_run(run, clients=2, rounds=3)
    nothing = {"accuracy": {"best": None, "last": None}, "curve": [], "per_client": [], "seconds": 0.0}
    change_summary(run, outcome="waiting", completed_rounds=0, **nothing)
    (run / METRICS_NAME).write_text("")
    with federation(tmp_path) as running:
        url = await start_dashboard(running, tmp_path / "runs")
        async with browser_page(url) as watched:
            await watched.shows("#run-table tbody tr td:last-child", "–")
            await watched.page.locator("#run-table a").click()
            await watched.shows("#tiles", "Time–the run has not begun")
            await watched.shows("#timeline-chart", "appear here round by round")
            await watched.shows("#data-chart", "when they join")
            assert "0.2.0" not in await watched.page.locator("main").inner_text()
            assert watched.problems == []


async def test_the_list_has_the_phase_of_a_run_in_words_and_compares_those_with_an_accuracy(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for name, done, outcome in (("a", 0, "collecting"), ("b", 2, "collecting"), ("c", 3, "finished")):
        write_run(runs / name, clients=2, rounds=3)
        change_summary(runs / name, outcome=outcome, completed_rounds=done, **({} if done else {"curve": []}))
    with federation(tmp_path) as running, FileLock(runs / "a" / SERVER_LOCK_NAME):
        url = await start_dashboard(running, runs)
        async with browser_page(url) as watched:
            for name, outcome in (("a", "training"), ("b", "not running, after round 2"), ("c", "finished")):
                await watched.shows(f"#run-table tr:has(span.clip:text-is('{name}')) .state", outcome)
            ticks = watched.page.locator("#run-table input")
            assert [await tick.is_checked() for tick in await ticks.all()] == [False, True, True]
            await watched.page.locator("#run-table a", has_text="b").click()
            await watched.shows("#top-title", "not running, after round 2")
            assert watched.problems == []


async def test_a_client_that_is_gone_stays_in_the_mean_accuracy_with_its_last_evaluation(tmp_path: Path) -> None:
    write_run(tmp_path / "run", clients=3, rounds=3, gone_after={2: 2}, finetune_rounds=2)
    with federation(tmp_path) as running:
        url = await start_dashboard(running, tmp_path / "run")
        async with browser_page(url) as watched:
            await watched.shows("#run-sub", "no exchange in the last 2 rounds")
            # of 10 samples each: clients 0 and 1 have 30 and 40 % in the end, client 2 had 40 % after round 2
            await watched.shows("#tiles", "36.7 %over 3 of 3 clients, 1 of them in earlier rounds after round 3")
            await watched.shows(
                "#accuracy-note", "36.7 % over 3 of 3 clients, 1 of them in earlier rounds after round 3"
            )
            assert watched.problems == []


LOSSES_OF = """async (reporting) => {
  const { RunState } = await import("/static/run_state.js");
  const state = new RunState();
  const clients = [0, 1, ...reporting], ones = clients.map(() => 1);
  const rounds = [0, 0, ...reporting.map(() => 1)];
  state.apply({ reports: [clients, rounds, ...Array(8).fill(ones)], losses: { 0: { total: 2 }, 1: { total: 1 } } });
  state.apply({ status: { phase: "collecting", round: 1 } });
  return state.lossCurves().rounds;
}"""


REBUILT = """async () => {
  const { LineChart, line } = await import("/static/charts.js");
  const chart = new LineChart(document.getElementById("traffic-chart"), { label: "", series: () => [line("--s1")] });
  const rebuilt = [1, 2, 3, 4].map((points) => {
    const before = chart.plot, numbers = [...Array(points).keys()];
    chart.draw([numbers, numbers], "", "");
    return chart.plot !== before;
  });
  return rebuilt;
}"""


async def test_the_loss_of_an_open_round_is_drawn_once_its_clients_have_reported(tmp_path: Path) -> None:
    write_run(tmp_path / "run", clients=2, rounds=1)
    with federation(tmp_path) as running:
        url = await start_dashboard(running, tmp_path / "run")
        async with browser_page(url) as watched:
            assert await watched.page.evaluate(LOSSES_OF, [1]) == [1]
            assert await watched.page.evaluate(LOSSES_OF, [0, 1]) == [1, 2]
            # once for the first points, and once without the markers that few points have
            assert await watched.page.evaluate(REBUILT) == [True, False, True, False]


async def test_foreign_text_of_a_stored_run_is_shown_as_text(tmp_path: Path) -> None:
    results_with(*FOREIGN, directory=tmp_path / "runs" / "hostile")
    with federation(tmp_path) as running:
        url = await start_dashboard(running, tmp_path / "runs")
        async with browser_page(url) as watched:
            page = watched.page
            await page.locator("#run-table a", has_text="hostile").first.click()
            await watched.shows("#clients-note", f"{len(FOREIGN)} clients")
            for text in FOREIGN:
                shown = printable(text)[:40]
                await page.locator("#client-filter").fill(shown)
                await watched.shows("#client-table tbody", shown)
            assert await page.evaluate("window.pwned") is None
            assert await page.locator("img, main script, main b:text-is('net')").count() == 0
            assert watched.problems == []


async def test_a_page_reconnects_when_the_server_is_started_again(tmp_path: Path) -> None:
    with federation(tmp_path) as running:
        server = await start_server(running, *RUN, *DATA, "--privacy", "careful")
        url = await start_dashboard(running, "--server", running.address)
        async with browser_page(url) as watched:
            await watched.shows("#run-privacy", "Privacy: careful: prototypes of fewer than 5 samples stay")
            await watched.shows("#prototypes", "does not share its prototypes")
            server.kill()
            await watched.shows("#notice", "reconnecting")
            await start_server(running, *RUN, *DATA, "--privacy", "careful")
            await watched.page.locator("#notice", has_text="reconnecting").wait_for(state="hidden", timeout=60_000)
