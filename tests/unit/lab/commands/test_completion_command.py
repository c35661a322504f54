"""`feddbp completion`: scripts that complete commands, flags and values, tried in a real bash."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from feddbp_lab.cli import COMMANDS, main
from feddbp_lab.commands.completion import all_words


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written by a process of its own, which also says whether it has imported torch."""
    path = tmp_path_factory.mktemp("completion") / "script"
    code = "import sys; from feddbp_lab.cli import main; main(['completion', 'bash']); sys.exit('torch' in sys.modules)"
    with path.open("w") as output:
        subprocess.run([sys.executable, "-c", code], stdout=output, check=True)
    return path


def completed(script: Path, *words: str) -> list[str]:
    setup = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _feddbp_complete; echo "${COMPREPLY[*]}"'
    found = subprocess.run(
        ["bash", "-c", setup, "bash", str(script), *words], capture_output=True, text=True, check=True
    )
    assert found.stderr == ""
    return found.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["feddbp", "pred"], ["predict"]),
        (["/usr/bin/feddbp", "experiment", "sta"], ["status"]),
        (["feddbp", "data", ""], ["check", "subset"]),
        (["feddbp", "data", "subset", "digits", "--per"], ["--per-class"]),
        (["feddbp", "data", "check", "pictures", "--image"], ["--image-size"]),
        (["feddbp", "client", "dr"], ["drop"]),
        (["feddbp", "certs", "server", "--ho"], ["--host"]),
        (["feddbp-server", "--round-d"], ["--round-deadline"]),
        (["feddbp-server", "--method", "fedp"], ["fedproto", "fedproc"]),
        (["feddbp-server", "--log-level", "de"], ["debug"]),
        (["feddbp-client", "--skip"], ["--skip-unreadable"]),
        (["feddbp-server", "--config", "r"], []),
        (["feddbp", "report", "r"], []),
    ],
)
def test_bash_completes(script: Path, words: list[str], expected: list[str]) -> None:
    assert completed(script, *words) == expected


def test_every_command_is_completed() -> None:
    words = all_words()
    assert words["feddbp"].subcommands.keys() == COMMANDS.keys()
    for path, found in words["feddbp"].walk(("feddbp",)):
        assert found.options or found.subcommands or "completion" in path, path
    assert len(words["feddbp-server"].options) > 30


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_of_other_shells_are_understood_by_them(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert "skip-unreadable" in script.read_text()
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", str(script)], check=True)
