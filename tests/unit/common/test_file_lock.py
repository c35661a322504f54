"""Locks between processes: who is refused, who waits, and what releases them."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from feddbp_common.file_lock import FileLock, LockHeldError, is_locked

HOLDER = """
import os
import sys
from pathlib import Path
from feddbp_common.file_lock import FileLock
path = Path(sys.argv[1])
with FileLock(path) as lock:
    path.write_text(str(os.getpid()))
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.lock"


@contextmanager
def held_by_another_process(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        try:
            yield holder
        finally:
            holder.kill()


def test_a_lock_held_by_another_process_is_refused_with_the_id_of_its_owner(path: Path) -> None:
    with held_by_another_process(path) as holder:
        assert is_locked(path)
        with pytest.raises(LockHeldError, match=f"some.lock is locked by process {holder.pid}") as refused:
            FileLock(path)
    assert refused.value.owner == str(holder.pid)


def test_a_killed_process_holds_its_lock_no_longer(path: Path) -> None:
    with held_by_another_process(path) as holder:
        holder.kill()
        holder.wait()
        assert not is_locked(path)
        FileLock(path).release()


def test_an_owner_that_wrote_no_id_is_unknown(path: Path) -> None:
    with FileLock(path), pytest.raises(LockHeldError, match="locked by process unknown"):
        FileLock(path)


def test_a_released_lock_leaves_no_owner_behind(path: Path) -> None:
    with FileLock(path):
        path.write_text("123\n")
    assert path.read_text() == ""


def test_a_killed_owner_is_not_taken_for_the_next_one(path: Path) -> None:
    with held_by_another_process(path) as holder:
        holder.kill()
        holder.wait()
        with FileLock(path), pytest.raises(LockHeldError, match="locked by process unknown"):
            FileLock(path)


def test_a_query_at_the_same_time_does_not_make_a_lock_fail(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with path.open("wb") as query:
        fcntl.flock(query, fcntl.LOCK_SH)  # as `is_locked` does; it ends while the lock waits for a second attempt
        monkeypatch.setattr(time, "sleep", lambda _: query.close())
        with FileLock(path):
            assert is_locked(path)


def test_the_lock_file_stays_after_release(path: Path) -> None:
    with FileLock(path):
        pass
    assert path.exists()
    assert not is_locked(path)


def test_a_lock_may_be_released_twice(path: Path) -> None:
    lock = FileLock(path)
    lock.release()
    with FileLock(path):
        lock.release()
        assert is_locked(path)


def test_a_waiting_process_gets_the_lock_when_it_is_released(path: Path) -> None:
    first, acquired = FileLock(path), threading.Event()

    def wait() -> None:
        with FileLock(path, wait=True):
            acquired.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not acquired.wait(0.1)
    first.release()
    assert acquired.wait(30)
    thread.join()


def test_a_started_program_does_not_inherit_the_lock(path: Path) -> None:
    lock = FileLock(path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL):
        lock.release()
        assert not is_locked(path)


def test_a_query_creates_no_file_and_needs_no_write_access(path: Path) -> None:
    assert not is_locked(path)
    assert not path.exists()
    path.touch(mode=0o444)
    assert not is_locked(path)


def test_a_new_lock_file_has_the_mode_asked_for(path: Path) -> None:
    FileLock(path, mode=0o600).release()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_opened_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        FileLock(tmp_path)


def test_a_symbolic_link_in_place_of_the_file_is_not_followed(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("kept")
    path.symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        FileLock(path)
    assert target.read_text() == "kept"


def test_a_lock_file_that_its_holder_removed_locks_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = FileLock(path)

    def remove_and_release(_: float) -> None:
        path.unlink()
        holder.release()

    monkeypatch.setattr("feddbp_common.file_lock.time.sleep", remove_and_release)  # before the second attempt
    with FileLock(path):
        assert is_locked(path)
        with pytest.raises(LockHeldError):
            FileLock(path, wait=False)
