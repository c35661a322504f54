"""Tables, figures and the page, from written results."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from experiment_samples import fail, finish, planned

from feddbp_lab.cli import main
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.expansion import expand
from feddbp_lab.experiments.profiles import QUICK_EPOCHS
from feddbp_lab.experiments.report.build import write_report
from feddbp_lab.experiments.report.figures import panels_of, spread_out
from feddbp_lab.experiments.report.outcomes import Outcomes
from feddbp_lab.experiments.report.paper import PAPER
from feddbp_lab.experiments.report.text_formats import tex_escaped
from feddbp_lab.experiments.run.cell_dir import Failure
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.experiments.spec import load_experiment

FINAL = {"local": 0.5, "fedproto": 0.6, "feddbp": 0.8}


def rising(cell: Cell, rounds: int) -> float:
    """Highest after the first round, slightly lower after the last; each seed is one point above the one before."""
    return FINAL[cell.run.method] + 0.01 * cell.run.seed - (0.3 if rounds == 0 else 0.02 * (rounds - 1))


def reported(directory: Path, *, leave_out: Any = (), failing: Any = (), **changed: Any) -> Path:
    """Writes a report of the small grid, in which some cells have failed or were not run; returns its directory."""
    output_dir, expanded = planned(directory, **changed)
    for cell in expanded.cells.values():
        place = cell.run.method, cell.run.data.alpha, cell.run.seed
        if place in failing:
            fail(output_dir, cell, Failure(cause="exit <early>", exit_code=1, last_lines=("first & last",)))
        elif place not in leave_out:
            finish(output_dir, cell, rising)
    write_report(output_dir)
    return output_dir.report_dir


def rows(markdown: str) -> dict[str, list[str]]:
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines() if line[:1] == "|"]
    return {label: cells for label, *cells in table}


def test_best_is_bold_second_underlined_and_differences_are_shown(tmp_path: Path) -> None:
    directory = reported(tmp_path, seeds=(0, 1, 2))
    table = rows((directory / "small.md").read_text())
    # means over seeds of the best round, over all test samples
    assert table["Method"] == ["α = 0.1", "Δ", "α = 1", "Δ"]
    assert table["FedDBP"] == ["**81.00 ± 1.00**", "+20.00"] * 2
    assert table["FedProto"] == ["<u>61.00 ± 1.00</u>", ""] * 2
    assert table["Local training"] == ["51.00 ± 1.00", "−10.00"] * 2


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    assert rows((reported(tmp_path) / "small.md").read_text())["FedDBP"][0] == "**80.00**"


def test_missing_and_failed_cells_are_marked(tmp_path: Path) -> None:
    directory = reported(
        tmp_path,
        seeds=(0, 1),
        leave_out=[("local", 0.1, 0), ("local", 0.1, 1), ("feddbp", 1.0, 1)],
        failing=[("fedproto", 0.1, 0), ("fedproto", 0.1, 1)],
    )
    markdown = (directory / "small.md").read_text()
    table = rows(markdown)
    assert table["Local training"][:2] == ["–", ""]
    assert table["FedProto"][:2] == ["failed", ""]
    # compared over the common seed, and not ranked, as others have more seeds
    assert table["FedDBP"] == ["**80.50 ± 0.71**", "", "80.00 (1 of 2)", "+20.00"]
    assert table["FedProto"][2:] == ["**60.50 ± 0.71**", ""]
    assert "3 of 12 cells are not done yet. 2 of 12 cells failed." in markdown
    assert markdown.count("exit <early>") == 2
    assert "exit &lt;early&gt;" in (directory / "index.html").read_text()


def test_a_report_without_results_has_only_dashes(tmp_path: Path) -> None:
    places = [(method, alpha, 0) for method in FINAL for alpha in (0.1, 1.0)]
    table = rows((reported(tmp_path, leave_out=places) / "small.md").read_text())
    assert table["FedDBP"] == ["–", "", "–", ""]


def test_equal_results_share_a_rank(tmp_path: Path) -> None:
    output_dir, expanded = planned(tmp_path)
    for cell in expanded.cells.values():
        finish(output_dir, cell, lambda cell, _: 0.7 if cell.run.method == "local" else 0.8)
    write_report(output_dir)
    table = rows((output_dir.report_dir / "small.md").read_text())
    assert [table[name][0] for name in ("Local training", "FedProto", "FedDBP")] == [
        "<u>70.00</u>",
        "**80.00**",
        "**80.00**",
    ]


def test_the_csv_has_best_and_last_of_every_rule_unrounded(tmp_path: Path) -> None:
    with (reported(tmp_path, seeds=(0, 1)) / "small.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 2 * (1 + 1 + 3)
    line = next(entry for entry in lines if (entry["method"], entry["data.alpha"]) == ("feddbp", "1.0"))
    assert (line["rule"], line["counts"], line["seeds"], line["done"]) == ("prototype_normalized", "yes", "2", "2")
    assert float(line["best_mean"]) == pytest.approx(80.5)
    assert float(line["last_mean"]) == pytest.approx(78.5)
    assert float(line["best_std"]) == pytest.approx(0.5**0.5)
    assert [float(line[f"last_seed_{seed}"]) for seed in (0, 1)] == pytest.approx([78, 79])
    assert float(line["difference"]) == pytest.approx(20)
    assert {entry["difference"] for entry in lines if entry["method"] == "fedproto"} == {""}


def test_rules_of_inference_have_columns_of_their_own(tmp_path: Path) -> None:
    changed = {"axes": {"method_settings": {"eta": [0.5, 1.0]}}, "report": {"rules": True}}
    table = rows((reported(tmp_path, **changed) / "small.md").read_text())
    heads = ["Accuracy, prototype normalized", "Accuracy, prototype", "Accuracy, head"]
    assert table["η"] == heads
    assert table["0.5"] == ["**80.00**", "**70.00**", "**60.00**"]


def test_the_latex_table_is_well_formed_and_escaped(tmp_path: Path) -> None:
    variants = [{"label": "50% & more_of {it}", "set": {}}, {"label": "less", "set": {"data": {"alpha": 0.3}}}]
    directory = reported(tmp_path, axes={"variant": variants}, report={"compare": "less"}, title="A $ title")
    text = (directory / "small.tex").read_text()
    assert r"\caption{A \$ title. Accuracy (\%) over" in text
    assert r"50\% \& more\_of \{it\} & \textbf{80.00} & +0.00 \\" in text
    assert r"& \multicolumn{2}{c}{Accuracy} \\" in text
    environments = re.findall(r"\\(begin|end)\{(\w+)\}", text)
    assert environments == [("begin", "table"), ("begin", "tabular"), ("end", "tabular"), ("end", "table")]
    width = len(re.findall(r"\\begin\{tabular\}\{([lr]+)\}", text)[0])
    body = [line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert {len(re.split(r"(?<!\\)&", line)) for line in body} == {width}


def test_characters_special_to_latex_are_escaped() -> None:
    assert tex_escaped(r"\{a}~b^c<d>#") == (
        r"\textbackslash{}\{a\}\textasciitilde{}b\textasciicircum{}c\textless{}d\textgreater{}\#"
    )
    assert tex_escaped("−1.00 ± 0.1 Δα") == r"$-$1.00 $\pm$ 0.1 $\Delta$$\alpha$"


def test_the_papers_values_are_shown_beside_ours(tmp_path: Path) -> None:
    output_dir = OutputDir(tmp_path)
    expanded = expand(load_experiment("table2"), seeds=(0,), profile="quick")
    output_dir.save_plan(expanded.plan)
    for cell in expanded.cells.values():
        finish(output_dir, cell, lambda *_: 0.4)
    write_report(output_dir)
    table = rows((output_dir.report_dir / "table2.md").read_text())
    assert table["FedDBP"][2::3] == ["42.59", "45.59", "45.26"]
    assert table["Method"][3] == f"E = {QUICK_EPOCHS} (paper: 10)"
    assert "stand for the paper's" in (output_dir.report_dir / "table2.md").read_text()


def test_the_papers_tables_agree_with_each_other_and_with_the_built_in_experiments() -> None:
    # values in two of the tables are the same
    for method, values in PAPER["table2"].items():
        assert values["10"].mean == PAPER["table1"][method]["cifar100"].mean
    assert {key: value.mean for key, value in PAPER["table3"]["FedDBP"].items()} == {
        key: value.mean for key, value in PAPER["table1"]["feddbp"].items()
    }
    for name, table in PAPER.items():
        (part,) = expand(load_experiment(name), seeds=(0,), profile="paper").plan.parts
        shown = part.report.rows, part.report.columns
        down, across = ({part.paper_key(coordinates) for coordinates in part.combinations(axes)} for axes in shown)
        assert set(table) == down - {"local"}
        assert all(set(row) == across for row in table.values())


@pytest.mark.parametrize(
    "report",
    [
        {"kind": "curves", "rows": "method", "columns": "data.alpha", "highlight": "feddbp"},
        {"kind": "sweep", "rows": "method", "x": "data.alpha"},
        {"kind": "sweep", "rows": "data.alpha", "x": "method"},
    ],
)
def test_figures_are_written_as_files_and_embedded_in_the_page(tmp_path: Path, report: Mapping[str, Any]) -> None:
    directory = reported(tmp_path, report=report, seeds=(0, 1), leave_out=[("local", 0.1, 0), ("local", 0.1, 1)])
    assert (directory / "small.png").read_bytes().startswith(b"\x89PNG")
    drawing = (directory / "small.svg").read_text()
    assert "<svg" in drawing
    page = (directory / "index.html").read_text()
    assert page.count("<svg") == 1
    assert "currentColor" in page
    assert "<!DOCTYPE svg" not in page
    assert "![A small grid](small.png)" in (directory / "small.md").read_text()


@pytest.mark.parametrize(("rounds", "from_round", "shown"), [(2, 1, (1, 2)), (6, 4, (4, 5, 6)), (2, 4, (1, 2))])
def test_curves_begin_at_from_round_if_the_run_is_longer(
    tmp_path: Path, rounds: int, from_round: int, shown: tuple[int, ...]
) -> None:
    report = {"kind": "curves", "rows": "method", "columns": "data.alpha", "from_round": from_round}
    output_dir, expanded = planned(tmp_path, report=report, base={"clients": 2, "rounds": rounds})
    for cell in expanded.cells.values():
        finish(output_dir, cell, rising)
    (part,) = expanded.plan.parts
    panels = panels_of(part, Outcomes.read(expanded.plan, output_dir))
    assert [panel.title for panel in panels] == ["α = 0.1", "α = 1"]
    assert {line.x for panel in panels for line in panel.lines} == {shown}


def test_the_same_results_give_the_same_files(tmp_path: Path) -> None:
    report = {"kind": "curves", "rows": "method", "columns": "data.alpha"}
    first, second = (
        {path.name: path.read_bytes() for path in reported(tmp_path / name, report=report).iterdir()}
        for name in ("one", "two")
    )
    assert first == second
    assert set(first) == {"small.md", "small.tex", "small.csv", "small.png", "small.svg", "index.html"}


class Elements(HTMLParser):
    """Checks that elements are closed in order, and collects what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)
        self.loaded.extend(value or "" for name, value in attrs if name == "src" or (tag == "link" and name == "href"))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Nothing is left open."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_loads_no_other_file(tmp_path: Path) -> None:
    directory = reported(tmp_path, report={"kind": "curves", "rows": "method", "columns": "data.alpha"})
    elements = Elements()
    text = (directory / "index.html").read_text()
    elements.feed(text)
    assert (elements.open, elements.loaded) == ([], [])
    assert "@import" not in text
    assert "url(http" not in text
    assert "prefers-color-scheme: dark" in text


