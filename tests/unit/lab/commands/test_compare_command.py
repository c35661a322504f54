"""`feddbp compare`: runs side by side, and what cannot be compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab_samples import results

from feddbp_common.errors import ExitCode
from feddbp_lab.cli import main
from feddbp_lab.results.comparison import short_names

Captured = pytest.CaptureFixture[str]
Written = Callable[..., str]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def write(name: str, *, gain: float = 0.0, config: dict[str, Any] | None = None, **sizes: Any) -> str:
        made = results(**sizes)
        made.summary["config"] = {"method": "feddbp", "seed": 0, "clients": made.summary["clients"], **(config or {})}
        made.summary["rounds"] = made.summary["completed_rounds"]
        for client in made.summary["per_client"]:
            client |= {"test_samples": 50, "accuracy": 0.5 + 0.1 * client["client"] + gain * (client["client"] - 1)}
        Path(name).mkdir()
        Path(name, "summary.json").write_text(json.dumps(made.summary))
        Path(name, "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in made.metrics))
        return name

    return write


def test_results_curves_and_clients_stand_side_by_side(written: Written, capsys: Captured) -> None:
    written("plain", config={"training": {"learning_rate": 0.01}})
    written("tuned", gain=0.1, config={"training": {"learning_rate": 0.05}})
    assert main(["compare", "plain", "tuned", "--out", "both.png"]) == 0
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()]
    assert ["plain", "88.5", "%", "3", "of", "3"] in [row[:6] for row in rows]
    assert ["after", "rounds", "1", "2", "3", "4"] in rows
    assert ["0", "50.0", "%", "40.0", "%"] in rows
    assert "tuned against plain: better on 1, worse on 1, equal on 1 clients; mean difference +0.0 points" in printed
    assert "differs  training.learning_rate: 0.01, 0.05" in printed
    assert "note" not in printed
    assert Path("both.png").read_bytes().startswith(b"\x89PNG")


def test_long_names_are_shown_by_the_words_in_which_they_differ(written: Written, capsys: Captured) -> None:
    first, second = "fedproto-cifar10-a0.1-mini-8-seed0", "feddbp-cifar10-a0.1-mini-8-seed0"
    written(first)
    written(second, gain=0.1)
    assert main(["compare", first, second]) == 0
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()]
    assert ["fedproto", "88.5", "%"] in [row[:3] for row in rows]
    assert ["client", "fedproto", "feddbp"] in rows
    assert ["feddbp", second] in rows
    assert printed.count(first) == printed.count(second) == 1
    assert "feddbp against fedproto: better on 1" in printed


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["plain", "tuned"], ["plain", "tuned"]),
        (["run-1", "run-2"], ["run-1", "run-2"]),
        (["demo-feddbp-digits", "demo-local-digits"], ["feddbp", "local"]),
        (["fedproto-cifar10-mini-8-s0", "feddbp-cifar10-mini-8-s1"], ["fedproto s0", "feddbp s1"]),
        (["demo-feddbp-digits", "demo-feddbp-digits-2"], ["digits", "digits-2"]),
        (["out/cells/feddbp-guided-s0", "out/cells/local-s0"], ["feddbp-guided", "local"]),
        (["something-quite-long", "else"], ["something-quite-long", "else"]),
        (["same-name-for-both", "same-name-for-both"], ["same-name-for-both", "same-name-for-both"]),
    ],
)
def test_names_are_shortened_where_one_is_long_and_words_are_shared(names: list[str], short: list[str]) -> None:
    assert short_names(names) == short


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"config": {"data": {"dataset": "cifar10"}}}, "data.dataset differs: digits, cifar10"),
        ({"clients": 4}, "clients differ: 3, 4"),
    ],
)
def test_runs_on_other_data_or_with_other_clients_are_refused(
    other: dict[str, Any], message: str, written: Written, capsys: Captured
) -> None:
    written("one", config={"data": {"dataset": "digits"}})
    written("two", **{"config": {"data": {"dataset": "digits"}}, **other})
    assert main(["compare", "one", "two"]) == ExitCode.USAGE
    error = f"not comparable: {message}; --anyway prints these runs still"
    assert capsys.readouterr().err == f"feddbp: error: {error}\n"
    assert main(["compare", "--anyway", "one", "two"]) == 0
    assert f"not comparable  {message}" in capsys.readouterr().out


def test_other_seeds_and_unfinished_runs_are_noted_and_clients_not_paired(written: Written, capsys: Captured) -> None:
    written("one")
    written("two", config={"seed": 1}, outcome="stopped", rounds=3)
    assert main(["compare", "one", "two"]) == 0
    printed = capsys.readouterr().out
    assert "note  seed differs (0, 1): clients have other samples" in printed
    assert "note  two is not finished: stopped after 3 of 3 rounds" in printed
    assert "note  rounds differ: 4, 3" in printed
    assert "against" not in printed


@pytest.mark.parametrize("width", [40, 50, 60, 80, 120])
def test_the_tables_fit_the_terminal(
    width: int, written: Written, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    written("demo-local-digits", clients=6, rounds=30)
    written("demo-feddbp-digits", clients=6, rounds=30)
    assert main(["compare", "demo-local-digits", "demo-feddbp-digits"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if "against" not in line) <= width
    assert "…" not in "".join(lines)


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("summary.json", "{", "summary.json: Expecting property name"),
        ("summary.json", "{}", " is missing"),
        ("metrics.jsonl", '{"client": 0, "rou', "metrics.jsonl, line 1: Unterminated string"),
        ("metrics.jsonl", "{}", " is missing"),
    ],
)
def test_the_damaged_one_of_several_runs_is_named(
    file: str, content: str, problem: str, written: Written, capsys: Captured
) -> None:
    for name in ("whole", "broken", "other"):
        written(name)
    Path("broken", file).write_text(content)
    assert main(["compare", "whole", "broken", "other"]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert error.startswith("feddbp: error: the results in broken are damaged: ")
    assert problem in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["one"], "feddbp compare needs two runs at least; `feddbp report DIR` shows one"),
        (["one", "nowhere"], "nowhere: no such directory"),
        (["one", "one", "--out", "both.jpg"], "--out both.jpg: the picture is a PNG; give a name that ends in .png"),
        (["one", "one", "--out", "no/both.png"], "--out no/both.png: No such file or directory"),
    ],
)
def test_a_mistake_gets_one_line(arguments: list[str], message: str, written: Written, capsys: Captured) -> None:
    written("one")
    assert main(["compare", *arguments]) == ExitCode.USAGE
    assert capsys.readouterr().err == f"feddbp: error: {message}\n"
