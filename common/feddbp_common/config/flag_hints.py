"""What to say of a flag that a command does not have: one of a similar name, or the command whose option it is."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from feddbp_common.config.diagnostics import did_you_mean, similar_names
from feddbp_common.config.sources import options_of
from feddbp_common.config.variables import load_model

_OTHER_SIDE: Final = {
    "feddbp-server": ("feddbp-client", "feddbp_client.config:ClientConfig"),
    "feddbp-client": ("feddbp-server", "feddbp_server.config:ServerConfig"),
}
"""The two commands of a federation, whose options are taken for each other's, and the model of the other one's."""
_RESUMES: Final = {
    "feddbp-server": "--state-dir DIR alone resumes the run in the directory",
    "feddbp-client": "the same command resumes the client",
}


def flag_hint(prog: str, flag: str, known: Collection[str]) -> str:
    """Returns what follows the name of the flag in a message, with its punctuation; nothing if there is no hint."""
    if flag == "--resume" and prog in _RESUMES:
        return f"; {_RESUMES[prog]};"
    own = did_you_mean(flag, known, prefix="--")
    if prog not in _OTHER_SIDE:
        return own
    other, place = _OTHER_SIDE[prog]
    others = {option.flag for option in options_of(load_model(place))}
    if flag in others:
        return f"{own or ';'} {flag} is an option of {other};"
    if own:
        return own
    found = similar_names(flag, others, prefix="--")
    return f"; did you mean {found[0]!r} of {other}?" if found else ""
