"""What methods have in common before their clients have received anything."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from small_federations import small_batch, trainer_after

from feddbp_common.wire import Payload


@pytest.mark.parametrize("method", ["fedproto", "fedproc", "fpl", "fd", "fedtgp", "fedlfp"])
def test_before_anything_is_shared_the_objective_is_cross_entropy(method: str) -> None:
    client = trainer_after(Payload(), method, completed_rounds=0)
    images, labels = small_batch()
    objective = client.objective(images, labels)
    assert list(objective.terms) == ["ce"]
    torch.testing.assert_close(objective.total, F.cross_entropy(client.logits(images), labels))
