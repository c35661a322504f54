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
from threadpoolctl import threadpool_info, threadpool_limits

from feddbp_lab.cli import main
from feddbp_lab.experiments.analysis.outcomes import Outcomes
from feddbp_lab.experiments.analysis.paper import PAPER
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.expansion import expand
from feddbp_lab.experiments.profiles import QUICK_EPOCHS
from feddbp_lab.experiments.report.build import write_report
from feddbp_lab.experiments.report.figures import panels_of, spread_out
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


def tables(markdown: str) -> list[dict[tuple[str, ...], list[str]]]:
    """The tables in order: accuracies, differences, those of the last round if it is not the result's, inference rules,
    clients, cost; each row by its labels, with its values.
    """
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE):
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        labels = lines[1].count("---")
        found.append({tuple(line[:labels]): line[labels:] for line in lines if line != lines[1]})
    return found


def rows(markdown: str, table: int = 0) -> dict[str, list[str]]:
    return {" ".join(label): values for label, values in tables(markdown)[table].items()}


VALIDATED = {"clients": 2, "rounds": 3, "training": {"validation": 0.1}}


def test_the_round_is_chosen_on_validation_samples_and_the_last_round_stands_beside_it(tmp_path: Path) -> None:
    output_dir, expanded = planned(tmp_path, base=VALIDATED)
    for cell in expanded.cells.values():
        # on the test samples the first round is the best, on the validation samples the second
        finish(output_dir, cell, rising, validation=lambda _, rounds: 0.9 if rounds == 2 else 0.5)
    write_report(output_dir)
    markdown = (output_dir.report_dir / "small.md").read_text()
    assert rows(markdown)["Method"] == ["α = 0.1", "last", "α = 1", "last"]
    assert rows(markdown)["FedDBP"][:2] == ["<u>78.00</u>", "76.00"]
    assert "in the round chosen on the validation samples of all clients, seed 0." in markdown
    assert "last: after the last round." in markdown
    with (output_dir.report_dir / "small.csv").open(newline="") as file:
        line = next(entry for entry in csv.DictReader(file) if entry["method"] == "feddbp")
    assert line["basis"] == "validation"
    measured = [float(line[name]) for name in ("accuracy_mean", "last_mean", "validation_mean")]
    assert measured == pytest.approx([78, 76, 90])


def test_runs_without_validation_samples_are_reported_in_their_best_round(tmp_path: Path) -> None:
    markdown = (reported(tmp_path) / "small.md").read_text()
    assert rows(markdown)["FedDBP"] == ["<u>80.00</u>"] * 2
    assert "in the best round, seed 0." in markdown
    assert "validation" not in markdown


def test_a_table_of_both_kinds_marks_the_best_round(tmp_path: Path) -> None:
    changed = {"axes": {"training": {"validation": [0.0, 0.1]}}, "report": {"rows": "training.validation"}}
    markdown = (reported(tmp_path, **changed) / "small.md").read_text()
    assert rows(markdown)["0"][0] == "<u>80.00†</u>"
    assert rows(markdown)["0.1"][0] == "<u>80.00</u>"
    assert "†: in the best round, since the run has no validation samples." in markdown
    assert "†" not in (reported(tmp_path / "other") / "small.md").read_text()


