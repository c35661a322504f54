"""What several runners share at --out: files, leases with fencing, and copies of a cell's state."""

from __future__ import annotations

import errno
import resource
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from feddbp_common.errors import ConfigurationError
from feddbp_lab.cli import main
from feddbp_lab.experiments.run.copies import CellCopies
from feddbp_lab.experiments.run.lease import (
    Holder,
    Lease,
    LeaseLostError,
    LeaseRecord,
    LeaseWatch,
    current_lease,
    take_lease,
)
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.experiments.run.store import DirectoryStore, Store, open_store

CELL = "fd-digits-0"


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "out") if request.param == "directory" else f"memory://{uuid.uuid4().hex}")


def take(store: Store, after: LeaseRecord | None = None, seconds: float = 30.0) -> Lease:
    lease = take_lease(store, CELL, Holder.here(), seconds, after=after)
    assert lease is not None
    return lease


def held(store: Store) -> LeaseRecord:
    found = current_lease(store, CELL)
    assert found is not None
    return found


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_file_is_created_once_and_replaced_as_often_as_needed(store: Store, tmp_path: Path) -> None:
    assert store.read("cells/a/x.json") is None
    assert store.names("cells/a") == []
    assert store.create("cells/a/x.json", b"first")
    assert not store.create("cells/a/x.json", b"second")
    assert store.read("cells/a/x.json") == b"first"
    store.write("cells/a/x.json", b"third")
    (tmp_path / "local").write_bytes(b"uploaded")
    store.upload(tmp_path / "local", "cells/a/y.tar")
    assert store.names("cells/a") == ["x.json", "y.tar"]
    store.download("cells/a/y.tar", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"uploaded"
    store.delete(["cells/a/x.json", "cells/a/none"])
    assert store.names("cells/a") == ["y.tar"]


def test_an_address_without_a_driver_is_one_line() -> None:
    with pytest.raises(ConfigurationError, match="--out nosuch://x: Protocol not known: nosuch"):
        open_store("nosuch://x")


class DriverError(Exception):
    """An error of a driver's own, such as botocore's for a lost connection."""


def broken(*_: object, **__: object) -> None:
    raise DriverError("no connection")


def test_errors_of_a_driver_are_those_of_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"memory://{uuid.uuid4().hex}"
    store, file = open_store(address), tmp_path / "file"
    file.touch()
    for name in ("cat_file", "pipe_file", "ls", "rm_file", "put_file", "get_file"):
        monkeypatch.setattr(MemoryFileSystem, name, broken)
    for operation in (
        lambda: store.read("x"),
        lambda: store.write("x", b""),
        lambda: store.create("x", b""),
        lambda: store.names("x"),
        lambda: store.delete(["x"]),
        lambda: store.upload(file, "x"),
        lambda: store.download("x", file),
    ):
        with pytest.raises(OSError, match="DriverError: no connection"):
            operation()
    assert main(["experiment", "status", address]) == 2
    assert capsys.readouterr().err == f"feddbp: error: {address} cannot be read: DriverError: no connection\n"


def test_of_a_file_that_is_there_it_matters_who_created_it_and_not_how_the_driver_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, pipe = open_store(f"memory://{uuid.uuid4().hex}"), MemoryFileSystem.pipe_file

    def pipe_twice(files: MemoryFileSystem, path: str, content: bytes, mode: str = "overwrite") -> None:
        """As a driver that repeats a request whose answer was lost."""
        try:
            pipe(files, path, content, mode=mode)
            pipe(files, path, content, mode=mode)
        except FileExistsError:
            raise OSError(errno.EINVAL, "PreconditionFailed") from None

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe_twice)
    assert store.create("lease", b"mine")
    assert not store.create("lease", b"another's")
    assert store.read("lease") == b"mine"


