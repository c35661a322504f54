"""Inference with a trained client: its predictions, and the checkpoints it can be restored from."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from trained_samples import GREY, NAMES, as_arrays, checkpoint_of, random_pixels

from feddbp_client.data import DataError
from feddbp_client.data.batches import scaled
from feddbp_client.data.pixels import BYTES, WORDS, float_range
from feddbp_client.inference.restore import restore_method
from feddbp_client.inference.trained_client import TrainedClient
from feddbp_client.training.checkpoint import Checkpoint
from feddbp_client.training.setup import build_method
from feddbp_client.training.trainer import TrainerState
from feddbp_common.artifacts import CHECKPOINT_NAME
from feddbp_common.config.run import run_from_proto
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods import METHODS
from feddbp_common.version import VERSION
from feddbp_common.wire import Encoded, decode

MEASURES = {"feddbp": "distance", **dict.fromkeys(("fedproto", "fedtgp", "frozen"), "squared distance")}
"""Measures of the methods that do not predict with a head."""
CPU = torch.device("cpu")


def client_of(method: str = "feddbp", **options: Any) -> TrainedClient:
    return TrainedClient(checkpoint_of(method, **options), device="cpu")


def saved(checkpoint: Checkpoint, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    checkpoint.save(directory / CHECKPOINT_NAME)
    return directory / CHECKPOINT_NAME


# --- predictions


@pytest.mark.parametrize("name", list(METHODS))
def test_predictions_are_those_of_the_method(name: str, tmp_path: Path) -> None:
    checkpoint, pixels = checkpoint_of(name), random_pixels(20)
    method = build_method(run_from_proto(checkpoint.config), 0, checkpoint.architecture, "linear", GREY)
    method.load_state_dict(dict(checkpoint.state.model))
    assert checkpoint.received is not None
    method.receive(decode(checkpoint.received.manifest, checkpoint.received.body()), completed_rounds=1)
    expected = method.predict(scaled(pixels))[method.inference].tolist()
    found = TrainedClient.load(saved(checkpoint, tmp_path), device="cpu").predict(as_arrays(pixels))
    assert [prediction.best.class_id for prediction in found] == expected
    assert {prediction.measure for prediction in found} == {MEASURES.get(name, "probability")}


def test_candidates_are_the_classes_with_a_prototype_nearest_first() -> None:
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


def test_top_limits_the_candidates() -> None:
    client, images = client_of(), as_arrays(random_pixels(1))
    (everything,) = client.predict(images)
    (few,) = client.predict(images, top=2)
    assert few.candidates == everything.candidates[:2]
    assert client.predict(images, top=99) == [everything]
    with pytest.raises(ConfigurationError, match="top is 0"):
        client.predict(images, top=0)


def test_every_form_of_an_image_gives_the_same_prediction(tmp_path: Path) -> None:
    client, path = client_of(), tmp_path / "grey.png"
    (pixels,) = as_arrays(random_pixels(1))
    image = Image.fromarray(pixels[..., 0])
    image.save(path)
    expected = client.predict([pixels])
    for same in (path, str(path), path.read_bytes(), image, pixels[..., 0]):
        assert client.predict([same]) == expected
    for lone in (path, str(path), path.read_bytes(), image, pixels, pixels[..., 0]):
        assert client.predict(lone) == expected  # type: ignore[arg-type]


def test_predictions_are_in_the_order_of_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feddbp_client.inference.trained_client._BATCH", 4)
    client, images = client_of(), as_arrays(random_pixels(10))
    one_by_one = [client.predict([image])[0].best for image in images]
    for found, alone in zip(client.predict(iter(images)), one_by_one, strict=True):
        assert found.best.class_id == alone.class_id
        assert found.best.value == pytest.approx(alone.value, abs=1e-5)
    assert client.predict([]) == []


def test_a_client_scales_images_as_in_its_training(tmp_path: Path) -> None:
    """The same picture in the type of each client, which gives the same network input."""
    grey = random_pixels(1)[0, 0].numpy()
    expected = client_of().predict([grey])
    deep, floats = grey.astype(np.uint16) * 257, (grey / np.float32(255)).astype(np.float32)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    Image.fromarray(floats).save(tmp_path / "floats.tif")
    for pixels, array, file in ((WORDS, deep, "deep.png"), (float_range(0, 1), floats, "floats.tif")):
        client = TrainedClient.load(saved(checkpoint_of(pixels=pixels), tmp_path / pixels.dtype), device="cpu")
        assert client.facts.pixels == pixels
        for image in (array, tmp_path / file, Image.open(tmp_path / file)):
            (found,) = client.predict([image])
            assert found.name == expected[0].name
            assert found.best.value == pytest.approx(expected[0].best.value, abs=1e-5)


def test_8_and_16_bits_are_converted_and_floats_are_refused(tmp_path: Path) -> None:
    grey = random_pixels(1)[0, 0].numpy()
    deep = grey.astype(np.uint16) * 257
    assert client_of().predict([deep]) == client_of().predict([grey])
    assert client_of(pixels=WORDS).predict([grey]) == client_of(pixels=WORDS).predict([deep])
    Image.fromarray(grey.astype(np.float32)).save(tmp_path / "scan.tif")
    for pixels in (BYTES, WORDS):
        with pytest.raises(DataError, match=rf"scan.tif: has float32 pixels, expected {pixels.dtype}"):
            client_of(pixels=pixels).predict([tmp_path / "scan.tif"])
    with pytest.raises(DataError, match="image: has uint8 pixels, expected float32"):
        client_of(pixels=float_range(0, 1)).predict([grey])


def test_a_checkpoint_of_an_earlier_version_is_of_bytes(tmp_path: Path) -> None:
    path = rewritten(saved(checkpoint_of("local"), tmp_path), pixels=None)
    assert TrainedClient.load(path, device="cpu").facts.pixels == BYTES


def test_earlier_versions_refuse_a_checkpoint_whose_pixels_they_would_scale_as_bytes(tmp_path: Path) -> None:
    for pixels, expected in ((BYTES, "feddbp-checkpoint-1"), (WORDS, "feddbp-checkpoint-2")):
        with safe_open(saved(checkpoint_of("local", pixels=pixels), tmp_path), framework="pt") as file:
            assert file.metadata()["format"] == expected


@pytest.mark.parametrize(("content", "message"), [(None, "no such file"), (b"text", "not a readable image")])
def test_an_unreadable_image_is_named(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.png"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=f"notes.png: {message}"):
        client_of().predict([path])


def test_facts_identify_the_client() -> None:
    facts = client_of("fedproto", architecture="mini_mixer").facts
    assert (facts.run_id, facts.client_id, facts.method, facts.round) == ("sample", 0, "fedproto", 1)
    assert (facts.architecture, facts.image_shape, facts.class_names) == ("mini_mixer", GREY, NAMES)


def test_restoring_a_client_does_not_change_the_random_state() -> None:
    checkpoint = checkpoint_of()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    TrainedClient(checkpoint, device="cpu")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("name", ["lg-fedavg", "fedgen", "fedkd", "fedmrl"])
def test_weights_of_the_rounds_end_are_not_overwritten_by_the_download(name: str) -> None:
    """In a checkpoint after training, shared weights are newer than the download."""
    checkpoint = checkpoint_of(name)
    moved = {
        key: value + 1 if value.is_floating_point() and not key.startswith("mentee.anchor_") else value
        for key, value in checkpoint.state.model.items()
    }
    method = restore_method(replace(checkpoint, state=TrainerState(model=moved)), CPU)
    for key, value in method.state_dict().items():
        assert torch.equal(value, moved[key]), key


# --- where checkpoints are


def test_a_client_can_be_loaded_from_its_directory(tmp_path: Path) -> None:
    path = saved(checkpoint_of("local"), tmp_path)
    images = as_arrays(random_pixels(2))
    by_file, by_directory = TrainedClient.load(path), TrainedClient.load(str(tmp_path))
    assert by_file.predict(images) == by_directory.predict(images)


@pytest.mark.parametrize("below", ["client-3", "run-1/client-3", "clients/run-1/client-3"])
def test_a_directory_above_clients_is_an_error_that_names_one_of_them(below: str, tmp_path: Path) -> None:
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
    """Rewrites the file with other metadata; None removes an entry."""
    with safe_open(path, framework="pt") as file:
        changed = {**file.metadata(), **metadata}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    save_file(tensors, path, {name: value for name, value in changed.items() if value is not None})
    return path


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"format": None}, "is not a client's checkpoint"),
        (
            {"format": "feddbp-checkpoint-9"},
            rf"was written by feddbp {VERSION} \(feddbp-checkpoint-9\); this is feddbp",
        ),
        ({"config": "AAAA"}, "cannot read the checkpoint"),
        ({"config": "&"}, "cannot read the checkpoint"),
        ({"architecture": None}, "cannot read the checkpoint .*architecture"),
        ({"image_shape": "[1, 16]"}, "cannot read the checkpoint"),
        ({"image_shape": '["rm", "-r", "x"]'}, "is not the shape of an image"),
        ({"image_shape": "[1, 16, -16]"}, "is not the shape of an image"),
        ({"pixels": '{"dtype": "uint8", "low": 0, "high": 1}'}, "is not a range of uint8 pixels"),
        ({"pixels": '{"dtype": "float32", "low": "0", "high": "1"}'}, "cannot read the checkpoint"),
        ({"pixels": "[]"}, "cannot read the checkpoint"),
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
def test_an_unusable_checkpoint_is_described_in_one_line(
    metadata: dict[str, str | None], message: str, tmp_path: Path
) -> None:
    path = rewritten(saved(checkpoint_of("local"), tmp_path), **metadata)
    with pytest.raises(ConfigurationError, match=message) as raised:
        TrainedClient.load(path, device="cpu")
    assert "\n" not in str(raised.value)


def test_a_client_whose_training_has_diverged_does_not_predict() -> None:
    checkpoint = checkpoint_of("local")
    broken = {name: torch.full_like(weight, float("nan")) for name, weight in checkpoint.state.model.items()}
    with pytest.raises(ConfigurationError, match="the training of client 0 of run sample has diverged"):
        TrainedClient(replace(checkpoint, state=TrainerState(model=broken)), device="cpu")


@pytest.mark.parametrize("size", [0, 5, 1000, -1000])
def test_a_truncated_file_cannot_be_read(size: int, tmp_path: Path) -> None:
    path = saved(checkpoint_of("local"), tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ConfigurationError, match="cannot read the checkpoint"):
        TrainedClient.load(path)


def test_another_file_is_not_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    with pytest.raises(ConfigurationError, match=r"cannot read the checkpoint .*notes.txt"):
        TrainedClient.load(tmp_path / "notes.txt")


def test_a_damaged_download_in_a_checkpoint_is_detected() -> None:
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


def test_a_client_that_predicts_with_its_head_needs_no_completed_round() -> None:
    assert client_of("fedproc", rounds=0).predict(as_arrays(random_pixels(1)))


def test_a_users_own_model_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_models.py").write_text(
        "from torch import nn\ndef tiny(shape): return nn.Sequential(nn.Flatten(), nn.Linear(256, 40))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert client_of(architecture="my_own_models:tiny").predict(as_arrays(random_pixels(1)))
    sys.modules.pop("my_own_models")


def test_a_missing_device_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--device tpu9"):
        TrainedClient.load(saved(checkpoint_of("local"), tmp_path), device="tpu9")
