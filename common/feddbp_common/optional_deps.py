"""Optional dependencies: reports which are missing, and how they are added to this installation."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from feddbp_common.errors import ConfigurationError

CHECKPOINT_MODULES: Final = ("torch", "safetensors", "PIL")
"""What a client needs to start, or to be restored; some models and data sets need more."""
CLIENT_MODULES: Final = (*CHECKPOINT_MODULES, "torchvision", "sklearn")
"""What the extra `client` brings."""
LAB_MODULES: Final = (*CLIENT_MODULES, "matplotlib", "jinja2")
"""What the extra `lab` brings."""
DASHBOARD_MODULES: Final = ("starlette", "uvicorn", "jinja2")
"""What the extra `dashboard` brings."""
_DISTRIBUTION: Final = "feddbp"


def require(feature: str, modules: Iterable[str], *, extra: str) -> None:
    """Raises ConfigurationError if a module that the feature needs is not installed."""
    missing = missing_modules(modules)
    if missing:
        raise ConfigurationError(f"{feature} needs {', '.join(missing)}: {install_command(extra)}")


def missing_modules(modules: Iterable[str]) -> list[str]:
    return [name for name in modules if find_spec(name) is None]


def install_command(extra: str) -> str:
    """The command that adds an extra to this installation: from the checkout, wheel or index it was made from."""
    try:
        installed: Distribution | None = distribution(_DISTRIBUTION)
    except PackageNotFoundError:  # run from a checkout that is not installed
        installed = None
    return f"{_install(installed)} {_requirement(installed, extra)}"


def _install(installed: Distribution | None) -> str:
    """The command that installs into the environment of this process, by the tool that it was installed with."""
    python = _shown(Path(sys.executable))
    if installed is not None and (installed.read_text("INSTALLER") or "").strip() == "uv":
        return f"uv pip install --python {python}"
    on_path = shutil.which("pip")
    if on_path is not None and Path(on_path).parent == Path(sys.executable).parent:
        return "pip install"
    return f"{python} -m pip install" if find_spec("pip") is not None else f"pip --python {python} install"


def _requirement(installed: Distribution | None, extra: str) -> str:
    """The argument for pip, from the record of where the installation came from (PEP 610)."""
    if installed is None:
        return f"-e {_folder(Path(__file__).parents[2], extra)}"
    origin: dict[str, Any] = json.loads(installed.read_text("direct_url.json") or "{}")
    url, named = str(origin.get("url", "")), f"{_DISTRIBUTION}[{extra}]"
    if "dir_info" in origin:
        folder = _folder(Path(unquote(urlsplit(url).path)), extra)
        return f"-e {folder}" if origin["dir_info"].get("editable") else folder
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        return quote(f"{named} @ {vcs['vcs']}+{url}@{vcs['commit_id']}")
    return quote(f"{named} @ {url}" if url else named)


def _folder(path: Path, extra: str) -> str:
    return quote(f"{'.' if path == Path.cwd() else path}[{extra}]")


def _shown(path: Path) -> str:
    """The path from the working directory, if it is in there."""
    return quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
