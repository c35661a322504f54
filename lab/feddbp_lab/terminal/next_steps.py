"""Commands that a new user may try after a demo, as they can be typed."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def next_steps(directory: Path, *, method: str) -> str:
    """Lines that look at the run in a directory, repeat it with another method, and start a server."""
    feddbp = _typed("feddbp")
    other, what = ("feddbp", "in a federation") if method == "local" else ("local", "without a federation")
    steps = {
        f"{feddbp} report {shlex.quote(str(directory))}": "pictures of this run, in one page",
        f"{feddbp} demo --method {other}": f"the same {what}; `{feddbp} methods` lists others",
        f"{_typed('feddbp-server')} --clients 2 --rounds 10": "a server of your own, and in another terminal:",
        f"{_typed('feddbp-client')} --ids 0-1": "its clients",
    }
    width = max(map(len, steps))
    lines = [f"{command:<{width}}  # {purpose}" for command, purpose in steps.items()]
    return "next      " + "\n          ".join(lines)


def _typed(command: str) -> str:
    """A command by its name or, if that is not on the path, by the place of the one that runs."""
    beside = Path(sys.argv[0]).with_name(command)
    return command if shutil.which(command) or not beside.is_file() else shlex.quote(str(beside))