def test_every_text_on_the_page_is_escaped(tmp_path: Path) -> None:
    variants = [{"label": "<i>label</i>", "set": {}}, {"label": "plain", "set": {"data": {"alpha": 0.3}}}]
    directory = reported(
        tmp_path,
        title='<b>"title"</b>',
        note="<script>note</script>",
        axes={"variant": variants},
        report={"kind": "curves", "rows": "variant", "compare": "<i>label</i>"},
    )
    page = (directory / "index.html").read_text()
    for text in ("<b>", "<i>", "<script>"):
        assert text not in page.replace("<b>80.00</b>", "")
    assert "&lt;script&gt;note&lt;/script&gt;" in page
    assert "&lt;i&gt;label&lt;/i&gt;" in page
    assert 'aria-label="&lt;b&gt;&#34;title&#34;&lt;/b&gt;"' in page


def test_the_report_lists_the_options_all_runs_share(tmp_path: Path) -> None:
    markdown = (reported(tmp_path) / "small.md").read_text()
    assert "2 clients, models mini-8, 2 rounds, local epochs 10" in markdown  # not alpha, which differs
    assert "scikit-learn digits: 160 images" in markdown


def test_a_directory_without_an_experiment_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for action in ("report", "status"):
        assert main(["experiment", action, str(tmp_path)]) == 2
        assert capsys.readouterr().err == f"feddbp: error: {tmp_path}: no experiment has been run here\n"


