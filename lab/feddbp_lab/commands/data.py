"""`feddbp data check|subset`: data of one's own as a client reads them, and subsets of public data sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Final

from feddbp_lab.commands.actions import chosen_action

PROG: Final = "feddbp data"
_SUMMARIES: Final = MappingProxyType(
    {
        "check": "read data as a client would, and print what it finds",
        "subset": "draw images of each class of a public data set, for shorter runs",
    }
)


def command(argv: Sequence[str]) -> int:
    name, rest = chosen_action(PROG, argv, _SUMMARIES)
    # of check and subset, only the options of the one that is named are imported
    chosen: Callable[[Sequence[str]], int] = import_module(f"feddbp_lab.commands.data_{name}").command
    return chosen(rest)
