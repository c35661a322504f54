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

    from file_server import FileServer

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


def test_a_downloaded_file_is_complete_and_leaves_no_partial_file(server: FileServer, destination: Path) -> None:
    fetch(server, destination, size=len(CONTENT))
    assert destination.read_bytes() == CONTENT
    assert not part_of(destination).exists()


def test_sha256_digests_are_supported(server: FileServer, destination: Path) -> None:
    fetch(server, destination, digest=f"sha256:{hashlib.sha256(CONTENT).hexdigest()}")
    assert destination.read_bytes() == CONTENT


def test_an_existing_file_is_not_downloaded_again(server: FileServer, destination: Path) -> None:
    fetch(server, destination)
    fetch(server, destination)
    assert server.ranges == [None]


def test_an_existing_file_with_another_digest_is_named_and_kept(server: FileServer, destination: Path) -> None:
    destination.parent.mkdir()
    destination.write_bytes(b"something else")
    with pytest.raises(DataError, match=r"file\.bin: not the published file"):
        fetch(server, destination)
    assert destination.read_bytes() == b"something else"


def test_a_dropped_connection_is_resumed_at_its_offset(server: FileServer, destination: Path) -> None:
    server.break_after = [100_000, 50_000]
    fetch(server, destination)
    assert destination.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-", "bytes=150000-"]


def test_a_partial_file_of_an_earlier_process_is_resumed(server: FileServer, destination: Path) -> None:
    destination.parent.mkdir()
    part_of(destination).write_bytes(CONTENT[:1000])
    fetch(server, destination)
    assert destination.read_bytes() == CONTENT
    assert server.ranges == ["bytes=1000-"]


def test_a_complete_partial_file_is_renamed(server: FileServer, destination: Path) -> None:
    destination.parent.mkdir()
    part_of(destination).write_bytes(CONTENT)
    fetch(server, destination)
    assert destination.read_bytes() == CONTENT


def test_a_server_that_ignores_ranges_is_read_from_the_start(server: FileServer, destination: Path) -> None:
    server.honours_range = False
    server.break_after = [100_000]
    fetch(server, destination)
    assert destination.read_bytes() == CONTENT


def test_a_response_for_another_range_is_not_appended(server: FileServer, destination: Path) -> None:
    server.break_after = [100_000]
    server.shifted = 7
    fetch(server, destination)
    assert destination.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-", None]


def test_a_stale_partial_file_is_deleted_and_downloaded_again(server: FileServer, destination: Path) -> None:
    destination.parent.mkdir()
    part_of(destination).write_bytes(b"of an older file")
    fetch(server, destination)
    assert destination.read_bytes() == CONTENT
    assert server.ranges == ["bytes=16-", None]


def test_a_wrong_digest_is_refused_and_leaves_no_file(server: FileServer, destination: Path) -> None:
    server.files["/file.bin"] = b"hostile"
    with pytest.raises(DataError, match=r"sent a file with md5:\w+, expected md5:"):
        fetch(server, destination)
    assert not destination.exists()
    assert not part_of(destination).exists()


def test_a_connection_that_keeps_failing_ends_in_an_error_and_keeps_the_partial_file(
    server: FileServer, destination: Path
) -> None:
    server.honours_range = False
    server.break_after = [1000] * 100
    with pytest.raises(DataError, match=r"download failed after 3 attempts: got 1000 of 300000 bytes"):
        fetch(server, destination, attempts=3)
    assert not destination.exists()
    assert part_of(destination).read_bytes() == CONTENT[:1000]


def test_interruptions_with_progress_do_not_count_as_attempts(server: FileServer, destination: Path) -> None:
    server.break_after = [20_000] * 14
    fetch(server, destination, attempts=2)
    assert destination.read_bytes() == CONTENT


def test_a_busy_server_is_retried(server: FileServer, destination: Path) -> None:
    server.statuses = [503, 429]
    fetch(server, destination)
    assert destination.read_bytes() == CONTENT


def test_a_missing_file_is_not_retried(server: FileServer, destination: Path) -> None:
    server.statuses = [404]
    with pytest.raises(DataError, match="HTTP 404"):
        fetch(server, destination)
    assert len(server.ranges) == 1


def test_a_refused_connection_is_a_clear_error(destination: Path) -> None:
    with pytest.raises(DataError, match=r"127\.0\.0\.1:9/.*failed after 2 attempts: .*refused"):
        download("http://127.0.0.1:9/x", destination, digest="md5:0", attempts=2, pause=timedelta(0))


def test_an_endless_response_is_cut_off(server: FileServer, destination: Path) -> None:
    server.files["/file.bin"] = bytes(3 << 20)
    with pytest.raises(DataError, match="far more than the 10 bytes"):
        fetch(server, destination, size=10)
    assert not destination.exists()
    assert not part_of(destination).exists()


def test_other_schemes_are_refused(destination: Path) -> None:
    with pytest.raises(DataError, match="only http and https"):
        download("file:///etc/passwd", destination, digest="md5:0")


def test_too_little_disk_space_is_an_error_before_the_download(server: FileServer, destination: Path) -> None:
    with pytest.raises(DataError, match="the disk has"):
        fetch(server, destination, size=1 << 60)
    assert server.ranges == []


def test_a_destination_that_cannot_be_written_is_named(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"a file where the folder should be")
    with pytest.raises(DataError, match=r"data/file\.bin: cannot be written"):
        fetch(server, tmp_path / "data" / "file.bin")


def test_concurrent_downloads_transfer_the_file_once(server: FileServer, destination: Path) -> None:
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
    assert len(server.ranges) == 1
    assert destination.read_bytes() == CONTENT
