"""`feddbp report` on the state directory of a real server, on copied files, and on damaged ones."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab_samples import printed, results
from light_runs import Crowd, Gate, finish, start_server
from PIL import Image
from processes import Federation

from feddbp_common.errors import ExitCode
from feddbp_common.optional_deps import install_command
from feddbp_lab.cli import main
from feddbp_lab.terminal.run_table import run_table


@pytest.fixture(autouse=True)
def no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output of a test is a pipe; workers that run tests side by side give it a width."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A directory with the files of a run that has ended."""
    directory = tmp_path / "run"
    directory.mkdir()
    sample = results()
    (directory / "summary.json").write_text(json.dumps(sample.summary))
    (directory / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in sample.metrics))
    return directory


def table_in(output: str) -> list[str]:
    """What is printed but for the places of files, and the time, which goes on."""
    lines = (" ".join(line.split()) for line in output.partition("\nfiles ")[0].splitlines())
    return [line for line in lines if not line.startswith("time ")]


def pictures_in(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in [*directory.glob("pictures/*.svg"), directory / "curves.png"]}


async def test_the_state_directory_of_a_server_can_be_reported(
    running_federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--clients", 2, "--min-clients", 2, "--rounds", 2, "--privacy", "careful")
    await finish(running_federation, *options, clients=2)
    directory = running_federation.state_dir
    assert main(["report", str(directory)]) == 0
    output = capsys.readouterr().out
    assert output.startswith("FedDBP on digits, seed 0\n")
    assert "privacy   careful: prototypes of fewer than 5 samples stay with their client" in output
    assert "careful: prototypes of fewer than 5 samples" in (directory / "report.html").read_text()
    assert [line.split()[:2] for line in output.splitlines() if " light " in line] == [["0", "light"], ["1", "light"]]
    assert running_federation.summary()["prototypes_sha256"] in output
    assert (directory / "curves.png").read_bytes().startswith(b"\x89PNG")
    copy = directory.with_name("copy")
    (directory / "audit.jsonl.1").write_text("{}\n")  # an older file of the audit log
    copy.mkdir()
    (copy / "audit.jsonl.2").write_text("{}\n")  # of an earlier backup
    assert main(["backup", str(directory), str(copy)]) == 0
    assert sorted(path.name for path in copy.glob("audit*")) == ["audit.jsonl", "audit.jsonl.1"]
    assert [path.name for path in copy.iterdir() if path.stat().st_mode & 0o077] == []
    capsys.readouterr()
    assert main(["report", str(copy)]) == 0
    assert table_in(capsys.readouterr().out) == table_in(output)
    assert pictures_in(copy) == pictures_in(directory)


def test_the_page_has_a_row_for_every_client(finished: Path) -> None:
    assert main(["report", str(finished)]) == 0
    page = (finished / "report.html").read_text()
    rows = re.findall(r"<tr><td>(\d+)</td>.*<td>([\d.]+ %|–)</td></tr>", page)
    summary = json.loads((finished / "summary.json").read_text())
    assert [int(client) for client, _ in rows] == [client["client"] for client in summary["per_client"]]
    assert '<th scope="col">Last accuracy</th>' in page


async def test_a_run_that_is_going_on_can_be_reported(
    running_federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    server = await start_server(running_federation, "--clients", 2, "--min-clients", 2, "--rounds", 9)
    directory, held = running_federation.state_dir, [Gate(at_round=2) for _ in range(2)]
    async with Crowd(running_federation.address, range(2), on_event=dict(enumerate(held))):
        for gate in held:  # both: a report that arrives during the backup would be in one of the tables alone
            await gate.reached.wait()
        copy = directory.with_name("copy")
        assert main(["backup", str(directory), str(copy)]) == 0
        capsys.readouterr()
        assert main(["report", str(directory)]) == 0
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert [line[:7] for line in shown if " light " in line] == ["0 light", "1 light"]
    assert "so far 2 of 9 rounds, training" in shown
    assert shown[-2].endswith("metrics.jsonl, curves.png")
    assert "summary.json" not in shown[-2]
    assert shown[-1].startswith(f"pictures {directory}/report.html")
    server.kill()
    assert main(["report", str(directory)]) == 0
    output = capsys.readouterr().out
    assert "its server is not running" in " ".join(output.split())
    assert main(["report", str(copy)]) == 0
    assert table_in(capsys.readouterr().out) == table_in(output)
    assert pictures_in(copy) == pictures_in(directory)


def test_a_run_without_clients_is_reported_as_empty(
    running_federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    server = running_federation.server("--rounds", 9)
    server.terminate()
    server.expect_exit(ExitCode.INTERRUPTED)
    assert main(["report", str(running_federation.state_dir)]) == 0
    assert "0 of 9 rounds, waiting for clients" in capsys.readouterr().out


def test_without_matplotlib_there_is_a_table_and_a_hint(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feddbp_common.optional_deps.find_spec", lambda name: None)
    assert main(["report", str(finished)]) == 0
    output, note = capsys.readouterr()
    assert output.startswith("FedDBP on digits, seed 0")
    assert note == f"feddbp report: no curves were drawn: they need matplotlib, jinja2: {install_command('lab')}\n"
    assert not (finished / "curves.png").exists()


def test_it_prints_the_same_table_as_the_demo(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished.parent)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["report", "run"]) == 0
    pictures = "run/report.html, and as PNG and SVG in run/pictures/"
    of_demo = printed(run_table(results(), Path("run"), pictures=pictures)).splitlines()
    assert capsys.readouterr().out.splitlines() == [line.rstrip() for line in of_demo]


def test_in_a_file_or_pipe_no_line_is_wrapped_and_all_facts_begin_in_one_column(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished / "summary.json"
    sentence = "careful: prototypes of fewer than 5 samples stay with their client, " * 4 + "and so on"
    summary = {**json.loads(path.read_text()), "privacy": [sentence]}
    point = summary["accuracy"]["best"]
    path.write_text(json.dumps({**summary, "accuracy": {**summary["accuracy"], "chosen": point}}))
    assert main(["report", str(finished)]) == 0
    lines = capsys.readouterr().out.rstrip("\n").splitlines()
    facts = {line[:15].strip(): line[15:].rstrip() for line in lines[lines.index("") + 1 :]}
    assert list(facts)[-2:] == ["files", "pictures"]
    assert facts["privacy"] == sentence
    assert facts["files"].endswith("metrics.jsonl, curves.png")
    assert facts["pictures"] == f"{finished}/report.html, and as PNG and SVG in {finished}/pictures/"
    assert {"by validation", "accuracy", "best", "traffic", "time"} <= facts.keys()


def test_rounds_without_exchange_are_part_of_the_facts(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "no exchange in the last 2 rounds, with the state after the last exchange"
    path = finished / "summary.json"
    assert main(["report", str(finished)]) == 0
    assert "no exchange" not in capsys.readouterr().out + (finished / "report.html").read_text()
    summary = json.loads(path.read_text())
    summary["config"] |= {"finetune_rounds": 2, "finetune_state": "last"}
    path.write_text(json.dumps(summary))
    assert main(["report", str(finished)]) == 0
    assert text in " ".join(capsys.readouterr().out.split())
    assert text in (finished / "report.html").read_text()


def test_a_run_that_failed_is_reported_with_its_reason(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (finished / "summary.json").write_text(json.dumps(results(outcome="failed").summary))
    assert main(["report", str(finished)]) == 0
    assert "failed: too few clients" in capsys.readouterr().out


def local_beside(run: Path, **config: Any) -> Path:
    """A `local` run with the results of another one."""
    directory = run.with_name("local")
    shutil.copytree(run, directory)
    summary = json.loads((directory / "summary.json").read_text())
    summary |= {"method": "local", "config": {**summary["config"], "method": "local", **config}}
    (directory / "summary.json").write_text(json.dumps(summary))
    return directory


def test_pictures_are_written_for_one_and_two_columns(finished: Path) -> None:
    baseline = local_beside(finished)
    widths = {}
    for columns in ("1", "2"):
        assert main(["report", str(finished), "--columns", columns, "--baseline", str(baseline)]) == 0
        assert {path.name for path in (finished / "pictures").iterdir()} >= {"accuracy.png", "accuracy.svg", "gain.svg"}
        with Image.open(finished / "pictures" / "gain.png") as picture:
            widths[columns] = picture.width
    assert widths == {"1": 1050, "2": 2148}  # 3.5 and 7.16 inches at 300 dots
    page = (finished / "report.html").read_text()
    assert page.count("<svg") >= 2
    assert "<script" not in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


async def test_a_run_that_shares_prototypes_is_pictured_with_names_like_formulas(
    running_federation: Federation,
) -> None:
    names = "$\\frac{$,<b>,[/b],horse"
    await finish(
        running_federation,
        *("--clients", 2, "--min-clients", 2, "--rounds", 2, "--feature-dim", 64, "--share-prototypes-with-operators"),
        *("--dataset", "custom", "--class-names", names),
        clients=2,
    )
    directory = running_federation.state_dir
    assert main(["report", str(directory)]) == 0
    drawn = {path.stem for path in (directory / "pictures").glob("*.svg")}
    assert drawn == {"accuracy", "split", "timeline", "class-map", "similarity"}


def without(name: str) -> Callable[[Path], Any]:
    return lambda directory: (directory / name).unlink()


def with_summary(text: str) -> Callable[[Path], Any]:
    return lambda directory: (directory / "summary.json").write_text(text)


def with_metrics(text: bytes) -> Callable[[Path], Any]:
    return lambda directory: (directory / "metrics.jsonl").write_bytes(text)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without("summary.json"), "run has neither a summary.json nor a run.sqlite3; give the --state-dir of a server"),
        (without("metrics.jsonl"), "run has a summary.json, but no metrics.jsonl beside it"),
        (with_summary('{"method": "feddbp", '), "run are damaged: summary.json: Expecting property name"),
        (with_summary("[]"), "run are damaged: summary.json: not an object"),
        (with_summary('{"method": "feddbp"}'), "run are damaged: 'per_client' is missing"),
        (with_summary(json.dumps({**results().summary, "per_client": None})), "run are damaged: "),
        (with_metrics(b'{"client": 0'), "run are damaged: metrics.jsonl, line 1: Expecting"),
        (with_metrics(b'{"client": 0}\n'), "run are damaged: 'round' is missing"),
        (with_metrics(b"\xff\xfe\x00\n"), "run are damaged: metrics.jsonl, line 1: "),
    ],
)
def test_missing_or_damaged_files_are_reported_in_one_line(
    finished: Path, damage: Callable[[Path], Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(finished)
    assert main(["report", str(finished)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (finished / "curves.png").exists()


def test_a_damaged_baseline_is_named(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    baseline = local_beside(finished)
    (baseline / "metrics.jsonl").write_text("{")
    assert main(["report", str(finished), "--baseline", str(baseline)]) == 2
    assert f"the results in {baseline} are damaged: metrics.jsonl, line 1: " in capsys.readouterr().err


def test_damaged_lines_of_the_history_are_left_out_and_counted(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (finished / "rounds.jsonl").write_text("{}\n[]\nno JSON\n")
    assert main(["report", str(finished)]) == 0
    note = "rounds.jsonl: 3 damaged lines were left out"
    assert capsys.readouterr().err == f"feddbp report: {note}\n"
    assert note in (finished / "report.html").read_text()


def test_a_missing_directory_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert f"{tmp_path}/nowhere: no such directory" in capsys.readouterr().err


def test_a_curve_file_that_cannot_be_written_is_named(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (finished / "curves.png").mkdir()
    assert main(["report", str(finished)]) == 2
    assert f"{finished}/curves.png: Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"seed": 1}, "seed differs (1, default): clients have other samples"),
        ({"data": {"dataset": "cifar10"}}, "data.dataset differs: cifar10, digits"),
    ],
)
def test_a_baseline_of_other_clients_is_refused(
    finished: Path, config: dict[str, Any], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = local_beside(finished, **config)
    assert main(["report", str(finished), "--baseline", str(baseline)]) == ExitCode.USAGE
    expected = f"--baseline {baseline}: clients cannot be compared with themselves: {problem}"
    assert expected in capsys.readouterr().err


def test_a_baseline_with_other_samples_is_refused(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    baseline = local_beside(finished)
    lines = (baseline / "metrics.jsonl").read_text()
    (baseline / "metrics.jsonl").write_text(lines.replace('"test_samples": 50', '"test_samples": 49'))
    assert main(["report", str(finished), "--baseline", str(baseline)]) == ExitCode.USAGE
    assert "client 0 has 49 test samples there and 50 here" in capsys.readouterr().err


def test_a_baseline_of_another_method_is_refused(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(finished), "--baseline", str(finished)]) == ExitCode.USAGE
    assert f"--baseline {finished}: this is a run of feddbp, not of local" in capsys.readouterr().err


def test_a_client_that_has_not_trained_has_no_gain(finished: Path) -> None:
    baseline = local_beside(finished)
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    lines = [{**line, "losses": {}} if line["client"] == 2 else line for line in lines]
    (finished / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert main(["report", str(finished), "--baseline", str(baseline)]) == 0
    assert "0 of 2 better, +0.0 points" in (finished / "report.html").read_text()
