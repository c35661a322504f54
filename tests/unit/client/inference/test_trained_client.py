"""A trained client put to use: what it says of images, and from which checkpoints it can be brought back."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from trained_samples import GREY, NAMES, as_arrays, checkpoint_of, random_pixels

from feddbp_client.data import DataError
from feddbp_client.data.batches import scaled
from feddbp_client.inference.restore import restore_method
from feddbp_client.inference.trained_client import TrainedClient
from feddbp_client.training.checkpoint import Checkpoint
from feddbp_client.training.setup import build_method
from feddbp_common.artifacts import CHECKPOINT_NAME
from feddbp_common.config.run import run_from_proto
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods import METHODS
from feddbp_common.wire import Encoded, decode

MEASURES = {"feddbp": "distance", "fedproto": "squared distance", "fedtgp": "squared distance"}
"""Of the methods that do not predict with a head."""
CPU = torch.device("cpu")


def client_of(method: str = "feddbp", **options: Any) -> TrainedClient:
    return TrainedClient(checkpoint_of(method, **options), device="cpu")


def saved(checkpoint: Checkpoint, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    checkpoint.save(directory / CHECKPOINT_NAME)
    return directory / CHECKPOINT_NAME


# --- predictions


@pytest.mark.parametrize("name", list(METHODS))
def test_it_predicts_what_its_method_predicts(name: str, tmp_path: Path) -> None:
    checkpoint, pixels = checkpoint_of(name), random_pixels(20)
    method = build_method(run_from_proto(checkpoint.config), 0, checkpoint.architecture, "linear", GREY)
    method.load_state_dict(dict(checkpoint.model))
    assert checkpoint.received is not None
    method.receive(decode(checkpoint.received.manifest, checkpoint.received.body()), completed_rounds=1)
    expected = method.predict(scaled(pixels))[method.inference].tolist()
    found = TrainedClient.load(saved(checkpoint, tmp_path), device="cpu").predict(as_arrays(pixels))
    assert [prediction.best.class_id for prediction in found] == expected
    assert {prediction.measure for prediction in found} == {MEASURES.get(name, "probability")}


def test_candidates_come_with_names_the_nearest_first_and_only_those_with_a_prototype() -> None:
    for prediction in client_of().predict(as_arrays(random_pixels(5))):
        values = [candidate.value for candidate in prediction.candidates]
        assert values == sorted(values)
        assert {candidate.name for candidate in prediction.candidates} == {"cat", "dog", "emu"}
        assert all(candidate.name == NAMES[candidate.class_id] for candidate in prediction.candidates)
        assert prediction.name == prediction.best.name == prediction.candidates[0].name


def test_a_head_gives_probabilities_of_all_classes() -> None:
    for prediction in client_of("local").predict(as_arrays(random_pixels(5))):
        values = [candidate.value for candidate in prediction.candidates]
        assert values == sorted(values, reverse=True)
        assert len(values) == len(NAMES)
        assert sum(values) == pytest.approx(1)


def test_only_as_many_candidates_as_asked_for() -> None:
    client, images = client_of(), as_arrays(random_pixels(1))
    (everything,) = client.predict(images)
    (few,) = client.predict(images, top=2)
    assert few.candidates == everything.candidates[:2]
    assert client.predict(images, top=99) == [everything]
    with pytest.raises(ConfigurationError, match="top is 0"):
        client.predict(images, top=0)


def test_every_way_of_giving_an_image_gives_the_same(tmp_path: Path) -> None:
    client, path = client_of(), tmp_path / "grey.png"
    (pixels,) = as_arrays(random_pixels(1))
    image = Image.fromarray(pixels[..., 0])
    image.save(path)
    expected = client.predict([pixels])
    for same in (path, str(path), path.read_bytes(), image, pixels[..., 0]):
        assert client.predict([same]) == expected
    for lone in (path, str(path), path.read_bytes(), image, pixels, pixels[..., 0]):
        assert client.predict(lone) == expected  # type: ignore[arg-type]


def test_many_images_are_answered_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feddbp_client.inference.trained_client._BATCH", 4)
    client, images = client_of(), as_arrays(random_pixels(10))
    one_by_one = [client.predict([image])[0].best for image in images]
    for found, alone in zip(client.predict(iter(images)), one_by_one, strict=True):
        assert (found.best.class_id, found.best.value) == (alone.class_id, pytest.approx(alone.value, abs=1e-5))
    assert client.predict([]) == []


@pytest.mark.parametrize(("content", "complaint"), [(None, "no such file"), (b"text", "not a readable image")])
def test_an_image_that_is_none_is_named(content: bytes | None, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.png"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=f"notes.png: {complaint}"):
        client_of().predict([path])


def test_it_says_which_client_it_is() -> None:
    facts = client_of("fedproto", architecture="mini_mixer").facts
    assert (facts.run_id, facts.client_id, facts.method, facts.round) == ("sample", 0, "fedproto", 1)
    assert (facts.architecture, facts.image_shape, facts.class_names) == ("mini_mixer", GREY, NAMES)


def test_bringing_a_client_back_leaves_the_programs_random_numbers_alone() -> None:
    checkpoint = checkpoint_of()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    TrainedClient(checkpoint, device="cpu")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("name", ["lg-fedavg", "fedgen", "fedkd", "fedmrl"])
def test_weights_a_round_ended_with_are_not_undone_by_what_it_began_with(name: str) -> None:
    """The checkpoint of a round that was trained: weights the server also sends are newer than what it sent."""
    checkpoint = checkpoint_of(name)
    moved = {
        key: value + 1 if value.is_floating_point() and not key.startswith("mentee.anchor_") else value
        for key, value in checkpoint.model.items()
    }
    method = restore_method(replace(checkpoint, model=moved), CPU)
    for key, value in method.state_dict().items():
        assert torch.equal(value, moved[key]), key


# --- where checkpoints are


def test_a_clients_directory_is_as_good_as_its_file(tmp_path: Path) -> None:
    path = saved(checkpoint_of("local"), tmp_path)
    images = as_arrays(random_pixels(2))
    by_file, by_directory = TrainedClient.load(path), TrainedClient.load(str(tmp_path))
    assert by_file.predict(images) == by_directory.predict(images)


@pytest.mark.parametrize("below", ["client-3", "run-1/client-3", "clients/run-1/client-3"])
def test_a_directory_above_clients_is_answered_with_one_of_them(below: str, tmp_path: Path) -> None:
    saved(checkpoint_of("local"), tmp_path / below)
    with pytest.raises(ConfigurationError, match=f"give one, such as {tmp_path / below}$"):
        TrainedClient.load(tmp_path)


def test_a_client_that_has_not_trained_yet_has_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"no checkpoint in {tmp_path}; a client writes"):
        TrainedClient.load(tmp_path)
    with pytest.raises(ConfigurationError, match=r"there is no checkpoint .*nothing"):
        TrainedClient.load(tmp_path / "nothing")


# --- checkpoints that cannot be used


def rewritten(path: Path, **metadata: str | None) -> Path:
    """The same file with other metadata; None leaves an entry out."""
    with safe_open(path, framework="pt") as file:
        told = {**file.metadata(), **metadata}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    save_file(tensors, path, {name: value for name, value in told.items() if value is not None})
    return path


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({"format": None}, "is not a client's checkpoint"),
        ({"format": "feddbp-checkpoint-9"}, "has checkpoint format feddbp-checkpoint-9; this version reads"),
        ({"config": "AAAA"}, "cannot read the checkpoint"),
        ({"config": "&"}, "cannot read the checkpoint"),
        ({"architecture": None}, "cannot read the checkpoint .*architecture"),
        ({"image_shape": "[1, 16]"}, "cannot read the checkpoint"),
        ({"image_shape": '["rm", "-r", "x"]'}, "is not the shape of an image"),
        ({"image_shape": "[1, 16, -16]"}, "is not the shape of an image"),
        ({"class_names": "7"}, "cannot read the checkpoint"),
        ({"class_names": '"cats"'}, "cannot read the checkpoint .*class names"),
        ({"class_names": '["a\\u001b[2J", "b", "c", "d"]'}, "cannot read the checkpoint .*class names"),
        ({"class_names": '["cat"]'}, "does not name the 4 classes of its run"),
        ({"architecture": "mini_dense"}, "the weights of client 0 of run sample do not fit mini_dense"),
        ({"architecture": "mini_plane"}, "cannot be built: no architecture is called 'mini_plane'"),
        ({"architecture": "nowhere.models:tiny"}, "nowhere.models:tiny: cannot import 'nowhere.models'"),
        ({"architecture": "subprocess:call"}, r"subprocess:call: call\(\(1, 16, 16\)\) failed"),
        ({"head": "wig"}, "no head is called 'wig'"),
    ],
)
def test_what_is_wrong_with_a_checkpoint_is_said_in_one_line(
    metadata: dict[str, str | None], complaint: str, tmp_path: Path
) -> None:
    path = rewritten(saved(checkpoint_of("local"), tmp_path), **metadata)
    with pytest.raises(ConfigurationError, match=complaint) as raised:
        TrainedClient.load(path, device="cpu")
    assert "\n" not in str(raised.value)


def test_a_client_whose_training_has_diverged_does_not_predict() -> None:
    checkpoint = checkpoint_of("local")
    broken = {name: torch.full_like(weight, float("nan")) for name, weight in checkpoint.model.items()}
    with pytest.raises(ConfigurationError, match="the training of client 0 of run sample has diverged"):
        TrainedClient(replace(checkpoint, model=broken), device="cpu")


@pytest.mark.parametrize("size", [0, 5, 1000, -1000])
def test_a_file_that_was_cut_short_cannot_be_read(size: int, tmp_path: Path) -> None:
    path = saved(checkpoint_of("local"), tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ConfigurationError, match="cannot read the checkpoint"):
        TrainedClient.load(path)


def test_something_else_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("this is no checkpoint at all")
    with pytest.raises(ConfigurationError, match=r"cannot read the checkpoint .*notes.txt"):
        TrainedClient.load(tmp_path / "notes.txt")


def test_damage_to_what_the_server_sent_is_noticed() -> None:
    checkpoint = checkpoint_of()
    assert checkpoint.received is not None
    body = bytearray(checkpoint.received.body())
    body[7] ^= 1
    damaged = Encoded(manifest=checkpoint.received.manifest, segments=(memoryview(body),))
    with pytest.raises(ConfigurationError, match=r"the download in the checkpoint of client 0 .* is damaged"):
        TrainedClient(replace(checkpoint, received=damaged))


@pytest.mark.parametrize("name", ["feddbp", "fedproto"])
def test_a_client_without_prototypes_cannot_predict_yet(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot predict yet: .* when the first round is over"):
        TrainedClient(checkpoint_of(name, rounds=0))


def test_a_client_that_predicts_with_its_head_needs_no_round_to_be_over() -> None:
    assert client_of("fedproc", rounds=0).predict(as_arrays(random_pixels(1)))


def test_a_model_of_the_users_own_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_models.py").write_text(
        "from torch import nn\ndef tiny(shape): return nn.Sequential(nn.Flatten(), nn.Linear(256, 40))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert client_of(architecture="my_own_models:tiny").predict(as_arrays(random_pixels(1)))
    sys.modules.pop("my_own_models")


def test_a_device_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--device tpu9"):
        TrainedClient.load(saved(checkpoint_of("local"), tmp_path), device="tpu9")