def test_a_mirror_has_the_metrics_of_the_attempt_that_wrote_the_summary() -> None:
    address = f"memory://{uuid.uuid4().hex}"
    store, mirror = open_store(address), OutputDir.at(address)
    directory = mirror.cell_dir(CELL).path
    store.write(f"cells/{CELL}/metrics.jsonl", b"of an attempt that was killed")
    mirror.refresh([CELL])
    for name in ("metrics.jsonl", "summary.json"):
        store.write(f"cells/{CELL}/{name}", b"of the next")
    mirror.refresh([CELL])
    assert (directory / "metrics.jsonl").read_bytes() == b"of the next"
    store.write(f"cells/{CELL}/metrics.jsonl", b"never read again")
    mirror.refresh([CELL])
    assert (directory / "metrics.jsonl").read_bytes() == b"of the next"


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow beyond its first byte."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("operation", ["write", "create", "upload"])
def test_nothing_is_left_of_a_file_for_which_there_is_no_room(tmp_path: Path, operation: str) -> None:
    store, source = DirectoryStore(tmp_path / "out"), tmp_path / "source"
    source.write_bytes(b"too long")
    with full_disk(), pytest.raises(OSError, match="File too large"):
        store.upload(source, "cells/x") if operation == "upload" else getattr(store, operation)("cells/x", b"too long")
    assert [*(tmp_path / "out" / "cells").iterdir()] == []


def test_nothing_is_left_of_a_lease_for_which_there_is_no_room_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, full = DirectoryStore(tmp_path), ExitStack()

    def no_link_and_no_more_room(*_: object) -> None:
        full.enter_context(full_disk())
        raise OSError(errno.ENOTSUP, "no hard links")

    monkeypatch.setattr(Path, "hardlink_to", no_link_and_no_more_room)
    with full, pytest.raises(OSError, match="File too large"):
        store.create("lease", b"too long")
    assert [*tmp_path.iterdir()] == []


def test_of_many_runners_at_once_one_gets_the_cell(tmp_path: Path) -> None:
    store, barrier = DirectoryStore(tmp_path), threading.Barrier(8)
    taken: list[Lease | None] = []

    def race() -> None:
        barrier.wait()
        taken.append(take_lease(store, CELL, Holder.here(), 30.0, after=None))

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = filter(None, taken)
    assert held(store).owner == winner.record.owner


def test_a_lease_that_is_renewed_never_ends_and_a_silent_one_ends_after_its_time(store: Store) -> None:
    clock = Clock()
    watch = LeaseWatch(clock)
    lease = take(store, seconds=30)
    for _ in range(5):
        clock.now += 29
        lease.renew(1.5)
        found = held(store)
        assert found.rounds_done == 1.5
        assert not watch.has_ended(CELL, found)
    clock.now += 29
    assert not watch.has_ended(CELL, found)
    clock.now += 2
    assert watch.has_ended(CELL, found)


def test_a_released_lease_ends_at_once_and_its_number_is_not_given_again(store: Store) -> None:
    take(store).release()
    found = held(store)
    assert LeaseWatch().has_ended(CELL, found)
    assert take(store, found).epoch == 2


def test_a_runner_that_was_taken_over_can_neither_renew_nor_release_nor_copy(store: Store, tmp_path: Path) -> None:
    slow = take(store)
    fast = take(store, slow.record)
    (tmp_path / "state" / "server").mkdir(parents=True)
    for write in (
        slow.verify,
        slow.release,
        lambda: slow.renew(1),
        lambda: CellCopies(store, CELL).save(tmp_path / "state", slow, still=nullcontext()),
    ):
        with pytest.raises(LeaseLostError, match=r"taken over by .* \(attempt 2\)"):
            write()
    fast.renew(2)
    assert not CellCopies(store, CELL).exist
    fast.remove()
    with pytest.raises(LeaseLostError, match="which has finished it"):
        slow.verify()


