"""`feddbp predict`: classifies images with a trained client, a line each."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from feddbp_client.config import DEVICE_HELP
from feddbp_common.artifacts import CHECKPOINT_NAME
from feddbp_common.config.command_line import settings_from
from feddbp_common.config.types import FrozenModel
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.humanize import percent
from feddbp_common.image_names import is_image_name
from feddbp_lab.commands.checkpoints import checkpoint_parser, load_client

if TYPE_CHECKING:
    from feddbp_client.inference.trained_client import Candidate, Prediction, TrainedClient

PROG: Final = "feddbp predict"


class PredictionConfig(FrozenModel):
    """Prediction: what is printed for each image."""

    top: int = Field(3, ge=1, description="number of classes printed per image, the likeliest first")
    device: str = Field("auto", description=DEVICE_HELP)
    json_output: bool = Field(False, description="one JSON object per image", json_schema_extra={"flag": "--json"})


class PredictConfig(FrozenModel):
    """All options of `feddbp predict`."""

    prediction: PredictionConfig = PredictionConfig()


def command(argv: Sequence[str]) -> int:
    parser = checkpoint_parser(PROG, "IMAGE...", "Classifies images with a trained client.", PredictConfig)
    parser.add_argument(
        "images",
        nargs="+",
        metavar="IMAGE",
        help="image files of any kind and size, or folders of them",
    )
    flags = parser.parse_intermixed_args(argv)
    options = settings_from(PredictConfig, flags).prediction
    images = [image for given in flags.images for image in _images(given)]
    client = load_client(flags.checkpoint, prog=PROG, device=options.device)
    width = max(map(len, images))
    # one by one: each result is printed at once, and a file that is no image does not affect the others
    readable = [_predict(client, image, options, width) for image in images]
    return ExitCode.OK if all(readable) else ExitCode.USAGE


def _images(given: str) -> list[str]:
    """A file as it is given, and the images in a folder and those below it, sorted."""
    path = Path(given)
    if not path.is_dir():
        return [given]
    if (path / CHECKPOINT_NAME).exists():
        raise ConfigurationError(f"{given}: is a second CHECKPOINT; give one, and then images")
    found = sorted(str(file) for file in path.rglob("*") if file.is_file() and is_image_name(file))
    if not found:
        raise ConfigurationError(f"{given}: holds no images")
    return found


def _predict(client: TrainedClient, image: str, options: PredictionConfig, width: int) -> bool:
    """Prints the prediction for an image, or the error; returns whether the file is an image."""
    from feddbp_client.data import DataError

    try:
        (prediction,) = client.predict([image], top=options.top)
    except DataError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr, flush=True)
        if options.json_output:
            print(json.dumps({"image": image, "error": str(error)}), flush=True)
        return False
    print(
        json.dumps(as_dict(image, prediction)) if options.json_output else as_line(image, prediction, width), flush=True
    )
    return True


def as_line(image: str, prediction: Prediction, width: int) -> str:
    best, *others = prediction.candidates
    line = f"{image:<{width}}  {best.name}  ({prediction.measure} {_value(best, prediction)})"
    if others:
        line += "  then " + ", ".join(f"{other.name} ({_value(other, prediction)})" for other in others)
    return line


def as_dict(image: str, prediction: Prediction) -> dict[str, Any]:
    return {
        "image": image,
        "class": prediction.name,
        "measure": prediction.measure,
        "candidates": [
            {"class": candidate.name, "class_id": candidate.class_id, "value": candidate.value}
            for candidate in prediction.candidates
        ],
    }


def _value(candidate: Candidate, prediction: Prediction) -> str:
    return percent(candidate.value) if prediction.measure == "probability" else f"{candidate.value:.3f}"
