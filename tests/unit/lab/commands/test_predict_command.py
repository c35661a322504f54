"""`feddbp predict` and `feddbp export`, on clients with a short training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch
from PIL import Image
from trained_samples import NAMES, as_arrays, checkpoint_of, random_pixels

from feddbp_client.inference.model_export import FORMATS
from feddbp_client.inference.trained_client import TrainedClient
from feddbp_common.artifacts import CHECKPOINT_NAME
from feddbp_common.optional_deps import install_command
from feddbp_lab.cli import main
from feddbp_lab.commands.export import BY_SUFFIX, FileFormat

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with three images and two clients, one that predicts by distance and one by its head."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # a command may add to it
    for number, image in enumerate(as_arrays(random_pixels(3))):
        Image.fromarray(image[..., 0]).save(f"{number}.png")
    for directory, method in (("client-0", "feddbp"), ("client-1", "local")):
        Path(directory).mkdir()
        checkpoint_of(method).save(Path(directory) / CHECKPOINT_NAME)
    return tmp_path


def test_an_image_gets_a_line_with_its_class_and_the_next_candidates(here: Path, capsys: Captured) -> None:
    assert main(["predict", "client-0", "0.png"]) == 0
    (prediction,) = TrainedClient.load("client-0").predict(["0.png"])
    first, second, third = prediction.candidates
    assert capsys.readouterr().out == (
        f"0.png  {first.name}  (distance {first.value:.3f})  "
        f"then {second.name} ({second.value:.3f}), {third.name} ({third.value:.3f})\n"
    )


def test_the_probability_of_a_head_is_printed_in_per_cent(here: Path, capsys: Captured) -> None:
    assert main(["predict", "client-1", "0.png", "--top", "1"]) == 0
    (prediction,) = TrainedClient.load("client-1").predict(["0.png"])
    assert capsys.readouterr().out == f"0.png  {prediction.name}  (probability {100 * prediction.best.value:.1f} %)\n"


def test_json_output_has_an_object_per_image(here: Path, capsys: Captured) -> None:
    assert main(["predict", "--json", "client-0/checkpoint.safetensors", "0.png", "--top", "2", "1.png"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["image"] for answer in answers] == ["0.png", "1.png"]
    for answer in answers:
        assert answer["measure"] == "distance"
        assert len(answer["candidates"]) == 2
        assert answer["class"] == answer["candidates"][0]["class"] == NAMES[answer["candidates"][0]["class_id"]]
        assert answer["candidates"][0]["value"] <= answer["candidates"][1]["value"]


def test_all_images_of_a_folder_are_classified(here: Path, capsys: Captured) -> None:
    (here / "pictures" / "more").mkdir(parents=True)
    (here / "0.png").rename(here / "pictures" / "b.png")
    (here / "1.png").rename(here / "pictures" / "more" / "a.PNG")
    (here / "pictures" / "notes.txt").write_text("no image")
    assert main(["predict", "client-0", "2.png", "pictures"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "2.png",
        "pictures/b.png",
        "pictures/more/a.PNG",
    ]
    (here / "empty").mkdir()
    assert main(["predict", "client-0", "empty"]) == 2
    assert capsys.readouterr().err == "feddbp: error: empty: holds no images\n"


def test_an_unreadable_image_does_not_affect_the_others(here: Path, capsys: Captured) -> None:
    (here / "notes.txt").write_text("no image")
    assert main(["predict", "client-0", "0.png", "missing.png", "notes.txt", "2.png"]) == 2
    captured = capsys.readouterr()
    assert [line.split()[0] for line in captured.out.splitlines()] == ["0.png", "2.png"]
    missing, notes = captured.err.splitlines()
    assert missing == "feddbp predict: error: missing.png: no such file"
    assert notes.startswith("feddbp predict: error: notes.txt: not a readable image: ")


def test_json_output_has_an_object_for_an_unreadable_image(here: Path, capsys: Captured) -> None:
    assert main(["predict", "client-0", "missing.png", "0.png", "--json"]) == 2
    bad, good = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert bad == {"image": "missing.png", "error": "missing.png: no such file"}
    assert good["class"] in NAMES


@pytest.mark.parametrize("command", [["predict"], ["export"]])
@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        ("nowhere", "there is no checkpoint nowhere"),
        ("0.png", "cannot read the checkpoint 0.png"),
        (".", ". is not a client's directory; give one, such as client-0"),
        ("empty", "there is no checkpoint in empty"),
        ("young", "client 0 of run sample cannot predict yet"),
        ("own", "the model of client 0 of run sample cannot be built: --model gone:tiny: cannot import 'gone'"),
    ],
)
def test_a_checkpoint_that_cannot_be_used_gets_one_line(
    command: list[str], checkpoint: str, message: str, here: Path, capsys: Captured
) -> None:
    (here / "empty").mkdir()
    checkpoint_of(rounds=0).save(here / "young")
    (here / "gone.py").write_text("from torch import nn\ndef tiny(shape): return nn.Flatten()\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(here)
        checkpoint_of(architecture="gone:tiny").save(here / "own")
    (here / "gone.py").unlink()
    sys.modules.pop("gone")
    assert main([*command, checkpoint, "0.pt"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_users_own_model_is_imported_from_the_working_directory(here: Path) -> None:
    (here / "own_model.py").write_text("from torch import nn\ndef tiny(shape): return nn.Flatten()\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(here)
        checkpoint_of(architecture="own_model:tiny").save(here / "own")
    sys.modules.pop("own_model")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "feddbp_lab.cli", "predict", "own", "0.png"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("0.png  ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "client-0"], "required: IMAGE"),
        (["predict", "client-0", "client-1", "0.png"], "client-1: is a second CHECKPOINT; give one, and then images"),
        (["predict", "client-0", "0.png", "--top", "0"], "--top: input should be greater than or equal to 1"),
        (["predict", "client-0", "0.png", "--device", "tpu9"], "--device tpu9"),
        (["export", "client-0"], "required: OUT"),
        (
            ["export", "client-0", "out.bin"],
            "out.bin: unknown suffix; give --format, or a name that ends in .pt2, .pt, .onnx",
        ),
        (["export", "client-0", "out", "--format", "zip"], "--format: input should be 'torch-export'"),
        (["export", "client-0", "no/out.pt"], "no/out.pt: no such directory: no"),
        (["export", "client-0", "client-1"], "client-1: is a directory"),
    ],
)
def test_a_mistake_gets_one_line_and_exit_code_2(
    arguments: list[str], message: str, here: Path, capsys: Captured
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit.load:DeprecationWarning")
@pytest.mark.parametrize("arguments", [["out.pt"], ["out", "--format", "torchscript"]])
def test_the_format_follows_from_the_suffix_or_the_flag(arguments: list[str], here: Path, capsys: Captured) -> None:
    assert main(["export", "client-0", *arguments]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "input: uint8 images [batch, 1, 16, 16], from 0 to 255",
        "output: float32 scores [batch, 4], minus the distance; highest wins",
    ]
    assert torch.jit.load(arguments[0])(random_pixels(2)).shape == (2, 4)


def test_a_suffix_that_contradicts_the_format_is_refused(here: Path, capsys: Captured) -> None:
    assert main(["export", "client-0", "model.onnx", "--format", "torchscript"]) == 2
    message = "model.onnx: --format torchscript is written to a file that ends in .pt"
    assert capsys.readouterr().err == f"feddbp: error: {message}\n"


def test_the_command_knows_every_format() -> None:
    assert set(get_args(FileFormat)) == set(BY_SUFFIX.values()) == set(FORMATS)


def test_without_torch_the_command_says_what_to_install(
    here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feddbp_common.optional_deps.find_spec", lambda name: None)
    assert main(["predict", "client-0", "0.png"]) == 2
    assert f"feddbp predict needs torch, safetensors, PIL: {install_command('client')}\n" in capsys.readouterr().err
