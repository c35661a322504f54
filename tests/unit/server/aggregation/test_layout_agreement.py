"""Layouts: shapes that no rule fixes and all clients must share, decided by the first upload of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coordinator_runs import CLASSES, CLIENTS, Server, join_all, parts
from run_machine import ids

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.wire import Encoded, Payload, encode
from feddbp_common.wire.svd import compress
from feddbp_server.run.refusals import RefusedError
from feddbp_server.store import MemoryStore

WIDTH = 6


def run(method: str, **settings: Any) -> RunConfig:
    return RunConfig(
        method=method,
        method_settings=settings,
        clients=CLIENTS,
        rounds=2,
        data=DataConfig(dataset="custom", classes=CLASSES),
        training=TrainingConfig(feature_dim=WIDTH),
    )


def small_model(*, channels: int = 1, side: int = 1, head: int = WIDTH) -> dict[str, Any]:
    """The upload of a client with this number of image channels and this size of its last feature map."""
    shapes = {
        "conv1.weight": (32, channels, 5, 5),
        "conv1.bias": (32,),
        "conv2.weight": (64, 32, 5, 5),
        "conv2.bias": (64,),
        "fc.weight": (512, 64 * side * side),
        "fc.bias": (512,),
        "head.weight": (CLASSES, head),
        "head.bias": (CLASSES,),
    }
    return {name: np.full(shape, 0.5, dtype=np.float32) for name, shape in shapes.items()}


def trained_upload(*, compressed: bool = False, **images: int) -> Encoded:
    tensors = small_model(**images)
    return encode(Payload(tensors=compress(tensors, 0.9) if compressed else tensors))


async def upload(server: Server, session: str, encoded: Encoded, number: int = 0) -> None:
    await server.upload(parts(session, number, encoded, chunk=1 << 18))


async def refusal(server: Server, session: str, encoded: Encoded, number: int = 0) -> RefusedError:
    with pytest.raises(RefusedError) as refused:
        await upload(server, session, encoded, number)
    return refused.value


async def test_a_client_with_other_images_is_refused_and_the_run_continues(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path, config=run("fedmrl", small_dim=WIDTH)) as server:
        first, second, third = await join_all(server)
        await upload(server, first.secret, trained_upload())
        refused = await refusal(server, second.secret, trained_upload(channels=3))
        assert str(refused) == "conv1.weight: has shape [32, 3, 5, 5], for other clients [32, 1, 5, 5]"
        assert refused.details.reason == pb.REFUSAL_REASON_INVALID_PAYLOAD
        assert refused.details.field == "conv1.weight"
        assert server.engine.state.uploaded == ids(0)
        for daemon in (second, third):
            await upload(server, daemon.secret, trained_upload())
        await server.until_round(1)


async def test_with_a_known_image_size_the_first_upload_decides_nothing(tmp_path: Path) -> None:
    config = run("fedmrl", small_dim=WIDTH)
    config = config.model_copy(update={"data": DataConfig(dataset="custom", classes=CLASSES, image_size=16)})
    async with Server(MemoryStore(), tmp_path, config=config) as server:
        first, second, _ = await join_all(server)
        assert str(await refusal(server, first.secret, trained_upload(side=2))).startswith("fc.weight: ")
        await upload(server, second.secret, trained_upload(side=1))


async def test_another_layout_is_refused_on_the_header_before_a_chunk_is_read(tmp_path: Path) -> None:
    async def endless(session: str) -> Any:
        manifest = trained_upload(side=2).manifest
        yield pb.UploadPart(header=pb.UploadHeader(session=session, round=0, manifest=manifest, awaits_admission=True))
        raise AssertionError("the body was asked for")

    async with Server(MemoryStore(), tmp_path, config=run("fedmrl", small_dim=WIDTH)) as server:
        first, second, _ = await join_all(server)
        await upload(server, first.secret, trained_upload())
        with pytest.raises(RefusedError, match=r"fc\.weight"):
            await server.upload(endless(second.secret))


async def test_a_tensor_may_be_sent_in_either_form(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path, config=run("fedkd")) as server:
        first, second, third = await join_all(server)
        await upload(server, first.secret, trained_upload(compressed=True))
        assert (await refusal(server, second.secret, trained_upload(compressed=True, side=2))).details.field == (
            "fc.weight"
        )
        await upload(server, second.secret, trained_upload())
        await upload(server, third.secret, trained_upload(compressed=True))
        await server.until_round(1)


async def test_a_tensor_in_no_form_or_in_both_is_refused(tmp_path: Path) -> None:
    dense, factors = small_model(), compress(small_model(), 0.9)
    assert "conv1.weight.u" in factors
    without = {name: tensor for name, tensor in dense.items() if name != "fc.weight"}
    async with Server(MemoryStore(), tmp_path, config=run("fedkd")) as server:
        first, *_ = await join_all(server)
        for tensors, reason in ((without, "is missing"), ({**dense, **factors}, "sent together with conv1.weight")):
            refused = await refusal(server, first.secret, encode(Payload(tensors=tensors)))
            assert reason in str(refused)


@pytest.mark.parametrize("completed", [0, 1])
async def test_the_layout_survives_a_restart(tmp_path: Path, completed: int) -> None:
    """Also while the open round has no upload yet."""
    store, config = MemoryStore(), run("fedmrl", small_dim=WIDTH)
    async with Server(store, tmp_path, config=config) as server:
        daemons = await join_all(server)
        for daemon in daemons if completed else daemons[:1]:
            await upload(server, daemon.secret, trained_upload())
        await server.until_round(completed)
        await server.settled()
    async with Server(store, tmp_path, config=config) as server:
        for daemon in daemons[1:]:
            assert "for other clients" in str(
                await refusal(server, daemon.secret, trained_upload(channels=3), completed)
            )
        for daemon in daemons if completed else daemons[1:]:
            await upload(server, daemon.secret, trained_upload(), completed)
        await server.until_round(completed + 1)


async def test_methods_whose_rules_admit_no_tensors_have_no_layout(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path, config=run("feddbp", k_top=2)) as server:
        assert server.engine.aggregator.check_layout(pb.Manifest()) == {}