@pytest.mark.parametrize(
    ("heights", "expected"),
    [
        ([0.1, 0.5, 0.3], [0.1, 0.5, 0.3]),
        ([0.50, 0.52], [0.46, 0.56]),
        ([0.50, 0.50, 0.50], [0.40, 0.50, 0.60]),
        ([0.99, 0.98], [1.0, 0.9]),
        ([0.01, 0.02], [0.0, 0.1]),
        ([], []),
    ],
)
def test_names_of_lines_are_moved_apart_as_little_as_needed(heights: list[float], expected: list[float]) -> None:
    assert spread_out(heights, gap=0.1, least=0.0, most=1.0) == pytest.approx(expected)


@pytest.mark.parametrize(("name", "content"), [("summary.json", ""), ("summary.json", "{}"), ("metrics.jsonl", "")])
def test_a_damaged_result_is_reported_as_a_failure_of_that_cell_alone(tmp_path: Path, name: str, content: str) -> None:
    output_dir, expanded = planned(tmp_path)
    for cell in expanded.cells.values():
        finish(output_dir, cell, rising)
    damaged = next(cell for cell in expanded.cells.values() if cell.run.method == "local")
    (output_dir.cell_dir(damaged.id).path / name).write_text(content)
    write_report(output_dir)
    markdown = (output_dir.report_dir / "small.md").read_text()
    assert rows(markdown)["Local training"][0] == "failed"
    assert rows(markdown)["FedDBP"][0] == "**80.00**"
    assert f"Failed: `{damaged.id}`: its results cannot be read" in markdown


def test_cells_with_different_amounts_of_data_are_warned_about(tmp_path: Path) -> None:
    directory = reported(tmp_path)
    assert "160 images" in (directory / "small.md").read_text()
    summary = next(tmp_path.glob("cells/local*/summary.json"))
    content = json.loads(summary.read_text())
    content["per_client"].pop()
    summary.write_text(json.dumps(content))
    write_report(OutputDir(tmp_path))
    markdown = (directory / "small.md").read_text()
    assert "40 or 160 images" in markdown
    assert "were run with different amounts of data and cannot be compared" in markdown
