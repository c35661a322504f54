"""Memory and speed of training on an image folder that is larger than memory, against decoding it in a loop.

`python -m benchmarks.large_folder` generates 100,000 JPEG files of 224 pixels (1.1 GB) and trains two rounds on them in
a process of its own: the first decodes every image, the second reads them from the cache (15 GB). Both are deleted at
the end. `--images` takes fewer, `--directory` another disk.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from torch import nn

from benchmarks.measurement import Measurement, seconds_of, table_of
from feddbp_client.data import CacheSpace
from feddbp_client.training.setup import LocalOptions, build_client
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.wire import Payload

IMAGES = 100_000
SIDE = 224
CLASSES = 10
DIFFERENT = 500
"""Files of different content; the others are copies."""
DECODED_IN_LOOP = 2_000
MOST_MEMORY = 2.0
"""GB of resident memory."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the training process measured."""

    images: int
    cold_seconds: float
    """Evaluation and one epoch, in which every image is decoded."""
    warm_seconds: float
    start_bytes: int
    """The largest resident memory of the process before it opened the folder."""
    peak_bytes: int


def tiny_network(image_shape: tuple[int, int, int]) -> nn.Module:
    """Hardly any computation: what is measured is reading."""
    return nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(image_shape[0] * (image_shape[1] // 16) ** 2, 64))


def write_images(directory: Path, count: int, *, side: int = SIDE) -> None:
    """JPEG files of smooth content, 11 kB at 224 pixels, in one folder per class."""
    random = np.random.default_rng(0)
    contents = []
    for _ in range(min(count, DIFFERENT)):
        coarse = Image.fromarray(random.integers(0, 256, (side // 16, side // 16, 3), dtype=np.uint8))
        file = io.BytesIO()
        coarse.resize((side, side), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        contents.append(file.getvalue())
    for number in range(CLASSES):
        (directory / f"class{number}").mkdir(parents=True)
    for number in range(count):
        (directory / f"class{number % CLASSES}" / f"{number:06d}.jpg").write_bytes(contents[number % len(contents)])


def train(data: Path, cache: Path, side: int) -> Outcome:
    """Two rounds of one epoch, as a client trains them; for a process of its own."""
    torch.set_num_threads(1)
    config = RunConfig(
        clients=1,
        data=DataConfig(dataset="custom", classes=CLASSES, image_size=side),
        training=TrainingConfig(local_epochs=1, feature_dim=64),
    )
    options = LocalOptions(
        data=data,
        data_dir=data,
        model="benchmarks.large_folder:tiny_network",
        image_cache=CacheSpace(directory=cache, size=10**12),
    )
    start_bytes = _peak_bytes()
    client = build_client(config, "benchmark", 0, options)
    seconds = []
    for number in range(2):
        spent = client.trainer.train(Payload(), number, lambda *_: None).metrics.seconds
        seconds.append(spent.evaluate + spent.train)
    return Outcome(
        images=len(client.data.train) + len(client.data.test),
        cold_seconds=seconds[0],
        warm_seconds=seconds[1],
        start_bytes=start_bytes,
        peak_bytes=_peak_bytes(),
    )


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def trained_apart(data: Path, cache: Path, *, side: int = SIDE) -> Outcome:
    """The outcome of `train` in another process."""
    command = [sys.executable, "-m", "benchmarks.large_folder", "--train", str(data), str(cache), str(side)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    return Outcome(**json.loads(done.stdout))


def seconds_in_loop(data: Path) -> float:
    """Seconds per image that plain Pillow takes to decode files one after the other."""
    files = sorted(data.glob("*/*.jpg"))[:DECODED_IN_LOOP]

    def decode_each() -> None:
        for path in files:
            with Image.open(path) as image:
                np.asarray(image.convert("RGB"))

    return seconds_of(decode_each) / len(files)


def measurements(outcome: Outcome, per_image: float) -> list[Measurement]:
    cold, warm = outcome.images / outcome.cold_seconds, outcome.images / outcome.warm_seconds
    decoded = outcome.images * SIDE * SIDE * 3
    detail = f"against {1 / per_image:,.0f} images/s of Pillow in a loop"
    return [
        Measurement(
            question=f"peak resident memory of training on {outcome.images:,} images of {SIDE} pixels",
            value=outcome.peak_bytes / 1e9,
            bar=MOST_MEMORY,
            unit="GB",
            detail=f"decoded, they take {decoded / 1e9:.1f} GB",
        ),
        Measurement(
            question="first epoch, decoding, against decoding in a loop",
            value=cold * per_image,
            bar=0.8,
            at_most=False,
            detail=f"{cold:,.0f} images/s {detail}",
        ),
        Measurement(
            question="later epochs, from the cache, against decoding in a loop",
            value=warm * per_image,
            bar=1.0,
            at_most=False,
            detail=f"{warm:,.0f} images/s {detail}",
        ),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_folder", description=__doc__)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument(
        "--directory", type=Path, help="where files are generated and cached (default: temporary files)"
    )
    parser.add_argument("--train", nargs=3, metavar=("DATA", "CACHE", "SIDE"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.train is not None:
        data, cache, side = options.train
        print(json.dumps(asdict(train(Path(data), Path(cache), int(side)))))
        return 0
    console = Console()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory, console.status("generating images") as status:
        data = Path(directory, "images")
        write_images(data, options.images)
        os.sync()  # or the first epoch would also write the images
        status.update("measuring")
        before = seconds_in_loop(data)
        outcome = trained_apart(data, Path(directory, "cache"))
        measured = measurements(outcome, (before + seconds_in_loop(data)) / 2)
    console.print(table_of(measured))
    return 0 if all(measurement.holds for measurement in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
