"""Upgrades of the database's format, one function a step, in the transaction that opens the run."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from feddbp_common.version import VERSION

FORMAT: Final = 4
"""Of databases this version writes; SQLite keeps it as `user_version`."""

NEW_MEMBERS: Final = "CREATE TABLE new_member (client_id INTEGER PRIMARY KEY)"
"""Clients that have joined since the snapshot, which has the other members."""
FIRST_WITH_PLACES: Final = 3
"""The first format whose rows may have their body in the file beside the database."""


def _add_software_version(database: sqlite3.Connection) -> None:
    database.execute("ALTER TABLE run ADD COLUMN software_version TEXT NOT NULL DEFAULT '0.1.0'")


def _add_places_of_bodies(database: sqlite3.Connection) -> None:
    """Bodies that are in the database stay there; they go with the next upload of their client."""
    database.execute("ALTER TABLE upload ADD COLUMN start INTEGER")
    database.execute("ALTER TABLE upload ADD COLUMN length INTEGER")


def _add_new_members(database: sqlite3.Connection) -> None:
    """Snapshots of earlier formats have all members in them."""
    database.execute(NEW_MEMBERS)


STEPS: Final[Mapping[int, Callable[[sqlite3.Connection], None]]] = MappingProxyType(
    {1: _add_software_version, 2: _add_places_of_bodies, 3: _add_new_members}
)
"""By the format they start from."""


def upgrade(database: sqlite3.Connection, found: int) -> None:
    """Brings a database of an earlier format to ours; to be called inside a transaction."""
    for step in range(found, FORMAT):
        STEPS[step](database)
        database.execute(f"PRAGMA user_version = {step + 1}")


def describe_newer(database: sqlite3.Connection, found: int) -> str:
    """Describes a database that a later version has written: both versions, and what to do."""
    try:
        (writer,) = database.execute("SELECT software_version FROM run").fetchone()
    except (sqlite3.Error, TypeError):
        writer = "a later version"
    else:
        writer = f"feddbp {writer}"
    return (
        f"was written by {writer} (format {found}); this is feddbp {VERSION}, which reads formats up to {FORMAT}: "
        "resume the run with the version that wrote it, or a later one"
    )
