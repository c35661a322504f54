"""`privacy = careful` fills in settings that are not given, and refuses those that undo it."""

from __future__ import annotations

from typing import Any

import pytest

from feddbp_common.config.exchange import PrivacyConfig
from feddbp_common.config.features import required_features
from feddbp_common.config.run import RunConfig, run_from_proto, run_to_proto
from feddbp_common.errors import ConfigurationError


def run(privacy: dict[str, Any], **options: Any) -> RunConfig:
    return RunConfig.model_validate({"privacy": {"preset": "careful", **privacy}, **options})


@pytest.mark.parametrize("method", ["feddbp", "feddbp:gentle"])
def test_feddbp_sends_no_fisher_scores_at_all(method: str) -> None:
    found = run({}, method=method)
    assert (found.privacy.fusion, found.privacy.min_class_samples, found.privacy.counts) == ("client", 5, "buckets")
    assert found.wire.fisher == "scores"  # of which none are sent


def test_fusion_that_stays_at_the_server_needs_indices_alone() -> None:
    found = run({"fusion": "server"})
    assert (found.privacy.fusion, found.wire.fisher) == ("server", "top_channels")
    assert run({}, wire={"fisher": "top_channels"}).privacy.fusion == "server"


def test_a_method_without_fusion_keeps_its_settings_of_it() -> None:
    found = run({}, method="fedproto")
    assert (found.privacy.fusion, found.wire.fisher, found.privacy.counts) == ("server", "scores", "buckets")


def test_stricter_settings_stay_as_given() -> None:
    assert run({"min_class_samples": 20}).privacy.min_class_samples == 20
    as_object = RunConfig(privacy=PrivacyConfig(preset="careful", min_class_samples=8))
    assert (as_object.privacy.min_class_samples, as_object.privacy.counts) == (8, "buckets")


@pytest.mark.parametrize(
    ("privacy", "options", "message"),
    [
        ({"min_class_samples": 2}, {}, "careful means min_class_samples of at least 5, but 2 is given"),
        ({"counts": "exact"}, {}, "careful means counts = buckets, but exact is given"),
        ({"fusion": "server"}, {"wire": {"fisher": "scores"}}, "fusion = client or fisher = top_channels"),
        ({}, {"method": "fedavg"}, "careful is for methods that upload prototypes; fedavg uploads none"),
        ({}, {"method": "feddbp:guided"}, "feddbp uploads none"),
    ],
)
def test_settings_that_undo_the_preset_are_refused(
    privacy: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run(privacy, **options)


def test_a_run_is_identified_by_its_settings_and_not_by_the_preset() -> None:
    careful = run({})
    by_hand = RunConfig.model_validate({"privacy": {"fusion": "client", "min_class_samples": 5, "counts": "buckets"}})
    assert careful.fingerprint == by_hand.fingerprint
    assert required_features(careful) == ["privacy.counts", "privacy.fusion", "privacy.min_class_samples"]
    assert run_from_proto(run_to_proto(careful)) == by_hand