def test_a_lease_is_lost_when_the_store_is_away_for_most_of_its_time(tmp_path: Path) -> None:
    class Away(DirectoryStore):
        def write(self, key: str, content: bytes) -> None:
            raise OSError("away")

    clock, held = Clock(), take(DirectoryStore(tmp_path), seconds=40)
    lease = Lease(Away(tmp_path), CELL, held.record, clock)
    clock.now += 20
    lease.renew(1)
    clock.now += 11
    with pytest.raises(LeaseLostError, match="could not be renewed: away"):
        lease.renew(1)


def test_a_lease_of_a_later_version_or_a_damaged_one_is_still_a_lease(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    lease = take(store)
    path = tmp_path / "cells" / CELL / "lease-000001.json"
    path.write_text(path.read_text().replace("{", '{"later": 1, ', 1))
    assert current_lease(store, CELL) == lease.record
    for damaged in ("", "\0" * 80, "[]", '{"owner": "x", "node": "x", "seconds": "x"}'):
        path.write_text(damaged)
        found = held(store)
        assert (found.epoch, found.owner) == (1, "")
        assert not found.is_fresh
    assert take(store, found).epoch == 2


def state(directory: Path, content: str) -> Path:
    (directory / "server").mkdir(parents=True, exist_ok=True)
    (directory / "server" / "run.sqlite3").write_text(content)
    secret = directory / "clients" / "run" / "client-0" / "session.json"
    secret.parent.mkdir(parents=True, exist_ok=True)
    secret.touch(mode=0o600)
    secret.write_text("secret")
    (directory / "certs").mkdir(exist_ok=True)
    (directory / "certs" / "ca.key").write_text("authority")
    (directory / "server" / "run.sqlite3-shm").write_text("of this machine")
    return directory


def test_the_newest_whole_copy_is_restored(store: Store, tmp_path: Path) -> None:
    assert not CellCopies(store, CELL).restore(tmp_path / "none")
    first = take(store)
    copies = CellCopies(store, CELL)
    for content in ("one", "two"):
        copies.save(state(tmp_path / "a", content), first, still=nullcontext())
    assert [name for name in store.names(f"cells/{CELL}") if name.startswith("copy")] == [
        "copy-000001-0002.tar",
        "copy-000001.json",
    ]
    assert CellCopies(store, CELL).restore(tmp_path / "b")
    assert (tmp_path / "b" / "server" / "run.sqlite3").read_text() == "two"
    assert not (tmp_path / "b" / "server" / "run.sqlite3-shm").exists()
    session = tmp_path / "b" / "clients" / "run" / "client-0" / "session.json"
    assert session.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "b" / "certs" / "ca.key").read_text() == "authority"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("copy-")] == []


def test_a_copy_that_was_killed_is_not_taken_for_a_whole_one(store: Store, tmp_path: Path) -> None:
    first = take(store)
    CellCopies(store, CELL).save(state(tmp_path / "a", "whole"), first, still=nullcontext())
    # the next attempt's archive is there in part, without and then with what names it
    whole = store.read(f"cells/{CELL}/copy-000001-0001.tar")
    assert whole is not None
    store.write(f"cells/{CELL}/copy-000002-0001.tar", whole[:1000])
    assert CellCopies(store, CELL).restore(tmp_path / "b")
    store.write(f"cells/{CELL}/copy-000002.json", b'{"file": "copy-000002-0001.tar", "bytes": 1000, "sha256": "0"}')
    assert CellCopies(store, CELL).restore(tmp_path / "c")
    for restored in ("b", "c"):
        assert (tmp_path / restored / "server" / "run.sqlite3").read_text() == "whole"
    second = Lease(store, CELL, replace(first.record, epoch=2))
    store.write(
        f"cells/{CELL}/lease-000002.json", b'{"owner": "%s", "node": "x", "seconds": 1}' % second.record.owner.encode()
    )
    CellCopies(store, CELL).save(state(tmp_path / "a", "later"), second, still=nullcontext())
    assert not any("000001" in name for name in store.names(f"cells/{CELL}") if name.startswith("copy"))
    CellCopies(store, CELL).delete()
    assert not CellCopies(store, CELL).exist
