"""The page on adding a method: its code is installed as an external package, and run."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pages import files_on
from small_federations import prototype_set, run_in_process, small_strategy, upload_of
from trained_samples import as_arrays, checkpoint_of, random_pixels

from feddbp_client.inference.trained_client import TrainedClient
from feddbp_common.config.run import RunConfig, run_from_proto, run_to_proto
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods import METHODS, method_named
from feddbp_common.methods.registry import ENTRY_POINTS
from feddbp_common.wire import Payload


def files_of_the_page() -> dict[str, str]:
    return files_on("adding-a-method.md")


def install(site: Path, package: str, entry_points: dict[str, str], files: dict[str, str]) -> None:
    """Installs a package as pip does: its modules and its metadata."""
    description = site / f"{package}-1.0.dist-info"
    description.mkdir(parents=True)
    (description / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in entry_points.items()]
    (description / "entry_points.txt").write_text("\n".join([f"[{ENTRY_POINTS}]", *lines, ""]))
    for name, code in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(code)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for packages, whose modules are unloaded afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(METHODS, "_loaded", {})
    yield tmp_path
    for module in set(sys.modules) - before:
        if getattr(sys.modules[module], "__file__", None) and str(tmp_path) in str(sys.modules[module].__file__):
            del sys.modules[module]


@pytest.fixture
def fedmedian(site: Path) -> Path:
    """The page's package, installed."""
    files = files_of_the_page()
    project = tomllib.loads(files.pop("pyproject.toml"))["project"]
    install(site, project["name"], project["entry-points"][ENTRY_POINTS], files)
    return site


# --- the page


def test_a_method_takes_less_than_sixty_lines() -> None:
    code = [line for text in files_of_the_page().values() for line in text.splitlines() if line.strip()]
    assert len(code) < 60
    assert max(map(len, code)) <= 120


def test_the_page_has_all_four_files() -> None:
    assert list(files_of_the_page()) == [
        "fedmedian/contract.py",
        "fedmedian/strategy.py",
        "fedmedian/client.py",
        "pyproject.toml",
    ]


def test_every_setting_has_a_default_and_a_description(fedmedian: Path) -> None:
    for field in method_named("fedmedian").settings.model_fields.values():
        assert field.description
        assert not field.is_required()


def test_three_rounds_of_the_pages_method_improve_accuracy(fedmedian: Path) -> None:
    outcome = run_in_process("fedmedian", settings={"pull": 0.5})
    assert outcome.of("head")[-1] > outcome.of("head")[0] + 0.3
    assert len(set(outcome.digests)) == 3


def test_a_trained_client_of_the_pages_method_predicts(fedmedian: Path) -> None:
    client = TrainedClient(checkpoint_of("fedmedian", pull=2), device="cpu")
    (prediction,) = client.predict(as_arrays(random_pixels(1)))
    assert (client.facts.method, prediction.measure) == ("fedmedian", "probability")


def test_the_server_takes_medians_and_keeps_classes_that_no_client_uploaded(fedmedian: Path) -> None:
    strategy = small_strategy("fedmedian", clients=3)
    state = Payload(prototypes=prototype_set([0, 4], [[5.0] * 8, [7.0] * 8]))
    uploads = [
        upload_of(0, prototype_set([0, 1], [[1.0] * 8, [2.0] * 8])),
        upload_of(1, prototype_set([0], [[2.0] * 8])),
        upload_of(2, prototype_set([0], [[1000.0] * 8])),
    ]
    aggregated = strategy.aggregate(state, iter(uploads), round_number=1).prototypes
    assert aggregated.class_ids.tolist() == [0, 1, 4]
    assert np.array_equal(aggregated.vectors[:, 0], [2.0, 2.0, 7.0])


def test_the_server_loads_its_half_without_torch(fedmedian: Path) -> None:
    """In a separate process, with the package on its path."""
    script = (
        f"import sys; sys.path.insert(0, {str(fedmedian)!r})\n"
        "from feddbp_common.config.run import RunConfig\n"
        "config = RunConfig(method='fedmedian', method_settings={'pull': 3})\n"
        "print(config.method_spec.load_strategy().__name__, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["FedMedianStrategy", "False"]


# --- registration


def test_an_installed_method_is_found_by_name_and_listed_after_the_built_in_ones(fedmedian: Path) -> None:
    method = method_named("fedmedian")
    assert (method.name, method.title) == ("fedmedian", "FedMedian")
    assert METHODS["fedmedian"] is method
    assert list(METHODS)[-2:] == ["local", "fedmedian"]
    assert len(METHODS) == len(list(METHODS))
    assert list(METHODS.values())[-1] is method


def test_the_configuration_of_an_installed_methods_run_survives_the_wire(fedmedian: Path) -> None:
    config = RunConfig(method="fedmedian", method_settings={"pull": "2.5"})
    arrived = run_from_proto(run_to_proto(config))
    assert arrived == config
    assert arrived.method_settings["pull"] == 2.5


def test_a_misspelled_installed_method_is_an_error_that_suggests_its_name(fedmedian: Path) -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'fedmedian'"):
        method_named("fedmedain")


def test_without_the_package_there_is_no_such_method() -> None:
    with pytest.raises(ConfigurationError, match="no method is called 'fedmedian'"):
        method_named("fedmedian")


def test_a_built_in_name_cannot_be_overridden(site: Path) -> None:
    install(site, "usurper", {"local": "usurper:METHOD"}, {"usurper.py": "raise AssertionError('it was imported')"})
    assert method_named("local").title == "Local training"
    assert list(METHODS).count("local") == 1


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import no_such_module", "method 'broken' of package mishap cannot be loaded: No module named"),
        ("", "method 'broken' of package mishap cannot be loaded: .*METHOD"),
        ("METHOD = 42", "mishap:METHOD of package mishap is not a method called 'broken'"),
        ("from feddbp_common.methods import METHODS; METHOD = METHODS['local']", "is not a method called 'broken'"),
    ],
)
def test_a_broken_package_is_named_in_one_line(site: Path, code: str, message: str) -> None:
    install(site, "mishap", {"broken": "mishap:METHOD"}, {"mishap.py": code})
    with pytest.raises(ConfigurationError, match=message):
        method_named("broken")
    assert method_named("local")


def test_two_packages_with_a_method_of_the_same_name_are_both_named(site: Path) -> None:
    for package in ("first", "second"):
        install(site, package, {"twice": f"{package}:METHOD"}, {f"{package}.py": ""})
    with pytest.raises(ConfigurationError, match=r"package (first|second) and package (first|second) both define"):
        method_named("twice")
