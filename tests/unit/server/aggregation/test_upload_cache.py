"""Uploads that are kept in memory, within bounds."""

from __future__ import annotations

import numpy as np

from feddbp_common.wire import Payload
from feddbp_server.aggregation.aggregator import UploadCache


def upload(size: int) -> Payload:
    return Payload(tensors={"weights": np.zeros(size, dtype=np.float32)})


def test_what_fits_is_kept_and_what_does_not_is_left_to_the_store() -> None:
    kept = UploadCache(room=100)
    for client in range(3):
        kept.add(0, client, upload(10))
    assert [kept.get(0, client) is not None for client in range(3)] == [True, True, False]
    kept.add(0, 3, upload(5))
    assert kept.get(0, 3) is not None


def test_an_upload_of_another_round_is_not_given_out() -> None:
    kept = UploadCache(room=100)
    kept.add(0, 0, upload(10))
    assert kept.get(1, 0) is None
    kept.add(1, 0, upload(10))
    assert kept.get(0, 0) is None
    assert kept.get(1, 0) is not None


def test_uploads_of_rounds_gone_by_make_room_and_those_of_the_open_one_do_not() -> None:
    kept = UploadCache(room=80)
    kept.add(0, 0, upload(10))
    kept.add(0, 1, upload(10))
    kept.add(1, 2, upload(10))
    kept.add(1, 3, upload(10))
    kept.add(1, 4, upload(10))
    assert [kept.get(1, client) is not None for client in (2, 3, 4)] == [True, True, False]


def test_the_room_of_what_is_replaced_is_free_again() -> None:
    kept = UploadCache(room=40)
    for number in range(5):
        kept.add(number, 0, upload(10))
        assert kept.get(number, 0) is not None


def test_what_is_larger_than_all_the_room_is_never_kept() -> None:
    kept = UploadCache(room=40)
    kept.add(0, 0, upload(11))
    assert kept.get(0, 0) is None
