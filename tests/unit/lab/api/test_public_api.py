"""`import feddbp`: what it exports, what it loads, and that the exports work."""

from __future__ import annotations

import asyncio
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import Federation as RunningFederation
from processes import processes_naming

import feddbp

EXIT_SECONDS = 60
"""A ceiling for scripts that once did not end."""
SMALL = feddbp.RunConfig(
    method="feddbp", clients=2, rounds=1, training={"local_epochs": 1, "batch_size": 64, "feature_dim": 32}
)


@pytest.fixture(scope="module")
def statuses() -> list[feddbp.RunStatus]:
    return []


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, statuses: list[feddbp.RunStatus]) -> feddbp.FederationResult:
    federation = feddbp.Federation(SMALL, directory=tmp_path_factory.mktemp("run"), device="cpu", processes=1)
    return federation.run(on_status=statuses.append)


@pytest.mark.parametrize("name", feddbp.__all__)
def test_every_exported_name_exists_and_is_documented(name: str) -> None:
    value = getattr(feddbp, name)
    assert isinstance(value, str) or inspect.getdoc(value)
    assert name in dir(feddbp)


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'Federaton'"):
        feddbp.Federaton  # noqa: B018


def test_importing_it_loads_nothing_heavy() -> None:
    code = (
        "import sys, json, feddbp\n"
        "print(json.dumps([n for n in ('torch', 'grpc', 'numpy', 'pydantic', 'rich') if n in sys.modules]))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == []


def test_configuration_and_control_load_no_torch() -> None:
    code = (
        "import sys, feddbp\nfeddbp.RunConfig(), feddbp.connect, feddbp.Federation\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_federation_runs_to_its_end(result: feddbp.FederationResult) -> None:
    assert (result.outcome, result.reason) == ("finished", "all rounds are done")
    assert result.accuracy is not None
    assert {line["client"] for line in result.metrics} == {0, 1}


def test_statuses_are_passed_on_while_it_runs(
    result: feddbp.FederationResult, statuses: list[feddbp.RunStatus]
) -> None:
    assert result.outcome == "finished"
    assert statuses[-1].phase == "finished"
    assert statuses[-1].is_over
    assert {client.client for client in statuses[-1].clients} == {0, 1}


def test_a_result_lists_the_clients_it_can_load(result: feddbp.FederationResult) -> None:
    assert result.clients == [0, 1]
    assert [result.client(client, device="cpu").facts.client_id for client in result.clients] == [0, 1]


def test_a_trained_client_predicts(result: feddbp.FederationResult) -> None:
    client = result.client(0, device="cpu")
    (prediction,) = client.predict([np.zeros((16, 16), dtype=np.uint8)])
    assert prediction.name in client.facts.class_names


def test_a_finished_directory_is_not_run_again(result: feddbp.FederationResult) -> None:
    again = feddbp.Federation(SMALL, directory=result.directory, device="cpu", processes=1).run()
    assert again.summary["run_id"] == result.summary["run_id"]
    assert again.metrics == result.metrics


def test_another_run_in_the_same_directory_is_refused(result: feddbp.FederationResult) -> None:
    other = SMALL.model_copy(update={"seed": 1})
    with pytest.raises(feddbp.ConfigurationError) as refusal:
        feddbp.Federation(other, directory=result.directory, device="cpu", processes=1).run()
    assert str(refusal.value) == (
        f"directory={str(result.directory)!r} holds another run (seed is 0 there and 1 here); give the same run to "
        "resume it, one with more rounds to extend it, or another directory"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.1}, "RunConfig has no option 'lr'; did you mean \"training={'learning_rate': ...}\"?"),
        (
            {"training": {"lr": 0.1}},
            "RunConfig has no option 'training.lr'; did you mean \"training={'learning_rate': ...}\"?",
        ),
        ({"dataset": "digits"}, "RunConfig has no option 'dataset'; did you mean \"data={'dataset': ...}\"?"),
        ({"round": 3}, "RunConfig has no option 'round'; did you mean 'rounds'?"),
        ({"clients": 0}, "RunConfig: clients: input should be greater than or equal to 1 (got 0)"),
        ({"method": "fedprox"}, "no method is called 'fedprox'; did you mean 'fedproc'?"),
    ],
)
def test_a_wrong_option_of_a_run_is_an_error_of_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(feddbp.ConfigurationError) as refusal:
        feddbp.RunConfig(**options)
    assert str(refusal.value) == message
    assert refusal.value.__cause__ is None


