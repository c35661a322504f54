"""The project as its users get it: a wheel, in virtual environments that know nothing of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PathDistribution, distribution, distributions
from pathlib import Path

from deploy_files import CHECKOUT
from packaging.requirements import Requirement
from processes import PATIENCE


@dataclass(frozen=True, kw_only=True)
class Built:
    """What `make wheel` writes."""

    wheel: Path
    sdist: Path

    def base_requirements(self) -> list[str]:
        """The requirements of the wheel without any extra."""
        (info,) = (path for path in zipfile.Path(self.wheel).iterdir() if path.name.endswith(".dist-info"))
        return PathDistribution(info).requires or []


@dataclass(frozen=True)
class Installation:
    """A virtual environment with the wheel in it."""

    home: Path

    def start(self, command: str, *arguments: object, cwd: Path) -> subprocess.Popen[str]:
        """Starts a command of the environment, out of reach of what this process imports from and is set to."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FEDDBP_"))}
        words = [str(self.home / "bin" / command), *map(str, arguments)]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, cwd=cwd, env=kept)

    def run(self, command: str, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
        with self.start(command, *arguments, cwd=cwd) as process:
            try:
                out, err = process.communicate(timeout=PATIENCE)
            finally:
                process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def build(directory: Path) -> Built:
    """Builds both archives as `make wheel` does: the wheel from the source archive, offline."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(directory), str(CHECKOUT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = directory.glob("*.whl"), directory.glob("*.tar.gz")
    return Built(wheel=wheel, sdist=sdist)


def install(wheel: Path, home: Path, dependencies: Iterable[Path]) -> Installation:
    """Installs the wheel alone into a new environment that finds everything else in the given directories."""
    venv.create(home)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(home / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", wheel], check=True)
    # Only now: pip would take an editable installation that is listed in one of the directories for this one. Python
    # itself does not follow it, because .pth files in a directory that was added by a .pth file are not read.
    site_packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(home)}))
    (site_packages / "dependencies.pth").write_text("".join(f"{directory}\n" for directory in dependencies))
    return Installation(home)


def installed_here() -> list[Path]:
    """The directories in which this process finds its distributions."""
    return sorted({Path(str(found.locate_file(""))).resolve() for found in distributions()})


def only(requirements: Iterable[str], directory: Path) -> Path:
    """Fills the directory with links to these distributions and to what they require, and to nothing else."""
    directory.mkdir()
    for name in _required(requirements):
        found = distribution(name)
        assert found.files is not None, f"{name} does not list its files"
        for top in {file.parts[0] for file in found.files} - {"..", "__pycache__"}:
            link = directory / top
            if not link.exists():
                link.symlink_to(Path(str(found.locate_file(top))))
    return directory


def _required(requirements: Iterable[str]) -> set[str]:
    """Names of the distributions that meet the requirements, and of those that they require in turn."""
    names: set[str] = set()
    seen: set[tuple[str, str]] = set()
    todo = {(text, "") for text in requirements}
    while todo:
        text, extra = todo.pop()
        seen.add((text, extra))
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            names.add(requirement.name)
            needed = distribution(requirement.name).requires or []
            todo |= {(need, asked) for need in needed for asked in ("", *requirement.extras)} - seen
    return names
