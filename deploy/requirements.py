"""Prints the dependencies of the project, so that images can install them in a layer before the code.

requirements.py pyproject.toml [EXTRA...]
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path


def requirements(pyproject: Path, extras: Sequence[str]) -> list[str]:
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    return sorted({*project["dependencies"], *(needed for extra in extras for needed in optional[extra])})


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]), sys.argv[2:])))
