"""The options of a server in its state directory: a run resumes without any being given again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from feddbp_common.config.nested import Location, Tree, get, leaves, without
from feddbp_server.config import ListenConfig, ServerConfig
from feddbp_server.store.stored_run import read_stored_run

_OF_ONE_START: Final[tuple[Location, ...]] = (
    ("listen", "state_dir"),
    ("listen", "reopen"),
    ("listen", "dry_run"),
    ("listen", "dry_run_format"),
    ("listen", "json_output"),
    ("listen", "log_level"),
)
"""Options that a later start does not take over."""
_PATHS: Final[tuple[Location, ...]] = (("listen", "certs"), ("listen", "token_file"), ("operations", "log_file"))
_ROUNDS: Final[Location] = ("run", "rounds")


def options_json(config: ServerConfig) -> str:
    """What a later start takes over, besides the run itself: options that are not at their default."""
    kept: dict[str, Any] = config.model_dump(mode="json", exclude_defaults=True, exclude={"run"})
    for location in _OF_ONE_START:
        kept = without(kept, location)
    for group, name in _PATHS:
        if get(kept, (group, name)) is not None:  # the next start may be in another working directory
            kept[group][name] = str(Path(kept[group][name]).absolute())
    return json.dumps(kept)


def stored_options(given: Tree) -> Tree:
    """Options of the run in the state directory that is given, as far as they are not given themselves.

    Settings of the run are taken over only if none is given but the number of rounds: others name a whole run, which
    is compared with the stored one.
    """
    state_dir = get(given, ("listen", "state_dir")) or ListenConfig.model_fields["state_dir"].default
    stored = read_stored_run(Path(state_dir))
    if stored is None:
        return {}
    of_server: dict[str, Any] = json.loads(stored.options_json)
    names_run = any(location != _ROUNDS for location, _ in leaves({"run": given.get("run", {})}))
    return of_server if names_run else {**of_server, "run": json.loads(stored.config_json)}
