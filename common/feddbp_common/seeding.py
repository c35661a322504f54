"""Derives a seed for every random choice from the run's seed and the purpose of the choice."""

from __future__ import annotations

import hashlib


def derive_seed(run_seed: int, *purpose: str | int) -> int:
    """Returns a 63-bit seed that depends only on the arguments.

    A hash, because arithmetic would give (seed 1, client 2) and (seed 2, client 1) the same seed.
    """
    text = "/".join(map(str, (run_seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
