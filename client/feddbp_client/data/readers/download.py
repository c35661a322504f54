"""Downloads a published file once per machine: resumed when interrupted, verified before it gets its name."""

from __future__ import annotations

import hashlib
import http.client
import logging
import math
import re
import shutil
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import timedelta
from typing import IO, TYPE_CHECKING

from feddbp_client.data.images import DataError
from feddbp_client.data.readers.shared_files import exclusive
from feddbp_common.atomic_files import commit_file

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)

_CHUNK = 1 << 20
_SLACK = 1 << 20
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_RANGE_NOT_SATISFIABLE = 416


def download(
    url: str,
    destination: Path,
    *,
    digest: str,
    size: int | None = None,
    timeout: timedelta = timedelta(seconds=30),
    attempts: int = 4,
    pause: timedelta = timedelta(seconds=1),
) -> None:
    """Downloads the file with this digest ("md5:..." or "sha256:...") to destination, or raises DataError.

    size is a hint: it is checked against the free disk space and bounds what an endless response can write.
    attempts limits attempts in a row without progress, so a large file survives a bad connection.
    """
    if not url.startswith(("https://", "http://")):
        raise DataError(f"{url}: only http and https addresses can be downloaded")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(destination):
            if destination.exists():  # another process has downloaded it
                verify(destination, digest)
                return
            _check_space(destination, size)
            part = destination.with_name(destination.name + ".part")
            _log.info("downloading %s to %s", url, destination)
            _fetch(url, part, digest, _Limits(size, timeout, attempts, pause))
            commit_file(part, destination)
    except OSError as error:
        raise DataError(f"{destination}: cannot be written: {error}") from error


def verify(path: Path, digest: str) -> None:
    found = _digest(path, digest)
    if found != digest:
        raise DataError(f"{path}: not the published file ({found}, expected {digest}); remove it to download it again")


@dataclass(frozen=True)
class _Limits:
    size: int | None
    timeout: timedelta
    attempts: int
    pause: timedelta

    @property
    def most_bytes(self) -> float:
        # Generous, because the size is only a hint; the digest decides.
        return math.inf if self.size is None else 2 * self.size + _SLACK


class _InterruptedError(Exception):
    """The connection failed, not the file: worth another attempt."""


def _fetch(url: str, part: Path, digest: str, limits: _Limits) -> None:
    furthest, failures, started_over = _length(part), 0, False
    while True:
        resumed = _length(part) > 0
        try:
            _transfer(url, part, limits)
        except _InterruptedError as error:
            # Progress is measured against the furthest byte so far: a server that ignores ranges and always breaks
            # off at the same byte makes none, however many bytes it sends.
            failures = 0 if _length(part) > furthest else failures + 1
            furthest = max(furthest, _length(part))
            if failures >= limits.attempts:
                raise DataError(f"{url}: download failed after {failures} attempts: {error}") from error
            _log.warning("download of %s interrupted (%s), trying again", url, error)
            time.sleep(limits.pause.total_seconds() * 2**failures)
            continue
        found = _digest(part, digest)
        if found == digest:
            return
        part.unlink()
        if not resumed or started_over:
            raise DataError(f"{url}: sent a file with {found}, expected {digest}")
        # Its beginning may be from another version of the file: download it once more from the start.
        started_over = True


def _transfer(url: str, part: Path, limits: _Limits) -> None:
    """Makes one request; returns when the server has sent all the bytes it announced."""
    have = _length(part)
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})  # noqa: S310 - scheme checked
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=limits.timeout.total_seconds())  # noqa: S310
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == _RANGE_NOT_SATISFIABLE and have:
            return  # the file is complete; the digest decides whether it is the right one
        if error.code in _TRY_AGAIN:
            raise _InterruptedError(f"HTTP {error.code} {error.reason}") from error
        raise DataError(f"{url}: HTTP {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _InterruptedError(_text(error)) from error
    with response:
        start = _start_of(response)
        if start not in (0, have):
            part.unlink(missing_ok=True)
            raise _InterruptedError(f"requested bytes from {have} on, got others")
        with part.open("ab" if start else "wb") as file:
            _copy(response, file, start, limits)
    if _length(part) > limits.most_bytes:
        part.unlink()
        raise DataError(f"{url}: sends far more than the {limits.size} bytes of the published file")


def _start_of(response: http.client.HTTPResponse) -> int:
    """Offset of the response in the file: 0 if the server ignored the range and sends everything."""
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return 0
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(match[1]) if match else -1


def _copy(response: http.client.HTTPResponse, file: IO[bytes], start: int, limits: _Limits) -> None:
    announced = response.headers.get("Content-Length")
    received = 0
    while True:
        try:
            chunk = response.read(_CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise _InterruptedError(_text(error)) from error
        if not chunk:
            break
        file.write(chunk)
        received += len(chunk)
        if start + received > limits.most_bytes:
            return  # the caller deletes it
    # http.client ends a truncated response without an error when it is read in chunks.
    if announced is not None and announced.isdecimal() and received < int(announced):
        raise _InterruptedError(f"got {received} of {announced} bytes")


def _check_space(destination: Path, size: int | None) -> None:
    free = shutil.disk_usage(destination.parent).free
    if size is not None and free < size:
        raise DataError(f"{destination}: needs {size} bytes, the disk has {free} left")


def _text(error: Exception) -> str:
    return str(getattr(error, "reason", "")) or str(error) or type(error).__name__


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _digest(path: Path, like: str) -> str:
    """Digest of the file, with the algorithm and notation of `like`."""
    algorithm = like.partition(":")[0]
    if algorithm not in ("md5", "sha256"):
        raise ValueError(f"{like!r} is neither an md5: nor a sha256: digest")
    try:
        with path.open("rb") as file:
            value = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    return f"{algorithm}:{value.hexdigest()}"
