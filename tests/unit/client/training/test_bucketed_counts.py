"""With counts = buckets, no exact number of samples per class leaves a client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_federations import over_the_wire, run_in_process

from feddbp_client.training.setup import LocalClient, LocalOptions, build_client
from feddbp_common.config.exchange import PrivacyConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.label_counts import declared_counts, in_buckets
from feddbp_common.wire import Payload


def client_of(method: str, privacy: dict[str, Any]) -> LocalClient:
    config = RunConfig.model_validate(
        {
            "method": method,
            "clients": 4,
            "data": {"dataset": "digits", "alpha": 0.3},
            "training": {"local_epochs": 1, "feature_dim": 32},
            "privacy": privacy,
        }
    )
    return build_client(config, "test", 1, LocalOptions(data=None, data_dir=Path(), model=None))


def test_a_bucket_is_the_nearest_power_of_two_by_ratio() -> None:
    exact = np.array([0, 1, 2, 3, 5, 6, 11, 12, 90, 91, 100], dtype=np.int64)
    assert in_buckets(exact).tolist() == [0, 1, 2, 4, 4, 8, 8, 16, 64, 128, 128]
    many = np.arange(1, 5000)
    ratio = in_buckets(many) / many
    assert ratio.max() < 2**0.5
    assert ratio.min() > 2**-0.5


def test_classes_that_are_held_back_are_declared_as_absent() -> None:
    privacy = PrivacyConfig(counts="buckets", min_class_samples=5)
    assert declared_counts(np.array([0, 3, 5, 40]), privacy).tolist() == [0, 0, 4, 32]
    # a client must declare some class to join
    assert declared_counts(np.array([0, 3, 4, 1]), privacy).tolist() == [0, 4, 4, 1]


@pytest.mark.parametrize("method", ["feddbp", "fedproc"])
def test_join_and_upload_have_the_same_buckets(method: str) -> None:
    client = client_of(method, {"counts": "buckets", "min_class_samples": 5})
    declared = np.array(client.data_summary().label_counts)
    true = client.data.label_counts
    assert not np.isin(declared, [1 << place for place in range(12)] + [0], invert=True).any()
    assert (declared != true).any()
    upload = client.trainer.train(Payload(), 0, lambda *_: None).upload
    assert upload is not None
    rules = client.config.method_spec.upload_rules(client.config.settings, client.config.exchange_shape)
    received = over_the_wire(upload, rules, label_counts=declared.tolist()).prototypes
    assert received is not None
    assert received.counts is not None
    assert received.class_ids.tolist() == np.flatnonzero(true >= 5).tolist()
    assert received.counts.tolist() == declared[received.class_ids].tolist()


def test_fedlfp_sends_buckets_too() -> None:
    client = client_of("fedlfp", {"counts": "buckets"})
    upload = client.trainer.train(Payload(), 0, lambda *_: None).upload
    assert upload is not None
    sent = upload.tensors["counts"]
    assert sorted(sent.tolist()) == sorted(in_buckets(client.data.label_counts[client.data.label_counts > 0]).tolist())


@pytest.mark.parametrize("method", ["fedproc", "fedgen"])
def test_a_run_with_buckets_ends(method: str) -> None:
    assert len(run_in_process(method, privacy={"counts": "buckets"}, rounds=2).digests) == 2
