"""The directory on a node's disk in which a cell works."""

from __future__ import annotations

import errno
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ConfigurationError
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.run.cell_dir import CellDir, CellState, Failure
from feddbp_lab.experiments.run.copies import CellCopies
from feddbp_lab.experiments.run.lease import Holder, current_lease, take_lease
from feddbp_lab.experiments.run.store import DirectoryStore
from feddbp_lab.experiments.run.workspace import InPlaceWorkspace, NodeWorkspace

Open = Callable[[], NodeWorkspace]
RUN = RunConfig(method="fedproto", clients=2, rounds=4)
CELL = Cell(RUN)
STATE = ("server/run.sqlite3", "clients/run/client-0/session.json", "clients/run/client-1/session.json")


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


def attempt(out: Path, work_dir: Path) -> NodeWorkspace:
    store = DirectoryStore(out)
    before = current_lease(store, CELL.id)
    lease = take_lease(store, CELL.id, Holder.here(), 30.0, after=before)
    assert lease is not None
    return NodeWorkspace(store, lease, work_dir)


def first_attempt(out: Path, work_dir: Path) -> None:
    """One that leaves a copy of its state."""
    workspace = attempt(out, work_dir)
    workspace.open(RUN)
    for name in STATE:
        path = workspace.directory.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("first")
    workspace.copy()
    workspace.close()


def test_what_was_restored_in_place_is_on_disk_before_the_copies_are_deleted(
    tmp_path: Path, work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, synced, sync, delete = tmp_path / "out", set[int](), os.fsync, CellCopies.delete
    first_attempt(out, work_dir)
    cell = out / "cells" / CELL.id
    (cell / ".restore-killed").mkdir()

    def fsync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        sync(descriptor)

    def delete_copies(copies: CellCopies) -> None:
        needed = [cell, *(path for name in STATE for path in (cell / name, (cell / name).parent))]
        assert {path.stat().st_ino for path in needed} <= synced
        delete(copies)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(CellCopies, "delete", delete_copies)
    store = DirectoryStore(out)
    lease = take_lease(store, CELL.id, Holder.here(), 30.0, after=current_lease(store, CELL.id))
    assert lease is not None
    InPlaceWorkspace(store, lease).open(RUN)
    assert all((cell / name).read_text() == "first" for name in STATE)
    assert not list(cell.glob("copy-*"))
    assert not list(cell.glob(".restore-*"))


def names_fail(patch: pytest.MonkeyPatch) -> None:
    def names(store: DirectoryStore, key: str) -> list[str]:
        patch.undo()  # an instant later the store answers again
        raise OSError(errno.ECONNRESET, "connection reset")

    patch.setattr(DirectoryStore, "names", names)


def unpacking_fails(patch: pytest.MonkeyPatch) -> None:
    def extract_some(archive: tarfile.TarFile, path: Path, **options: Any) -> None:
        archive.extract("server", path, filter="data")
        archive.extract(STATE[0], path, filter="data")
        raise OSError(errno.ENOSPC, "no space left")

    patch.setattr(tarfile.TarFile, "extractall", extract_some)


@pytest.mark.parametrize("break_opening", [names_fail, unpacking_fails])
@pytest.mark.parametrize("is_failure", [True, False])
def test_an_attempt_that_could_not_restore_the_state_leaves_the_last_copy(
    tmp_path: Path, work_dir: Path, break_opening: Callable[[pytest.MonkeyPatch], None], is_failure: bool
) -> None:
    out = tmp_path / "out"
    first_attempt(out, work_dir)
    second = attempt(out, work_dir)
    with pytest.MonkeyPatch.context() as patch:
        break_opening(patch)
        with pytest.raises(OSError, match=r"connection reset|no space left"):
            second.open(RUN)
    if is_failure:
        second.publish_failure(Failure(cause="could not be opened"))
        failure = json.loads((out / "cells" / CELL.id / "failure.json").read_text())
        assert failure["cause"] == "could not be opened"
    else:  # a runner that is stopped
        second.copy()
    second.close()
    third = attempt(out, work_dir)
    third.open(RUN)
    assert all((third.directory.path / name).read_text() == "first" for name in STATE)
    third.close()


def test_a_failure_is_recorded_without_room_for_a_copy(
    tmp_path: Path, work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object, **__: object) -> tarfile.TarFile:
        raise OSError(errno.ENOSPC, "no space left")

    workspace = attempt(tmp_path / "out", work_dir)
    workspace.open(RUN)
    monkeypatch.setattr(tarfile, "open", no_room)
    with pytest.raises(OSError, match="no space left"):
        workspace.publish_failure(Failure(cause="training diverged"))
    found = CellDir(tmp_path / "out" / "cells" / CELL.id).failure()
    assert found is not None
    assert found.cause == "training diverged"
    workspace.close()


def test_a_failure_before_the_configuration_was_written_is_one(tmp_path: Path, work_dir: Path) -> None:
    workspace = attempt(tmp_path / "out", work_dir)
    workspace.publish_failure(Failure(cause="could not be opened"))
    workspace.close()
    assert CellDir(tmp_path / "out" / "cells" / CELL.id).state is CellState.FAILED
