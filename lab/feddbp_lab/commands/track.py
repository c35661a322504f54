"""`feddbp track`: follows a server's run from outside and writes it to experiment trackers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from pydantic import Field

from feddbp_common.config.command_line import settings_from, settings_parser
from feddbp_common.config.types import CommaSeparated, Duration, FrozenModel
from feddbp_common.errors import ConfigurationError, ExitCode, FedDBPError
from feddbp_common.humanize import human_seconds
from feddbp_lab.commands.options import TRACK_HELP, OperatorConfig
from feddbp_lab.processes.signals import handle_stop_signals

PROG: Final = "feddbp track"


class TrackingConfig(OperatorConfig):
    """Tracking: which server's run, and where it goes."""

    track: CommaSeparated = Field(("tensorboard",), description=TRACK_HELP, json_schema_extra={"metavar": "TRACKERS"})
    patience: Duration = Field(timedelta(minutes=5), description="how long a server may be unreachable")


class TrackConfig(FrozenModel):
    """All options of `feddbp track`."""

    view: TrackingConfig = TrackingConfig()


def command(argv: Sequence[str]) -> int:
    parser = settings_parser(
        PROG, "Follows a run from its first round to its end and writes it to experiment trackers.", TrackConfig
    )
    options = settings_from(TrackConfig, parser.parse_args(argv)).view
    if not options.track:
        raise ConfigurationError("--track: give at least one tracker")
    return asyncio.run(_follow(options))


async def _follow(options: TrackingConfig) -> int:
    from feddbp_lab.trackers.tracking import Tracker, follow

    def warn(text: str) -> None:
        print(f"{PROG}: warning: {text}", file=sys.stderr, flush=True)

    def tell_outage(error: FedDBPError) -> None:
        warn(f"{error}; waiting for it up to {human_seconds(options.patience.total_seconds())}")

    tracker = Tracker(options.track, warn=warn)
    following = asyncio.current_task()
    assert following is not None
    handle_stop_signals(following.cancel)
    try:
        await follow(tracker, options.server, options.credentials, patience=options.patience, on_outage=tell_outage)
    except asyncio.CancelledError:
        print(f"{PROG}: interrupted{'; the run continues' if tracker.has_begun else ''}", file=sys.stderr)
        return ExitCode.INTERRUPTED
    finally:
        await asyncio.to_thread(tracker.close, reason="no longer followed")
    return ExitCode.OK
