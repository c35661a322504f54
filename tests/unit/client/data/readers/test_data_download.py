from __future__ import annotations

import hashlib
import os
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from data_samples import md5

from feddbp_client.data import DataError, download

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import FileServer

CONTENT = os.urandom(300_000)


def fetch(server: FileServer, destination: Path, **options: Any) -> None:
    server.files.setdefault("/file.bin", CONTENT)
    options = {"digest": md5(CONTENT), "pause": timedelta(0), "timeout": timedelta(seconds=5), **options}
    download(f"{server.url}/file.bin", destination, **options)


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    return tmp_path / "data" / "file.bin"


def part_of(destination: Path) -> Path:
    return destination.with_name("file.bin.part")


def test_a_file_arrives_whole_and_leaves_no_part(server: FileServer, destination: Path) -> None:
    fetch(server, destination, size=len(CONTENT))
    assert destination.read_bytes() == CONTENT
    assert not part_of(destination).exists()


def test_sha256_is_understood_too(server: FileServer, destination: Path) -> None:
    fetch(server, destination, digest=f"sha256:{hashlib.sha256(CONTENT).hexdigest()}")
    assert destination.read_bytes() == CONTENT


def test_a_file_that_is_there_is_not_asked_for(server: FileServer, destination: Path) -> None:
    fetch(server, destination)
    fetch(server, destination)
    assert server.asked == [None]


def test_a_wrong_file_that_is_there_is_named_and_kept(server: FileServer, destination: Path) -> None:
    destination.parent.mkdir()
    destination.write_bytes(b"something else")
    with pytest.raises(DataError, match=r"file\.bin: not the published file"):
        fetch(server, destination)
    assert destination.read_bytes() == b"something else"


def test_a_dropped_line_is_resumed_where_it_broke(server: FileServer, destination: Path) -> None:
    server.break_after = [100_000, 50_000]
    fetch(server, destination)
    assert destination.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-", "bytes=150000-"]


def test_what_an_earlier_process_left_is_resumed(server: FileServer, destination: Path) -> None:
    destination.parent.mkdir()
    part_of(destination).write_bytes(CONTENT[:1000])
    fetch(server, destination)
    assert destination.read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"]


def test_a_complete_part_needs_only_its_name(server: FileServer, destination: Path) -> None:
    destination.parent.mkdir()
    part_of(destination).write_bytes(CONTENT)
    fetch(server, destination)
    assert destination.read_bytes() == CONTENT


def test_a_server_that_ignores_ranges_is_read_from_the_start(server: FileServer, destination: Path) -> None:
    server.honours_range = False
    server.break_after = [100_000]
    fetch(server, destination)
    assert destination.read_bytes() == CONTENT


def test_an_answer_to_another_range_is_not_glued_on(server: FileServer, destination: Path) -> None:
    server.break_after = [100_000]
    server.shifted = 7
    fetch(server, destination)
    assert destination.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-", None]


def test_a_stale_part_is_thrown_away_and_fetched_anew(server: FileServer, destination: Path) -> None:
    destination.parent.mkdir()
    part_of(destination).write_bytes(b"of an older file")
    fetch(server, destination)
    assert destination.read_bytes() == CONTENT
    assert server.asked == ["bytes=16-", None]


def test_a_wrong_digest_is_refused_and_nothing_is_left(server: FileServer, destination: Path) -> None:
    server.files["/file.bin"] = b"hostile"
    with pytest.raises(DataError, match=r"sent a file with md5:\w+, expected md5:"):
        fetch(server, destination)
    assert not destination.exists()
    assert not part_of(destination).exists()


def test_a_line_that_never_holds_ends_in_a_clear_error_and_keeps_the_part(
    server: FileServer, destination: Path
) -> None:
    server.honours_range = False
    server.break_after = [1000] * 100
    with pytest.raises(DataError, match=r"download failed after 3 attempts: got 1000 of 300000 bytes"):
        fetch(server, destination, attempts=3)
    assert not destination.exists()
    assert part_of(destination).read_bytes() == CONTENT[:1000]


def test_many_breaks_are_survived_while_each_brings_something(server: FileServer, destination: Path) -> None:
    server.break_after = [20_000] * 14
    fetch(server, destination, attempts=2)
    assert destination.read_bytes() == CONTENT


def test_a_busy_server_is_asked_again(server: FileServer, destination: Path) -> None:
    server.statuses = [503, 429]
    fetch(server, destination)
    assert destination.read_bytes() == CONTENT


def test_a_missing_file_is_not_asked_for_twice(server: FileServer, destination: Path) -> None:
    server.statuses = [404]
    with pytest.raises(DataError, match="HTTP 404"):
        fetch(server, destination)
    assert len(server.asked) == 1


def test_nobody_listening_is_a_clear_error(destination: Path) -> None:
    with pytest.raises(DataError, match=r"127\.0\.0\.1:9/.*failed after 2 attempts: .*refused"):
        download("http://127.0.0.1:9/x", destination, digest="md5:0", attempts=2, pause=timedelta(0))


def test_an_endless_answer_is_cut_off(server: FileServer, destination: Path) -> None:
    server.files["/file.bin"] = bytes(3 << 20)
    with pytest.raises(DataError, match="far more than the 10 bytes"):
        fetch(server, destination, size=10)
    assert not destination.exists()
    assert not part_of(destination).exists()


def test_other_schemes_are_refused(destination: Path) -> None:
    with pytest.raises(DataError, match="only http and https"):
        download("file:///etc/passwd", destination, digest="md5:0")


def test_a_disk_too_small_is_noticed_before_the_download(server: FileServer, destination: Path) -> None:
    with pytest.raises(DataError, match="the disk has"):
        fetch(server, destination, size=1 << 60)
    assert server.asked == []


def test_a_place_that_cannot_be_written_is_named(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"a file where the folder should be")
    with pytest.raises(DataError, match=r"data/file\.bin: cannot be written"):
        fetch(server, tmp_path / "data" / "file.bin")


def test_several_at_once_download_once(server: FileServer, destination: Path) -> None:
    failures: list[Exception] = []

    def run() -> None:
        try:
            fetch(server, destination)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(server.asked) == 1
    assert destination.read_bytes() == CONTENT
