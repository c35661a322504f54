"""How an extra is added to an installation, by the record of where it came from."""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib.metadata import PackageNotFoundError, PathDistribution
from pathlib import Path

import pytest

from feddbp_common import optional_deps
from feddbp_common.errors import ConfigurationError
from feddbp_common.optional_deps import install_command, require

CHECKOUT = Path(__file__).parents[3]
WHEEL = "file:///srv/wheels/feddbp-0.2.0-py3-none-any.whl"


@pytest.fixture(autouse=True)
def activated(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment whose pip is the first on the path."""
    beside = str(Path(sys.executable).with_name("pip"))
    monkeypatch.setattr(shutil, "which", lambda name: beside)


def installed(
    monkeypatch: pytest.MonkeyPatch, directory: Path, origin: dict[str, object] | None, installer: str = "pip"
) -> None:
    info = directory / "feddbp-0.2.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "INSTALLER").write_text(f"{installer}\n")
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.setattr(optional_deps, "distribution", lambda name: PathDistribution(info))


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'feddbp[lab]'"),
        ({"url": WHEEL, "archive_info": {}}, f"pip install 'feddbp[lab] @ {WHEEL}'"),
        ({"url": "file:///srv/feddbp", "dir_info": {"editable": True}}, "pip install -e '/srv/feddbp[lab]'"),
        ({"url": "file:///srv/our%20feddbp", "dir_info": {}}, "pip install '/srv/our feddbp[lab]'"),
        (
            {"url": "https://example.org/feddbp", "vcs_info": {"vcs": "git", "commit_id": "4f2c"}},
            "pip install 'feddbp[lab] @ git+https://example.org/feddbp@4f2c'",
        ),
    ],
)
def test_the_command_installs_from_where_the_package_came(
    origin: dict[str, object] | None, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed(monkeypatch, tmp_path, origin)
    assert install_command("lab") == command


def test_in_its_checkout_the_command_is_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, tmp_path, {"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    monkeypatch.chdir(tmp_path)
    assert install_command("client") == "pip install -e '.[client]'"


def test_a_checkout_that_is_not_installed_is_installed_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(optional_deps, "distribution", missing)
    monkeypatch.chdir(tmp_path)
    assert install_command("lab") == f"pip install -e '{CHECKOUT}[lab]'"


def test_uv_installs_what_it_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, tmp_path, None, installer="uv")
    monkeypatch.chdir(tmp_path)
    assert install_command("lab") == f"uv pip install --python {sys.executable} 'feddbp[lab]'"


@pytest.mark.parametrize(("has_pip", "form"), [(True, "{} -m pip install"), (False, "pip --python {} install")])
def test_another_pip_on_the_path_is_not_used_as_it_is(
    has_pip: bool, form: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed(monkeypatch, tmp_path, None)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/pip")
    monkeypatch.setattr(optional_deps, "find_spec", lambda name: object() if has_pip else None)
    monkeypatch.chdir(Path(sys.executable).parents[1])
    python = os.path.relpath(sys.executable)
    assert install_command("lab") == f"{form.format(python)} 'feddbp[lab]'"


def test_only_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, tmp_path, None)
    with pytest.raises(ConfigurationError) as raised:
        require("a picture", ("json", "no_such_module"), extra="lab")
    assert str(raised.value) == "a picture needs no_such_module: pip install 'feddbp[lab]'"
