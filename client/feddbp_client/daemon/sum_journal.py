"""What a client keeps of a secure sum: the secret of the newest round, and what it has answered."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from feddbp_common.artifacts import SUM_JOURNAL_NAME
from feddbp_common.atomic_files import replace_private
from feddbp_common.errors import ConfigurationError, FedDBPError, ProtocolViolationError

_ROOT_BYTES: Final = 32


class SkippedSumError(FedDBPError):
    """The client cannot take part in a round's secure sum; it may in that of the next round."""


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """Of one round; bytes as hexadecimal digits."""

    round: int
    root: str
    state: str
    """Digest of the state that the client trained with."""
    roster: str = ""
    """Digest of the roster that it gave shares to."""
    upload: str = ""
    """Digest of the masked term that it sent."""
    survivors: tuple[int, ...] | None = None
    """Those that it signed."""


class SumJournal:
    """Owns the file. An entry is on disk before anything that depends on it leaves the client.

    There is one entry, that of the newest round: the secrets of earlier ones are gone, and no round is summed twice.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / SUM_JOURNAL_NAME
        self._entry = self._read()

    def begin(self, round_number: int, state_sha256: bytes) -> bytes:
        """The secret of a round, drawn at its first call."""
        entry = self._entry
        if entry is not None and entry.round > round_number:
            raise ProtocolViolationError(
                f"the server asks for a sum of round {round_number + 1} again, after one of round {entry.round + 1}"
            )
        if entry is None or entry.round < round_number:
            entry = _Entry(round=round_number, root=secrets.token_hex(_ROOT_BYTES), state=state_sha256.hex())
            self._write(entry)
        if entry.state != state_sha256.hex():
            raise ProtocolViolationError(f"the server shows two states of round {round_number + 1}")
        return bytes.fromhex(entry.root)

    def state_of(self, round_number: int) -> bytes | None:
        """The digest of the state with which the sum of a round was begun; None if it was not."""
        entry = self._entry
        return bytes.fromhex(entry.state) if entry is not None and entry.round == round_number else None

    def agree_roster(self, digest: bytes) -> None:
        """Agrees to a roster; a second one would get shares of the same secrets."""
        entry = self._current()
        if entry.roster not in ("", digest.hex()):
            raise ProtocolViolationError("the server shows two rosters of one round")
        if not entry.roster:
            self._write(replace(entry, roster=digest.hex()))

    def agree_upload(self, sha256: bytes) -> None:
        """Agrees to send a masked term; a second one under the same masks would tell the difference of the two."""
        entry = self._current()
        if entry.upload not in ("", sha256.hex()):
            raise ProtocolViolationError("another term was sent under the masks of this round")
        if not entry.upload:
            self._write(replace(entry, upload=sha256.hex()))

    def agree_survivors(self, survivors: frozenset[int]) -> None:
        """Agrees to the survivors; of a second set, shares of both secrets of one peer could be revealed."""
        entry, agreed = self._current(), tuple(sorted(survivors))
        if entry.survivors not in (None, agreed):
            raise ProtocolViolationError("the server shows two sets of survivors of one round")
        if entry.survivors is None:
            self._write(replace(entry, survivors=agreed))

    def _current(self) -> _Entry:
        assert self._entry is not None  # begun
        return self._entry

    def _read(self) -> _Entry | None:
        try:
            found = json.loads(self._path.read_text())
            survivors = found["survivors"]
            return _Entry(**{**found, "survivors": None if survivors is None else tuple(survivors)})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigurationError(
                f"{self._path} cannot be read: {error}; remove it, and this client skips the sum of the open round"
            ) from None

    def _write(self, entry: _Entry) -> None:
        try:
            replace_private(self._path, json.dumps(asdict(entry)).encode())
        except OSError as error:
            raise ConfigurationError(f"{self._path} cannot be written: {error.strerror}") from error
        self._entry = entry
