"""Layouts: shapes that no rule fixes and all clients must share, decided by the majority of the first round."""

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
from feddbp_server.rpc.status_reply import status_of
from feddbp_server.run.admission.refusals import RefusedError
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


@pytest.mark.parametrize("first", [0, 2], ids=["comes first", "comes last"])
async def test_a_client_with_other_images_shuts_nobody_out(tmp_path: Path, first: int) -> None:
    async with Server(MemoryStore(), tmp_path, config=run("fedmrl", small_dim=WIDTH)) as server:
        daemons = await join_all(server)
        order = [*daemons[first:], *daemons[:first]]
        unlike = daemons[first]
        for daemon in order:
            await upload(server, daemon.secret, trained_upload(channels=3 if daemon is unlike else 1))
        await server.until_round(1)
        assert server.engine.state.left_out == ids(first)
        (incident,) = status_of(server.view).incidents
        assert incident.client_id == first
        assert "left out, conv1.weight has shape [32, 3, 5, 5], for other clients [32, 1, 5, 5]" in incident.message
        refused = await refusal(server, unlike.secret, trained_upload(channels=3), 1)
        assert str(refused) == "conv1.weight: has shape [32, 3, 5, 5], for other clients [32, 1, 5, 5]"
        assert refused.details.reason == pb.REFUSAL_REASON_INVALID_PAYLOAD
        assert refused.details.field == "conv1.weight"
        for daemon in daemons:
            await upload(server, daemon.secret, trained_upload(), 1)
        await server.until_round(2)
        assert not server.engine.state.left_out


async def test_of_as_many_clients_on_either_side_those_of_the_lowest_id_decide(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path, config=run("fedmrl", small_dim=WIDTH)) as server:
        for channels, daemon in zip((1, 2, 3), await join_all(server), strict=True):
            await upload(server, daemon.secret, trained_upload(channels=channels))
        await server.until_round(1)
        assert server.engine.state.left_out == ids(1, 2)


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
        yield pb.UploadPart(header=pb.UploadHeader(session=session, round=1, manifest=manifest, awaits_admission=True))
        raise AssertionError("the body was asked for")

    async with Server(MemoryStore(), tmp_path, config=run("fedmrl", small_dim=WIDTH)) as server:
        daemons = await join_all(server)
        for daemon in daemons:
            await upload(server, daemon.secret, trained_upload())
        await server.until_round(1)
        with pytest.raises(RefusedError, match=r"fc\.weight"):
            await server.upload(endless(daemons[1].secret))


async def test_a_tensor_may_be_sent_in_either_form(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path, config=run("fedkd")) as server:
        first, second, third = await join_all(server)
        await upload(server, first.secret, trained_upload(compressed=True))
        await upload(server, second.secret, trained_upload())
        await upload(server, third.secret, trained_upload(compressed=True))
        await server.until_round(1)
        assert not server.engine.state.left_out
        refused = await refusal(server, second.secret, trained_upload(compressed=True, side=2), 1)
        assert refused.details.field == "fc.weight"


async def test_a_tensor_in_no_form_or_in_both_is_refused(tmp_path: Path) -> None:
    dense, factors = small_model(), compress(small_model(), 0.9)
    assert "conv1.weight.u" in factors
    without = {name: tensor for name, tensor in dense.items() if name != "fc.weight"}
    async with Server(MemoryStore(), tmp_path, config=run("fedkd")) as server:
        first, *_ = await join_all(server)
        for tensors, reason in ((without, "is missing"), ({**dense, **factors}, "sent together with conv1.weight")):
            refused = await refusal(server, first.secret, encode(Payload(tensors=tensors)))
            assert reason in str(refused)


async def test_the_layout_survives_a_restart(tmp_path: Path) -> None:
    """Also while the open round has no upload yet, and though the round before has another layout in it."""
    store, config = MemoryStore(), run("fedmrl", small_dim=WIDTH)
    async with Server(store, tmp_path, config=config) as server:
        daemons = await join_all(server)
        for daemon in daemons:
            await upload(server, daemon.secret, trained_upload(channels=3 if daemon is daemons[0] else 1))
        await server.until_round(1)
        await server.settled()
    async with Server(store, tmp_path, config=config) as server:
        for daemon in daemons:
            assert "for other clients" in str(await refusal(server, daemon.secret, trained_upload(channels=3), 1))
            await upload(server, daemon.secret, trained_upload(), 1)
        await server.until_round(2)


async def test_layouts_are_compared_only_for_methods_whose_rules_admit_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method, settings, compared in (("feddbp", {"k_top": 2}, []), ("fedmrl", {"small_dim": WIDTH}, ["any"])):
        async with Server(MemoryStore(), tmp_path / method, config=run(method, **settings)) as server:
            seen: list[str] = []
            layouts = server.engine.aggregator._layouts
            monkeypatch.setattr(layouts, "check", lambda manifest, seen=seen: seen.append(manifest.tensors[0].name))
            server.engine.aggregator.check_layout(pb.Manifest(tensors=[pb.Tensor(name="any", shape=[1])]))
            assert seen == compared


async def test_admitted_updates_that_add_up_to_too_much_end_no_run(tmp_path: Path) -> None:
    """All clients lie, so that none of them can be left out."""

    def changed(number: int) -> Encoded:
        weights = {name: np.full_like(tensor, 9e5) for name, tensor in small_model().items()}
        return encode(Payload(tensors={**weights, "round": np.array([number], np.int32)}))

    async with Server(MemoryStore(), tmp_path, config=run("fedkd", target="update")) as server:
        daemons = await join_all(server)
        for number in range(2):
            for daemon in daemons:
                await upload(server, daemon.secret, changed(number), number)
            await server.until_round(number + 1)
        (incident,) = status_of(server.view).incidents
        assert incident.message.startswith("round 2/2: the state before it stays: the shared model is out of bounds")
        assert not server.phase.is_final
        assert (await daemons[0].download(2)).tensors["round"].tolist() == [2]
