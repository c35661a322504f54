"""Commands with actions of their own: `feddbp client drop`, `feddbp experiment run`.

Every action has a parser of its own, so that only its options are imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from feddbp_common.config.diagnostics import did_you_mean
from feddbp_common.errors import ConfigurationError, ExitCode


def chosen_action(
    prog: str, argv: Sequence[str], actions: Mapping[str, str], *, operand: str = "", description: str = ""
) -> tuple[str, list[str]]:
    """The action that is named first, and what follows it; `actions` have their summaries.

    Prints the help and exits if that is asked for, or nothing is given.
    """
    name, *rest = argv or ("--help",)
    if name in ("--help", "-h"):
        print(_help(prog, actions, operand, description))
        raise SystemExit(ExitCode.OK)  # as argparse does
    if name not in actions:
        hint = did_you_mean(name, actions) or f"; see {prog} --help"
        raise ConfigurationError(f"no command is called {prog} {name!r}{hint}")
    return name, rest


def _help(prog: str, actions: Mapping[str, str], operand: str, description: str) -> str:
    width = max(map(len, actions))
    listed = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in actions.items())
    usage = " ".join(filter(None, (prog, "COMMAND", operand, "[options]")))
    parts = (f"usage: {usage}", description, f"commands:\n{listed}", f"{prog} COMMAND --help describes each of them.")
    return "\n\n".join(filter(None, parts))