def test_a_wrong_option_of_training_is_an_error_of_one_line() -> None:
    with pytest.raises(feddbp.ConfigurationError) as refusal:
        feddbp.TrainingConfig(lr=0.1)  # type: ignore[call-arg]
    assert str(refusal.value) == "TrainingConfig has no option 'lr'; did you mean 'learning_rate'?"


@pytest.mark.parametrize("processes", [0, -1])
def test_fewer_than_one_process_is_refused(tmp_path: Path, processes: int) -> None:
    with pytest.raises(feddbp.ConfigurationError, match=f"processes is {processes}"):
        feddbp.Federation(SMALL, directory=tmp_path, processes=processes)


def test_a_system_exit_in_on_status_stops_the_federation_and_ends_the_script(tmp_path: Path) -> None:
    code = (
        "import sys, feddbp\n"
        "run = feddbp.RunConfig(clients=1, rounds=1)\n"
        "federation = feddbp.Federation(run, directory=sys.argv[1], device='cpu', processes=1)\n"
        "federation.run(on_status=lambda status: sys.exit(7))"
    )
    directory = tmp_path / "run"
    assert subprocess.run([sys.executable, "-c", code, str(directory)], timeout=EXIT_SECONDS).returncode == 7
    assert processes_naming(directory) == []


def test_private_data_are_for_real_clients(tmp_path: Path) -> None:
    run = feddbp.RunConfig(data={"dataset": "custom", "classes": 2})
    with pytest.raises(feddbp.ConfigurationError, match="public data set"):
        feddbp.Federation(run, directory=tmp_path)


@pytest.fixture
def control(running_federation: RunningFederation) -> Iterator[feddbp.RunControl]:
    running_federation.server("--clients", 1, "--rounds", 1)
    with feddbp.connect(running_federation.address) as control:
        yield control


def test_a_run_is_watched_and_controlled(control: feddbp.RunControl) -> None:
    assert control.status().phase == "waiting"
    assert control.pause().phase == "paused"
    assert control.resume().phase == "waiting"
    watched = control.watch()
    assert next(watched).phase == "waiting"
    stopped = control.stop("enough")
    assert (stopped.phase, stopped.reason) == ("stopped", "enough")
    assert [status.phase for status in watched][-1] == "stopped"


def test_a_script_that_ends_while_it_watches_exits(control: feddbp.RunControl) -> None:
    code = "import sys, feddbp\nstatuses = feddbp.connect(sys.argv[1]).watch()\nprint(next(statuses).phase)"
    ended = subprocess.run(
        [sys.executable, "-c", code, control.server], capture_output=True, text=True, timeout=EXIT_SECONDS
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "waiting\n", "")


def test_a_watch_can_be_closed_and_others_continue(control: feddbp.RunControl) -> None:
    first, second = control.watch(), control.watch()
    assert next(first).phase == next(second).phase == "waiting"
    first.close()
    assert list(first) == []
    control.pause()
    assert next(second).phase == "paused"


def test_a_closed_connection_refuses_calls_and_ends_its_watch(control: feddbp.RunControl) -> None:
    statuses = control.watch()
    next(statuses)
    control.close()
    for call in (control.status, control.watch, lambda: next(statuses)):
        with pytest.raises(feddbp.ConfigurationError, match="the connection is closed"):
            call()


async def test_it_works_inside_a_running_event_loop(control: feddbp.RunControl) -> None:
    assert asyncio.get_running_loop().is_running()
    assert control.status().phase == "waiting"


def test_an_absent_server_is_an_error_of_ours() -> None:
    with feddbp.connect("127.0.0.1:1") as control, pytest.raises(feddbp.FedDBPError, match=r"127\.0\.0\.1:1"):
        control.status()


def test_another_machine_is_not_contacted_without_tls() -> None:
    with pytest.raises(feddbp.ConfigurationError, match="encrypted"):
        feddbp.connect("fl.example.org:50051")
