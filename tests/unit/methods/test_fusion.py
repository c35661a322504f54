"""Fusion of a client's own prototypes with the global ones: by the server, or by the client with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_federations import prototype_set, run_in_process, small_batch, small_strategy
from torch import nn

from feddbp_client.methods.base import Task
from feddbp_client.methods.feddbp import FedDBP
from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods import ExchangeShape, method_named
from feddbp_common.methods.feddbp import FedDBPSettings
from feddbp_common.methods.fusion import fuse
from feddbp_common.wire import Payload

AT_CLIENT = {"fusion": "client"}


@pytest.mark.parametrize(
    "settings",
    [{}, {"eta": 0.5, "k_top": 5}, {"without_personalisation": True}, {"anchors": "shuffled"}],
    ids=["default", "half", "not personalised", "control"],
)
def test_fusion_at_the_client_gives_the_bits_of_fusion_at_the_server(settings: dict[str, Any]) -> None:
    assert run_in_process("feddbp", settings=settings, privacy=AT_CLIENT) == run_in_process("feddbp", settings=settings)


def test_a_client_that_restarts_before_every_round_fuses_the_same_values(tmp_path: Path) -> None:
    assert run_in_process("feddbp", privacy=AT_CLIENT, restart_in=tmp_path) == run_in_process("feddbp")


def test_personalisation_changes_the_run_that_is_compared() -> None:
    assert run_in_process("feddbp") != run_in_process("feddbp", settings={"without_personalisation": True})


def test_no_fisher_scores_leave_a_client_that_fuses() -> None:
    images, labels = small_batch()
    upload = _client(fusion_at_client=True).collect(images, labels, batch_size=8)
    assert upload.fisher is None
    method, shape = method_named("feddbp"), ExchangeShape(classes=5, feature_dim=8, fusion_at_client=True)
    rules = method.upload_rules(FedDBPSettings(k_top=3), shape)
    assert not rules.fisher_scores
    assert rules.top_channels is None
    assert method.up is not None
    both_sent = method.up.size(FedDBPSettings(k_top=3), ExchangeShape(classes=5, feature_dim=8), (3, 2, 2))
    assert both_sent == 2 * method.up.size(FedDBPSettings(k_top=3), shape, (3, 2, 2))


def test_all_clients_receive_the_same_where_they_fuse_for_themselves() -> None:
    at_client = small_strategy("feddbp", fusion_at_client=True, k_top=3)
    state = Payload(prototypes=prototype_set([0, 1, 3]))
    assert not at_client.personalises
    assert at_client.reply(state, Payload(prototypes=prototype_set([0, 1], seed=1))) is state


def test_an_own_class_that_has_no_global_prototype_stays_out() -> None:
    """An upload can be left out of the averages; its client still has it."""
    shared, own = prototype_set([1, 3]), prototype_set([0, 3], seed=1)
    fused = fuse(shared, own, np.ones((2, 8), dtype=bool), eta=1.0)
    assert fused.class_ids.tolist() == [1, 3]
    np.testing.assert_array_equal(fused.vectors[0], shared.vectors[0])
    np.testing.assert_array_equal(fused.vectors[1], own.vectors[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "fedproto"}, "fedproto fuses no prototypes"),
        ({"wire": {"fisher": "top_channels"}}, "no Fisher scores are sent"),
    ],
)
def test_fusion_at_the_client_is_refused_where_it_has_no_effect(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RunConfig.model_validate({"privacy": AT_CLIENT, **options})


def _client(**task: Any) -> FedDBP:
    return FedDBP(
        backbone=nn.Sequential(nn.Flatten(), nn.Linear(12, 8)),
        make_head=lambda: nn.Linear(8, 5),
        settings=FedDBPSettings(k_top=3),
        task=Task(classes=5, feature_dim=8, rounds=2, **task),
    )
