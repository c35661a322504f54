"""The expansion of an experiment into cells: which cells, their ids, and errors in a file or in options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from experiment_samples import SMALL, spec

from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ConfigurationError
from feddbp_lab.cli import main
from feddbp_lab.experiments import profiles
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.expansion import Expansion, expand, seeds_of, select_cells
from feddbp_lab.experiments.profiles import PROFILES
from feddbp_lab.experiments.spec import BUILT_IN, load_experiment


def built_in(name: str, *, profile: str = "quick", seeds: tuple[int, ...] = (0,)) -> Expansion:
    return expand(load_experiment(name), seeds=seeds, profile=profile)


def test_a_grid_has_a_cell_for_every_combination_and_seed() -> None:
    expanded = expand(spec(), seeds=(1, 0))
    found = {(cell.run.method, cell.run.data.alpha, cell.run.seed) for cell in expanded.cells.values()}
    methods, alphas, seeds = ("local", "fedproto", "feddbp"), (0.1, 1.0), (0, 1)
    assert found == {(method, alpha, seed) for method in methods for alpha in alphas for seed in seeds}
    assert len(expanded.cells) == len(found)
    assert all((cell.run.clients, cell.run.rounds) == (2, 2) for cell in expanded.cells.values())


def test_all_cells_of_a_seed_come_before_those_of_the_next() -> None:
    cells = list(expand(spec(), seeds=(2, 0)).cells.values())
    assert [cell.run.seed for cell in cells] == [0] * 6 + [2] * 6


def test_an_id_is_readable_and_ends_with_a_fingerprint_of_the_configuration() -> None:
    (cell,) = expand(spec(axes={"method": ["fd"]}, report={}), seeds=(3,)).cells.values()
    (other,) = expand(
        spec(axes={"method": ["fd"]}, report={}, base={"clients": 2, "rounds": 2, "wire": {"wire_dtype": "float16"}}),
        seeds=(3,),
    ).cells.values()
    assert cell.id == f"fd-digits-a0.1-mini-8-e10-r2-s3-{cell.run.fingerprint}"
    assert other.words == cell.words
    assert other.id != cell.id


def test_an_id_is_short_enough_for_the_name_of_a_directory() -> None:
    settings = {"lambda_1": 0.123456789012, "lambda_2": 0.123456789012, "lambda_3": 0.123456789012, "tau": 0.123456789}
    many = {**settings, "eta": 0.123456789012, "hard_negatives": "boundary", "branch": "mlp", "heads": "separate"}
    (cell,) = expand(spec(axes={"method_settings": [many]}, report={}), seeds=(0,)).cells.values()
    assert len("-".join(cell.words)) > 150
    assert len(cell.id) < 200
    assert cell.id.endswith(cell.run.fingerprint)


def test_settings_that_differ_from_the_default_are_in_the_id() -> None:
    axes = {"method_settings": [{}, {"tau": 0.5, "hard_negatives": "none"}, {"tau": 0.07}]}
    ids = list(expand(spec(axes=axes, report={}), seeds=(0,)).cells)
    assert len(ids) == 2  # a setting at its default is the same run
    assert ids[0].startswith("feddbp-digits-")
    assert ids[1].startswith("feddbp-tau=0.5-hard_negatives=none-digits-")


def test_an_axis_may_list_labelled_sets_of_options() -> None:
    variants = [
        {"label": "plain", "set": {}},
        {"label": "steep", "set": {"training": {"learning_rate": 0.5}, "method_settings": {"tau": 0.2}}},
    ]
    expanded = expand(spec(axes={"variant": variants}, report={}), seeds=(0,))
    plain, steep = expanded.cells.values()
    assert (plain.run.training.learning_rate, steep.run.training.learning_rate) == (0.01, 0.5)
    assert steep.run.method_settings["tau"] == 0.2
    assert [value.label for value in expanded.plan.parts[0].axes[0].values] == ["plain", "steep"]


def test_parts_share_axes_and_report_and_add_their_own() -> None:
    parts = [{"axes": {"method_settings": {"eta": [0.5, 1.0]}}}, {"axes": {"method_settings": {"k_top": [3]}}}]
    shared = {"data": {"alpha": [0.1, 1.0]}}
    plan = expand(spec(axes=shared, parts=parts, report={"columns": "data.alpha"}), seeds=(0,)).plan
    assert [part.report.rows for part in plan.parts] == [("method_settings.eta",), ("method_settings.k_top",)]
    assert [part.report.columns for part in plan.parts] == [("data.alpha",)] * 2
    assert [len(part.points) for part in plan.parts] == [4, 2]


@pytest.mark.parametrize(
    ("report", "rows", "columns"),
    [
        ({}, ("method",), ("data.alpha",)),
        ({"rows": "data.alpha"}, ("data.alpha",), ("method",)),
        ({"columns": "method"}, ("data.alpha",), ("method",)),
        ({"rows": ["method", "data.alpha"]}, ("method", "data.alpha"), ()),
        ({"kind": "sweep", "x": "data.alpha"}, ("method",), ()),
    ],
)
def test_axes_the_report_does_not_mention_are_placed(
    report: dict[str, Any], rows: tuple[str, ...], columns: tuple[str, ...]
) -> None:
    placed = spec(report=report).parts[0].report
    assert (placed.rows, placed.columns) == (rows, columns)


def test_the_same_run_is_the_same_cell_in_every_experiment() -> None:
    cells = {name: set(built_in(name).cells) for name in BUILT_IN}
    table1, table2, table3, fig2, fig3, study = list(cells.values())[:6]
    assert fig2 < table1
    assert len(table1 & table2) == 6
    assert len(table1 & table3) == 4
    assert len(table1 & fig3) == 14
    assert len(table1 & cells["controls"]) == 8  # local training and seven methods
    assert len(table1 & cells["guided"]) == 12  # three methods on four data sets
    assert len(table1 & cells["traffic"]) == 3  # local training, feddbp:guided and FedDBP
    assert len(table1 & cells["tuning"]) == 8  # by their settings; the seeds of tuning are others
    assert not table1 & cells["newcomer"]
    assert len(table1 & study) == 2
    assert len(table3 & study) == 4  # the full method, and without hard negatives, on two data sets


@pytest.mark.parametrize(
    ("name", "cells"), list(zip(BUILT_IN, (56, 18, 20, 12, 70, 42, 17, 20, 8, 16, 18, 32), strict=True))
)
def test_built_in_experiments_have_the_expected_number_of_cells(name: str, cells: int) -> None:
    # one epoch of `smoke` stands for both 1 and 10 of the paper, and without fine-tuning its variants are one
    merged = {("table2", "smoke"): 12, ("finetuning", "paper"): 10, ("finetuning", "short"): 10}
    for profile in PROFILES:
        assert len(built_in(name, profile=profile).cells) == merged.get((name, profile), cells)


def test_profiles_set_rounds_epochs_models_learning_rate_and_clients() -> None:
    (paper,) = {
        (run.rounds, run.training.local_epochs, run.training.model_group, run.training.learning_rate, run.clients)
        for run in (cell.run for cell in built_in("table1", profile="paper").cells.values())
    }
    (short,) = {
        (run.rounds, run.training.local_epochs, run.training.model_group, run.training.learning_rate, run.clients)
        for run in (cell.run for cell in built_in("table1", profile="short").cells.values())
    }
    assert paper == (100, 10, "htfe-8", 0.01, 20)
    assert short == (15, 2, "mini-8", 0.05, 20)
    assert seeds_of(load_experiment("table1"), "paper") == (0, 1, 2)


def quick_runs(name: str = "table1") -> list[RunConfig]:
    return [cell.run for cell in built_in(name).cells.values()]


def test_the_quick_profile_trains_all_methods_alike_and_holds_out_validation_samples() -> None:
    trained = {
        (run.clients, run.rounds, run.training.local_epochs, run.training.momentum, run.training.weight_decay)
        for run in quick_runs()
    }
    assert trained == {(20, 40, 2, 0.9, 5e-4)}
    scheduled = {
        (run.training.schedule, run.training.keep_optimizer, run.training.validation, run.training.augment)
        for run in quick_runs()
    }
    assert scheduled == {("cosine", True, 0.1, "flip-crop")}
    assert {run.data.image_size for run in quick_runs()} == {32}


def test_fine_tuning_is_left_out_with_a_note_where_a_method_has_no_rounds_without_exchange() -> None:
    assert {run.method for run in quick_runs() if run.finetune_rounds != 8} == {"fedtgp", "fedgen"}
    note = built_in("table1").plan.note
    for title in ("FedTGP", "FedGen"):
        assert f"{title} has no fine-tuning rounds: its server keeps a state that no single upload gives." in note
    # a setting decides it, too
    updates = spec(axes={"method": ["fedkd"]}, report={}, base={"method_settings": {"target": "update"}})
    (cell,) = expand(updates, seeds=(0,), profile="quick").cells.values()
    assert cell.run.finetune_rounds == 0
    with pytest.raises(ConfigurationError, match="fedtgp has no rounds without exchange"):
        expand(spec(axes={"method": ["fedtgp"]}, report={}, base={"finetune_rounds": 2}), seeds=(0,), profile="quick")


def test_fine_tuning_with_the_last_state_is_left_to_every_method_where_the_profile_has_it() -> None:
    kept_state = spec(axes={"method": ["fedtgp"]}, report={}, base={"finetune_state": "last"})
    (cell,) = expand(kept_state, seeds=(0,), profile="quick").cells.values()
    assert (cell.run.finetune_rounds, cell.run.finetune_state) == (8, "last")
    without = expand(kept_state, seeds=(0,), profile="paper")
    assert {cell.run.finetune_state for cell in without.cells.values()} == {"own"}
    assert "Without rounds of fine-tuning there is no state to keep in them." in without.plan.note


def test_runs_without_exchange_keep_no_last_state_while_fine_tuning() -> None:
    overrides = {"finetune_state": "last", "finetune_rounds": 1}
    parts = [
        {"axes": {"method": ["fedproto"]}, "controls": True},
        {"axes": {"variant": [{"label": "alone", "set": {"method": "fd", "exchange": "off"}}]}},
    ]
    expanded = expand(spec(parts=parts, axes={}, report={}), seeds=(0,), overrides=overrides)
    found = [(run.method, run.exchange, run.finetune_state) for run in (cell.run for cell in expanded.cells.values())]
    assert found == [("fedproto", "on", "last"), ("fedproto", "off", "own"), ("fd", "off", "own")]
    assert expanded.plan.note == "Without exchange there is no last state to keep while fine-tuning."
    usual = expand(spec(parts=parts, axes={}, report={}), seeds=(0,), overrides={"finetune_rounds": 1})
    assert expanded.plan.cell_ids[1:] == usual.plan.cell_ids[1:]  # the same controls


@pytest.mark.parametrize(("rounds", "finetune_rounds"), [("1", 0), ("10", 2), ("80", 16)])
def test_with_another_number_of_rounds_the_same_share_is_for_fine_tuning(rounds: str, finetune_rounds: int) -> None:
    options: dict[str, Any] = {"seeds": (0,), "profile": "quick", "overrides": {"rounds": rounds}}
    (cell,) = expand(spec(axes={"method": ["fd"]}, report={}, base={}), **options).cells.values()
    assert (cell.run.rounds, cell.run.finetune_rounds) == (int(rounds), finetune_rounds)


def test_a_profile_has_options_for_runs_of_a_method_or_a_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    special: dict[str, Any] = {
        "fd": {"training.learning_rate": 0.3},
        "feddbp": {"training.learning_rate": 0.4},
        "feddbp:gentle": {"training.learning_rate": 0.6},
        "digits": {"rounds": 5},
    }
    made = replace(PROFILES["short"], special=special)
    monkeypatch.setattr(profiles, "PROFILES", {"made": made})
    expanded = expand(
        spec(axes={"method": ["fd", "fpl"]}, report={}, base={"data": {"dataset": "digits"}}),
        seeds=(0,),
        profile="made",
    )
    found = {cell.run.method: (cell.run.training.learning_rate, cell.run.rounds) for cell in expanded.cells.values()}
    assert found == {"fd": (0.3, 5), "fpl": (0.05, 5)}
    assert expanded.plan.note == (
        "scikit-learn digits runs with rounds = 5 instead of 15. FD runs with learning_rate = 0.3 instead of 0.05."
    )
    # what a file says comes first
    base = {"training": {"learning_rate": 0.7}}
    (cell,) = expand(spec(axes={"method": ["fd"]}, report={}, base=base), seeds=(0,), profile="made").cells.values()
    assert cell.run.training.learning_rate == 0.7
    # a preset by name or by its settings is the same run
    gentle = spec(axes={"method": ["feddbp", "feddbp:gentle"]}, report={}, base={})
    rates = [cell.run.training.learning_rate for cell in expand(gentle, seeds=(0,), profile="made").cells.values()]
    assert rates == [0.4, 0.6]
    settings = spec(
        axes={"method": ["feddbp"]}, report={}, base={"method_settings": {"lambda_2": 1.0, "lambda_3": 0.1}}
    )
    named = spec(axes={"data": {"alpha": [0.1]}}, report={}, base={"method": "feddbp:gentle"})
    for other in (settings, named):
        assert set(expand(other, seeds=(0,), profile="made").cells) < set(
            expand(gentle, seeds=(0,), profile="made").cells
        )


def test_small_images_are_noted_for_the_data_sets_that_are_scaled() -> None:
    note = built_in("table1").plan.note
    assert "Oxford Flowers-102 runs with image_size = 32 instead of 64." in note
    assert "CIFAR" not in note


def test_the_short_profile_has_the_cells_that_quick_had_in_0_1_0() -> None:
    assert {
        "feddbp-cifar10-a0.1-mini-8-e2-r15-s0-e1f7ac4c",
        "fedtgp-server_epochs=20-server_learning_rate=0.01-tiny-imagenet-a0.1-mini-8-e2-r15-s0-2a3addc8",
    } <= set(built_in("table1", profile="short").cells)


def test_the_smoke_profile_is_small_and_has_one_seed() -> None:
    assert seeds_of(load_experiment("table1"), "smoke") == (0,)
    sizes = {(cell.run.clients, cell.run.rounds) for cell in built_in("table1", profile="smoke").cells.values()}
    assert sizes == {(8, 3)}


# --- controls


def controlled(**changed: Any) -> Expansion:
    return expand(spec(**{"controls": True, "report": {}, **changed}), seeds=(0, 1))


def test_controls_are_the_same_runs_without_exchange() -> None:
    expanded = controlled(axes={"method": ["local", "feddbp"]})
    local, feddbp = expanded.plan.parts[0].points
    assert local.without_exchange == {}  # it exchanges nothing
    for seed in (0, 1):
        run, control = (expanded.cells[cells[seed]].run for cells in (feddbp.cells, feddbp.without_exchange))
        assert control == run.model_copy(update={"exchange": "off"})
    assert set(expanded.plan.cell_ids) == set(expanded.cells)
    assert len(expanded.cells) == 2 * 3
    (name,) = (cell.id for cell in expanded.cells.values() if cell.run.exchange == "off" and cell.run.seed == 0)
    assert name.startswith("feddbp-no-exchange-digits-")


def test_a_method_that_cannot_do_without_exchange_has_no_control_and_a_note() -> None:
    expanded = controlled(axes={"method": ["fedtgp", "fedproto"]})
    assert [bool(point.without_exchange) for point in expanded.plan.parts[0].points] == [False, True]
    assert expanded.plan.note == (
        "FedTGP has no control without exchange: its server keeps a state that no single upload gives."
    )


def test_a_run_that_has_no_exchange_anyway_has_no_control() -> None:
    expanded = controlled(axes={"exchange": ["on", "off"]})
    on, off = expanded.plan.parts[0].points
    assert on.without_exchange == off.cells
    assert off.without_exchange == {}


def test_controls_may_be_given_for_all_parts_or_for_one() -> None:
    parts = [{"axes": {"method": ["fd"]}}, {"axes": {"method": ["fpl"]}, "controls": False}]
    expanded = controlled(axes={}, parts=parts)
    assert [bool(part.points[0].without_exchange) for part in expanded.plan.parts] == [True, False]


def test_the_built_in_controls_are_of_methods_that_add_a_loss_or_a_network() -> None:
    (networks, prototypes) = built_in("controls").plan.parts
    controlled_rows = [bool(point.without_exchange) for point in networks.points]
    assert controlled_rows == [False] + [True] * 7
    assert [value.key for value in networks.axes[0].values[1:]] == [
        *("fedproto", "fedproc", "feddbp", "feddbp:guided", "fedkd", "fedmrl", "fedavg")
    ]
    # FedDBP with its own prototypes only is the control of FedDBP
    assert prototypes.points[2].cells == networks.points[3].without_exchange
    runs = [cell.run for cell in built_in("controls").cells.values()]
    assert {run.method_settings["anchors"] for run in runs if "anchors" in run.method_settings} == {
        "random",
        "shuffled",
    }


def test_newcomers_of_all_architectures_join_with_few_images_when_the_others_have_finished() -> None:
    runs = quick_runs("newcomer")
    assert {run.newcomer_samples for run in runs} == {60, 150}
    assert {(run.clients, run.newcomers, run.newcomer_rounds, run.rounds) for run in runs} == {(24, 8, 40, 80)}
    assert {run.training.validation for run in runs} == {0.0}
    assert {run.exchange for run in runs if run.method == "feddbp"} == {"on", "off"}


def test_tuning_has_seeds_of_its_own_and_shows_validation_accuracy_alone() -> None:
    tuning = load_experiment("tuning")
    assert seeds_of(tuning, "quick") == (10, 11)
    assert [part.report.value for part in tuning.parts] == ["validation"]


def test_local_epochs_are_scaled_to_the_profile_and_the_plan_notes_it() -> None:
    plan = built_in("table2").plan
    epochs = next(axis for axis in plan.parts[0].axes if axis.name == "training.local_epochs")
    assert [value.paper for value in epochs.values] == ["1", "10", "20"]
    assert [value.key for value in epochs.values] == ["1", "2", "4"]
    assert "stand for the paper's 1/10/20" in plan.note
    assert built_in("table2", profile="paper").plan.note == ""


def test_a_users_file_is_read_like_a_built_in_experiment(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'title = "Mine"\nseeds = [4, 5]\n[base]\nrounds = 7\ntraining.local_epochs = 1\n[axes]\ndata.alpha = [0.1, 1]\n'
    )
    loaded = load_experiment(str(path))
    expanded = expand(loaded, seeds=seeds_of(loaded, None))
    assert (expanded.plan.name, expanded.plan.seeds) == ("mine", (4, 5))
    assert {(cell.run.rounds, cell.run.data.alpha) for cell in expanded.cells.values()} == {(7, 0.1), (7, 1.0)}


def test_a_preset_may_be_a_value_of_the_method_axis() -> None:
    changed: dict[str, Any] = {"axes": {"method": ["feddbp", "feddbp:gentle"]}, "report": {"rows": "method"}}
    expanded = expand(spec(**changed), seeds=(0,))
    plain, gentle = (cell.run for cell in expanded.cells.values())
    assert gentle.method == plain.method
    assert gentle.method_settings != plain.method_settings
    # options of the axis override those of the base
    base = {"method_settings": {"lambda_2": 10.0}}
    assert set(expand(spec(base={**SMALL["base"], **base}, **changed), seeds=(0,)).cells) == set(expanded.cells)
    (part,) = expanded.plan.parts
    assert [value.label for value in part.axis("method").values] == ["FedDBP", "FedDBP:gentle"]


def server_epochs(**of_file: Any) -> int:
    (cell,) = expand(
        spec(axes={"method": ["fedtgp"]}, report={}, **of_file), seeds=(0,), profile="quick"
    ).cells.values()
    epochs: int = cell.run.method_settings["server_epochs"]
    return epochs


def test_the_quick_profile_reduces_server_epochs_unless_the_file_sets_them() -> None:
    assert server_epochs() == 20
    assert server_epochs(base={"method_settings": {"server_epochs": 7}}) == 7
    assert built_in("table1", profile="short").plan.note == (
        "FedTGP runs with server_epochs = 20 instead of 100. "
        "FedTGP runs with server_learning_rate = 0.01 instead of its default."
    )
    assert "server_epochs" not in built_in("table1", profile="paper").plan.note
    ours = (cell.run for cell in built_in("table1").cells.values() if cell.run.method == "feddbp")
    assert all("server_epochs" not in run.method_settings for run in ours)


def test_the_file_overrides_the_profile_and_an_override_the_file() -> None:
    base = {"rounds": 7, "clients": 3}
    (cell, *_) = expand(spec(base=base), seeds=(0,), profile="paper", overrides={"clients": "4"}).cells.values()
    assert (cell.run.rounds, cell.run.clients, cell.run.training.model_group) == (7, 4, "htfe-8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = ", "not a TOML file"),
        ("[axes]\nmethod = ['fd']", "'title' is missing"),
        ("title = 'x'\n[axis]\nmethod = ['fd']", "there is no key 'axis'"),
        ("title = 'x'\n[axes]\nmethod = 'fd'", "axes.method: input should be a valid list"),
        ("title = 'x'\n[axes]\nmethod = []", "axes.method: has no values"),
        (
            "title = 'x'\n[axes]\ndata.datset = ['digits']",
            "there is no option 'data.datset'; did you mean 'data.dataset'?",
        ),
        ("title = 'x'\n[base]\nronds = 3\n[axes]\nmethod = ['fd']", "base: there is no option 'ronds'; did you mean"),
        ("title = 'x'\n[base]\nseed = 3\n[axes]\nmethod = ['fd']", "base: seeds are given by"),
        (
            "title = 'x'\n[base]\ntraining.local_epochs = 'many'\n[axes]\nmethod = ['fd']",
            "training.local_epochs: needs a whole number (got 'many')",
        ),
        (
            "title = 'x'\n[base]\ndata.dataset = ['digits']\n[axes]\nmethod = ['fd']",
            "base.data.dataset: ['digits'] is not a single value; lists belong under axes",
        ),
        ("title = 'x'\n[base]\nmethod = 3\n[axes]\ndata.alpha = [1]", "method: input should be a valid string"),
        (
            "title = 'x'\n[base]\nmethod = 'feddbp:gentle'\nmethod_settings = 3\n[axes]\ndata.alpha = [1]",
            "method_settings: input should be a valid dictionary (got 3)",
        ),
        (
            "title = 'x'\n[axes]\nmethod = ['feddbp:rough']",
            "feddbp has no preset 'rough'; it has: gentle",
        ),
        ("title = 'x'\n[axes]\nmethod = ['fedpoto']", "no method is called 'fedpoto'; did you mean 'fedproto'?"),
        ("title = 'x'\n[base]\nmethod_settings.tua = 1\n[axes]\nmethod = ['feddbp']", "feddbp has no setting 'tua'"),
        ("title = 'x'\n[axes]\ndata.dataset = ['mnist']", "no data set is called 'mnist'"),
        ("title = 'x'\n[base]\ndata.classes = 3\n[axes]\ndata.dataset = ['custom']", "only public data sets"),
        ("title = 'x'\n[axes]\nvariant = [{label = 'a'}]", "must have a label, and a table of options called set"),
        ("title = 'x'\n[axes]\nmethod_settings = [3]", "axes.method_settings: 3 is not a table of settings"),
        ("title = 'x'\n[axes]\ndata.alpha = [[1]]", "axes.data.alpha: [1] is not a single value"),
        (
            "title = 'x'\n[axes]\nmethod = ['fd']\n[report]\nrows = 'metod'",
            "there is no axis 'metod'; did you mean 'method'?",
        ),
        (
            "title = 'x'\n[axes]\nmethod = ['fd']\n[report]\nkind = 'pie'",
            "report.kind: input should be 'table', 'curves' or",
        ),
        ("title = 'x'\n[axes]\nmethod = ['fd']\n[report]\nkind = 'sweep'", "a sweep needs it"),
        (
            "title = 'x'\n[axes]\nmethod = ['fd']\n[report]\nrows = 'method'\ncolumns = 'method'",
            "the axis 'method' must be in rows, columns or x, once",
        ),
        ("title = 'x'\nname = '../y'\n[axes]\nmethod = ['fd']", "there is no key 'name'"),
        (
            "title = 'x'\n[axes]\nmethod = ['fd']\n[report]\npaper = 'table9'",
            "the paper has no 'table9'; it has",
        ),
        (
            "title = 'x'\n[axes]\nmethod = ['fd']\n[report]\nkind = 'curves'\nvalue = 'validation'",
            "validation accuracy is reported as a table, not as curves",
        ),
        ("title = 'x'\ncontrols = 'all'\n[axes]\nmethod = ['fd']", "controls: needs true or false"),
        (
            "title = 'x'\n[axes]\nmethod = ['fd', 'fpl']\n[report]\ncompare = ['fd', 'fedproto']",
            "report.compare: there is no row 'fedproto'; there are: fd, fpl",
        ),
    ],
)
def test_an_error_in_a_file_is_one_line_and_exit_code_2(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert main(["experiment", "run", str(path), "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert message in captured.err
    assert "mine" in captured.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table9"], "no experiment is called 'table9'; did you mean 'table"),
        (["nowhere.toml"], "nowhere.toml: No such file or directory"),
        (["table1"], "--out is required"),
        (
            ["table1", "--out", "x", "--profile", "large"],
            "no profile is called 'large'; there are: quick, smoke, paper, short",
        ),
        (["table1", "--out", "x", "--seeds", "one"], "--seeds: 'one' is not a list of numbers"),
        (["table1", "--out", "x", "--gpus", "0,1", "--jobs", "1"], "leaves some of the 2 GPUs without a cell"),
        (["table1", "--out", "x", "--only", "mnist"], "--only mnist: no cell of the experiment"),
        (
            ["table1", "--out", "x", "--override", "method=fd"],
            "--override method: the experiment's axis 'method' sets it",
        ),
        (
            ["table3", "--out", "x", "--override", "method_settings.hard_negatives=none"],
            "--override method_settings.hard_negatives: the experiment's axis 'variant' sets it",
        ),
        (["table1", "--out", "x", "--override", "ronds=1"], "--override: there is no option 'ronds'"),
    ],
)
def test_an_error_in_the_options_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["experiment", "run", *arguments]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert message in captured.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_name_with_a_space_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a b.toml"
    path.write_text("title = 'x'\n[axes]\nmethod = ['fd']")
    with pytest.raises(ConfigurationError, match="letters, digits"):
        load_experiment(str(path))


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".runner").mkdir()
    assert main(["experiment", "run", "table1", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"feddbp: error: --out: {tmp_path}/out/.runner: Is a directory\n"


def test_a_file_with_the_name_of_a_built_in_experiment_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table1.toml"
    path.write_text("title = 'x'\n[axes]\nmethod = ['fd']")
    with pytest.raises(ConfigurationError, match="name of a built-in experiment"):
        load_experiment(str(path))


def selection(*only: str) -> set[tuple[str, str]]:
    cells: list[Cell] = select_cells(built_in("table1").cells.values(), only)
    return {(cell.run.method, cell.run.data.dataset) for cell in cells}


def test_only_prefers_an_exact_word_over_a_substring() -> None:
    assert {dataset for _, dataset in selection("cifar10")} == {"cifar10"}
    assert {dataset for _, dataset in selection("cifar")} == {"cifar10", "cifar100"}
    assert len(selection()) == 4 * len({run.method for run in quick_runs()})


def test_only_selects_a_method_with_its_preset() -> None:
    cells = built_in("guided", seeds=(1,)).cells.values()
    (with_exchange,) = select_cells(cells, ["feddbp:guided", "exchange", "cifar100"])
    assert with_exchange.title == "FedDBP:guided on cifar100, α 0.1, E 2, seed 1"
    (cell,) = select_cells(cells, ["feddbp:guided", "no-exchange", "cifar100"])
    assert cell.run.method_settings["guided"]
    assert cell.title == "FedDBP:guided without exchange on cifar100, α 0.1, E 2, seed 1"


def test_only_selects_by_what_clients_have_while_they_fine_tune() -> None:
    cells = built_in("finetuning", seeds=(0,)).cells.values()
    kept = select_cells(cells, ["feddbp", "finetune_state=last"])
    own = select_cells(cells, ["feddbp", "finetune_state=own"])
    assert [cell.run.finetune_state for cell in kept + own] == ["last"] * 4 + ["own"] * 4


def test_a_title_names_the_guide_and_the_type_on_the_wire_if_they_are_not_the_usual_ones() -> None:
    titles = {cell.title for cell in built_in("traffic").cells.values()}
    assert len(titles) == 8
    assert "FedDBP:guided guide_small float16 on cifar100, α 0.1, E 2, seed 0" in titles


def test_words_in_one_only_are_alternatives_and_a_second_only_narrows() -> None:
    assert selection("cifar10,tiny-imagenet", "feddbp,fd") == {
        (method, dataset) for method in ("feddbp", "fd") for dataset in ("cifar10", "tiny-imagenet")
    }


def test_a_dry_run_lists_the_cells_and_creates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["experiment", "run", "fig2", "--seeds", "7", "--only", "fd,local", "--dry-run"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split("-")[0] for line in listed] == ["local", "fd"]
    assert all("-s7-" in line for line in listed)
    assert list(tmp_path.iterdir()) == []


def test_the_built_in_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "list"]) == 0
    output = capsys.readouterr().out
    for name in (*BUILT_IN, *PROFILES):
        assert name in output
