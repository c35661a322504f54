"""The batch size of evaluation and collection."""

from __future__ import annotations

import pytest

from feddbp_client.training.trainer import PASS_BATCH, pass_batch


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 32, 32), (3, 64, 64)])
def test_images_of_the_public_data_sets_are_passed_in_whole_batches(shape: tuple[int, int, int]) -> None:
    assert pass_batch(shape) == PASS_BATCH


@pytest.mark.parametrize(("shape", "expected"), [((3, 128, 128), 128), ((3, 224, 224), 41), ((3, 5000, 5000), 1)])
def test_larger_images_are_passed_in_batches_of_the_same_memory(shape: tuple[int, int, int], expected: int) -> None:
    assert pass_batch(shape) == expected
