"""Sums over clients that the server cannot look into: the protocol of Bonawitz et al. (2017), both sides of it.

Nothing here does I/O. A client draws one secret per sum, from which all of its keys and shares derive, so that it
sends the same bytes after a restart. `client` and `server` have the steps in their order:

    keys       every client signs fresh public keys with its certificate's key
    shares     every client gives each peer one encrypted share of its two secrets
    masked     every client sends its vector under its own mask and one mask for each pair of clients
    survivors  every client signs the set of those whose vector arrived
    reveal     every client gives a share of each survivor's own mask, and of the pair masks of those who were lost
"""

from __future__ import annotations

from typing import Final

MIN_CLIENTS: Final = 5
MAX_CLIENTS: Final = 128
"""Clients of one sum: fewer would tell too much of each, more would take too long to exchange shares."""


def threshold_of(clients: int) -> int:
    """Two thirds and one: any two sets of so many clients have more than a third of all in common, and so one that is
    honest, which signs one set of survivors only.
    """
    return 2 * clients // 3 + 1
