"""Flips, crops and transforms of one's own: what they do to pixels, and in training."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from feddbp_client.training.augmentation import Augmentation, augmentation_of, build_augmentation
from feddbp_client.training.setup import LocalClient, LocalOptions, build_client
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.errors import ConfigurationError
from feddbp_common.wire import Payload

NAMES = ("flip", "flip-crop", "randaugment")
TYPES = (torch.uint8, torch.uint16, torch.int16, torch.float32)
SHAPES = ((3, 14, 18), (1, 16, 16), (1, 13, 7), (3, 5, 5))


def numbered(shape: tuple[int, int, int], dtype: torch.dtype = torch.uint8) -> Tensor:
    """An image whose pixels all differ, and are not zero; in another order in each channel."""
    channels, height, width = shape
    numbers = torch.arange(1, height * width + 1).reshape(1, height, width)
    return torch.cat([numbers.roll(channel, -1) for channel in range(channels)]).to(dtype)


def built(name: str, shape: tuple[int, int, int]) -> Augmentation:
    augmentation = build_augmentation(name, shape)
    assert augmentation is not None
    return augmentation


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def windows(image: Tensor, padding: tuple[int, int]) -> Tensor:
    """Every crop of the zero-padded image and of its mirror image."""
    _, height, width = image.shape
    above, beside = padding
    return torch.stack(
        [
            F.pad(seen, (beside, beside, above, above))[:, top : top + height, left : left + width]
            for seen in (image, image.flip(-1))
            for top in range(2 * above + 1)
            for left in range(2 * beside + 1)
        ]
    )


def chosen(changed: Tensor, candidates: Tensor) -> Tensor:
    """By sample, the number of the candidate it equals; fails unless there is exactly one."""
    equal = (changed.unsqueeze(1) == candidates).flatten(2).all(2)
    assert (equal.sum(1) == 1).all()
    return equal.long().argmax(1)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_flip_mirrors_half_of_the_samples(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    image = numbered(shape, dtype)
    changed = built("flip", shape)(image.repeat(1000, 1, 1, 1), seeded())
    assert changed.dtype == dtype
    mirrored = chosen(changed.int(), windows(image.int(), (0, 0)))
    assert 450 < mirrored.sum() < 550


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_flip_crop_gives_windows_of_the_image_padded_by_an_eighth(
    shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    _, height, width = shape
    image = numbered(shape, dtype)
    changed = built("flip-crop", shape)(image.repeat(50, 1, 1, 1), seeded())
    assert changed.dtype == dtype
    assert changed.shape == (50, *shape)
    candidates = windows(image.int(), (-(-height // 8), -(-width // 8)))
    assert len(chosen(changed.int(), candidates).unique()) > 10


def test_the_padding_is_four_for_a_side_of_32() -> None:
    white = torch.ones(500, 1, 32, 32, dtype=torch.uint8)
    changed = built("flip-crop", (1, 32, 32))(white, seeded())
    assert changed.sum(2).amin().item() == changed.sum(3).amin().item() == 0
    assert changed.amax(2).sum(2).amin().item() == changed.amax(3).sum(2).amin().item() == 32 - 4


def test_images_of_floats_are_padded_with_their_black() -> None:
    image = numbered((1, 9, 9), torch.float32)
    augment = build_augmentation("flip-crop", (1, 9, 9), float_range=(-5.0, 100.0))
    assert augment is not None
    changed = augment(image.repeat(50, 1, 1, 1), seeded())
    chosen(changed, windows(image + 5, (2, 2)) - 5)
    assert changed.min() == -5


def test_every_window_is_about_as_frequent_as_the_others() -> None:
    image = numbered((1, 13, 15))
    candidates = windows(image, (2, 2))
    changed = built("flip-crop", (1, 13, 15))(image.repeat(100 * len(candidates), 1, 1, 1), seeded())
    counts = chosen(changed, candidates).bincount(minlength=len(candidates))
    assert len(candidates) == 50
    assert 60 < counts.min() <= counts.max() < 140


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_bits_and_the_next_epoch_others(name: str) -> None:
    augment = built(name, (3, 16, 16))
    pixels = torch.randint(256, (32, 3, 16, 16), generator=seeded(), dtype=torch.uint8)
    first, again = seeded(7), seeded(7)
    epochs = [augment(pixels, first) for _ in range(2)]
    assert torch.equal(augment(pixels, again), epochs[0])
    assert torch.equal(augment(pixels, again), epochs[1])
    assert not torch.equal(*epochs)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_not_changed_in_place_and_uses_a_fixed_amount_of_its_generator_alone(name: str) -> None:
    augment = built(name, (3, 16, 16))
    states = []
    for dtype in TYPES:
        for pixels in (torch.zeros(8, 3, 16, 16), torch.rand(8, 3, 16, 16, generator=seeded(1)).mul(255)):
            stored, generator, common = pixels.to(dtype), seeded(), torch.get_rng_state()
            kept = stored.clone()
            augment(stored, generator)
            assert torch.equal(stored, kept)
            assert torch.equal(torch.get_rng_state(), common)
            states.append(generator.get_state())
    assert all(torch.equal(state, states[0]) for state in states)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_read_back_from_the_device(name: str, dtype: torch.dtype) -> None:
    # the meta device has shapes and types, and no values; most operations refuse a tensor of another device beside it
    pixels = torch.zeros(64, 3, 16, 16, dtype=dtype, device="meta")
    changed = built(name, (3, 16, 16))(pixels, seeded())
    assert (changed.shape, changed.dtype, changed.device) == (pixels.shape, pixels.dtype, pixels.device)


def test_none_is_no_augmentation() -> None:
    assert build_augmentation("none", (3, 8, 8)) is None
    assert augmentation_of(TrainingConfig(), torch.zeros(2, 3, 8, 8), allowed=()) is None


BLANK = torch.zeros(2, 1, 6, 6, dtype=torch.uint8)


@pytest.fixture
def own_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module as a user might write it."""
    module = types.ModuleType("own_changes")

    def broken(pixels: Tensor, generator: torch.Generator) -> Tensor:
        raise RuntimeError("no luck,\nand on two lines")

    def noise(pixels: Tensor, generator: torch.Generator) -> Tensor:
        return pixels + torch.randint(2, pixels.shape, generator=generator).to(pixels)

    module.__dict__.update(
        brighten=lambda pixels, generator: pixels + 1,
        noise=noise,
        broken=broken,
        side=6,
        as_float=lambda pixels, generator: pixels / 255,
        cropped=lambda pixels, generator: pixels[..., 1:, 1:],
        as_array=lambda pixels, generator: pixels.numpy(),
        no_generator=lambda pixels: pixels,
        elsewhere=lambda pixels, generator: pixels.to("meta"),
    )
    monkeypatch.setitem(sys.modules, "own_changes", module)


