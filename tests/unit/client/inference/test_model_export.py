"""Exported clients give the same scores in every format, without this project installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn
from trained_samples import GREY, NAMES, as_arrays, checkpoint_of, random_pixels

from feddbp_client.data.pixels import WORDS, PixelRange, float_range
from feddbp_client.inference.model_export import FACTS_NAME, FORMATS, ExportError, export, facts_of
from feddbp_client.inference.trained_client import TrainedClient
from feddbp_common.config.catalog import MODEL_GROUPS
from feddbp_common.errors import ConfigurationError

MINI = MODEL_GROUPS["mini-8"].bodies
READER = """
import json, sys
import numpy as np, torch
assert not any(name.partition(".")[0].startswith("feddbp") for name in sys.modules)
sys.modules.update(dict.fromkeys(("feddbp", "feddbp_client", "feddbp_common")))  # importing one now fails
torch.set_num_threads(1)
pixels = torch.from_numpy(np.load(sys.argv[1]))
for path in sys.argv[2:]:
    facts = {"feddbp.json": ""}
    if path.endswith(".pt2"):
        module = torch.export.load(path, extra_files=facts).module()
    else:
        module = torch.jit.load(path, _extra_files=facts)
    with torch.no_grad():
        print(json.dumps([path, json.loads(facts["feddbp.json"]), module(pixels).tolist()]))
"""
SUFFIXES = {"torch-export": ".pt2", "torchscript": ".pt"}


def client_of(method: str = "feddbp", **options: Any) -> TrainedClient:
    return TrainedClient(checkpoint_of(method, **options), device="cpu")


def read_without_project(tmp_path: Path, pixels: Tensor, files: list[Path]) -> dict[str, tuple[dict[str, Any], Any]]:
    """By file, the facts and the scores that a process without this project reads from it."""
    np.save(tmp_path / "pixels.npy", pixels.numpy())
    done = subprocess.run(
        [sys.executable, "-c", READER, tmp_path / "pixels.npy", *files],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return {Path(path).name: (facts, np.array(scores)) for path, facts, scores in answers}


def assert_same(client: TrainedClient, pixels: Tensor | np.ndarray, scores: Any) -> None:
    """Asserts that the scores give the client's own predictions."""
    images = as_arrays(pixels) if isinstance(pixels, Tensor) else list(pixels)
    for row, prediction in zip(scores, client.predict(images), strict=True):
        assert row.argmax() == prediction.best.class_id
        if prediction.measure == "probability":
            row = np.exp(row) / np.exp(row).sum()
        expected = np.full(len(NAMES), np.inf)
        for candidate in prediction.candidates:
            expected[candidate.class_id] = candidate.value
        np.testing.assert_allclose(row if prediction.measure == "probability" else -row, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("file_format", "architectures"),
    # an exported program takes seconds: only for the architectures with the most complex shapes
    [("torchscript", MINI), ("torch-export", ("mini_inception", "mini_mixer"))],
)
def test_exported_architectures_give_the_same_scores_without_this_project(
    file_format: str, architectures: tuple[str, ...], tmp_path: Path
) -> None:
    clients = {name: client_of(architecture=name) for name in architectures}
    files = [tmp_path / f"{name}{SUFFIXES[file_format]}" for name in architectures]
    for client, path in zip(clients.values(), files, strict=True):
        export(client, path, file_format)
    pixels = random_pixels(5, seed=3)
    found = read_without_project(tmp_path, pixels, files)
    for (name, client), path in zip(clients.items(), files, strict=True):
        facts, scores = found[path.name]
        assert (facts["architecture"], facts["class_names"]) == (name, list(NAMES))
        assert_same(client, pixels, scores)
        # TorchScript's debug records cannot be left out
        assert file_format == "torchscript" or str(Path(__file__).parents[4]).encode() not in path.read_bytes()


@pytest.mark.filterwarnings("ignore:.*torch.jit.load:DeprecationWarning")
@pytest.mark.parametrize(
    ("file_format", "methods"),
    [
        ("torchscript", ("local", "fpl", "lg-fedavg", "fedkd", "fedmrl", "fedproto")),
        ("torch-export", ("fedkd",)),
    ],
)
def test_every_inference_rule_can_be_exported(file_format: str, methods: tuple[str, ...], tmp_path: Path) -> None:
    clients = [client_of(name) for name in methods]
    clients.append(client_of(image_shape=(3, 20, 16), inference="prototype"))
    for client in clients:
        path = tmp_path / f"client{SUFFIXES[file_format]}"
        export(client, path, file_format)
        module: Any = torch.jit.load(path) if file_format == "torchscript" else torch.export.load(path).module()
        pixels = random_pixels(3, client.facts.image_shape)
        assert_same(client, pixels, module(pixels).numpy())
        # images from 0 to 1 would be black
        with pytest.raises(Exception, match=r"uint8|Byte"):
            module(pixels / 255)


