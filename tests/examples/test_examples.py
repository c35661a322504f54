"""The examples, each run as its page says, with the settings it offers for a short run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from processes import PATIENCE, Federation
from small_federations import prototype_set, upload_of

from feddbp_common.methods import ExchangeShape
from feddbp_common.wire import Payload
from feddbp_server.strategies import RunFacts, Upload

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMANDS = Path(sys.executable).parent
SHORT = ("--rounds", 1, "--local-epochs", 1, "--batch-size", 128)


def environment(cwd: Path, python_path: str) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{COMMANDS}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": python_path,
        "TMPDIR": str(cwd),
        # tests run on every core at once, where threads of one would wait for those of another
        "OMP_NUM_THREADS": "1",
    }


def start(*command: object, cwd: Path, python_path: str = "") -> subprocess.Popen[str]:
    """As from an activated environment; temporary files are the test's."""
    return subprocess.Popen(
        [*map(str, command)],
        cwd=cwd,
        env=environment(cwd, python_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def output_of(process: subprocess.Popen[str]) -> str:
    """What it prints until it ends, which it does without an error."""
    try:
        printed, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.terminate()  # an example that hangs then stops what it has started
    assert process.returncode == 0, printed
    return printed


def run(*command: object, cwd: Path, python_path: str = "") -> str:
    return output_of(start(*command, cwd=cwd, python_path=python_path))


def test_clients_train_on_their_own_images_and_one_of_them_predicts_new_ones(tmp_path: Path) -> None:
    printed = run(sys.executable, EXAMPLES / "own_data" / "run.py", "--rounds", 3, cwd=tmp_path)
    assert "accuracy" in printed
    assert "client 2 (mini_depthwise, images (1, 28, 28)) predicts" in printed
    answers = dict(re.findall(r"^  (\w+): (\w+) \(distance \d\.\d+\)$", printed, flags=re.MULTILINE))
    assert list(answers) == ["circle", "cross", "stripes"]
    assert set(answers.values()) <= set(answers)
    assert sum(shape == answer for shape, answer in answers.items()) >= 2


def test_a_client_trains_its_own_model_beside_built_in_ones(tmp_path: Path) -> None:
    printed = run(EXAMPLES / "own_model" / "run.sh", *SHORT, cwd=tmp_path)
    rows = dict(re.findall(r"^ +(\d)   (\S+) .* %$", printed, flags=re.MULTILINE))
    assert rows == {"0": "mini_plain", "1": "mini_residual", "2": "tiny_model:tiny_net"}


@pytest.fixture(scope="module")
def confmean(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A path on which the example's package is installed: its sources, and the description pip would write."""
    site = tmp_path_factory.mktemp("site")
    project = tomllib.loads((EXAMPLES / "own_method" / "pyproject.toml").read_text())["project"]
    description = site / f"{project['name']}-{project['version']}.dist-info"
    description.mkdir()
    (description / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    sections = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())])
        for group, entries in project["entry-points"].items()
    ]
    (description / "entry_points.txt").write_text("\n".join(sections))
    return os.pathsep.join([str(site), str(EXAMPLES / "own_method")])


def test_an_installed_method_is_run_by_its_name(confmean: str, tmp_path: Path) -> None:
    options = ("--clients", 2, *SHORT, "--processes", 1, "--set", "sharpness=2")
    printed = run("feddbp", "demo", "--method", "confmean", *options, cwd=tmp_path, python_path=confmean)
    assert "ConfMean on digits: 2 clients, 1 round, seed 0" in printed
    assert re.search(r"accuracy +\d+\.\d % over \d of \d clients", printed)


def test_the_settings_of_an_installed_method_are_listed(confmean: str, tmp_path: Path) -> None:
    printed = run("feddbp", "methods", "confmean", cwd=tmp_path, python_path=confmean)
    assert re.findall(r"^(\w+) +1\.0 ", printed, flags=re.MULTILINE) == ["pull", "sharpness"]


@pytest.mark.parametrize(("sharpness", "expected"), [(0.0, [3.0, 5.0, 7.0]), (1.0, [4.0, 5.0, 7.0])])
def test_clients_count_by_their_confidence(
    sharpness: float, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES / "own_method")
    from confmean.contract import CONFMEAN

    def upload(client_id: int, vectors: list[list[float]], confidence: list[float]) -> Upload:
        tensors = {"confidence": np.array(confidence, dtype=np.float32)}
        sent = prototype_set(range(len(vectors)), vectors)
        return upload_of(client_id, Payload(prototypes=sent, tensors=tensors))

    facts = RunFacts(shape=ExchangeShape(classes=4, feature_dim=8), seed=0, rounds=10)
    strategy = CONFMEAN.load_strategy()(CONFMEAN.settings.model_validate({"sharpness": sharpness}), facts)
    uploads = [
        upload(0, [[1.0] * 8, [5.0] * 8], [0.25, 0.5, 0.0, 0.0]),
        upload(1, [[5.0] * 8], [0.75, 0.0, 0.0, 0.0]),
    ]
    previous = Payload(prototypes=prototype_set([0, 3], [[9.0] * 8, [7.0] * 8]))
    latest = strategy.aggregate(previous, uploads, round_number=1).prototypes
    assert latest.class_ids.tolist() == [0, 1, 3]
    assert np.array_equal(latest.vectors[:, 0], expected)


def test_a_script_compares_two_methods_and_predicts_a_digit(tmp_path: Path) -> None:
    printed = run(sys.executable, EXAMPLES / "federation_from_script.py", "--rounds", 1, cwd=tmp_path)
    assert printed.startswith("local: 1 of 1 rounds done\nfeddbp: 1 of 1 rounds done\n")
    assert re.findall(r"^(\w+) +\d+\.\d%   sent \d+ kB$", printed, flags=re.MULTILINE) == ["local", "feddbp"]
    assert re.search(r"on a picture of a 0:\n  \d, distance \d\.\d+\n  \d, distance", printed)


def test_a_run_is_watched_paused_and_resumed(running_federation: Federation, tmp_path: Path) -> None:
    running_federation.server("--clients", 1, "--rounds", 4, "--local-epochs", 1, "--feature-dim", 32)
    script = (EXAMPLES / "watch_and_control.py", running_federation.address, "--pause-seconds", 0.2)
    watching = start(sys.executable, *script, cwd=tmp_path)
    assert watching.stdout is not None
    first = watching.stdout.readline()  # it watches, so it cannot miss what the client does from now on
    running_federation.client("0")
    lines = [first, *output_of(watching).splitlines()]
    assert lines[0].startswith("waiting, 0 of 4 rounds done")
    events = [line.split(",")[0] for line in lines]
    assert [event for event in events if event in ("-> pause", "paused", "-> resume")] == [
        "-> pause",
        "paused",
        "-> resume",
    ]
    assert lines[-1].startswith("finished, 4 of 4 rounds done, accuracy ")


def test_the_page_has_every_example() -> None:
    page = (EXAMPLES / "README.md").read_text()
    found = {path.name for path in EXAMPLES.iterdir() if path.suffix == ".py" or path.is_dir()} - {"__pycache__"}
    assert {name for name in found if f"]({name})" not in page} == set()
