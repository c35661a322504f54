"""Early stopping: a run ends after a number of rounds without a gain in accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from coordinator_runs import CONFIG, Daemon, Server, join_all, summary_of
from run_machine import Run, ids

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ConfigurationError
from feddbp_server.run.snapshot import RunSnapshot
from feddbp_server.run.state_machine.events import Aggregated, FinalEvaluationOpened, Reported, Uploaded
from feddbp_server.run.state_machine.state import Best, Phase, RunState
from feddbp_server.store import ClientRecord, MemoryStore, SqliteStore


def play(run: Run, *accuracies: float | None) -> None:
    """Closes a round for each accuracy that was measured at its beginning."""
    for accuracy in accuracies:
        assert run.phase is Phase.COLLECTING
        number = run.state.round
        run(Uploaded(0, number), Uploaded(1, number), Aggregated(number, ids(), accuracy))


def test_a_run_ends_after_rounds_without_a_gain() -> None:
    run = Run.collecting(2, rounds=100, stop_after=3)
    play(run, 0.9, 0.1, 0.5, 0.5, 0.4)  # before the first round nothing is trained
    assert run.phase is Phase.COLLECTING
    assert run.state.best == Best(0.5, 2)
    run(Uploaded(0, 5))
    effects = run(Uploaded(1, 5), Aggregated(5, ids(), 0.49))
    reason = "no gain in accuracy for 3 rounds, the best was 50.0 % after 2"
    assert effects[-1] == FinalEvaluationOpened(6, reason)
    run(Reported(0, 6), Reported(1, 6))
    assert (run.phase, run.state.reason) == (Phase.FINISHED, reason)


def test_a_gain_begins_the_count_anew_and_a_round_without_reports_does_not() -> None:
    run = Run.collecting(2, rounds=100, stop_after=2)
    play(run, 0.1, 0.2, None, 0.3, 0.3)
    assert run.phase is Phase.COLLECTING
    assert run.state.best == Best(0.3, 3)
    play(run, 0.3)
    assert run.state.reason


def test_without_the_setting_no_accuracy_ends_a_run() -> None:
    run = Run.collecting(2, rounds=100)
    play(run, *[0.1] * 20)
    assert run.phase is Phase.COLLECTING
    assert run.state.best is None


def test_the_best_accuracy_survives_a_restart() -> None:
    run = Run.collecting(2, rounds=100, stop_after=3)
    play(run, 0.1, 0.2, 0.1)
    restored = RunSnapshot.from_json(RunSnapshot(state=run.state, seconds=0.0).to_json()).state
    assert restored.best == run.state.best == Best(0.2, 1)


@pytest.mark.parametrize("changed", [{"finetune_rounds": 2}, {"newcomers": 1, "newcomer_rounds": 2}])
def test_rounds_at_the_end_of_a_run_exclude_early_stopping(changed: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="stop_after may end the run before"):
        RunConfig(clients=3, rounds=9, stop_after=2, **changed)


async def test_the_summary_names_the_reason_also_after_a_restart(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"rounds": 50, "stop_after": 2})

    async def work(daemon: Daemon, number: int) -> None:
        """With the same accuracy in every round."""
        metrics = pb.RoundMetrics(
            inference="p",
            accuracies=[pb.Accuracy(rule="p", correct=4)],
            test_samples=10,
            losses=[pb.LossTerm(name="sum", value=1.0)],
        )
        await daemon.server.coordinator.report_metrics(daemon.session, number, metrics)
        await daemon.upload(number)

    async with Server(SqliteStore(tmp_path), tmp_path, config=config, stop_after=2) as server:
        daemons = await join_all(server)
        for number in range(2):
            for daemon in daemons:
                await work(daemon, number)
            await server.until_round(number + 1)
    async with Server(SqliteStore(tmp_path), tmp_path, config=config, stop_after=2) as restarted:
        daemons = [daemon.moved_to(restarted) for daemon in daemons]
        for number in (2, 3):
            for daemon in daemons:
                await work(daemon, number)
            await restarted.until_round(number + 1)
        assert restarted.phase is Phase.EVALUATING
        for daemon in daemons:
            await daemon.report(4)
        await restarted.until_over()
    summary = summary_of(tmp_path)
    assert (summary["outcome"], summary["completed_rounds"], summary["rounds"]) == ("finished", 4, 50)
    assert summary["reason"] == "no gain in accuracy for 2 rounds, the best was 40.0 % after 1"


async def test_a_run_that_ended_early_is_reopened_with_the_rounds_that_it_has(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"rounds": 50, "stop_after": 2})
    ended = RunState(phase=Phase.FINISHED, round=4, members=ids(0), best=Best(0.4, 1), reason="no gain")
    store = MemoryStore()
    store.open_run("run", config.canonical_json())
    store.save_snapshot(RunSnapshot(state=ended, seconds=1.0).to_json())
    store.save_client(ClientRecord(0, 1, b"", b"", b""))
    async with Server(store, tmp_path, config=config, stop_after=2) as same:
        assert same.engine.state.phase is Phase.FINISHED
    reopened = Server(store, tmp_path, config=config, stop_after=2)
    await reopened.engine.start(reopen=True)
    state = reopened.engine.state
    assert (state.phase, state.round, state.members, state.best) == (Phase.WAITING, 4, ids(), None)
    await reopened.engine.drain()
    await reopened.crash()
