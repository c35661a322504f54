"""One upload against the others of its round: left out, clipped, or weighed less; and named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coordinator_runs import CLASSES, CONFIG, WIDTH, Daemon, Server, held_classes
from wire_samples import prototypes_of

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.artifacts import AUDIT_NAME
from feddbp_common.config.exchange import AggregationConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ConfigurationError
from feddbp_common.wire import Encoded, FisherScores, Payload, PrototypeSet, encode
from feddbp_server.aggregation.screening import GUARD_MULTIPLE, screen
from feddbp_server.rpc.status_reply import status_of
from feddbp_server.run.snapshot import RunSnapshot
from feddbp_server.store import MemoryStore, SqliteStore
from feddbp_server.strategies import Upload

FOUR = CONFIG.model_copy(update={"clients": 4, "rounds": 2})
MEAN = AggregationConfig()


def poisoned(client_id: int, value: float) -> Encoded:
    """An upload that passes every check of its own: all of its prototypes have one value."""
    classes = held_classes(client_id)
    return encode(
        Payload(
            prototypes=PrototypeSet(
                class_ids=np.array(classes, np.int32),
                vectors=np.full((len(classes), WIDTH), value, np.float32),
                counts=np.array([5] * len(classes), np.int32),
            ),
            fisher=FisherScores(np.ones((len(classes), WIDTH), np.float32)),
        )
    )


async def close_first_round(server: Server, *, value: float | None) -> list[Daemon]:
    """Clients 0 to 2 are honest; client 3 sends `value`, or takes no part at all."""
    daemons = [await Daemon.join(server, client_id) for client_id in range(3 if value is None else 4)]
    for daemon in daemons[:3]:
        await daemon.upload(0)
    if value is not None:
        await daemons[3].send(0, poisoned(3, value))
    await server.until_round(1)
    return daemons


@pytest.mark.parametrize("value", [1e6, -1e6, 1e3, 200.0])
async def test_an_upload_far_outside_the_others_changes_no_bit_and_is_named(tmp_path: Path, value: float) -> None:
    async with Server(MemoryStore(), tmp_path / "without", config=FOUR, min_clients=3) as server:
        await close_first_round(server, value=None)
        honest = server.engine.aggregator.sha256
    async with Server(MemoryStore(), tmp_path / "with", config=FOUR) as server:
        daemons = await close_first_round(server, value=value)
        assert server.engine.aggregator.sha256 == honest
        assert server.engine.state.left_out == {3}
        for daemon in daemons:  # that of the client itself included: nothing is fused with what was left out
            assert np.abs(prototypes_of(await daemon.download(1)).vectors).max() < 10
        (incident,) = status_of(server.view).incidents
        assert incident.client_id == 3
        assert incident.message.startswith("upload to round 1/2 was left out, the norm of its prototypes is ")
    entries = [json.loads(line) for line in (tmp_path / "with" / AUDIT_NAME).read_text().splitlines()]
    (entry,) = [entry for entry in entries if entry["what"] == "left_out"]
    assert (entry["client"], entry["round"]) == (3, 0)


async def test_honest_uploads_are_compared_and_nothing_is_left_out(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path, config=FOUR) as server:
        await close_first_round(server, value=0.3)
        assert not server.engine.state.left_out
        assert not status_of(server.view).incidents


async def test_a_server_that_is_killed_in_the_middle_of_a_round_leaves_out_the_same(tmp_path: Path) -> None:
    digests = []
    for killed in (False, True):
        directory = tmp_path / str(killed)
        server = Server(SqliteStore(directory), directory, config=FOUR)
        await server.engine.start()
        daemons = [await Daemon.join(server, client_id) for client_id in range(4)]
        for daemon in daemons[:2]:
            await daemon.upload(0)
        await daemons[3].send(0, poisoned(3, 1e6))
        if killed:
            await server.crash()
            server = Server(SqliteStore(directory), directory, config=FOUR)
            await server.engine.start()
            daemons = [daemon.moved_to(server) for daemon in daemons]
        await daemons[2].upload(0)
        await server.until_round(1)
        assert server.engine.state.left_out == {3}
        await server.settled()
        # and once more: the next server still leaves it out of what it sends
        await server.crash()
        async with Server(SqliteStore(directory), directory, config=FOUR) as last:
            assert last.engine.state.left_out == {3}
            reply = await daemons[3].moved_to(last).download(1)
            assert np.abs(prototypes_of(reply).vectors).max() < 10
            digests.append(last.engine.aggregator.sha256)
    assert digests[0] == digests[1] != ""


async def test_a_client_counts_again_with_its_next_upload(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path, config=FOUR) as server:
        daemons = await close_first_round(server, value=1e6)
        for daemon in daemons:
            await daemon.upload(1)
        await server.until_round(2)
        assert not server.engine.state.left_out


def test_a_snapshot_of_an_earlier_version_has_nothing_left_out() -> None:
    stored = json.loads(RunSnapshot.from_json(_SNAPSHOT).to_json())
    assert stored["left_out"] == []


_SNAPSHOT = json.dumps(
    {
        "phase": "collecting",
        "held_phase": None,
        "round": 1,
        "members": [0],
        "selected": [0],
        "observers": [],
        "extensions": 0,
        "reason": "",
    }
)


def of(*norms: float) -> dict[int, dict[str, float]]:
    return {client: {"prototypes": norm} for client, norm in enumerate(norms)}


def left_out(*norms: float) -> set[int]:
    return set(screen(of(*norms), dict.fromkeys(range(len(norms)), 1), MEAN).left_out)


BEYOND = GUARD_MULTIPLE * 1.01


def test_the_median_is_that_of_the_others() -> None:
    assert left_out(1, 1, BEYOND) == {2}
    assert left_out(1, 1, GUARD_MULTIPLE * 0.99) == set()
    assert left_out(1, 1, BEYOND, BEYOND) == {2, 3}  # half of them, in collusion
    assert left_out(1, BEYOND, BEYOND) == set()  # a majority decides what is usual
    assert left_out(1, 1, 1e-30) == set()
    assert left_out(1, 1e-30, 1e-30, 1) == {0, 3}  # as much as half of them can do
    assert left_out(1, 0, 0, 0) == set()  # zeros say nothing of what is usual
    assert left_out(0, 0) == left_out() == left_out(5) == set()


def test_of_two_uploads_the_larger_is_left_out() -> None:
    assert left_out(1, BEYOND) == {1}
    assert left_out(1, GUARD_MULTIPLE * 0.99) == set()


def test_each_part_of_an_upload_is_compared() -> None:
    norms = {client: {"prototypes": 1.0, "tensors": 1.0} for client in range(3)}
    norms[1]["tensors"] = BEYOND
    assert set(screen(norms, dict.fromkeys(norms, 1), MEAN).left_out) == {1}


def test_clipping_keeps_directions_and_bounds_norms() -> None:
    config = AggregationConfig(rule="clipped", clip_factor=2.0)
    screening = screen(of(1, 1, 4), dict.fromkeys(range(3), 1), config)
    assert set(screening.clipped) == {2}
    rows = PrototypeSet(class_ids=np.array([0, 1], np.int32), vectors=np.array([[0, 4], [1, 0]], np.float32))
    clipped = screening.admit(Upload(client_id=2, payload=Payload(prototypes=rows), label_counts=[1]))
    np.testing.assert_array_equal(prototypes_of(clipped.payload).vectors, np.array([[0, 2], [1, 0]], np.float32))
    same = Upload(client_id=0, payload=Payload(prototypes=rows), label_counts=[1])
    assert screening.admit(same) is same


def test_clipping_scales_all_tensors_of_an_upload_alike() -> None:
    norms = {client: {"tensors": norm} for client, norm in enumerate((1.0, 1.0, 10.0))}
    screening = screen(norms, dict.fromkeys(norms, 1), AggregationConfig(rule="clipped", clip_factor=2.0))
    tensors: Any = {"a": np.array([6.0], np.float32), "b": np.array([8.0], np.float32), "n": np.array([7], np.int32)}
    clipped = screening.admit(Upload(client_id=2, payload=Payload(tensors=tensors), label_counts=[1])).payload
    assert [float(clipped.tensors[name][0]) for name in "abn"] == pytest.approx([1.2, 1.6, 7])


async def test_a_client_whose_upload_is_clipped_is_named(tmp_path: Path) -> None:
    config = FOUR.model_copy(update={"aggregation": AggregationConfig(rule="clipped", clip_factor=2.0)})
    async with Server(MemoryStore(), tmp_path, config=config) as server:
        await close_first_round(server, value=20.0)
        (incident,) = status_of(server.view).incidents
        assert incident.client_id == 3
        assert "was clipped, the norm of its prototypes is 49" in incident.message
        assert not server.engine.state.left_out


def test_samples_beyond_a_multiple_of_the_median_do_not_weigh_more() -> None:
    samples = {0: 100, 1: 120, 2: 2**31 - 1}
    screening = screen(of(1, 1, 1), samples, MEAN)
    assert screening.samples == MEAN.weight_cap * 120
    assert screening.capped == {2: 2**31 - 1}
    counts = np.array([2**30, 1], np.int32)
    rows = PrototypeSet(class_ids=np.array([0, 1], np.int32), vectors=np.ones((2, 2), np.float32), counts=counts)
    admitted = screening.admit(Upload(client_id=2, payload=Payload(prototypes=rows), label_counts=[2**31 - 2, 1, 0]))
    assert admitted.samples == pytest.approx(screening.samples, rel=1e-3)
    assert admitted.label_counts[1:] == [1, 0]
    weighed = prototypes_of(admitted.payload).counts
    assert weighed is not None
    assert weighed.tolist() == [pytest.approx(screening.samples / 2, rel=1e-3), 1]


async def test_false_sample_counts_do_not_take_over_an_average(tmp_path: Path) -> None:
    """LG-FedAvg weights heads by the samples that clients declare when they join."""
    config = RunConfig(method="lg-fedavg", clients=4, rounds=2, data=FOUR.data, training=FOUR.training)
    async with Server(MemoryStore(), tmp_path, config=config) as server:
        daemons = []
        for client_id in range(4):
            samples = 2**31 - 1 if client_id == 3 else 10
            request = pb.JoinRequest(
                run_id=server.coordinator.run_id,
                client_id=client_id,
                data=pb.DataSummary(label_counts=[samples] + [0] * (CLASSES - 1), test_samples=1),
            )
            daemons.append(Daemon(server, *await server.coordinator.join(request)))
        for client_id, daemon in enumerate(daemons):
            head = {"head.weight": (CLASSES, WIDTH), "head.bias": (CLASSES,)}
            value = 1.0 if client_id == 3 else 0.0
            tensors: Any = {name: np.full(shape, value, np.float32) for name, shape in head.items()}
            await daemon.send(0, encode(Payload(tensors=tensors)))
        await server.until_round(1)
        cap = config.aggregation.weight_cap
        state = server.engine.aggregator._state.payload.tensors
        assert float(state["head.bias"][0]) == pytest.approx(cap / (cap + 3))
        assert [incident.client_id for incident in status_of(server.view).incidents] == [3]


def test_methods_without_an_average_refuse_the_rules_of_one() -> None:
    for method in ("fedtgp", "fpl", "fedlfp"):
        with pytest.raises(ConfigurationError, match=f"median makes no sense for {method}.*mean, clipped"):
            RunConfig(method=method, aggregation=AggregationConfig(rule="median"))
        RunConfig(method=method, aggregation=AggregationConfig(rule="clipped"))
    with pytest.raises(ConfigurationError, match="clipped makes no sense for local"):
        RunConfig(method="local", aggregation=AggregationConfig(rule="clipped"))
    with pytest.raises(ConfigurationError, match="trim is a setting of aggregation trimmed_mean"):
        AggregationConfig(rule="median", trim=0.2)