def test_highest_is_underlined_and_differences_have_intervals(tmp_path: Path) -> None:
    markdown = (reported(tmp_path, seeds=(0, 1, 2)) / "small.md").read_text()
    # means over seeds, over all test samples
    assert rows(markdown)["Method"] == ["α = 0.1", "α = 1"]
    assert rows(markdown)["FedDBP"] == ["<u>81.00 ± 1.00</u>"] * 2
    assert rows(markdown)["FedProto"] == ["61.00 ± 1.00"] * 2
    assert rows(markdown)["Local training"] == ["51.00 ± 1.00"] * 2
    assert rows(markdown, 1) == {
        "Method": ["α = 0.1: Δ to FedProto", "α = 1: Δ to FedProto"],
        "Local training": ["**−10.00 [−10.00, −10.00]**"] * 2,
        "FedDBP": ["**+20.00 [+20.00, +20.00]**"] * 2,
    }
    assert "over seeds and clients." in markdown


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_a_difference_is_bold_if_its_interval_over_several_seeds_excludes_zero(
    seeds: tuple[int, ...], tmp_path: Path
) -> None:
    output_dir, expanded = planned(tmp_path, seeds=seeds)
    for cell in expanded.cells.values():
        finish(output_dir, cell, lambda cell, _: FINAL[cell.run.method])
    # FedDBP gains for the second client and loses for the first
    for path in tmp_path.glob("cells/feddbp*/metrics.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line["accuracies"]["prototype_normalized"] = 0.5 if line["client"] == 0 else 0.7
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    write_report(output_dir)
    markdown = (output_dir.report_dir / "small.md").read_text()
    assert rows(markdown, 1)["FedDBP"][0] == "+5.00 [−7.00, +9.00]"
    assert rows(markdown, 1)["Local training"][0].startswith("−10.00" if len(seeds) == 1 else "**−10.00")
    assert ("over clients alone, as there is only seed 0." in markdown) == (len(seeds) == 1)
    losses = tables(markdown)[3]["α = 0.1", "FedDBP"][:4]
    assert losses == ["+1.00", f"{len(seeds)} of {2 * len(seeds)}", "−7.00", "−7.00"]


def test_a_difference_of_a_single_client_has_no_interval(tmp_path: Path) -> None:
    output_dir, expanded = planned(tmp_path)
    for cell in expanded.cells.values():
        finish(output_dir, cell, rising, missed=[(0, number) for number in range(cell.run.rounds + 1)])
    write_report(output_dir)
    assert rows((output_dir.report_dir / "small.md").read_text(), 1)["FedDBP"] == ["+20.00"] * 2


def test_differences_after_the_last_round_stand_below_those_of_the_chosen_round(tmp_path: Path) -> None:
    def accuracy(cell: Cell, rounds: int) -> float:
        """FedDBP is ahead by 20 points in the chosen round, the second, and behind by ten after the last."""
        if cell.run.method != "feddbp":
            return 0.5
        return 0.7 if rounds == 2 else 0.4

    output_dir, expanded = planned(tmp_path, base=VALIDATED)
    for cell in expanded.cells.values():
        finish(output_dir, cell, accuracy, validation=lambda _, rounds: 0.9 if rounds == 2 else 0.5)
    write_report(output_dir)
    markdown = (output_dir.report_dir / "small.md").read_text()
    assert rows(markdown, 1)["FedDBP"] == ["+20.00 [+20.00, +20.00]"] * 2
    assert rows(markdown, 2)["FedDBP"] == ["−10.00 [−10.00, −10.00]"] * 2
    assert "Trust a difference that does not depend on the round" in markdown


def test_differences_before_fine_tuning_are_of_the_last_round_with_exchange(tmp_path: Path) -> None:
    def accuracy(cell: Cell, rounds: int) -> float:
        """FedDBP is ahead by 30 points in the last of two rounds with exchange, and behind in those after it."""
        if cell.run.method != "feddbp":
            return 0.5
        return {0: 0.1, 1: 0.6, 2: 0.8}.get(rounds, 0.3)

    output_dir, expanded = planned(tmp_path, base={**VALIDATED, "rounds": 4, "finetune_rounds": 2})
    for cell in expanded.cells.values():
        finish(output_dir, cell, accuracy, validation=lambda _, rounds: 0.9 if rounds == 1 else 0.5)
    write_report(output_dir)
    markdown = (output_dir.report_dir / "small.md").read_text()
    assert rows(markdown, 1)["FedDBP"] == ["+10.00 [+10.00, +10.00]"] * 2
    assert rows(markdown, 2)["FedDBP"] == ["+30.00 [+30.00, +30.00]"] * 2
    assert rows(markdown, 3)["FedDBP"] == ["−20.00 [−20.00, −20.00]"] * 2
    assert "after the last round with exchange" in markdown
    with (output_dir.report_dir / "small.csv").open(newline="") as file:
        line = next(entry for entry in csv.DictReader(file) if entry["method"] == "feddbp")
    assert [float(line[name]) for name in ("accuracy_mean", "before_fine_tuning_mean", "last_mean")] == [60, 80, 30]


def test_runs_without_fine_tuning_have_no_table_of_it(tmp_path: Path) -> None:
    directory = reported(tmp_path, base=VALIDATED)
    assert "with exchange" not in (directory / "small.md").read_text()


def test_every_inference_rule_is_compared_with_what_the_reference_decides_by(tmp_path: Path) -> None:
    report = {"rows": "method", "columns": "data.alpha", "compare": "local"}
    table = tables((reported(tmp_path, report=report) / "small.md").read_text())[2]
    # local training has a head alone; FedDBP's own rule has 80 %, its others ten and twenty points less
    assert {tuple(label): values for (place, *label), values in table.items() if place == "α = 1"} == {
        ("FedDBP", "• prototype normalized"): ["80.00", "78.00", "+30.00 [+30.00, +30.00]"],
        ("FedDBP", "prototype"): ["70.00", "68.00", "+20.00 [+20.00, +20.00]"],
        ("FedDBP", "head"): ["60.00", "58.00", "+10.00 [+10.00, +10.00]"],
    }


def test_rows_may_be_compared_with_several_others(tmp_path: Path) -> None:
    report = {"rows": "method", "columns": "data.alpha", "compare": ["local", "feddbp"]}
    markdown = (reported(tmp_path, report=report) / "small.md").read_text()
    assert rows(markdown, 1)["Method"][:2] == ["α = 0.1: Δ to Local training", "α = 0.1: Δ to FedDBP"]
    assert rows(markdown, 1)["FedProto"][:2] == ["+10.00 [+10.00, +10.00]", "−20.00 [−20.00, −20.00]"]
    assert rows(markdown, 1)["Local training"][0] == rows(markdown, 1)["FedDBP"][1] == ""


def test_clients_are_compared_with_themselves_in_the_first_of_these_rows(tmp_path: Path) -> None:
    report = {"rows": "method", "columns": "data.alpha", "compare": ["fedproto", "feddbp"]}
    directory = reported(tmp_path, report=report, seeds=(0, 1))
    markdown = (directory / "small.md").read_text()
    table = tables(markdown)[3]
    assert table["α = 1", "Local training"][:4] == ["−10.00", "4 of 4", "−10.00", "−10.00"]
    assert table["α = 1", "FedDBP"][:4] == ["+20.00", "0 of 4", "", ""]
    assert table["α = 1", "FedProto"][:4] == [""] * 4
    # two and seven test samples of rare classes, on which accuracy is half of the client's
    assert table["α = 1", "FedProto"][4:] == [f"{(28.5 * 2 + 30.5 * 7) / 9 + 0.25:.2f}", ""]
    assert table["α = 1", "FedDBP"][5] == "**+10.00 [+10.00, +10.00]**"
    assert "Clients against themselves under FedProto" in markdown
    assert "fewer than 10 training samples" in markdown
    with (directory / "small-clients.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 2 * 2 * 6
    line = next(entry for entry in lines if (entry["method"], entry["seed"], entry["client"]) == ("feddbp", "1", "1"))
    assert (line["round"], line["test_samples"], line["rare_test_samples"]) == ("1", "30", "7")
    numbers = ("accuracy", "last", "rare_accuracy", "gain_over_fedproto")
    assert [float(line[name]) for name in numbers] == pytest.approx([82, 80, 41, 20])
    assert line["gain_over_feddbp"] == ""


def test_rare_classes_count_on_the_clients_that_the_result_is_over(tmp_path: Path) -> None:
    axes, report = {"method": ["feddbp"]}, {"rows": "method"}
    output_dir, expanded = planned(tmp_path, base={"clients": 2, "rounds": 3}, axes=axes, report=report)
    (cell,) = expanded.cells.values()
    # the last round is the best; the second client has its newest evaluation from the one before
    finish(output_dir, cell, lambda _, rounds: 0.2 * rounds, missed=[(1, 3)])
    write_report(output_dir)
    with (output_dir.report_dir / "small-clients.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["client"], line["round"], line["rare_test_samples"]) for line in lines] == [
        ("0", "3", "2"),
        ("1", "3", "7"),
    ]
    assert [float(line["rare_accuracy"]) for line in lines] == pytest.approx([28.5, 20.5])


def test_a_control_stands_below_its_row_and_the_difference_is_the_federations_share(tmp_path: Path) -> None:
    output_dir, expanded = planned(tmp_path, controls=True, report={"rows": "method", "compare": "local"})
    for cell in expanded.cells.values():
        finish(output_dir, cell, lambda cell, _: FINAL[cell.run.method] - (0.05 if cell.run.exchange == "off" else 0))
    write_report(output_dir)
    markdown = (output_dir.report_dir / "small.md").read_text()
    assert list(rows(markdown)) == [
        *("Method", "Local training", "FedProto", "FedProto, no exchange", "FedDBP", "FedDBP, no exchange")
    ]
    assert rows(markdown)["FedDBP, no exchange"][0] == "75.00"
    differences = rows(markdown, 1)
    assert differences["FedDBP"][:2] == ["+30.00 [+30.00, +30.00]", "+5.00 [+5.00, +5.00]"]
    assert differences["FedDBP, no exchange"][:2] == ["+25.00 [+25.00, +25.00]", ""]
    assert "Local training" not in differences
    with (output_dir.report_dir / "small.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["method"] == "feddbp" and line["counts"] == "yes"]
    assert {
        (line["exchange"], line["federation_share"] and round(float(line["federation_share"]))) for line in lines
    } == {
        ("", 5),
        ("off", ""),
    }


def test_a_control_has_computing_time_but_no_traffic(tmp_path: Path) -> None:
    output_dir, expanded = planned(tmp_path, controls=True, report={"rows": "method", "compare": "local"})
    for cell in expanded.cells.values():
        finish(output_dir, cell, rising, core_seconds=60)
    write_report(output_dir)
    *_, cost = tables((output_dir.report_dir / "small.md").read_text())
    assert cost["FedDBP",][:2] == ["1.0", "1.50"]
    assert cost["FedDBP, no exchange",][:2] == ["1.0", ""]


def test_a_report_of_validation_accuracy_shows_no_test_accuracy(tmp_path: Path) -> None:
    report = {"rows": "data.alpha", "columns": "method", "value": "validation"}
    output_dir, expanded = planned(tmp_path, base=VALIDATED, report=report)
    for cell in expanded.cells.values():
        finish(output_dir, cell, lambda *_: 0.77, validation=lambda cell, _: FINAL[cell.run.method], core_seconds=90)
    write_report(output_dir)
    for path in output_dir.report_dir.glob("small*"):
        assert not re.search(r"\b77(\.|\b)", path.read_text()), path
    markdown = (output_dir.report_dir / "small.md").read_text()
    assert rows(markdown)["0.1"] == ["<u>50.00</u>", "<u>60.00</u>", "<u>80.00</u>"]
    assert "over all clients' validation samples" in markdown
    assert rows(markdown, 1)["all"][::2] == ["3.0", "3.0", "3.0", "9.0"]


def test_the_weights_of_a_client_stand_beside_its_traffic(tmp_path: Path) -> None:
    output_dir, expanded = planned(tmp_path, report={"rows": "method"}, axes={"method": ["local", "feddbp"]})
    for cell in expanded.cells.values():
        finish(output_dir, cell, rising, core_seconds=60)
        path = output_dir.cell_dir(cell.id).path / "summary.json"
        summary = json.loads(path.read_text())
        for client, parameters in zip(summary["per_client"], (400_000, 1_600_000), strict=True):
            client["parameters"] = parameters
        path.write_text(json.dumps(summary))
    write_report(output_dir)
    *_, cost = tables((output_dir.report_dir / "small.md").read_text())
    assert cost["FedDBP",] == ["1.0", "1.50", "1.00"]


def test_the_cost_is_the_cpu_time_of_all_seeds(tmp_path: Path) -> None:
    output_dir, expanded = planned(tmp_path, seeds=(0, 1), report={"rows": "method", "columns": "data.alpha"})
    for cell in expanded.cells.values():
        finish(output_dir, cell, rising, core_seconds=None if cell.run.method == "local" else 60 + 30 * cell.run.seed)
    write_report(output_dir)
    cost = rows((output_dir.report_dir / "small.md").read_text(), 1)
    assert cost["Method"] == [
        *("α = 0.1, core-min", "α = 0.1, MB", "α = 1, core-min", "α = 1, MB", "together, core-min")
    ]
    assert cost["FedDBP"] == ["2.5", "1.50", "2.5", "1.50", "5.0"]
    assert cost["Local training"] == ["", "1.50", "", "1.50", ""]  # run before the time was recorded
    assert cost["all"] == ["5.0", "", "5.0", "", "10.0"]


def test_the_result_of_a_run_with_newcomers_is_theirs_after_the_last_round(tmp_path: Path) -> None:
    base = {"clients": 2, "rounds": 4, "newcomers": 1, "newcomer_rounds": 2}
    axes = {"method": ["local", "fedproto"], "newcomer_samples": [10, 20]}
    report = {"rows": "method", "columns": "newcomer_samples", "compare": "local"}
    output_dir, expanded = planned(tmp_path, base=base, axes=axes, report=report)
    for cell in expanded.cells.values():
        finish(output_dir, cell, rising)
    write_report(output_dir)
    markdown = (output_dir.report_dir / "small.md").read_text()
    # of the second client, one point above the mean, after round 4
    assert rows(markdown)["FedProto"] == ["<u>55.00</u>", "<u>55.00</u>"]
    assert rows(markdown)["Method"] == ["newcomer's images = 10", "newcomer's images = 20"]
    assert "over all newcomers' test samples, after the last round, seed 0." in markdown
    assert tables(markdown)[2]["newcomer's images = 10", "FedProto"][1] == "0 of 1"
    assert "cannot be compared" not in markdown


def test_missing_and_failed_cells_are_marked(tmp_path: Path) -> None:
    directory = reported(
        tmp_path,
        seeds=(0, 1),
        leave_out=[("local", 0.1, 0), ("local", 0.1, 1), ("feddbp", 1.0, 1)],
        failing=[("fedproto", 0.1, 0), ("fedproto", 0.1, 1)],
    )
    markdown = (directory / "small.md").read_text()
    table, differences = rows(markdown), rows(markdown, 1)
    assert table["Local training"][0] == "–"
    # what the others would be compared with has failed with α = 0.1, so that the table has no column of it
    assert differences["Method"] == ["α = 1: Δ to FedProto"]
    assert table["FedProto"][0] == "failed"
    assert "FedProto" not in differences  # nor would it be, if it had not failed: it is compared with itself
    # compared over the common seed; none of the column is the highest, as they are not of the same seeds
    assert table["FedDBP"] == ["<u>80.50 ± 0.71</u>", "80.00 (1 of 2)"]
    assert differences["FedDBP"] == ["+20.00 [+20.00, +20.00] (1 of 2)"]
    assert table["FedProto"][1] == "60.50 ± 0.71"
    assert "3 of 12 cells are not done yet. 2 of 12 cells failed." in markdown
    assert markdown.count("exit <early>") == 2
    assert "exit &lt;early&gt;" in (directory / "index.html").read_text()


def test_a_report_without_results_has_only_dashes(tmp_path: Path) -> None:
    places = [(method, alpha, 0) for method in FINAL for alpha in (0.1, 1.0)]
    markdown = (reported(tmp_path, leave_out=places) / "small.md").read_text()
    assert rows(markdown)["FedDBP"] == ["–", "–"]
    assert len(tables(markdown)) == 1


def test_equal_results_share_the_mark_of_the_highest(tmp_path: Path) -> None:
    output_dir, expanded = planned(tmp_path)
    for cell in expanded.cells.values():
        finish(output_dir, cell, lambda cell, _: 0.7 if cell.run.method == "local" else 0.8)
    write_report(output_dir)
    table = rows((output_dir.report_dir / "small.md").read_text())
    assert [table[name][0] for name in ("Local training", "FedProto", "FedDBP")] == [
        "70.00",
        "<u>80.00</u>",
        "<u>80.00</u>",
    ]


def test_the_csv_has_the_result_and_the_last_round_of_every_rule_unrounded(tmp_path: Path) -> None:
    with (reported(tmp_path, seeds=(0, 1)) / "small.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 2 * (1 + 1 + 3)
    line = next(entry for entry in lines if (entry["method"], entry["data.alpha"]) == ("feddbp", "1.0"))
    assert (line["rule"], line["counts"], line["seeds"], line["done"]) == ("prototype_normalized", "yes", "2", "2")
    assert line["basis"] == "best"
    assert float(line["accuracy_mean"]) == pytest.approx(80.5)
    assert float(line["accuracy_low"]) < 80.5 < float(line["accuracy_high"])
    assert float(line["last_mean"]) == pytest.approx(78.5)
    assert float(line["accuracy_std"]) == pytest.approx(0.5**0.5)
    assert [float(line[f"last_seed_{seed}"]) for seed in (0, 1)] == pytest.approx([78, 79])
    bounds = [float(line[f"difference_to_fedproto{bound}"]) for bound in ("", "_low", "_high")]
    assert bounds == pytest.approx([20, 20, 20])
    assert {entry["difference_to_fedproto"] for entry in lines if entry["method"] == "fedproto"} == {""}


def test_the_csv_tells_runs_apart_that_an_axis_sets_to_exchange_or_not(tmp_path: Path) -> None:
    axes = {"method": ["fedproto", "feddbp"], "exchange": ["on", "off"]}
    directory = reported(tmp_path, axes=axes, report={"rows": ["method", "exchange"]})
    for name in ("small.csv", "small-clients.csv"):
        with (directory / name).open(newline="") as file:
            found = {(line["method"], line["exchange"]) for line in csv.DictReader(file)}
        assert found == {(method, exchange) for method in axes["method"] for exchange in axes["exchange"]}


def test_rules_of_inference_have_columns_of_their_own(tmp_path: Path) -> None:
    changed = {"axes": {"method_settings": {"eta": [0.5, 1.0]}}, "report": {"rules": True}}
    table = rows((reported(tmp_path, **changed) / "small.md").read_text())
    heads = ["Accuracy, prototype normalized", "Accuracy, prototype", "Accuracy, head"]
    assert table["η"] == heads
    assert table["0.5"] == ["<u>80.00</u>", "<u>70.00</u>", "<u>60.00</u>"]


def test_the_latex_table_is_well_formed_and_escaped(tmp_path: Path) -> None:
    variants = [{"label": "50% & more_of {it}", "set": {}}, {"label": "less", "set": {"data": {"alpha": 0.3}}}]
    directory = reported(tmp_path, axes={"variant": variants}, report={"compare": "less"}, title="A $ title")
    text = (directory / "small.tex").read_text()
    assert r"\caption{A \$ title. Accuracy (\%) over" in text
    assert r"50\% \& more\_of \{it\} & \underline{80.00} \\" in text
    assert r"50\% \& more\_of \{it\} & +0.00 [+0.00, +0.00] \\" in text
    environments = re.findall(r"\\(begin|end)\{(\w+)\}", text)
    assert environments == [("begin", "table"), ("begin", "tabular"), ("end", "tabular"), ("end", "table")] * 4
    labels = ["tab:small", "tab:small-differences", "tab:small-inference-rules", "tab:small-clients"]
    assert re.findall(r"\\label\{(.*)\}", text) == labels
    for table in text.split(r"\begin{tabular}")[1:]:
        width = len(table[1 : table.index("}")])
        body = [line for line in table.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
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
    assert table["Local training"][2::3] == ["", "", ""]
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
        assert set(table) == down - {"local", "feddbp:guided", "fedavg"}
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
    assert page.count("<svg") == 2  # and the gain over local training
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
    suffixes = (".md", ".tex", ".csv", "-clients.csv", ".png", ".svg", "-gain.png", "-gain.svg")
    assert set(first) == {*(f"small{suffix}" for suffix in suffixes), "index.html"}


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


def test_a_report_is_computed_in_one_thread(tmp_path: Path) -> None:
    with threadpool_limits(2, user_api="blas"):
        reported(tmp_path)
        assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} == {1}


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
        assert text not in page
    assert "&lt;script&gt;note&lt;/script&gt;" in page
    assert "&lt;i&gt;label&lt;/i&gt;" in page
    assert 'aria-label="&lt;b&gt;&#34;title&#34;&lt;/b&gt;"' in page


def test_the_report_lists_the_options_all_runs_share(tmp_path: Path) -> None:
    markdown = (reported(tmp_path) / "small.md").read_text()
    assert "2 clients, models mini-8, 2 rounds, local epochs 10" in markdown  # not alpha, which differs
    assert "scikit-learn digits: 160 images" in markdown


def test_validation_samples_count_as_images(tmp_path: Path) -> None:
    # two clients with 30 and 90 training, 10 and 30 test samples; with validation 10 and 30 more are held out
    changed = {"axes": {"training": {"validation": [0.0, 0.1]}}, "report": {}}
    assert "scikit-learn digits: 160 or 200 images" in (reported(tmp_path, **changed) / "small.md").read_text()


def test_a_part_without_columns_has_plain_heads(tmp_path: Path) -> None:
    output_dir, expanded = planned(tmp_path, axes={"method": ["local", "feddbp"]}, report={"compare": "local"})
    for cell in expanded.cells.values():
        finish(output_dir, cell, rising, core_seconds=60)
    write_report(output_dir)
    accuracies, differences, rules, clients, cost = tables((output_dir.report_dir / "small.md").read_text())
    assert accuracies["Method",] == ["Accuracy"]
    assert differences["Method",] == ["Δ to Local training"]
    assert rules["Method", "rule"] == ["accuracy", "last", "Δ to Local training"]
    assert clients["FedDBP",][:2] == ["+30.00", "0 of 2"]
    assert (cost["Method",], cost["all",]) == (["core-min", "MB"], ["2.0", ""])


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
    assert rows(markdown)["FedDBP"][0] == "<u>80.00</u>"
    assert f"Failed: `{damaged.id}`: the results " in markdown


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


def test_the_page_links_every_cell_with_its_result_time_and_traffic(tmp_path: Path) -> None:
    output_dir, expanded = planned(tmp_path, axes={"method": ["fd", "local"]}, report={})
    first, second = expanded.cells.values()
    finish(output_dir, first, lambda *_: 0.5)
    page = write_report(output_dir).page.read_text()
    assert re.search(r"1 of 2 cells done, \d{4}-\d\d-\d\d: [\d.]+ .* of traffic\. Report by feddbp ", page)
    assert f'<a href="../cells/{first.id}/summary.json">{first.id}</a>' in page
    assert (output_dir.report_dir / f"../cells/{first.id}/summary.json").exists()
    assert second.id not in page
