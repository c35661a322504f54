"""Seeds for every random choice, derived from the run seed and what the choice is for."""

from __future__ import annotations

import hashlib


def derive_seed(run_seed: int, *purpose: str | int) -> int:
    """A 63-bit seed that depends on nothing but its arguments.

    A hash, not arithmetic: (seed 1, client 2) and (seed 2, client 1) must not meet.
    """
    text = "/".join(map(str, (run_seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
