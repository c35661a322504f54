"""Where a cell's federation works: in the cell's directory at --out, or on the node's own disk, copied to --out."""

from __future__ import annotations

import getpass
import os
import shutil
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Final

from feddbp_common.artifacts import (
    CELL_CONFIG_NAME,
    CELL_COST_NAME,
    CELL_FAILURE_NAME,
    METRICS_NAME,
    SUMMARY_NAME,
)
from feddbp_common.atomic_files import fsync_path
from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ConfigurationError
from feddbp_common.file_lock import FileLock, is_locked
from feddbp_lab.experiments.run.cell_dir import STATE_DIRS, CellDir, Failure
from feddbp_lab.experiments.run.copies import CellCopies
from feddbp_lab.experiments.run.lease import Lease, cell_key
from feddbp_lab.experiments.run.store import DirectoryStore, Store

Freeze = Callable[[], AbstractContextManager[None]]
_LOCK_NAME: Final = ".in-use"
_RESTORING: Final = ".restore-"


class Workspace(ABC):
    """The directory in which a cell's processes run, and what of it others may see at --out."""

    is_copied = False
    """Whether `copy` is needed for others to resume the cell."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self._store = store
        self._lease = lease
        self._copies = CellCopies(store, lease.cell_id)

    @property
    @abstractmethod
    def directory(self) -> CellDir: ...

    @abstractmethod
    def open(self, run: RunConfig) -> None:
        """Brings the state of earlier attempts here."""

    def copy(self, freeze: Freeze = nullcontext) -> None:
        """Copies the state to --out, if `open` has brought the whole state of earlier attempts here."""
        return

    def publish(self, *, keep_state: bool) -> None:
        """Shows the results, which the directory has, at --out."""
        return

    def publish_failure(self, failure: Failure) -> None:
        """Shows why the attempt failed at --out, and keeps the state for the next."""
        self.directory.record_failure(failure)

    def close(self) -> None:
        """Removes the working directory of a node."""
        return


class InPlaceWorkspace(Workspace):
    """The cell's directory at --out itself: nothing is copied."""

    def __init__(self, store: DirectoryStore, lease: Lease) -> None:
        super().__init__(store, lease)
        self._directory = CellDir(store.path / cell_key(lease.cell_id))

    @property
    def directory(self) -> CellDir:
        return self._directory

    def open(self, run: RunConfig) -> None:
        if self._copies.exist:
            self._restore(self._directory.path)
        self._directory.prepare(run)

    def _restore(self, path: Path) -> None:
        for left in path.glob(f"{_RESTORING}*"):  # by an attempt that was killed
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(dir=path, prefix=_RESTORING) as staging:
            restored = Path(staging) / "state"
            if self._copies.restore(restored):
                for unpacked in restored.rglob("*"):
                    fsync_path(unpacked)
                for name in (*STATE_DIRS, "logs", CELL_COST_NAME):
                    _replace(restored / name, path / name)
                fsync_path(path)
        self._copies.delete()  # from here on the directory is newer


