"""The share of the forward and backward passes of the backbone in the time of a client's round.

`python -m benchmarks.time_shares` times whole rounds (evaluation, training, prototypes and Fisher scores) and,
alternating with them, only the passes through the backbone in such a round.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import fmean

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.measurement import interleaved_ratio
from benchmarks.workload import CLASSES, IMAGE_SHAPE, batch, global_prototypes, split
from feddbp_client.data import ClientData
from feddbp_client.training.setup import build_method
from feddbp_client.training.trainer import PASS_BATCH, LocalTrainer
from feddbp_common.config.catalog import MODEL_GROUPS
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.wire import Payload

TRAINING_SAMPLES = 448
TEST_SAMPLES = 160
EPOCHS = 2
METHODS = ("local", "fedproto", "feddbp")
LARGE = "resnet18"


def _client(method: str, architecture: str) -> LocalTrainer:
    torch.set_num_threads(1)
    config = RunConfig(method=method, data=DataConfig(dataset="cifar100"), training=TrainingConfig(local_epochs=EPOCHS))
    data = ClientData(
        train=split(TRAINING_SAMPLES),
        test=split(TEST_SAMPLES),
        classes=CLASSES,
        class_names=tuple(map(str, range(CLASSES))),
    )
    trained = build_method(config, 0, architecture, "linear", IMAGE_SHAPE)
    return LocalTrainer(method=trained, data=data, config=config, client_id=0)


def _round_of(client: LocalTrainer, received: Payload) -> Callable[[], object]:
    return lambda: client.train(received, 1, lambda *_: None)


def _passes_of(backbone: nn.Module, *, collects: bool) -> Callable[[], None]:
    """Returns the passes of a round: forward and backward for training, forward for evaluation and collection."""
    images, _ = batch(TRAINING_SAMPLES)
    test_images, _ = batch(TEST_SAMPLES)
    batch_size = TrainingConfig().batch_size
    upstream = torch.randn(batch_size, 512)

    def passes() -> None:
        backbone.train()
        for _ in range(EPOCHS):
            for part in images.split(batch_size):
                backbone.zero_grad(set_to_none=True)
                backbone(part).backward(upstream[: len(part)])
        backbone.eval()
        with torch.inference_mode():
            _forward(backbone, test_images)
            if collects:
                _forward(backbone, images)

    return passes


def _forward(backbone: nn.Module, images: Tensor) -> None:
    for part in images.split(PASS_BATCH):
        backbone(part)


def share(method: str, architecture: str, *, repeats: int) -> float:
    received = Payload() if method == "local" else global_prototypes()
    client = _client(method, architecture)
    alone = build_method(RunConfig(), 0, architecture, "linear", IMAGE_SHAPE).backbone
    ratio, _, _ = interleaved_ratio(
        _passes_of(alone, collects=method != "local"), _round_of(client, received), repeats=repeats, warm_up=1
    )
    return ratio


def shares() -> Table:
    table = Table("method", "mini-8: least", "mean", "most", LARGE)
    for method in METHODS:
        small = [share(method, body, repeats=7) for body in MODEL_GROUPS["mini-8"].bodies]
        figures = (min(small), fmean(small), max(small), share(method, LARGE, repeats=3))
        table.add_row(method, *(f"{100 * figure:.0f} %" for figure in figures))
    return table


if __name__ == "__main__":
    # in a thread, as in a daemon: glibc returns memory that the main thread frees to the system at every step
    with ThreadPoolExecutor(1) as thread:
        Console().print(thread.submit(shares).result())
