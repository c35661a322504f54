"""The table of a run's results, the curves, and the metrics file."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from lab_samples import printed, results
from matplotlib.figure import Figure

from feddbp_common.artifacts import ROUNDS_NAME
from feddbp_lab.results.curves import draw_curves
from feddbp_lab.results.pictures.run_pictures import draw_gain, pictures_of
from feddbp_lab.results.run_files import RunFiles
from feddbp_lab.results.run_results import MetricsTail
from feddbp_lab.terminal.run_table import run_table
from feddbp_server.reporting.history import RoundRecord


def test_every_client_has_a_row_with_its_first_and_last_accuracy() -> None:
    text = printed(run_table(results(), Path("runs/one")))
    row = next(line for line in text.splitlines() if "mini_residual" in line)
    assert row.split() == ["1", "mini_residual", "3", "101", "62.5", "%", "→", "88.5", "%"]


def test_means_traffic_time_digest_and_files_fit_eighty_columns() -> None:
    text = printed(run_table(results(), Path("runs/one")))
    for expected in (
        "accuracy  88.5 % over 3 of 3 clients, by client 88.5 % ± 3.1, after 4 rounds",
        "1.5 MB up, 800 B down",
        "42 s",
        "ab" * 32,
        "curves.png",
    ):
        assert expected in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_late_joiners_row_tells_the_rounds_it_took_part_in() -> None:
    made = results()
    made.metrics[:] = [line for line in made.metrics if line["client"] != 2 or line["round"] >= 2]
    made.metrics[:] = [line for line in made.metrics if (line["client"], line["round"]) != (1, 2)]
    for line in made.metrics:
        line["losses"] = {} if line["round"] == 4 else line["losses"]
    rows = {
        words[0]: words for line in printed(run_table(made, Path("runs/one"))).splitlines() if (words := line.split())
    }
    assert "accuracy, first → last" in " ".join(rows["client"])
    assert [rows[client][4] for client in "012"] == ["1-4", "3", "3-4"]
    assert rows["1"][4:7] == ["3", "of", "1-4"]
    assert rows["2"][5:] == ["86.4", "%", "→", "89.3", "%"]


def test_a_run_of_one_round_has_one_accuracy() -> None:
    text = printed(run_table(results(rounds=1), Path("runs/one")))
    assert "→" not in text


def test_a_failed_run_shows_its_reason() -> None:
    assert "failed: too few clients" in printed(run_table(results(outcome="failed"), Path("runs/one")))


def test_a_run_without_results_has_a_table_too() -> None:
    empty = results(clients=2, rounds=0)
    empty.metrics.clear()
    empty.summary["accuracy"] = {"best": None, "last": None}
    assert "–" in printed(run_table(empty, Path("runs/one")))


@pytest.mark.parametrize(("clients", "rounds"), [(8, 10), (25, 3), (1, 1), (2, 0)])
def test_the_curves_are_a_png_large_enough_for_print(tmp_path: Path, clients: int, rounds: int) -> None:
    path = tmp_path / "curves.png"
    draw_curves(results(clients=clients, rounds=rounds), path)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", content[16:24])
    assert 1200 <= width <= 3000
    assert 500 <= height <= 2000


def test_a_loss_that_is_not_finite_is_left_out_of_the_mean(tmp_path: Path) -> None:
    diverged = results(clients=2, rounds=2)
    diverged.metrics[0]["losses"]["ce_shared"] = None
    for line in diverged.metrics:
        line["losses"]["l_d"] = None
    losses = diverged.mean_losses()
    assert losses["ce_shared"] == {1: 2.0, 2: 1.0, 3: pytest.approx(2 / 3)}
    assert "l_d" not in losses
    draw_curves(diverged, tmp_path / "curves.png")


def test_terms_of_the_loss_are_drawn_by_names_for_people(tmp_path: Path) -> None:
    sample = results()
    for line in sample.metrics:
        line["losses"] |= {"total": 1.0, "of_another_version": 1.0}
    losses = next(picture for picture in pictures_of(RunFiles(tmp_path), sample, {}) if picture.name == "losses")
    axes = Figure().subplots()
    losses.draw(axes)
    assert axes.get_legend_handles_labels()[1] == [
        "cross-entropy, shared branch",
        "weighted total",
        "of another version",
        "prototype distance, shared branch",
    ]


def test_a_client_that_is_gone_stays_in_the_band_of_the_accuracy_picture(tmp_path: Path) -> None:
    sample = results()
    sample.metrics[:] = [line for line in sample.metrics if line["client"] != 0 or line["round"] <= 2]
    for line in sample.metrics:
        line["accuracy"] = 0.1 if line["client"] == 0 else 0.9
    accuracy = next(picture for picture in pictures_of(RunFiles(tmp_path), sample, {}) if picture.name == "accuracy")
    axes = Figure().subplots()
    accuracy.draw(axes)
    [band] = axes.collections
    [outline] = band.get_paths()
    points = np.asarray(outline.vertices).tolist()
    lowest = {x: min(y for place, y in points if place == x) for x, _ in points}
    assert lowest[2.0] == lowest[4.0] == pytest.approx(26)  # 20 % of the way from 10 to 90 %


def test_the_legend_of_the_gain_is_outside_of_the_data() -> None:
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    draw_gain(axes, pairs={0: (0.9, 0.95), 1: (0.9, 0.2)})
    assert axes.get_legend() is None
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert legend.get_window_extent().y1 <= axes.get_window_extent().y0


def test_one_client_and_one_round_are_singular(tmp_path: Path) -> None:
    record = RoundRecord(
        round=0,
        opened_at=0.0,
        seconds=2.0,
        aggregation_seconds=0.1,
        missing=[],
        resident_bytes=1,
        clients={0: [0.0, 0.1, 1.5, 1.6]},
    )
    (tmp_path / ROUNDS_NAME).write_text(f"{record.as_line()}\n")
    pictures = {picture.name: picture for picture in pictures_of(RunFiles(tmp_path), results(), {})}
    assert pictures["timeline"].caption == "What 1 client did in the last round, as the server saw it."


def test_a_growing_metrics_file_is_read_in_complete_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    assert tail.new_lines() == []
    path.write_text('{"round": 0}\n{"rou')
    assert tail.new_lines() == [{"round": 0}]
    assert tail.new_lines() == []
    path.write_text('{"round": 0}\n{"round": 1}\n')
    assert tail.new_lines() == [{"round": 1}]
