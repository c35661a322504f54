"""Images on the way to a network: on the device, sent through two buffers, or read ahead."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from feddbp_client.compute.devices import CPU
from feddbp_client.compute.memory import ImageBudget
from feddbp_client.compute.transfers import Link, read_ahead
from feddbp_client.data import ImageRows
from feddbp_client.data.batches import channels_first, scaled
from feddbp_client.training.image_feed import ImageFeed

COUNT = 23


def pixels(dtype: Any = np.uint8, count: int = COUNT) -> npt.NDArray[Any]:
    random = np.random.default_rng(0)
    if np.issubdtype(dtype, np.floating):
        return random.random((count, 4, 5, 3), dtype=dtype)
    return random.integers(np.iinfo(dtype).max, size=(count, 4, 5, 3), dtype=dtype, endpoint=True)


class LazyRows:
    """Images that are made when they are read; records which were, and where."""

    def __init__(self, images: npt.NDArray[Any]) -> None:
        self._images = images
        self.reads: list[list[int]] = []
        self.threads: set[str] = set()

    @property
    def shape(self) -> tuple[int, ...]:
        return self._images.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._images.dtype

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, rows: npt.NDArray[np.int64], /) -> npt.NDArray[Any]:
        self.reads.append(rows.tolist())
        self.threads.add(threading.current_thread().name)
        return self._images[rows]


class DelayedTransfer:
    """Copies its source at the last moment: when somebody waits for it or needs the copy."""

    def __init__(self, source: Tensor, link: DelayedLink) -> None:
        self._source: Tensor | None = source
        self._copy = torch.empty(0)
        self._link = link

    def wait(self) -> None:
        with self._link.lock:
            if self._source is not None:
                self._copy, self._source = self._source.clone(), None

    def tensor(self) -> Tensor:
        self.wait()
        return self._copy


class DelayedLink:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.buffers: list[tuple[int, ...]] = []

    def buffer(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        self.buffers.append(tuple(shape))
        return torch.empty(tuple(shape), dtype=dtype)

    def send(self, source: Tensor) -> DelayedTransfer:
        return DelayedTransfer(source, self)


def epoch(batch: int = 4, seed: int = 0, count: int = COUNT) -> list[Tensor]:
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return list(order.split(batch))


WAYS: dict[str, tuple[ImageRows, ImageBudget | None, Link | None]] = {
    "in memory": (pixels(), None, None),
    "read ahead": (LazyRows(pixels()), None, None),
    "on the device": (pixels(), ImageBudget(10**6), None),
    "on the device from files": (LazyRows(pixels()), ImageBudget(10**6), None),
    "through buffers": (LazyRows(pixels()), None, DelayedLink()),
}


@pytest.mark.parametrize(("images", "budget", "link"), WAYS.values(), ids=WAYS.keys())
def test_the_way_does_not_change_a_bit(images: ImageRows, budget: ImageBudget | None, link: Link | None) -> None:
    feed = ImageFeed(images, CPU, budget, link)
    whole = channels_first(pixels())
    assert len(feed) == COUNT
    for part in (slice(0, 8), slice(16, 24), slice(None)):
        assert torch.equal(feed[part], scaled(whole[part]))
        assert feed[part].is_contiguous()
    assert torch.equal(feed[torch.tensor([5, 2])], scaled(whole[[5, 2]]))
    for seed in range(2):
        order = epoch(seed=seed)
        batches = [batch.clone() for batch in feed.batches(order)]
        assert all(torch.equal(batch, whole[index]) for batch, index in zip(batches, order, strict=True))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_images_keep_the_type_they_are_stored_in(dtype: Any) -> None:
    images = pixels(dtype)
    for feed in (
        ImageFeed(images, CPU),
        ImageFeed(images, CPU, ImageBudget(images.nbytes)),
        ImageFeed(LazyRows(images), CPU, link=DelayedLink()),
    ):
        first = feed[0:4].clone()
        for batch, index in zip(feed.batches(epoch()), epoch(), strict=True):
            assert torch.equal(batch, channels_first(images)[index])
        assert torch.equal(feed[0:4], first)  # scaling has not changed what is stored


def test_images_stay_on_the_device_while_the_budget_lasts() -> None:
    images = pixels()
    budget = ImageBudget(2 * images.nbytes)
    lazy = [LazyRows(images) for _ in range(3)]
    kept = [ImageFeed(rows, CPU, budget) for rows in lazy]
    reads = [len(rows.reads) for rows in lazy]
    for feed in kept:
        list(feed.batches(epoch()))
    assert [len(rows.reads) - before for rows, before in zip(lazy, reads, strict=True)] == [0, 0, len(epoch())]


def test_a_budget_gets_back_what_a_feed_took() -> None:
    images = pixels()
    budget = ImageBudget(images.nbytes)
    feed = ImageFeed(images, CPU, budget)
    assert not budget.reserve(1, owner=budget)
    del feed
    gc.collect()
    assert budget.reserve(images.nbytes, owner=budget)


def test_a_device_without_room_after_all_gets_images_batch_by_batch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    images = pixels()
    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty", full)
        feed = ImageFeed(images, CPU, ImageBudget(images.nbytes))
    assert "batch by batch" in caplog.text
    assert torch.equal(feed[0:3], scaled(channels_first(images[:3])))


def test_a_split_that_is_read_lazily_is_never_read_whole() -> None:
    rows = LazyRows(pixels(count=1000))
    feed = ImageFeed(rows, CPU)
    assert rows.reads == []
    feed[0:64]
    assert rows.reads == [list(range(64))]
    batches = feed.batches(epoch(10, count=1000))
    next(batches)
    del batches  # waits for the reader
    assert len(rows.reads) <= 1 + 4


def test_a_split_is_loaded_to_a_device_in_parts() -> None:
    rows = LazyRows(pixels(count=1000))
    ImageFeed(rows, CPU, ImageBudget(10**9))
    assert max(map(len, rows.reads)) <= 256
    assert sorted(row for read in rows.reads for row in read) == list(range(1000))


def test_lazy_images_are_read_in_another_thread_and_those_in_memory_are_not() -> None:
    rows = LazyRows(pixels())
    list(ImageFeed(rows, CPU).batches(epoch()))
    assert all(name.startswith("read-ahead") for name in rows.threads)
    started = threading.active_count()
    batches = ImageFeed(pixels(), CPU).batches(epoch())
    next(batches)
    assert threading.active_count() == started


def test_two_buffers_of_a_batch_are_enough() -> None:
    link = DelayedLink()
    list(ImageFeed(LazyRows(pixels()), CPU, link=link).batches(epoch(4)))
    assert link.buffers == [(4, 3, 4, 5)] * 2


def test_a_larger_last_batch_gets_larger_buffers() -> None:
    order = epoch(4)
    order[-2:] = [torch.cat(order[-2:])]
    feed = ImageFeed(LazyRows(pixels()), CPU, link=DelayedLink())
    sizes = [len(batch) for batch in feed.batches(order)]
    assert sizes == [len(index) for index in order]


def test_an_error_of_the_reader_is_raised_where_its_batch_is_needed() -> None:
    def read(number: int) -> int:
        if number == 2:
            raise OSError("damaged file")
        return number

    results = read_ahead(read, range(5), ahead=3)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(OSError, match="damaged file"):
        next(results)


def test_a_reader_that_is_no_longer_needed_ends() -> None:
    before = set(threading.enumerate())
    results = read_ahead(lambda number: number, range(100), ahead=3)
    next(results)
    assert set(threading.enumerate()) - before
    results.close()  # type: ignore[attr-defined]
    assert not set(threading.enumerate()) - before


def test_reading_is_so_many_items_ahead_and_no_more() -> None:
    begun: list[int] = []
    results = read_ahead(begun.append, range(10), ahead=3)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert len(begun) <= 4
