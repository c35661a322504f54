"""Uploads that are kept in memory, within bounds."""

from __future__ import annotations

import numpy as np

from feddbp_common.wire import Payload
from feddbp_server.kept_uploads import KeptUploads


def upload(size: int) -> Payload:
    return Payload(tensors={"weights": np.zeros(size, dtype=np.float32)})


def test_what_fits_is_kept_and_what_does_not_is_left_to_the_store() -> None:
    kept = KeptUploads(room=100)
    for client in range(3):
        kept.add(0, client, upload(10))
    assert [kept.get(0, client) is not None for client in range(3)] == [True, True, False]
    kept.add(0, 3, upload(5))
    assert kept.get(0, 3) is not None


def test_a_new_round_has_all_the_room_and_knows_nothing_of_the_old_one() -> None:
    kept = KeptUploads(room=40)
    kept.add(0, 0, upload(10))
    kept.add(1, 1, upload(10))
    assert kept.get(0, 0) is None
    assert kept.get(1, 0) is None
    assert kept.get(1, 1) is not None


def test_nothing_is_kept_of_a_round_that_is_over() -> None:
    kept = KeptUploads(room=40)
    kept.add(0, 0, upload(10))
    kept.clear()
    assert kept.get(0, 0) is None
    kept.add(0, 1, upload(10))
    assert kept.get(0, 1) is not None
