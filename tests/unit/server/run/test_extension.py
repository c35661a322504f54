"""Extending a run: with more rounds, after it has finished or was stopped."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from coordinator_runs import CONFIG, ROUNDS, Daemon, Server, join_all, metrics_of, summary_of, whole_run

from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ConfigurationError
from feddbp_server.run.snapshot import RunSnapshot
from feddbp_server.run.state_machine.state import Phase, RunState
from feddbp_server.store import ClientRecord, MemoryStore, RunMismatchError, SqliteStore, Store


@pytest.fixture(params=["memory", "sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    shared = MemoryStore()
    return (lambda: shared) if request.param == "memory" else lambda: SqliteStore(tmp_path)


def longer(rounds: int, **changed: Any) -> RunConfig:
    return RunConfig.model_validate({**CONFIG.model_dump(), "rounds": rounds, **changed})


async def go_on(server: Server, first: int, rounds: int) -> None:
    """All clients join again and work through the remaining rounds."""
    daemons = await join_all(server)
    for number in range(first, rounds):
        for daemon in daemons:
            await daemon.work(number)
        await server.until_round(number + 1)
    for daemon in daemons:
        await daemon.report(rounds)
    await server.until_over()


async def outcome_of(config: RunConfig, store: Store, directory: Path) -> tuple[str, list[dict[str, Any]]]:
    directory.mkdir(exist_ok=True)  # noqa: ASYNC240 - a test
    async with Server(store, directory, config=config) as server:
        await go_on(server, 0, config.rounds)
    return summary_of(directory)["prototypes_sha256"], metrics_of(directory)


async def test_an_extended_run_has_the_bits_of_one_that_was_as_long_from_the_start(
    open_store: Any, tmp_path: Path
) -> None:
    async with Server(open_store(), tmp_path) as short:
        await whole_run(short)
        run_id = short.engine.run_id
    async with Server(open_store(), tmp_path, config=longer(5)) as extended:
        assert extended.engine.run_id == run_id
        assert (extended.phase, extended.engine.state.round) == (Phase.WAITING, ROUNDS)
        assert not (tmp_path / "summary.json").exists()
        await go_on(extended, ROUNDS, 5)
    outcome = summary_of(tmp_path)["prototypes_sha256"], metrics_of(tmp_path)
    assert outcome == await outcome_of(longer(5), MemoryStore(), tmp_path / "straight")


async def test_a_stopped_run_goes_on_with_other_rounds_or_by_reopening(open_store: Any, tmp_path: Path) -> None:
    config = longer(5)
    async with Server(open_store(), tmp_path, config=config) as stopped:
        daemons = await join_all(stopped)
        for daemon in daemons:
            await daemon.work(0)
        await stopped.until_round(1)
        await daemons[0].work(1)
        await stopped.coordinator.stop("enough")
    async with Server(open_store(), tmp_path, config=config) as same:
        assert same.phase is Phase.STOPPED
    async with Server(open_store(), tmp_path, config=longer(4)) as reopened:
        assert (reopened.phase, reopened.engine.state.round) == (Phase.WAITING, 1)
        await go_on(reopened, 1, 4)
    outcome = summary_of(tmp_path)["prototypes_sha256"], metrics_of(tmp_path)
    assert outcome == await outcome_of(longer(4), MemoryStore(), tmp_path / "straight")


async def test_who_joined_in_the_final_evaluation_is_no_member_of_the_extended_run_before_it_joins_again(
    open_store: Any, tmp_path: Path
) -> None:
    short = await Server(open_store(), tmp_path, min_clients=2, join_window=timedelta(0)).__aenter__()
    daemons = [await Daemon.join(short, client_id) for client_id in range(2)]
    for number in range(ROUNDS):
        for daemon in daemons:
            await daemon.work(number)
        await short.until_round(number + 1)
    await Daemon.join(short, 2)
    await short.crash()
    async with Server(open_store(), tmp_path, config=longer(5)) as extended:
        assert (extended.phase, extended.engine.state.members) == (Phase.WAITING, frozenset())


async def test_a_failed_run_is_reopened_on_request_alone(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path, deadline=0.01, max_extensions=0) as failing:
        await join_all(failing)
        await failing.until_over()
        assert failing.phase is Phase.FAILED
    reopened = Server(store, tmp_path)
    await reopened.engine.start(reopen=True)
    assert reopened.phase is Phase.WAITING
    await go_on(reopened, 0, ROUNDS)
    await reopened.engine.drain()
    await reopened.crash()
    assert summary_of(tmp_path)["outcome"] == "finished"


async def test_a_run_cannot_have_fewer_rounds_than_it_has_completed(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path) as server:
        await whole_run(server)
    with pytest.raises(ConfigurationError, match="has completed 2 rounds; give more than that"):
        await Server(store, tmp_path, config=longer(1)).__aenter__()


async def test_a_run_that_goes_on_is_not_cut_short(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path, config=longer(5)) as server:
        await Daemon.join(server, 0)
    with pytest.raises(RunMismatchError, match="rounds is 5 there and 4 here"):
        await Server(store, tmp_path, config=longer(4)).__aenter__()


async def test_a_run_in_its_last_rounds_of_their_own_kind_is_not_extended(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path, config=longer(4, finetune_rounds=3)) as server:
        daemons = await join_all(server)
        for number in range(2):
            for daemon in daemons:
                await daemon.work(number)
            await server.until_round(number + 1)
        await server.coordinator.stop("enough")
    with pytest.raises(ConfigurationError, match="extended only before them"):
        await Server(store, tmp_path, config=longer(5, finetune_rounds=3)).__aenter__()


@pytest.mark.parametrize(
    ("last_rounds", "kind"),
    [({"finetune_rounds": 1}, "fine-tuning"), ({"newcomers": 1, "newcomer_rounds": 1}, "newcomer")],
)
async def test_a_run_that_has_finished_with_such_rounds_needs_a_new_one(
    last_rounds: dict[str, Any], kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = RunState(phase=Phase.FINISHED, round=ROUNDS, reason="all rounds are done")
    config = longer(ROUNDS, **last_rounds)
    store = MemoryStore()
    store.open_run("run", config.canonical_json())
    store.save_snapshot(RunSnapshot(state=state, seconds=1.0).to_json())
    store.save_client(ClientRecord(0, 1, b"", b"", b""))
    async with Server(store, tmp_path, config=config):
        assert "all rounds are done; another run needs another --state-dir" in caplog.text
    with pytest.raises(ConfigurationError, match=f"has finished with 1 {kind} rounds and cannot be extended; a longer"):
        await Server(store, tmp_path, config=longer(5, **last_rounds)).__aenter__()


async def test_a_finished_run_says_that_more_rounds_extend_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path) as server:
        await whole_run(server)
    async with Server(store, tmp_path):
        assert "all rounds are done; more --rounds extend it, another run needs another --state-dir" in caplog.text


async def test_rounds_with_exchange_do_not_become_rounds_of_fine_tuning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "feddbp.server")
    store = MemoryStore()
    async with Server(store, tmp_path, config=longer(10, finetune_rounds=2)) as server:
        daemons = await join_all(server)
        for number in range(3):
            for daemon in daemons:
                await daemon.work(number)
            await server.until_round(number + 1)
        await server.coordinator.stop("enough")
    with pytest.raises(ConfigurationError, match="has completed 3 rounds before those; give at least 5"):
        await Server(store, tmp_path, config=longer(4, finetune_rounds=2)).__aenter__()
    async with Server(store, tmp_path, config=longer(5, finetune_rounds=2)) as shorter:
        await go_on(shorter, 3, 5)
    assert caplog.messages.count("rounds 4 to 5: fine-tuning, without exchange") == 1


async def test_a_schedule_over_the_whole_run_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    training = {**CONFIG.training.model_dump(), "schedule": "cosine"}
    async with Server(store, tmp_path, config=longer(ROUNDS, training=training)) as server:
        await whole_run(server)
    async with Server(store, tmp_path, config=longer(5, training=training)):
        assert "the learning rate (--schedule cosine) changes over the whole run: from round 3 on" in caplog.text


@pytest.mark.parametrize("joined", [False, True])
async def test_a_run_that_nobody_joined_gives_way_to_another(joined: bool, open_store: Any, tmp_path: Path) -> None:
    other = longer(ROUNDS, seed=9)
    async with Server(open_store(), tmp_path) as first:
        run_id = first.engine.run_id
        if joined:
            await Daemon.join(first, 0)
    if joined:
        with pytest.raises(RunMismatchError, match="seed is 0 there and 9 here"):
            await Server(open_store(), tmp_path, config=other).__aenter__()
        return
    async with Server(open_store(), tmp_path) as same:
        assert same.engine.run_id == run_id
    async with Server(open_store(), tmp_path, config=other) as second:
        assert second.engine.run_id != run_id
        await whole_run(second)
    assert summary_of(tmp_path)["seed"] == 9
