"""Says how a stored run differs from the one that was asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from feddbp_server.store.base import RunMismatchError


def refuse_other_run(*, stored: str, given: str) -> NoReturn:
    differences = "; ".join(_differences(json.loads(stored), json.loads(given)))
    raise RunMismatchError(
        f"the state directory holds another run ({differences}); give the same options, or another --state-dir"
    )


def _differences(stored: Mapping[str, Any], given: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key in sorted({*stored, *given}):
        old, new = stored.get(key), given.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            yield f"{prefix}{key} is {old!r} there and {new!r} here"
