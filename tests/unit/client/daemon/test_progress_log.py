"""The lines of a client's log about its work."""

from __future__ import annotations

import asyncio
import logging

import pytest

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.progress_log import progress_logged, results_text

EVALUATED = pb.RoundMetrics(
    accuracies=[pb.Accuracy(rule="head", correct=1), pb.Accuracy(rule="prototype", correct=30)],
    inference="prototype",
    test_samples=40,
)
TRAINED = pb.RoundMetrics(
    losses=[pb.LossTerm(name="total", value=0.53217), pb.LossTerm(name="l_s", value=2.0)],
    seconds=pb.Seconds(train=8.12),
    bytes_up=41_234,
)
TRAINED.MergeFrom(EVALUATED)


@pytest.mark.parametrize(
    ("number", "metrics", "text"),
    [
        (0, TRAINED, "loss 0.5322, trained for 8.1 s, 41.2 kB uploaded"),
        (1, TRAINED, "accuracy 75.0 % before training, loss 0.5322, trained for 8.1 s, 41.2 kB uploaded"),
        (9, EVALUATED, "accuracy 75.0 %"),
        (9, pb.RoundMetrics(), "accuracy –"),
        (0, EVALUATED, "evaluated"),
    ],
)
def test_the_results_of_a_round(number: int, metrics: pb.RoundMetrics, text: str) -> None:
    assert results_text(number, metrics) == text


async def test_something_that_takes_long_is_logged_again_and_again_with_its_state(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = 0
    thrice = asyncio.Event()

    def state() -> str:
        nonlocal asked
        asked += 1
        if asked == 3:
            thrice.set()
        return f"epoch {asked}"

    with caplog.at_level(logging.INFO):
        async with asyncio.timeout(30), progress_logged(state, every=0.001):
            await thrice.wait()
            await asyncio.sleep(0)
    assert [message.partition(",")[0] for message in caplog.messages[:3]] == ["epoch 1", "epoch 2", "epoch 3"]
    assert caplog.messages[0].endswith(" so far")


async def test_something_that_is_done_soon_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with progress_logged(lambda: "nothing", every=3600):
            await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert caplog.messages == []
