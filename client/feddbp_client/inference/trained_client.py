"""A client after its training, put to use: images in, predictions out.

client = TrainedClient.load("feddbp-state/clients/RUN/client-3")
for prediction in client.predict(["first.png", "second.jpg"]):
    print(prediction.name, prediction.measure, prediction.best.value)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn

from feddbp_client.data.batches import channels_first, scaled
from feddbp_client.data.images import Picture, fitted
from feddbp_client.inference.restore import read_checkpoint, restore_method
from feddbp_client.methods.base import LocalMethod
from feddbp_client.methods.scores import ScoreKind, Scores
from feddbp_client.training.checkpoint import Checkpoint
from feddbp_client.training.devices import choose_device
from feddbp_common.errors import ConfigurationError

Measure: TypeAlias = Literal["distance", "squared distance", "probability"]
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
    """How far its prototype is, or how probable it is: what the prediction's `measure` says."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The classes an image may belong to, the likeliest first."""

    measure: Measure
    candidates: tuple[Candidate, ...]
    """There is always one. A class the client knows no prototype of is not among them."""

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    @property
    def name(self) -> str:
        """Of the class that is predicted."""
        return self.best.name


def prediction_of(scores: Tensor, kind: ScoreKind, class_names: tuple[str, ...], *, top: int | None) -> Prediction:
    """The best `top` classes of a row of scores [C], or all that can be predicted."""
    row = scores.cpu().double()  # in this order: Apple's GPUs have no float64
    values = row.softmax(dim=0) if kind is ScoreKind.LOGIT else -row
    # stable: of equals the lower id comes first, as it does in a method's own predictions
    order = torch.sort(row, descending=True, stable=True).indices[:top]
    return Prediction(
        measure=_MEASURES[kind],
        candidates=tuple(
            Candidate(class_id=class_id, name=class_names[class_id], value=float(values[class_id]))
            for class_id in order.tolist()
            if row[class_id] != -torch.inf
        ),
    )


ImageLike: TypeAlias = str | Picture
"""A path, the content of a file, a Pillow image, or pixels as uint8 [H, W] or [H, W, 1 or 3]."""
_BATCH: Final = 256


@dataclass(frozen=True, kw_only=True)
class ClientFacts:
    """Which client it is, and what it was trained for."""

    run_id: str
    client_id: int
    method: str
    architecture: str
    round: int
    """How many rounds of the run were over when the server last sent it something."""
    image_shape: tuple[int, int, int]
    """(channels, height, width) of its training images; others are made to fit."""
    class_names: tuple[str, ...]


class Scorer(nn.Module):
    """The rule of inference that counts, alone: pixels in, uint8 [n, C, H, W]; scores out, float32 [n, classes]."""

    def __init__(self, method: LocalMethod) -> None:  # type: ignore[type-arg]
        super().__init__()
        self.method = method.eval().requires_grad_(False)
        with torch.no_grad():
            blank = self._scores(torch.zeros(1, *method.task.image_shape, dtype=torch.uint8, device=method.device))
        self.kind = blank.kind
        self.is_ready = bool((blank.classes() >= 0).all())
        """There is something to compare an image with, where a method compares."""

    def forward(self, images: Tensor) -> Tensor:
        return self._scores(images).values.float()

    def _scores(self, images: Tensor) -> Scores:
        return self.method.scores(scaled(images))[self.method.inference]


class TrainedClient:
    """Predicts as its client does in an evaluation: same pixels, same weights, same rule."""

    def __init__(self, checkpoint: Checkpoint, *, device: str = "auto") -> None:
        self.device = choose_device(gpu=None, device=device)
        self.scorer = Scorer(restore_method(checkpoint, self.device))
        self.facts = ClientFacts(
            run_id=checkpoint.run_id,
            client_id=checkpoint.client_id,
            method=checkpoint.config.method,
            architecture=checkpoint.architecture,
            round=checkpoint.round,
            image_shape=checkpoint.image_shape,
            class_names=checkpoint.class_names,
        )
        if not self.scorer.is_ready:
            raise ConfigurationError(
                f"client {checkpoint.client_id} of run {checkpoint.run_id} cannot predict yet: it compares images with "
                "what the server sends, and that comes when the first round is over"
            )

    @classmethod
    def load(cls, path: str | Path, *, device: str = "auto") -> Self:
        """From a checkpoint, or the directory of a client that wrote one."""
        return cls(read_checkpoint(Path(path)), device=device)

    def predict(self, images: Iterable[ImageLike], *, top: int | None = None) -> list[Prediction]:
        """One prediction an image, of its `top` likeliest classes or of all; DataError names an image that is none."""
        if top is not None and top < 1:
            raise ConfigurationError(f"top is {top}, but a prediction has at least one class")
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

    def _pixels(self, image: ImageLike) -> npt.NDArray[np.uint8]:
        origin = str(image) if isinstance(image, str | Path) else "image"
        return fitted(Path(image) if isinstance(image, str) else image, self.facts.image_shape, origin=origin)


def _as_iterable(images: Iterable[ImageLike]) -> Iterable[ImageLike]:
    """A lone image is taken for one, and not for the letters or rows it consists of."""
    if isinstance(images, np.ndarray):
        alone = images.ndim == 2 or (images.ndim == 3 and images.shape[-1] in (1, 3))
        return [images] if alone else images
    return [images] if isinstance(images, str | bytes | Path | Image.Image) else images
