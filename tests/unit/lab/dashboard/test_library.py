"""Which `local` runs the clients of a run are compared with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from foreign_text import results_with

from feddbp_common.artifacts import METRICS_NAME, SERVER_LOCK_NAME, SUMMARY_NAME
from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.file_lock import FileLock
from feddbp_lab.cli import main
from feddbp_lab.dashboard.library import Library, locals_of, read_baseline
from feddbp_lab.dashboard.stored import StoredRun
from feddbp_lab.results.run_files import RunFiles, find_runs

RUN: dict[str, Any] = {"method": "feddbp", "clients": 4, "rounds": 10, "data": {"dataset": "cifar10", "alpha": 0.5}}


def config(**changed: Any) -> RunConfig:
    return RunConfig.model_validate({**RUN, **changed})


@pytest.mark.parametrize(
    "other",
    [
        {"data": {"dataset": "cifar10", "alpha": 0.1}},
        {"data": {"dataset": "cifar10", "alpha": 0.5, "image_size": 16}},
        {"data": {"dataset": "cifar100", "alpha": 0.5}},
        {"clients": 5},
        {"rounds": 11},
        {"seed": 1},
        {"newcomers": 1, "newcomer_rounds": 2},
        {"training": {"validation": 0.1}},
        {"training": {"model_group": "htfe-8"}},
        {"training": {"learning_rate": 0.5}},
        {"participation": 0.5},
    ],
)
def test_a_run_is_compared_with_the_local_runs_with_the_same_data_networks_and_training(other: dict[str, Any]) -> None:
    configs = {"0": config(method="local", **other), "1": config(), "2": config(method="local"), "3": config(**other)}
    assert locals_of("1", configs) == ["2"]
    assert locals_of("3", configs) == ["0"]
    assert locals_of("2", configs) == []
    configs["4"] = configs.pop("2")
    configs["5"] = configs["4"]
    assert locals_of("1", configs) == ["4", "5"]
    del configs["4"], configs["5"]
    assert locals_of("1", configs) == []


@pytest.mark.parametrize(
    "own",
    [
        {"method": "feddbp:guided", "guide": {"network": "guide_small"}},
        {"method_settings": {"lambda_2": 0.25}},
        {"exchange": "off"},
        {"finetune_rounds": 2},
        {"finetune_rounds": 2, "finetune_state": "last"},
    ],
)
def test_options_of_the_method_alone_do_not_matter(own: dict[str, Any]) -> None:
    assert locals_of("run", {"run": config(**own), "local": config(method="local")}) == ["local"]


async def test_the_next_local_run_is_taken_where_one_is_damaged(tmp_path: Path) -> None:
    for name, method in (("a", "feddbp"), ("b", "local"), ("c", "local")):
        results_with("net", directory=tmp_path / name)
        path = tmp_path / name / SUMMARY_NAME
        run = {"method": method, "data": {"dataset": "digits"}}
        path.write_text(json.dumps({**json.loads(path.read_text()), "method": method, "config": run}))
    (tmp_path / "b" / METRICS_NAME).write_text("{")
    source = await Library(folder=tmp_path, runs=find_runs(tmp_path)).get("0")
    assert source is not None
    assert source.baseline


@pytest.mark.parametrize(("local_alpha", "is_compared"), [(0.1, True), (1.0, False)])
async def test_the_page_of_a_run_has_the_local_run_of_the_same_split(
    tmp_path: Path, local_alpha: float, is_compared: bool
) -> None:
    for name, method, alpha in (("a", "feddbp", 0.1), ("b", "local", local_alpha)):
        results_with("net", directory=tmp_path / name)
        path = tmp_path / name / SUMMARY_NAME
        run = {"method": method, "data": {"dataset": "digits", "alpha": alpha}}
        path.write_text(json.dumps({**json.loads(path.read_text()), "method": method, "config": run}))
    library = Library(folder=tmp_path, runs=find_runs(tmp_path))
    source = await library.get("0")
    assert source is not None
    assert bool(source.baseline) is is_compared


async def test_a_run_of_a_later_version_is_listed(tmp_path: Path) -> None:
    results_with("net", directory=tmp_path / "a")
    path = tmp_path / "a" / SUMMARY_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "config": {"unheard_of": 1}}))
    listing = await Library(folder=tmp_path, runs=[tmp_path / "a"]).listing()
    assert [run["name"] for run in listing.runs] == ["a"]


def test_a_baseline_is_of_local_training_on_the_same_samples(tmp_path: Path) -> None:
    for name, method, seed in (("run", "feddbp", 0), ("local", "local", 0), ("other", "local", 1)):
        results_with("net", directory=tmp_path / name)
        path = tmp_path / name / SUMMARY_NAME
        run = {"method": method, "data": {"dataset": "digits"}, "seed": seed}
        path.write_text(json.dumps({**json.loads(path.read_text()), "method": method, "config": run}))
    files = RunFiles(tmp_path / "run")
    assert read_baseline(tmp_path / "local", files)
    with pytest.raises(ConfigurationError, match="seed differs"):
        read_baseline(tmp_path / "other", files)
    with pytest.raises(ConfigurationError, match="a run of feddbp, not of local"):
        read_baseline(tmp_path / "run")


def test_a_folder_of_runs_takes_no_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        results_with("net", directory=tmp_path / name)
    assert main(["dashboard", str(tmp_path), "--baseline", str(tmp_path / "one")]) == ExitCode.USAGE
    assert "--baseline is for one run" in capsys.readouterr().err


async def test_a_run_that_comes_later_is_listed_under_a_key_of_its_own(tmp_path: Path) -> None:
    results_with("net", directory=tmp_path / "b")
    results_with("net", directory=tmp_path / "c")
    library = Library(folder=tmp_path, runs=find_runs(tmp_path))
    keys = {run["name"]: run["key"] for run in (await library.listing()).runs}
    results_with("net", directory=tmp_path / "a")
    shutil.rmtree(tmp_path / "c")
    found = {run["name"]: run["key"] for run in (await library.listing()).runs}
    assert found == {"a": "2", "b": keys["b"]}
    source = await library.get("2")
    assert isinstance(source, StoredRun)
    assert source.files.path == tmp_path / "a"


async def test_a_run_that_has_changed_is_read_again_for_a_new_page(tmp_path: Path) -> None:
    results_with("net", directory=tmp_path / "a")
    library = Library(folder=tmp_path, runs=find_runs(tmp_path))
    first, listed = await library.get("0", newest=True), await library.listing()
    assert await library.get("0", newest=True) is first
    assert (await library.listing()).runs[0] is listed.runs[0]
    path = tmp_path / "a" / SUMMARY_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "outcome": "finished", "seconds": 77.5}))
    assert await library.get("0") is first
    again = await library.get("0", newest=True)
    assert again is not None
    assert again.model.status["seconds"] == 77.5
    assert (await library.listing()).runs[0]["outcome"] == "finished"


@pytest.mark.parametrize("state", ["", "server"])
async def test_the_list_says_whether_a_server_has_a_run(state: str, tmp_path: Path) -> None:
    results_with("net", directory=tmp_path / "a")
    (tmp_path / "a" / state).mkdir(exist_ok=True)
    library = Library(folder=tmp_path, runs=find_runs(tmp_path))
    assert (await library.listing()).runs[0]["served"] is False
    with FileLock(tmp_path / "a" / state / SERVER_LOCK_NAME):
        assert (await library.listing()).runs[0]["served"] is True
        source = await library.get("0", newest=True)
        assert source is not None
        assert source.model.status["served"] is True
    assert (await library.listing()).runs[0]["served"] is False
