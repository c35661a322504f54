"""`session.json` in a client's directory: the secret of its last session, and how far the run is over for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from feddbp_common.artifacts import CLIENT_FORMAT_NAME, SESSION_NAME, client_directory
from feddbp_common.atomic_files import replace_private
from feddbp_common.errors import ExitCode
from feddbp_common.printable import printable


class Ending(NamedTuple):
    """How a run ended for a client."""

    text: str
    """For people: `the run finished: all rounds are done`."""
    exit_code: ExitCode


class Session(NamedTuple):
    """What a client's directory holds of its last session."""

    token: str = ""
    reported: bool = False
    """Whether the server has answered this client's last report, and the client has not received the end."""
    ending: Ending | None = None
    """None if the run has not ended, or was left by an earlier version, which did not write that down."""


def read_session(directory: Path) -> Session:
    """An empty one if there is none that can be read."""
    try:
        stored = json.loads((directory / SESSION_NAME).read_text())
        return Session(str(stored["session"]), stored.get("reported") is True, _ending(stored.get("ended")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Session()


def write_session(directory: Path, session: Session) -> None:
    stored: dict[str, Any] = {"session": session.token}
    if session.reported:
        stored["reported"] = True
    if session.ending is not None:
        stored["ended"] = {"text": session.ending.text, "exit_code": int(session.ending.exit_code)}
    replace_private(directory / SESSION_NAME, json.dumps(stored).encode())


def newest_session(state_dir: Path, client_id: int, server: str) -> Path | None:
    """Of a client's directories, by runs, the one that it used last with a server."""
    sessions = state_dir.glob(str(client_directory(Path(), "*", client_id) / SESSION_NAME))
    used = [path for path in sessions if directory_server(path.parent) in (server, None)]
    return max(used, key=lambda path: path.stat().st_mtime).parent if used else None


def directory_server(directory: Path) -> str | None:
    """The text that identifies the server that a client's directory belongs to; None if it belongs to none."""
    try:
        found = json.loads((directory / CLIENT_FORMAT_NAME).read_text())
        return str(found["server"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _ending(stored: Any) -> Ending | None:
    return None if stored is None else Ending(printable(str(stored["text"])), ExitCode(stored["exit_code"]))
