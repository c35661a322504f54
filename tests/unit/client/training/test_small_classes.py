"""Prototypes of few samples do not leave a client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_federations import over_the_wire, run_in_process

from feddbp_client.training.setup import LocalOptions, build_client
from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ConfigurationError
from feddbp_common.wire import FisherScores, Payload, TopChannels


def upload_of(fewest: int, **options: Any) -> tuple[Payload, np.ndarray[Any, Any]]:
    config = RunConfig.model_validate(
        {
            "clients": 4,
            "data": {"dataset": "digits", "alpha": 0.3},
            "training": {"local_epochs": 1, "feature_dim": 16},
            "method_settings": {"k_top": 3},
            "privacy": {"min_class_samples": fewest},
            **options,
        }
    )
    client = build_client(config, "test", 1, LocalOptions(data=None, data_dir=Path(), model=None))
    upload = client.trainer.train(Payload(), 0, lambda *_: None).upload
    assert upload is not None
    rules = config.method_spec.upload_rules(config.settings, config.exchange_shape)
    return over_the_wire(upload, rules, label_counts=client.data.label_counts.tolist()), client.data.label_counts


@pytest.mark.parametrize("form", ["scores", "top_channels"])
def test_classes_with_fewer_samples_are_left_out_with_their_scores(form: str) -> None:
    everything, counts = upload_of(0, wire={"fisher": form})
    fewest = int(np.median(counts[counts > 0]))
    released, _ = upload_of(fewest, wire={"fisher": form})
    assert everything.prototypes is not None
    assert released.prototypes is not None
    assert released.prototypes.class_ids.tolist() == np.flatnonzero(counts >= fewest).tolist()
    assert 0 < len(released.prototypes) < len(everything.prototypes)
    kept = np.isin(everything.prototypes.class_ids, released.prototypes.class_ids)
    np.testing.assert_array_equal(released.prototypes.vectors, everything.prototypes.vectors[kept])
    for part in (everything.fisher, released.fisher):
        assert isinstance(part, FisherScores | TopChannels)
    assert len(getattr(released.fisher, "scores" if form == "scores" else "channels")) == len(released.prototypes)


def test_a_client_of_small_classes_alone_sends_no_prototype() -> None:
    released, _ = upload_of(10_000)
    assert released.prototypes is not None
    assert len(released.prototypes) == 0


@pytest.mark.parametrize("method", ["feddbp", "fedproto", "fedproc"])
def test_a_run_goes_on_without_the_prototypes_of_small_classes(method: str) -> None:
    outcome = run_in_process(method, privacy={"min_class_samples": 20}, rounds=2)
    assert len(outcome.digests) == 2


def test_a_method_without_prototypes_refuses_the_bound() -> None:
    with pytest.raises(ConfigurationError, match="fedavg uploads no prototypes; min_class_samples has no effect"):
        RunConfig.model_validate({"method": "fedavg", "privacy": {"min_class_samples": 5}})
