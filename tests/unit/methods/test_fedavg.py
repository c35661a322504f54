"""FedAvg: one common network, averaged over clients; and the networks that clients may have in common."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from small_federations import run_in_process, small_strategy, upload_of
from torch import nn

from feddbp_client.methods.base import Task
from feddbp_client.methods.guide_model import GuideModel
from feddbp_client.models.blocks import backbones_in
from feddbp_client.training.setup import LocalOptions, build_client, build_method
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ConfigurationError, PayloadError
from feddbp_common.methods import ExchangeShape, method_named
from feddbp_common.methods.guide_network import GUIDES, guide_rules
from feddbp_common.wire import Payload, check_manifest, encode
from feddbp_common.wire.payload import FloatArray

every_guide = pytest.mark.parametrize("name", GUIDES)


def guide(name: str, *, channels: int = 3, side: int = 32, classes: int = 7, seed: int = 0) -> GuideModel:
    shape = (channels, side, side)
    return GuideModel(Task(classes=classes, feature_dim=512, rounds=1, seed=seed, image_shape=shape, guide=name))


# --- the networks


@every_guide
def test_the_declared_shapes_are_those_of_the_network_for_any_image(name: str) -> None:
    for channels, side in ((1, 8), (3, 32), (3, 64), (4, 17)):
        network = guide(name, channels=channels, side=side)
        expected = GUIDES[name].shapes(channels=channels, classes=7)
        assert {weight: tensor.shape for weight, tensor in network.tensors().items()} == expected
        assert list(network.tensors()) == list(expected)
        assert network.head(network.body(torch.zeros(2, channels, side, side))).shape == (2, 7)


def test_the_guides_have_about_a_tenth_a_third_and_a_whole_million_of_parameters() -> None:
    sizes = [network.parameters(channels=3, classes=100) for network in GUIDES.values()]
    assert [round(size / 1e6, 1) for size in sizes] == [0.1, 0.3, 0.9]


@every_guide
def test_first_weights_are_the_same_for_all_clients_of_a_run(name: str) -> None:
    torch.manual_seed(1)
    one = guide(name).tensors()
    torch.manual_seed(2)
    again, other = guide(name).tensors(), guide(name, seed=1).tensors()
    assert all(np.array_equal(one[weight], again[weight]) for weight in one)
    assert not np.array_equal(one["conv1.weight"], other["conv1.weight"])


@every_guide
def test_the_rules_admit_the_network_and_nothing_of_another_shape(name: str) -> None:
    sent = encode(Payload(tensors=guide(name).tensors()))
    spec = method_named("fedavg")
    for channels in (3, None):  # of custom data, the server does not know them
        shape = ExchangeShape(classes=7, feature_dim=512, channels=channels, guide=name)
        check_manifest(sent.manifest, spec.upload_rules(spec.settings(), shape), max_bytes=10**7)
    grey = ExchangeShape(classes=7, feature_dim=512, channels=1, guide=name)
    with pytest.raises(PayloadError, match=r"conv1\.weight"):
        check_manifest(sent.manifest, spec.upload_rules(spec.settings(), grey), max_bytes=10**7)
    assert all(not rule.required for rule in guide_rules(grey, required=False))


@pytest.mark.parametrize(("method", "settings"), [("fedavg", {}), ("feddbp", {"guided": True}), ("fedkd", {})])
def test_every_network_of_a_method_computes_in_chunks_and_in_half_precision(
    method: str, settings: dict[str, bool]
) -> None:
    config = RunConfig(method=method, method_settings=settings, data=DataConfig(dataset="digits"))
    built = build_method(config, 0, config.architecture_of(0), "linear", (1, 16, 16))
    inside = {layer for backbone in backbones_in(built) for layer in backbone.modules()}
    assert all(layer in inside for layer in built.modules() if isinstance(layer, nn.Conv2d))


# --- the method


def test_the_mean_is_weighted_by_samples_unless_the_run_says_otherwise() -> None:
    def tensors(value: float) -> dict[str, FloatArray]:
        return {"head.bias": np.full(2, value, dtype=np.float32)}

    uploads = [upload_of(0, Payload(tensors=tensors(0.0)), [1, 0]), upload_of(1, Payload(tensors=tensors(1.0)), [3, 0])]
    for weighted, expected in ((True, 0.75), (False, 0.5)):
        strategy = small_strategy("fedavg", weighted=weighted)
        mean = strategy.aggregate(Payload(), uploads, round_number=0)
        assert strategy.reply(mean, None).tensors["head.bias"].tolist() == [expected, expected]


def test_all_clients_train_the_guide_whatever_their_model_group_says() -> None:
    config = RunConfig(method="fedavg", data=DataConfig(dataset="digits"))
    one, other = (
        build_method(config, number, config.architecture_of(number), "linear", (1, 16, 16)) for number in (0, 1)
    )
    assert {config.architecture_of(number) for number in range(8)} == {"guide_large"}
    assert one.state_dict().keys() == other.state_dict().keys()
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())


def test_a_model_of_ones_own_is_refused() -> None:
    options = LocalOptions(data=None, data_dir=Path(), model="mini_plain")
    config = RunConfig(method="fedavg", data=DataConfig(dataset="digits", alpha=1.0), clients=3)
    with pytest.raises(ConfigurationError, match="--model mini_plain: all clients of fedavg train guide_large"):
        build_client(config, "test", 0, options)


def test_an_unknown_guide_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match="no guide is called 'resnet'; there are: guide_small"):
        RunConfig.model_validate({"guide": {"network": "resnet"}})


def test_a_federation_learns_and_survives_restarts_to_the_bit(tmp_path: Path) -> None:
    expected = run_in_process("fedavg", training={"learning_rate": 0.1})
    assert expected.of("head")[-1] > expected.of("head")[0] + 0.2
    assert run_in_process("fedavg", training={"learning_rate": 0.1}, restart_in=tmp_path) == expected