class NodeWorkspace(Workspace):
    """A directory on the node's disk, copied to --out; removed with the attempt, or by the next on this disk."""

    is_copied = True

    def __init__(self, store: Store, lease: Lease, work_dir: Path) -> None:
        super().__init__(store, lease)
        make_private(work_dir)
        with FileLock(work_dir / _LOCK_NAME, wait=True):
            _remove_abandoned(work_dir)
            self._root = Path(tempfile.mkdtemp(dir=work_dir, prefix=f"{lease.cell_id[:80]}-{lease.epoch}-"))
            self._lock = FileLock(self._root / _LOCK_NAME)
        self._directory = CellDir(self._root / "cell")
        self._directory.path.mkdir()
        self._is_open = False

    @property
    def directory(self) -> CellDir:
        return self._directory

    def open(self, run: RunConfig) -> None:
        path = self._directory.path
        if not self._copies.restore(path) and isinstance(self._store, DirectoryStore):
            _adopt_state(self._store.path / cell_key(self._lease.cell_id), path)
        if (config := self._store.read(self._key(CELL_CONFIG_NAME))) is not None:
            (path / CELL_CONFIG_NAME).write_bytes(config)  # of the run that the results at --out are of
        self._directory.prepare(run)
        self._lease.verify()
        self._upload(CELL_CONFIG_NAME)
        self._store.delete([self._key(CELL_FAILURE_NAME)])
        self._is_open = True

    def copy(self, freeze: Freeze = nullcontext) -> None:
        if not self._is_open:
            return  # an empty or half-restored directory would replace the last whole copy
        self._copies.save(self._directory.path, self._lease, still=freeze())
        self._remove_state_in_place()

    def publish(self, *, keep_state: bool) -> None:
        if keep_state:
            self.copy()
        self._lease.verify()
        self._upload_logs()
        for name in (CELL_COST_NAME, METRICS_NAME, SUMMARY_NAME):  # the summary last: it marks the cell as done
            self._upload(name)
        if not keep_state:
            self._copies.delete()
        self._remove_state_in_place()

    def publish_failure(self, failure: Failure) -> None:
        self._lease.verify()
        # first, and not by way of this disk, which may be full
        self._store.write(self._key(CELL_FAILURE_NAME), failure.to_json().encode())
        if self._is_open:
            self.copy()
            self._upload_logs()
            self._upload(CELL_COST_NAME)

    def close(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)
        self._lock.release()

    def _upload(self, name: str) -> None:
        path = self._directory.path / name
        if path.exists():
            self._store.write(self._key(name), path.read_bytes())

    def _upload_logs(self) -> None:
        for path in sorted((self._directory.path / "logs").glob("*.log")):
            self._store.upload(path, self._key(f"logs/{path.name}"))

    def _remove_state_in_place(self) -> None:
        """A runner that worked in place may have left its state at --out, which is older than a copy."""
        if isinstance(self._store, DirectoryStore):
            for name in STATE_DIRS:
                shutil.rmtree(self._store.path / self._key(name), ignore_errors=True)

    def _key(self, name: str) -> str:
        return cell_key(self._lease.cell_id, name)


def default_work_dir() -> Path:
    return Path(tempfile.gettempdir()) / f"feddbp-{getpass.getuser()}"


def make_private(work_dir: Path) -> None:
    """Creates the directory, or makes sure that no other user can write to it: in /tmp anyone may have created it."""
    if problem := _problem_with(work_dir):
        raise ConfigurationError(f"the work directory {work_dir} {problem}, or give another --work-dir")


def _problem_with(work_dir: Path) -> str:
    try:
        with suppress(FileExistsError):
            work_dir.mkdir(mode=0o700, parents=True)
        found = work_dir.lstat()
    except OSError as error:
        return f"cannot be created: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return "is not a directory" + (" but a symbolic link" if stat.S_ISLNK(found.st_mode) else "")
    if found.st_uid != os.geteuid():
        return f"belongs to another user (id {found.st_uid})"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written to by other users; take their write permission away (chmod go-w)"
    return ""


def _replace(source: Path, target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    if source.exists():
        source.replace(target)


def _adopt_state(source: Path, target: Path) -> None:
    """Copies the state that a runner left that worked in place."""
    for name in STATE_DIRS:
        if (source / name).exists():
            shutil.copytree(source / name, target / name)
    for name in (CELL_CONFIG_NAME, CELL_COST_NAME):
        with suppress(FileNotFoundError):
            shutil.copyfile(source / name, target / name)


def _remove_abandoned(work_dir: Path) -> None:
    """Removes what processes that were killed have left on this disk."""
    for lock in work_dir.glob(f"*/{_LOCK_NAME}"):
        if not is_locked(lock):
            shutil.rmtree(lock.parent, ignore_errors=True)
