"""A client's directory in a run: locked, in this version's format, and bound to one server."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

from feddbp_client.training.checkpoint import Checkpoint, later_version_message
from feddbp_client.training.session_file import Ending, Session, read_session, write_session
from feddbp_common.artifacts import CHECKPOINT_NAME, CLIENT_FORMAT_NAME, CLIENT_LOCK_NAME, client_directory
from feddbp_common.atomic_files import replace_text
from feddbp_common.errors import ConfigurationError
from feddbp_common.file_lock import FileLock, LockHeldError
from feddbp_common.version import VERSION

_FORMAT: Final = 2
"""Format 2 has the mark itself."""


class ClientDirectory:
    """A client's directory in one run, locked: one daemon at a time may use it.

    It belongs to the server that first had it, by `server`, the text that identifies one: a foreign server that names
    the same run gets neither the session's token nor the results of the run. `moved` binds it to another server.
    """

    def __init__(
        self, state_dir: Path, run_id: str, client_id: int, *, server: str | None = None, moved: bool = False
    ) -> None:
        self.path = client_directory(state_dir, run_id, client_id)
        self._server = server
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self.path / CLIENT_LOCK_NAME, mode=0o600)
        except LockHeldError:
            raise ConfigurationError(f"another daemon runs client {client_id} in {self.path}; stop it first") from None
        except OSError as error:
            raise ConfigurationError(f"the state directory {self.path} cannot be used: {error.strerror}") from error
        try:
            self._upgrade(moved=moved)
        except BaseException:
            self.close()
            raise

    def _upgrade(self, *, moved: bool) -> None:
        """Marks the directory with this version's format and its server.

        One without a mark was written by 0.1.0, as format 1; one without a server gets the one that it is used with.
        """
        mark = self.path / CLIENT_FORMAT_NAME
        try:
            found = json.loads(mark.read_text()) if mark.exists() else {}
            written, writer = int(found.get("format", 1)), str(found.get("software_version", "0.1.0"))
            owner = str(found["server"]) if "server" in found else None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"{mark} cannot be read: {error}; restore it from a backup") from None
        if written > _FORMAT:
            raise ConfigurationError(later_version_message(self.path, f"format {written}", writer, f"format {_FORMAT}"))
        if None not in (owner, self._server) and owner != self._server and not moved:
            raise ConfigurationError(
                f"{self.path} belongs to the server {owner}, and {self._server} says that it has the same run; "
                "if the server has moved, start this client once with --server-moved, else give another --state-dir"
            )
        wanted = {"format": _FORMAT, "software_version": VERSION}
        if (server := self._server or owner) is not None:
            wanted["server"] = server
        if found != wanted:
            try:
                replace_text(mark, json.dumps(wanted) + "\n")
            except OSError as error:
                raise ConfigurationError(f"the state directory {self.path} cannot be used: {error.strerror}") from None

    @property
    def checkpoint(self) -> Path:
        return self.path / CHECKPOINT_NAME

    def load(self) -> Checkpoint | None:
        return Checkpoint.load(self.checkpoint) if self.checkpoint.exists() else None

    def session(self) -> str:
        """The token of the last session, or an empty string."""
        return read_session(self.path).token

    def save_session(self, token: str, *, reported: bool = False) -> None:
        write_session(self.path, Session(token, reported=reported))

    def set_reported(self) -> None:
        """Notes that the run needs nothing more of this client, which only waits for its end."""
        self._note(Session(self.session(), reported=True))

    def set_ended(self, ending: Ending) -> None:
        self._note(Session(self.session(), ending=ending))

    def _note(self, session: Session) -> None:
        """Best effort, since without it a client only waits longer for a server that is gone."""
        with suppress(OSError):
            write_session(self.path, session)

    def close(self) -> None:
        self._lock.release()
