"""The cache of uploads, within its bounds."""

from __future__ import annotations

import numpy as np

from feddbp_common.wire import Payload
from feddbp_server.aggregation.aggregator import UploadCache


def upload(size: int) -> Payload:
    return Payload(tensors={"weights": np.zeros(size, dtype=np.float32)})


def test_uploads_that_fit_are_cached_and_others_are_not() -> None:
    cache = UploadCache(room=100)
    for client in range(3):
        cache.add(0, client, upload(10))
    assert [cache.get(0, client) is not None for client in range(3)] == [True, True, False]
    cache.add(0, 3, upload(5))
    assert cache.get(0, 3) is not None


def test_the_cache_does_not_return_an_upload_of_another_round() -> None:
    cache = UploadCache(room=100)
    cache.add(0, 0, upload(10))
    assert cache.get(1, 0) is None
    cache.add(1, 0, upload(10))
    assert cache.get(0, 0) is None
    assert cache.get(1, 0) is not None


def test_uploads_of_earlier_rounds_are_evicted_and_those_of_the_open_one_are_not() -> None:
    cache = UploadCache(room=80)
    cache.add(0, 0, upload(10))
    cache.add(0, 1, upload(10))
    cache.add(1, 2, upload(10))
    cache.add(1, 3, upload(10))
    cache.add(1, 4, upload(10))
    assert [cache.get(1, client) is not None for client in (2, 3, 4)] == [True, True, False]


def test_a_replaced_upload_frees_its_room() -> None:
    cache = UploadCache(room=40)
    for number in range(5):
        cache.add(number, 0, upload(10))
        assert cache.get(number, 0) is not None


def test_an_upload_is_removed_only_from_its_own_round() -> None:
    cache = UploadCache(room=40)
    cache.add(1, 0, upload(10))
    cache.remove(0, 0)
    assert cache.get(1, 0) is not None
    cache.remove(1, 0)
    assert cache.get(1, 0) is None
    cache.add(1, 1, upload(10))
    assert cache.get(1, 1) is not None


def test_an_upload_larger_than_the_cache_is_never_cached() -> None:
    cache = UploadCache(room=40)
    cache.add(0, 0, upload(11))
    assert cache.get(0, 0) is None