def training(transform: str, augment: str = "none") -> TrainingConfig:
    return TrainingConfig.model_validate({"transform": transform, "augment": augment})


def test_a_transform_of_ones_own_is_applied_after_the_built_in_augmentation(own_changes: None) -> None:
    pixels = numbered((1, 6, 6)).repeat(20, 1, 1, 1)
    alone = augmentation_of(training("own_changes:brighten"), BLANK, allowed=["own_changes"])
    after = augmentation_of(training("own_changes:brighten", "flip-crop"), BLANK, allowed=["own_changes"])
    assert alone is not None
    assert after is not None
    assert torch.equal(alone(pixels, seeded()), pixels + 1)
    # the zeros beside a cropped image are there when the transform sees it
    assert torch.equal(after(pixels, seeded()), built("flip-crop", (1, 6, 6))(pixels, seeded()) + 1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "failed on a blank batch of torch.uint8 (2, 1, 6, 6) on cpu: no luck, and on two lines"),
        ("no_generator", "failed on a blank batch"),
        ("as_array", "returned ndarray, not a tensor"),
        ("as_float", "made torch.float32 (2, 1, 6, 6) on cpu of torch.uint8 (2, 1, 6, 6) on cpu"),
        ("cropped", "made torch.uint8 (2, 1, 5, 5) on cpu of"),
        ("elsewhere", "made torch.uint8 (2, 1, 6, 6) on meta of"),
        ("side", "is not a function"),
        ("missing", "own_changes has no 'missing'"),
    ],
)
def test_a_transform_that_does_not_work_is_described_in_one_line(name: str, message: str, own_changes: None) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        augmentation_of(training(f"own_changes:{name}"), BLANK, allowed=["own_changes"])
    text = str(refusal.value)
    assert text.startswith(f"the run's transform own_changes:{name}: ")
    assert message in text
    assert "\n" not in text


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "squares.npz"
    random = np.random.default_rng(0)
    np.savez(path, x_train=random.integers(0, 256, (40, 8, 8), np.uint8), y_train=np.arange(40) % 2)
    return path


def client(data: Path, augment: str = "none", transform: str = "", allow_import: tuple[str, ...] = ()) -> LocalClient:
    config = RunConfig(
        method="local",
        data=DataConfig(dataset="custom", classes=2),
        training=TrainingConfig.model_validate(
            {"local_epochs": 2, "batch_size": 8, "feature_dim": 8, "augment": augment, "transform": transform}
        ),
    )
    options = LocalOptions(data=data, data_dir=Path(), model=None, allow_import=allow_import)
    return build_client(config, "run", 0, options)


def weights(client: LocalClient, round_number: int = 1) -> Tensor:
    """The weights after a round of training from the initial ones."""
    client.trainer.train(Payload(), round_number, lambda done, total: None)
    return torch.cat([parameter.detach().flatten() for parameter in client.trainer.method.parameters()])


@pytest.mark.parametrize("augment", NAMES)
def test_training_with_augmentation_is_reproducible_and_not_the_same_as_without(data: Path, augment: str) -> None:
    augmented = weights(client(data, augment))
    assert torch.equal(weights(client(data, augment)), augmented)
    assert not torch.equal(weights(client(data)), augmented)
    assert not torch.equal(weights(client(data, augment), round_number=2), augmented)


def test_only_training_sees_changed_images(data: Path, own_changes: None) -> None:
    seen: list[Tensor] = []

    def recorded(pixels: Tensor, generator: torch.Generator) -> Tensor:
        seen.append(pixels)
        return pixels

    sys.modules["own_changes"].recorded = recorded  # type: ignore[attr-defined]
    trainer = client(data, transform="own_changes:recorded", allow_import=("own_changes",)).trainer
    seen.clear()
    trainer.evaluate(Payload(), 1)
    assert not seen
    trainer.train(Payload(), 1, lambda done, total: None)
    # two epochs over 30 of the 40 samples, as they are stored
    assert [len(pixels) for pixels in seen] == 2 * [8, 8, 8, 6]
    assert all(pixels.dtype == torch.uint8 for pixels in seen)


def test_a_client_uses_a_transform_only_if_its_operator_allows_it(data: Path, own_changes: None) -> None:
    noisy = weights(client(data, transform="own_changes:noise", allow_import=("own_changes",)))
    assert not torch.equal(noisy, weights(client(data)))
    with pytest.raises(ConfigurationError, match=r"--allow-import own_changes$"):
        client(data, transform="own_changes:noise")
