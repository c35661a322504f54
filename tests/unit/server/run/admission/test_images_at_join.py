"""Images that do not fit a network which all clients share are refused when a client joins."""

from __future__ import annotations

from pathlib import Path

import pytest
from coordinator_runs import CONFIG, Server, join_request

from feddbp_common.config.run import RunConfig
from feddbp_common.methods import split_preset
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.store import MemoryStore

REFUSED = (
    "FedKD shares a network among all clients: images of client 1 are 28x28 with 1 channel, "
    "those of client 0 32x32 with 1 channel; start the run with --image-size N"
)


async def joined(method: str, directory: Path, *shapes: tuple[int, int, int]) -> None:
    name, settings = split_preset(method)
    config = RunConfig(method=name, method_settings=settings, clients=3, data=CONFIG.data)
    async with Server(MemoryStore(), directory, config=config) as server:
        for client_id, shape in enumerate(shapes):
            request = join_request(server.coordinator, client_id)
            request.data.image_shape.extend(shape)
            await server.coordinator.join(request)


@pytest.mark.parametrize(
    ("method", "other", "message"),
    [
        ("fedkd", (1, 28, 28), REFUSED),
        ("fedmrl", (3, 32, 32), "give them the same channels"),
        ("fedavg", (3, 32, 32), "give them the same channels"),
        ("feddbp:guided", (3, 32, 32), "give them the same channels"),
        ("fedkd", (1, 0, 28), "is not channels, height and width"),
    ],
)
async def test_a_method_that_shares_a_network_needs_equal_images(
    method: str, other: tuple[int, int, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError) as refused:
        await joined(method, tmp_path, (1, 32, 32), other)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("method", "other"),
    [("fedkd", (1, 32, 32)), ("fedavg", (1, 28, 28)), ("feddbp:guided", (1, 28, 28)), ("feddbp", (3, 9, 9))],
)
async def test_images_that_fit_are_admitted(method: str, other: tuple[int, int, int], tmp_path: Path) -> None:
    await joined(method, tmp_path, (1, 32, 32), other)
