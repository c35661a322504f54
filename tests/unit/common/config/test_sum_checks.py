"""Runs that cannot do with sums over clients are refused, by name and with what to change."""

from __future__ import annotations

import json
from typing import Any

import pytest

from feddbp_common.config.exchange import AggregationConfig, PrivacyConfig
from feddbp_common.config.run import RunConfig, run_from_proto, run_to_proto
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods import METHODS

SUMMED = {"feddbp", "fedproto", "fedproc", "fd", "lg-fedavg", "fedkd", "fedmrl", "fedavg"}


def secure(**options: Any) -> RunConfig:
    privacy = {"secure_sums": True, **options.pop("privacy", {})}
    return RunConfig.model_validate({"data": {"dataset": "digits", "image_size": 16}, "privacy": privacy, **options})


@pytest.mark.parametrize("method", sorted(SUMMED))
def test_methods_whose_server_takes_means_run_on_sums(method: str) -> None:
    run = secure(method=method)
    assert run.sends_terms
    assert run.privacy.fusion == ("client" if method == "feddbp" else "server")
    assert {rule.types[0].value for rule in run.upload_rules.tensors} == {"uint64"}
    assert run.upload_rules.prototypes is None  # nor class ids, which tell what a client has


@pytest.mark.parametrize("method", ["fedtgp", "fpl", "fedlfp", "fedgen", "local"])
def test_methods_that_need_single_uploads_are_refused(method: str) -> None:
    with pytest.raises(ConfigurationError, match=f"that of {method} needs more with these settings"):
        secure(method=method)


def test_every_method_is_among_those_that_were_looked_at() -> None:
    assert {*METHODS} <= {*SUMMED, "fedtgp", "fpl", "fedlfp", "fedgen", "local", "frozen"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"method": "feddbp", "privacy": {"fusion": "server"}}, "add fusion = client"),
        ({"method": "fd", "method_settings": {"leave_one_out": True}}, "needs more with these settings"),
        ({"method": "fedkd", "method_settings": {"target": "update"}}, "needs more with these settings"),
        ({"method": "fedproto", "aggregation": {"rule": "median"}}, "aggregation median compares their uploads"),
        ({"method": "fedproto", "finetune_rounds": 2}, "finetune_rounds needs the upload of a single one"),
        ({"method": "fedproto", "exchange": "off"}, "exchange = off needs the upload of a single one"),
        ({"method": "fedproto", "clients": 4}, "over 5 to 128 clients; the run has 4"),
        ({"method": "fedproto", "clients": 129}, "over 5 to 128 clients; the run has 129"),
        ({"method": "fedproto", "clients": 20, "participation": 0.2}, "fewer would take part in a round"),
    ],
)
def test_settings_that_do_not_go_with_secure_sums_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        secure(**options)


def test_secure_sums_refuse_sums_of_floats_that_are_given() -> None:
    refused = "secure_sums adds up in fixed point, but sums = float is given; leave out one of the two"
    with pytest.raises(ConfigurationError, match=refused):
        secure(aggregation={"sums": "float"})
    with pytest.raises(ConfigurationError, match=refused):
        RunConfig(privacy=PrivacyConfig(secure_sums=True), aggregation=AggregationConfig(sums="float"))


def test_secure_sums_alone_or_with_fixed_point_are_accepted() -> None:
    assert secure(aggregation={"weight_cap": 3.0}).sends_terms
    assert secure(aggregation={"sums": "fixed"}).sends_terms
    assert RunConfig(privacy=PrivacyConfig(secure_sums=True), aggregation=AggregationConfig()).sends_terms


def test_a_secure_run_is_read_as_it_is_stored_and_sent() -> None:
    run = secure()
    assert "sums" not in json.loads(run.canonical_json()).get("aggregation", {})
    stored = RunConfig.model_validate(json.loads(run.canonical_json()))
    assert stored.fingerprint == run_from_proto(run_to_proto(run)).fingerprint == run.fingerprint


def test_plain_sums_in_fixed_point_stand_for_fusion_at_the_client() -> None:
    assert RunConfig.model_validate({"aggregation": {"sums": "fixed"}}).privacy.fusion == "client"


@pytest.mark.parametrize("setting", [{"epsilon": 2.0}, {"delta": 1e-5}, {"epsilon": 1.0}])
def test_a_setting_of_differential_privacy_alone_is_refused_at_its_default_too(setting: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="is a setting of dp = frozen; the run has dp = off"):
        RunConfig.model_validate({"privacy": setting})


def test_plain_sums_in_fixed_point_have_no_bounds_on_clients() -> None:
    assert RunConfig.model_validate({"method": "fedproto", "clients": 2, "aggregation": {"sums": "fixed"}}).sends_terms
