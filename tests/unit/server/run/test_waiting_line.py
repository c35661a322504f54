"""The line of a run that waits for clients."""

from __future__ import annotations

import pytest

from feddbp_server.run.participants import Waiting


@pytest.mark.parametrize(
    ("missing", "still_needed", "line"),
    [
        ({1}, 1, "1 of 2 joined, missing client 1; begins when 1 more client has joined"),
        ({1, 2, 3}, 2, "1 of 4 joined, missing clients 1-3; begins when 2 more clients have joined"),
        ({2}, 0, "2 of 3 joined, missing client 2; begins when all have joined"),
    ],
)
def test_who_is_missing_is_said_in_the_right_number(missing: set[int], still_needed: int, line: str) -> None:
    joined = int(line[0])
    waiting = Waiting(
        joined=joined,
        clients=joined + len(missing),
        missing=frozenset(missing),
        still_needed=still_needed,
        seconds_left=None,
    )
    assert str(waiting) == line
