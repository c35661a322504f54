"""Inference with a trained client: images in, predictions out.

client = TrainedClient.load("feddbp-state/clients/RUN/client-3")
for prediction in client.predict(["first.png", "second.jpg"]):
    print(prediction.name, prediction.measure, prediction.best.value)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn

from feddbp_client.compute.devices import choose_device
from feddbp_client.data.batches import channels_first, scaled
from feddbp_client.data.decoding import Picture, fitted
from feddbp_client.data.pixels import BYTES, PixelRange
from feddbp_client.inference.restore import restore_method
from feddbp_client.methods.base import LocalMethod
from feddbp_client.methods.scores import ScoreKind, Scores
from feddbp_client.training.checkpoint import Checkpoint, read_checkpoint
from feddbp_common.errors import ConfigurationError

ImageLike: TypeAlias = Picture
"""A path, the content of a file, a Pillow image, or pixels as an array [H, W] or [H, W, 1 or 3]."""
Measure: TypeAlias = Literal["distance", "squared distance", "probability"]

_BATCH: Final = 256
_MEASURES: Final[dict[ScoreKind, Measure]] = {
    ScoreKind.DISTANCE: "distance",
    ScoreKind.SQUARED_DISTANCE: "squared distance",
    ScoreKind.LOGIT: "probability",
}


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A class an image may belong to."""

    class_id: int
    name: str
    value: float
    """The distance to its prototype, or its probability, as the prediction's `measure` says."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The classes an image may belong to, the likeliest first."""

    measure: Measure
    candidates: tuple[Candidate, ...]
    """At least one; classes without a prototype are left out."""

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    @property
    def name(self) -> str:
        """The name of the predicted class."""
        return self.best.name


@dataclass(frozen=True, kw_only=True)
class ClientFacts:
    """The identity of a client, and what it was trained on."""

    run_id: str
    client_id: int
    method: str
    architecture: str
    round: int
    """Completed rounds of the run at its last download."""
    image_shape: tuple[int, int, int]
    """(channels, height, width) of its training images; other images are resized."""
    class_names: tuple[str, ...]
    pixels: PixelRange = BYTES
    """The type and range of its training images."""


class TrainedClient:
    """Predicts with the pixels, the weights and the rule of the client's evaluation."""

    def __init__(self, checkpoint: Checkpoint, *, device: str = "auto") -> None:
        self.device = choose_device(device)
        self.scorer = Scorer(restore_method(checkpoint, self.device), checkpoint.pixels)
        self.facts = ClientFacts(
            run_id=checkpoint.run_id,
            client_id=checkpoint.client_id,
            method=checkpoint.config.method,
            architecture=checkpoint.architecture,
            round=checkpoint.round,
            image_shape=checkpoint.image_shape,
            class_names=checkpoint.class_names,
            pixels=checkpoint.pixels,
        )
        if not self.scorer.is_ready:
            raise ConfigurationError(
                f"client {checkpoint.client_id} of run {checkpoint.run_id} cannot predict yet: it compares images "
                "with prototypes, which the server sends when the first round is over"
            )

    @classmethod
    def load(cls, path: str | Path, *, device: str = "auto") -> Self:
        """Loads a checkpoint file, or the one in a client's directory."""
        return cls(read_checkpoint(Path(path)), device=device)

    def predict(self, images: Iterable[ImageLike], *, top: int | None = None) -> list[Prediction]:
        """One prediction per image, of all classes or the `top` likeliest; DataError names an unreadable image."""
        if top is not None and top < 1:
            raise ConfigurationError(f"top is {top}, it must be at least 1")
        return [
            prediction_of(scores, self.scorer.kind, self.facts.class_names, top=top)
            for pixels in self._batches(images)
            for scores in self._scores(pixels)
        ]

    @torch.inference_mode()
    def _scores(self, pixels: Tensor) -> Tensor:
        found: Tensor = self.scorer(pixels.to(self.device))
        return found

    def _batches(self, images: Iterable[ImageLike]) -> Iterator[Tensor]:
        remaining = iter(_as_iterable(images))
        while batch := list(islice(remaining, _BATCH)):
            yield channels_first(np.stack([self._pixels(image) for image in batch]))

    def _pixels(self, image: ImageLike) -> npt.NDArray[Any]:
        origin = str(image) if isinstance(image, str | Path) else "image"
        return fitted(image, self.facts.image_shape, origin=origin, dtype=np.dtype(self.facts.pixels.dtype))


class Scorer(nn.Module):
    """The method's main inference rule as a module: stored pixels [n, C, H, W] to float32 scores [n, classes]."""

    def __init__(self, method: LocalMethod, pixels: PixelRange) -> None:  # type: ignore[type-arg]
        super().__init__()
        self.method = method.eval().requires_grad_(False)
        self._pixels = pixels
        with torch.no_grad():
            blank = self._scores(torch.zeros(1, *method.task.image_shape, device=method.device))
        self.kind = blank.kind
        self.is_ready = bool((blank.classes() >= 0).all())
        """False while a rule that compares with prototypes has received none."""

    def forward(self, images: Tensor) -> Tensor:
        return self._scores(images).values.float()

    def _scores(self, images: Tensor) -> Scores:
        return self.method.scores(scaled(images, self._pixels))[self.method.inference]


def prediction_of(scores: Tensor, kind: ScoreKind, class_names: tuple[str, ...], *, top: int | None) -> Prediction:
    """The best `top` classes of a row of scores [C], or all that can be predicted."""
    row = scores.cpu().double()  # in this order: Apple's GPUs have no float64
    values = row.softmax(dim=0) if kind is ScoreKind.LOGIT else -row
    # stable: equal scores are ordered by class id, as in a method's own predictions
    order = torch.sort(row, descending=True, stable=True).indices[:top]
    return Prediction(
        measure=_MEASURES[kind],
        candidates=tuple(
            Candidate(class_id=class_id, name=class_names[class_id], value=float(values[class_id]))
            for class_id in order.tolist()
            if row[class_id] != -torch.inf
        ),
    )


def _as_iterable(images: Iterable[ImageLike]) -> Iterable[ImageLike]:
    """Wraps a single image, which may be iterable itself (a path, bytes, an array), in a list."""
    if isinstance(images, np.ndarray):
        alone = images.ndim == 2 or (images.ndim == 3 and images.shape[-1] in (1, 3))
        return [images] if alone else images
    return [images] if isinstance(images, str | bytes | Path | Image.Image) else images