@pytest.mark.filterwarnings("ignore:.*torch.jit.load:DeprecationWarning")
@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("pixels", [WORDS, float_range(-1000.0, 3000.0)], ids=["uint16", "float32"])
def test_an_exported_client_takes_pixels_as_in_its_training(
    file_format: str, pixels: PixelRange, tmp_path: Path
) -> None:
    client, path = client_of("local", pixels=pixels), tmp_path / "client"
    export(client, path, file_format)
    images = np.random.default_rng(0).uniform(pixels.low, pixels.high, (3, *GREY)).astype(pixels.dtype)
    scores: Any
    if file_format == "onnx":
        (scores,) = ReferenceEvaluator(onnx.load(path)).run(["scores"], {"images": images})
    else:
        module: Any = torch.jit.load(path) if file_format == "torchscript" else torch.export.load(path).module()
        scores = module(torch.from_numpy(images)).numpy()
        with pytest.raises(Exception, match=r"unsigned char|float32, from -1000 to 3000|uint16, from 0 to 65535"):
            module(torch.zeros(3, *GREY, dtype=torch.uint8))
    assert_same(client, images.transpose(0, 2, 3, 1), scores)
    assert facts_of(client)["input"] == f"{pixels.dtype} [batch, channels, height, width]"


def test_onnx_gives_the_same_scores_in_its_reference_implementation(tmp_path: Path) -> None:
    client, path, pixels = client_of(architecture="mini_mixer"), tmp_path / "client.onnx", random_pixels(5)
    export(client, path, "onnx")
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    (scores,) = ReferenceEvaluator(model).run(["scores"], {"images": pixels.numpy()})
    assert_same(client, pixels, scores)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(metadata[FACTS_NAME]) == json.loads(json.dumps(facts_of(client)))


def test_an_onnx_file_with_different_scores_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert = torch.onnx.export

    def convert_with_a_fault(*args: Any, **options: Any) -> Any:
        converted = convert(*args, **options)
        assert converted is not None
        for weights in converted.model.graph.initializers.values():
            if weights.dtype == onnx_ir.DataType.FLOAT and weights.const_value is not None:
                weights.const_value = onnx_ir.tensor(weights.const_value.numpy() + np.float32(0.1))
        return converted

    monkeypatch.setattr(torch.onnx, "export", convert_with_a_fault)
    with pytest.raises(ExportError, match="mini_plain, once exported, gives different scores"):
        export(client_of(), tmp_path / "client.onnx", "onnx")
    assert list(tmp_path.iterdir()) == []


class PoolsLikeGoogLeNet(nn.Module):
    """Has ceil_mode without an effect, which ONNX's reference gets wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True)

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([images, self.pool(images)], dim=1).flatten(1)[:, -40:]


def test_onnx_exports_pools_with_a_needless_ceil_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "made", lambda shape: PoolsLikeGoogLeNet(), raising=False)
    client, path, pixels = client_of(architecture=f"{__name__}:made"), tmp_path / "client.onnx", random_pixels(5)
    export(client, path, "onnx")
    (scores,) = ReferenceEvaluator(onnx.load(path)).run(["scores"], {"images": pixels.numpy()})
    assert_same(client, pixels, scores)


def test_the_facts_say_what_the_scores_are() -> None:
    assert facts_of(client_of())["scores"] == "minus the distance"
    assert facts_of(client_of("fedproto"))["scores"] == "minus the squared distance"
    assert facts_of(client_of("local"))["scores"] == "logits"


class FixedBatch(nn.Module):
    """Fixes the batch size when it is traced."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten().reshape(int(images.shape[0]), -1)[:, :40]


class DataDependent(nn.Module):
    """Branches on values, which a graph cannot."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, :40] * (2 if float(images.sum()) > 0 else 3)


@pytest.mark.parametrize(("body", "file_format"), [(FixedBatch, "torchscript"), (DataDependent, "torch-export")])
def test_a_model_that_cannot_be_exported_leaves_no_file(
    body: type[nn.Module], file_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "made", lambda shape: body(), raising=False)
    client = client_of(architecture=f"{__name__}:made")
    with pytest.raises(ExportError, match="made") as raised:
        export(client, tmp_path / "client", file_format)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere/client.pt cannot be written: No such file"):
        export(client_of("local"), tmp_path / "nowhere" / "client.pt", "torchscript")


def test_onnx_without_its_packages_says_how_to_install_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feddbp_common.optional_deps.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"ONNX needs onnx, onnxscript: .*\[onnx\]"):
        export(client_of("local"), tmp_path / "client.onnx", "onnx")


def test_these_are_the_formats() -> None:
    assert set(FORMATS) == {*SUFFIXES, "onnx"}
