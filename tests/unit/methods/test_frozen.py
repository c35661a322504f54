"""Frozen features: class means of a fixed network, with noise or without."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_federations import run_in_process, small_strategy, upload_of

from feddbp_client.privacy.release import prepare_release
from feddbp_client.training.setup import LocalClient, LocalOptions, build_client
from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods.frozen import COUNTS, NOISE, SUMS
from feddbp_common.wire import Payload, encode
from feddbp_server.strategies.base import RunFacts

WEIGHTLESS = {"feature_dim": 16, "local_epochs": 1}


def client_of(client_id: int = 1, *, weights: Path | None = None, model: str | None = None, **run: Any) -> LocalClient:
    config = RunConfig.model_validate(
        {"clients": 4, "data": {"alpha": 0.3}, "training": WEIGHTLESS, "method": "frozen", **run}
    )
    options = LocalOptions(data=None, data_dir=Path(), model=model, frozen_weights=weights)
    return build_client(config, "test", client_id, options)


def trained(client: LocalClient) -> Any:
    return client.trainer.train(Payload(), 0, lambda *_: None)


def test_all_clients_have_the_same_network_and_do_not_train_it() -> None:
    clients = [client_of(client_id) for client_id in (0, 1)]
    before = [client.trainer.method.backbone.state_dict()["0.projection"].clone() for client in clients]
    torch.testing.assert_close(before[0], before[1], rtol=0, atol=0)
    weights = clients[0].trainer.method.state_dict()["head.weight"]
    head = weights.clone()
    trained(clients[0])
    torch.testing.assert_close(clients[0].trainer.method.backbone.state_dict()["0.projection"], before[0])
    assert not torch.equal(weights, head)


def test_an_upload_has_the_sums_and_counts_of_all_classes() -> None:
    client = client_of()
    upload = trained(client).upload
    assert upload.tensors[SUMS].shape == (10, 16)
    assert upload.tensors[COUNTS].tolist() == client.data.label_counts.tolist()


def test_rounds_after_the_first_change_nothing() -> None:
    outcome = run_in_process("frozen", rounds=2, training={"feature_dim": 64})
    assert outcome.digests[0] == outcome.digests[1]  # the features and the samples are the same


def test_the_server_adds_sums_and_leaves_out_classes_without_samples() -> None:
    strategy = small_strategy("frozen", classes=3, width=2)
    tensors = [
        {SUMS: np.array([[1, 0], [0, 2], [0, 0]], np.float32), COUNTS: np.array([2, 2, 0], np.float32)},
        {SUMS: np.array([[2, 0], [0, 0], [0, 0]], np.float32), COUNTS: np.array([1, 0, 0], np.float32)},
    ]
    uploads = [upload_of(number, Payload(tensors=parts)) for number, parts in enumerate(tensors)]
    state = strategy.aggregate(Payload(), uploads, round_number=0)
    assert state.prototypes is not None
    assert state.prototypes.class_ids.tolist() == [0, 1]
    np.testing.assert_array_equal(state.prototypes.vectors, np.array([[1, 0], [0, 1]], np.float32))
    assert not state.tensors
    assert strategy.aggregate(state, [], round_number=1) is state


def test_under_noise_a_class_needs_a_count_that_noise_does_not_give() -> None:
    config = RunConfig.model_validate({"privacy": {"dp": "frozen"}, "training": {"feature_dim": 16}, "clients": 4})
    strategy = config.method_spec.load_strategy()(config.settings, RunFacts.of(config))
    counts = np.zeros(10, np.float32)
    counts[[2, 5]] = 400, 8  # the noise has a deviation of about 5
    upload = upload_of(0, Payload(tensors={SUMS: np.ones((10, 16), np.float32), COUNTS: counts}))
    state = strategy.aggregate(Payload(), [upload], round_number=0)
    assert state.prototypes.class_ids.tolist() == [2]
    expected = 16 * (2.14911 * 1.25**0.5 / 400) ** 2
    assert state.tensors[NOISE][2] == pytest.approx(expected, rel=1e-3)


PRIVATE: dict[str, Any] = {"dp": "frozen", "epsilon": 4.0}


def test_what_leaves_a_private_client_depends_on_training_samples_by_the_release_alone(tmp_path: Path) -> None:
    client = client_of(privacy=PRIVATE)
    with pytest.raises(ConfigurationError, match="needs a client's directory"):
        trained(client)
    client.trainer.release_table = prepare_release(
        client.config.privacy, tmp_path / "run" / "client-1", run_id="run", client_id=1, budget=8.0
    )
    (tmp_path / "run" / "client-1").mkdir(parents=True)
    result = trained(client)
    assert not client.data_summary().label_counts
    metrics = result.metrics
    assert [entry.rule for entry in metrics.accuracies] == ["prototype"]
    assert not metrics.losses
    assert not metrics.rare_test_samples
    assert not metrics.seconds.train
    counts = result.upload.tensors[COUNTS]
    assert (counts != client.data.label_counts).all()
    again = trained(client).upload
    np.testing.assert_array_equal(again.tensors[COUNTS], counts)
    np.testing.assert_array_equal(again.tensors[SUMS], result.upload.tensors[SUMS])
    with pytest.raises(RuntimeError, match="no exact sums"):
        client.trainer.method.collect(torch.zeros(1), torch.zeros(1), batch_size=1)


class Epochs:
    """The progress that a client reports."""

    def __init__(self) -> None:
        self.done: list[tuple[int, int]] = []

    def add(self, done: int, epochs: int) -> None:
        self.done.append((done, epochs))


def test_nobody_sees_that_the_head_of_a_private_client_diverges(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calm, diverging = (
        client_of(privacy=PRIVATE, training={**WEIGHTLESS, "learning_rate": rate}) for rate in (0.01, 1e30)
    )
    before = {name: value.clone() for name, value in diverging.trainer.method.state_dict().items()}
    (tmp_path / "client-1").mkdir()
    seen = []
    for client in (calm, diverging):
        client.trainer.release_table = prepare_release(
            client.config.privacy, tmp_path / "client-1", run_id="run", client_id=1, budget=8.0
        )
        epochs = Epochs()
        result = client.trainer.train(Payload(), 0, epochs.add)
        assert not result.skipped
        assert result.upload is not None
        result.metrics.ClearField("seconds")
        seen.append((epochs.done, result.metrics, encode(result.upload).body()))
    assert seen[0] == seen[1]
    assert "training diverged again" in caplog.text
    for name, value in diverging.trainer.method.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def test_features_of_a_private_client_do_not_depend_on_other_samples() -> None:
    client = client_of(privacy=PRIVATE)
    images, labels = client.trainer._train_split.images, client.trainer._train_split.labels
    table = client.trainer.method.exact_table
    whole = table(images, labels, batch_size=64)
    less = table(images[1:], labels[1:], batch_size=64)
    change = whole - less
    assert np.flatnonzero(change.any(axis=1)).tolist() == [int(labels[0])]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"privacy": {"dp": "frozen"}, "method": "feddbp"}, "dp = frozen is for the method frozen: feddbp trains"),
        ({"privacy": {"dp": "frozen", "secure_sums": True}}, "a second sum, over other clients, would show"),
        ({"method": "frozen", "privacy": {"secure_sums": True}, "rounds": 1}, "has secure sums with dp alone"),
        ({"privacy": {"dp": "frozen"}, "training": {"validation": 0.2}}, "would tell how many samples"),
        ({"privacy": {"dp": "frozen"}, "data": {"dataset": "custom", "classes": 3}}, "give --image-size"),
        ({"privacy": {"epsilon": 1.0}}, "epsilon is a setting of dp = frozen"),
        ({"privacy": {"delta": 1e-6}}, "delta is a setting of dp = frozen"),
        ({"privacy": {"clip_bound": 2.0}}, "clip_bound has an effect with dp = frozen or a noise_multiplier"),
        ({"privacy": {"dp": "frozen", "noise_multiplier": 1.0}}, "computes its noise from epsilon and delta"),
        ({"privacy": {"noise_multiplier": 1.0}, "method": "fedavg"}, "fedavg uploads no prototypes; noise_multiplier"),
        ({"privacy": {"dp": "frozen"}, "method_settings": {"inference": "head"}}, "accuracy of prototypes alone"),
        ({"method": "frozen", "method_settings": {"network": "resnet18"}}, "give the SHA-256 of the file"),
        ({"method": "frozen", "method_settings": {"weights_sha256": "0" * 64}}, "leave out weights_sha256"),
        ({"method": "frozen", "method_settings": {"weights_sha256": "abc"}}, "is not a SHA-256"),
        ({"privacy": {"dp": "frozen", "preset": "careful"}}, "careful is for methods that upload prototypes"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigurationError, ValueError), match=message):
        RunConfig.model_validate(options)


def test_dp_chooses_the_method_that_has_it() -> None:
    assert RunConfig.model_validate({"privacy": {"dp": "frozen"}}).method == "frozen"


# --- weights from a file ---


def weights_file(path: Path, *, prefix: str = "") -> tuple[Path, dict[str, Any]]:
    """A file with other weights than a client would draw, and the run's settings that name it."""
    donor = client_of(method="fedproto", model="mini_plain").trainer.method.backbone
    tensors = {prefix + name.removeprefix("0."): tensor.contiguous() + 1 for name, tensor in donor.state_dict().items()}
    save_file({**tensors, "head.weight": torch.zeros(3)}, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return path, {"network": "mini_plain", "weights_sha256": digest}


@pytest.mark.parametrize("prefix", ["", "model.backbone.0."])
def test_weights_come_from_the_file_that_the_run_names(tmp_path: Path, prefix: str) -> None:
    path, settings = weights_file(tmp_path / "weights.safetensors", prefix=prefix)
    client = client_of(weights=path, method_settings=settings)
    donor = client_of(method="fedproto", model="mini_plain").trainer.method.backbone.state_dict()
    for name, tensor in client.trainer.method.backbone.state_dict().items():
        torch.testing.assert_close(tensor, donor[name] + 1)


def test_another_file_is_refused(tmp_path: Path) -> None:
    path, settings = weights_file(tmp_path / "weights.safetensors")
    with pytest.raises(ConfigurationError, match="give --frozen-weights FILE"):
        client_of(method_settings=settings)
    with pytest.raises(ConfigurationError, match="this run has no network with weights from a file"):
        client_of(weights=path)
    with pytest.raises(ConfigurationError, match=r"its SHA-256 is .*, but the run has 0000"):
        client_of(weights=path, method_settings={**settings, "weights_sha256": "0" * 64})
    with pytest.raises(ConfigurationError, match=r"has no tensor .*|has shape"):
        client_of(weights=path, method_settings={**settings, "network": "mini_mixer"})
    path.write_bytes(b"nonsense")
    digest = hashlib.sha256(b"nonsense").hexdigest()
    with pytest.raises(ConfigurationError, match="cannot be read as safetensors"):
        client_of(weights=path, method_settings={**settings, "weights_sha256": digest})


def test_a_client_cannot_bring_another_network() -> None:
    with pytest.raises(ConfigurationError, match="all clients of frozen have random_features"):
        client_of(model="mini_plain")
