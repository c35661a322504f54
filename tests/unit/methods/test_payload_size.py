"""The declared payload sizes of the methods are those of their uploads and downloads."""

from __future__ import annotations

import json

import numpy as np
import pytest
from benchmarks.light_client import synthetic_payload

from feddbp_client.models import build_backbone
from feddbp_common.methods import METHODS, ExchangeShape
from feddbp_common.methods.payload_size import ImageShape
from feddbp_common.wire import Payload, encode
from feddbp_common.wire.codec import REAL_TYPES
from feddbp_lab.cli import main

RGB_32: ImageShape = (3, 32, 32)
RGB_64: ImageShape = (3, 64, 64)

# bytes up and down per client and round for 10 and for 100 classes, 512 channels, one client
EXPECTED = {
    "feddbp": (40_960, 20_480, 409_600, 204_800),
    "fedproto": (20_480, 20_480, 204_800, 204_800),
    "fedproc": (20_520, 20_480, 205_200, 204_800),
    "fpl": (20_480, 20_520, 204_800, 205_200),
    "fedtgp": (20_480, 20_480, 204_800, 204_800),
    "fedlfp": (20_560, 20_480, 205_600, 204_800),
    "fd": (400, 400, 40_000, 40_000),
    "lg-fedavg": (20_520, 20_520, 205_200, 205_200),
    "fedgen": (20_520, 1_167_400 + 40, 205_200, 1_536_400 + 400),
    "fedkd": (3_514_152, 3_514_152, 3_698_832, 3_698_832),
    "fedmrl": (3_498_792, 3_498_792, 3_545_232, 3_545_232),
    "fedavg": (3_476_392, 3_476_392, 3_661_072, 3_661_072),
    "frozen": (20_520, 20_520, 205_200, 205_200),
    "local": (0, 0, 0, 0),
}
DEPENDS_ON_IMAGES = ("fedkd", "fedmrl", "fedavg")


def largest_upload(name: str, shape: ExchangeShape) -> int:
    """Bytes of the largest upload that the rules accept."""
    rules = METHODS[name].upload_rules(METHODS[name].settings(), shape)
    tensors = {
        rule.name: np.zeros([dim.high for dim in rule.shape], np.float32 if rule.types == REAL_TYPES else np.int32)
        for rule in rules.tensors
    }
    payload = synthetic_payload(rules, 0) if rules.prototypes else Payload(tensors=tensors)
    return encode(payload).manifest.total_bytes


def bytes_of(name: str, classes: int, image: ImageShape = RGB_32) -> tuple[int, int]:
    method, shape = METHODS[name], ExchangeShape(classes=classes, feature_dim=512)
    assert method.up is not None
    assert method.down is not None
    settings = method.settings()
    return method.up.size(settings, shape, image), method.down.size(settings, shape, image)


def test_every_method_has_payload_sizes() -> None:
    assert set(EXPECTED) == set(METHODS)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_bytes_are_those_of_the_published_methods(name: str) -> None:
    assert (*bytes_of(name, 10), *bytes_of(name, 100)) == EXPECTED[name]


@pytest.mark.parametrize("name", [name for name in EXPECTED if name not in DEPENDS_ON_IMAGES])
def test_an_upload_with_every_class_has_the_declared_size(name: str) -> None:
    counts = 4 * 10 if name == "fedproc" else 0  # they are in the manifest
    assert largest_upload(name, ExchangeShape(classes=10, feature_dim=512)) + counts == bytes_of(name, 10)[0]


@pytest.mark.parametrize("image", [RGB_32, RGB_64, (1, 28, 28)])
def test_the_small_network_has_the_declared_size(image: ImageShape) -> None:
    body = sum(weight.numel() for weight in build_backbone("cnn4", image).parameters())
    assert bytes_of("fedkd", 10, image)[0] == 4 * (body + 10 * 513)
    assert bytes_of("fedmrl", 10, image)[0] == 4 * (body + 10 * 129)


def test_top_channels_are_sent_as_indices() -> None:
    method, shape = METHODS["feddbp"], ExchangeShape(classes=10, feature_dim=512, top_channels_only=True)
    assert method.up is not None
    assert largest_upload("feddbp", shape) == method.up.size(method.settings(), shape, RGB_32) == 20_480 + 600


def test_the_command_prints_sizes_for_the_requested_classes_and_images(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "--classes", "200", "--image-size", "64", "--json"]) == 0
    printed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert printed["fedkd"]["up"]["bytes"] == 22_778_400
    assert printed["fedmrl"]["down"]["bytes"] == 22_471_200
    assert printed["feddbp"]["up"] == {
        "content": "prototypes and Fisher scores",
        "formula": "8md; 4md + 2m k_top as top channels",
        "bytes": 8 * 200 * 512,
    }


def test_an_impossible_number_of_classes_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "--classes", "1"]) == 2
    assert "--classes: '1' is not a number from 2 to 65536" in capsys.readouterr().err
