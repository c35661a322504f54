"""The directory on a node's disk in which a cell works."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from feddbp_common.errors import ConfigurationError
from feddbp_lab.experiments.run.lease import Holder, take_lease
from feddbp_lab.experiments.run.store import DirectoryStore
from feddbp_lab.experiments.run.workspace import NodeWorkspace

Open = Callable[[], NodeWorkspace]


@pytest.fixture
def work_dir(tmp_path: Path) -> Path:
    return tmp_path / "work"


@pytest.fixture
def open_workspace(tmp_path: Path, work_dir: Path) -> Open:
    store = DirectoryStore(tmp_path / "out")
    lease = take_lease(store, "fd-digits-0", Holder.here(), 30.0, after=None)
    assert lease is not None
    return lambda: NodeWorkspace(store, lease, work_dir)


def test_a_new_work_directory_is_private_and_can_be_used_again(work_dir: Path, open_workspace: Open) -> None:
    for _ in range(2):
        workspace = open_workspace()
        assert workspace.directory.path.is_dir()
        assert work_dir.stat().st_mode & 0o777 == 0o700
        workspace.close()


def test_a_work_directory_that_others_may_write_to_is_refused(work_dir: Path, open_workspace: Open) -> None:
    work_dir.mkdir()
    for mode in (0o770, 0o702):
        work_dir.chmod(mode)
        with pytest.raises(ConfigurationError, match=r"can be written to by other users.*or give another --work-dir"):
            open_workspace()
    assert not any(work_dir.iterdir())


def test_a_work_directory_of_another_user_is_refused(
    work_dir: Path, open_workspace: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_dir.mkdir(mode=0o700)
    owner = work_dir.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ConfigurationError, match=rf"work belongs to another user \(id {owner}\)"):
        open_workspace()
    assert not any(work_dir.iterdir())


def test_a_symbolic_link_in_place_of_the_work_directory_is_refused(
    tmp_path: Path, work_dir: Path, open_workspace: Open
) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    work_dir.symlink_to(target)
    with pytest.raises(ConfigurationError, match="is not a directory but a symbolic link"):
        open_workspace()
    assert not any(target.iterdir())
