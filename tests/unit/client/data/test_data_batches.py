from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feddbp_client.data import batches


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=80, deadline=None)
@given(samples=st.integers(0, 300), batch_size=st.integers(1, 64), seed=st.integers(0, 2**31))
def test_an_epoch_has_each_sample_once_except_a_single_last_one(samples: int, batch_size: int, seed: int) -> None:
    epoch = batches(samples, batch_size=batch_size, generator=seeded(seed))
    shown = [index for batch in epoch for index in batch.tolist()]
    lone = batch_size > 1 and samples % batch_size == 1
    assert len(shown) == len(set(shown)) == samples - lone
    assert set(shown) <= set(range(samples))
    assert all(len(batch) == batch_size for batch in epoch[:-1])
    assert all(len(batch) >= min(2, batch_size) for batch in epoch)
    again = batches(samples, batch_size=batch_size, generator=seeded(seed))
    assert all(map(torch.equal, epoch, again))


@settings(max_examples=40, deadline=None)
@given(samples=st.integers(0, 300), batch_size=st.integers(1, 64))
def test_htfllibs_loader_keeps_the_order_and_drops_the_tail(samples: int, batch_size: int) -> None:
    generator = seeded()
    before = generator.get_state()
    epoch = batches(samples, batch_size=batch_size, generator=generator, htfllib_loader=True)
    shown = [index for batch in epoch for index in batch.tolist()]
    assert shown == list(range(samples // batch_size * batch_size))
    assert all(len(batch) == batch_size for batch in epoch)
    assert torch.equal(before, generator.get_state())


def test_the_next_epoch_has_another_order() -> None:
    generator = seeded()
    first, second = (batches(100, batch_size=100, generator=generator)[0] for _ in range(2))
    assert not torch.equal(first, second)


def test_batch_size_must_be_positive() -> None:
    with pytest.raises(ValueError, match="batch_size is 0"):
        batches(10, batch_size=0, generator=seeded())
