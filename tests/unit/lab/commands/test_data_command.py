"""`feddbp data check`: what a client would read, before there is a server."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feddbp_common.errors import ExitCode
from feddbp_lab.cli import main

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    noise = np.random.default_rng(0)
    for name, count in (("cat", 12), ("dog", 8)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(count):
            pixels = noise.integers(0, 255, (20, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{number}.png")
    return tmp_path / "pictures"


def test_a_folder_is_described_as_a_client_would_read_it(folder: Path, capsys: Captured) -> None:
    assert main(["data", "check", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line != line.rstrip()] == []
    text = " ".join(printed.split())
    assert "20, read as 20x20 RGB" in text
    assert "split 15 training, 5 test (held out of all)" in text
    assert "20 images, 24x20, scaled to 20x20" in text
    assert "24.0 kB decoded, in memory" in text
    assert f"feddbp-server --dataset custom --class-names cat,dog feddbp-client --id 0 --data {folder}" in text


def test_every_unreadable_file_is_listed_and_the_exit_code_says_that_a_client_refuses(
    folder: Path, capsys: Captured
) -> None:
    damaged = [folder / "cat" / "3.png", folder / "dog" / "5.png"]
    damaged[0].write_bytes(b"no image")
    damaged[1].write_bytes(damaged[1].read_bytes()[:-200])
    assert main(["data", "check", str(folder), "--json"]) == ExitCode.USAGE
    found = json.loads(capsys.readouterr().out)
    assert [line.partition(" ")[0] for line in found["unreadable"]] == ["cat/3.png", "dog/5.png"]
    assert sum(counts["train"] + counts["test"] for counts in found["classes"]) == 18
    assert len(found["notes"]) == 1  # how images are scaled: the skipped files are not listed twice
    assert main(["data", "check", str(folder)]) == ExitCode.USAGE
    assert "unreadable  cat/3.png (not an image)" in capsys.readouterr().out


def test_an_npz_is_split_with_the_settings_of_the_run(tmp_path: Path, capsys: Captured) -> None:
    labels = np.repeat([0, 1, 3], 10)
    np.savez(tmp_path / "scans.npz", x_train=np.zeros((30, 8, 8), np.uint8), y_train=labels)
    assert main(["data", "check", str(tmp_path / "scans.npz"), "--json", "--validation", "0.2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [counts["name"] for counts in found["classes"]] == ["0", "1", "2", "3"]
    assert sum(counts["validation"] for counts in found["classes"]) == 4
    assert found["image_shape"] == [1, 8, 8]


def test_classes_without_images_of_a_part_are_warned_about(tmp_path: Path, capsys: Captured) -> None:
    np.savez(
        tmp_path / "scans.npz",
        x_train=np.zeros((9, 8, 8), np.uint8),
        y_train=np.repeat([0, 1], [5, 4]),
        x_test=np.zeros((3, 8, 8), np.uint8),
        y_test=np.zeros(3, np.int64),
    )
    assert main(["data", "check", str(tmp_path / "scans.npz")]) == 0
    assert "warning  no test images of 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "nowhere"], "nowhere: no such file or folder"),
        (["check", "."], ".: has no folders; put the images of each class into a folder of its name"),
        (["chekc", "."], "no command is called feddbp data 'chekc'; did you mean 'check'?"),
        (["check"], "the following arguments are required: PATH; see feddbp data check --help"),
        (["check", "pictures", "--class-names", "cat,cow"], "folder 'dog' is not one of the run's classes: cat, cow"),
        (["check", "notes.txt"], "notes.txt: neither a folder of images nor an .npz file"),
    ],
)
def test_a_mistake_gets_one_line(
    arguments: list[str], message: str, folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.parent / "empty").mkdir()
    monkeypatch.chdir(folder.parent / "empty" if arguments == ["check", "."] else folder.parent)
    (folder.parent / "notes.txt").write_text("hello")
    assert main(["data", *arguments]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.err.endswith(f"{message}\n")
    assert (captured.out, captured.err.count("\n")) == ("", 1)
