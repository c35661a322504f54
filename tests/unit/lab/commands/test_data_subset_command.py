"""`feddbp data subset`: its options, what it prints, and mistakes."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import numpy as np
import pytest

from feddbp_client.data import clear_dataset_cache, load_dataset
from feddbp_common.errors import ExitCode
from feddbp_lab.cli import COMMANDS, main

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clear_dataset_cache()
    monkeypatch.chdir(tmp_path)


def write_cifar10(folder: Path) -> None:
    """Of each class two images, but of the first one."""
    folder.mkdir()
    labels = np.arange(1, 20) % 10
    np.savez(folder / "cifar10.npz", x_train=np.zeros((19, 32, 32, 3), np.uint8), y_train=labels)


def test_help_lists_both_commands(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as left:
        main(["data", "--help"])
    assert left.value.code == 0
    listed = capsys.readouterr().out.partition("commands:")[2].partition("\n\n")[0].split("\n")
    assert tuple(line.split()[0] for line in listed if line) == COMMANDS["data"].subcommands == ("check", "subset")


@pytest.mark.parametrize("name", ["check PATH", "subset NAME --per-class N --out DIR"])
def test_each_command_has_a_help_text(name: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as left:
        main(["data", name.split()[0], "--help"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: feddbp data {name} [options]")


def test_a_subset_is_written_and_the_commands_that_use_it_are_shown(capsys: Captured) -> None:
    assert main(["data", "subset", "digits", "--per-class", "100", "--out", "sub set"]) == 0
    written = Path("sub set/digits.npz")
    output = capsys.readouterr().out
    assert output == (
        "images  1000 of 10 classes\n"
        f"file    sub set/digits.npz, {written.stat().st_size / 1000:.0f} kB\n"
        f"sha256  {hashlib.sha256(written.read_bytes()).hexdigest()}\n"
        "\n"
        "feddbp-server --dataset digits\n"
        "feddbp-client --id 0 --data-dir 'sub set'\n"
    )
    assert np.bincount(load_dataset("digits", Path("sub set")).labels).tolist() == [100] * 10


def test_the_seed_decides_the_file(capsys: Captured) -> None:
    for folder, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        assert main(["data", "subset", "digits", "--per-class", "10", "--seed", seed, "--out", folder]) == 0
    first, again, other = (Path(folder, "digits.npz").read_bytes() for folder in "abc")
    assert first == again != other
    assert main(["data", "subset", "digits", "--per-class", "10", "--seed", "1", "--out", "a", "--overwrite"]) == 0
    assert Path("a/digits.npz").read_bytes() == other


def test_small_classes_are_named_and_experiments_get_the_data_set(capsys: Captured) -> None:
    write_cifar10(Path("whole"))
    assert main(["data", "subset", "cifar10", "--per-class", "2", "--data-dir", "whole", "--out", "subset"]) == 0
    output = capsys.readouterr().out
    assert "images  19 of 10 classes\nnote    1 class has fewer than 2 images: all of them were taken\n" in output
    assert "\nfeddbp experiment run table1 --only cifar10 --data-dir subset --out results\n" in output


def test_what_readers_log_is_shown_while_they_read(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(Path("whole"))

    def announced(name: str, data_dir: Path) -> object:
        logging.getLogger("feddbp_client.data.readers.download").info("downloading %s to %s", name, data_dir)
        return load_dataset(name, data_dir)

    monkeypatch.setattr("feddbp_client.data.subset.load_dataset", announced)
    assert main(["data", "subset", "cifar10", "--per-class", "1", "--data-dir", "whole", "--out", "subset"]) == 0
    assert capsys.readouterr().err == "downloading cifar10 to whole\n"
    assert not logging.getLogger("feddbp_client.data").handlers


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cifra10"], "no public data set is called 'cifra10'; did you mean 'cifar10'?"),
        (
            ["custom"],
            "no public data set is called 'custom'; there are: digits, cifar10, cifar100, flowers102, tiny-imagenet",
        ),
        (["digits", "--per-class", "0"], "--per-class: input should be greater than or equal to 1 (got '0')"),
        (["digits", "--seed", "-1"], "--seed: input should be greater than or equal to 0 (got '-1')"),
        (
            ["digits", "--out", "old"],
            "old/digits.npz: exists already; give --overwrite to replace it, or another --out",
        ),
        (["digits", "--out", "notes.txt"], "notes.txt: not a directory"),
        (["digits", "--out", "notes.txt/new"], "notes.txt/new/digits.npz: cannot be written: Not a directory"),
        (
            ["digits", "--data-dir", "new", "--out", "./new"],
            "new: is the --data-dir, where clients would read the subset in place of the whole data set; "
            "give another --out",
        ),
        (["cifar10", "--data-dir", "damaged"], "damaged/cifar10.npz: not an npz file, or truncated"),
    ],
)
def test_a_mistake_gets_one_line_and_writes_nothing(
    arguments: list[str], message: str, tmp_path: Path, capsys: Captured
) -> None:
    for folder in ("old", "damaged"):
        Path(folder).mkdir()
    Path("old/digits.npz").write_text("an earlier one")
    Path("damaged/cifar10.npz").write_bytes(b"PK\x03\x04")
    Path("notes.txt").write_text("hello")
    before = sorted(tmp_path.rglob("*"))
    defaults = {"--per-class": "5", "--out": "subset"}
    given = [word for flag, value in defaults.items() if flag not in arguments for word in (flag, value)]
    assert main(["data", "subset", *arguments, *given]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.err.endswith(f"{message}\n")
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_directory_for_data_that_cannot_be_made_gets_one_line(capsys: Captured) -> None:
    Path("notes.txt").write_text("hello")
    arguments = ["--per-class", "5", "--data-dir", "notes.txt/data", "--out", "subset"]
    assert main(["data", "subset", "cifar10", *arguments]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert "notes.txt/data/cifar-10-python.tar.gz: cannot be written: " in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: NAME; see feddbp data subset --help"),
        (["digits"], "--per-class is required; also --out is required"),
        (["digits", "--per-class", "5"], "--out is required"),
    ],
)
def test_what_is_missing_is_named(arguments: list[str], message: str, capsys: Captured) -> None:
    assert main(["data", "subset", *arguments]) == ExitCode.USAGE
    assert capsys.readouterr().err.endswith(f"{message}\n")
