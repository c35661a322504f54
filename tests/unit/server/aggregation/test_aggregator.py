"""Closing a round over a real store: the result does not depend on the order of arrival."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from wire_samples import prototypes_of

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.data import DataConfig
from feddbp_common.config.exchange import RealType, WireConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.errors import ConfigurationError, PayloadError
from feddbp_common.wire import FisherScores, Payload, PrototypeSet, WireType, check_manifest, decode, encode
from feddbp_common.wire.payload import FloatArray
from feddbp_server.aggregation.aggregator import Aggregator
from feddbp_server.aggregation.screening import Screening
from feddbp_server.store import MemoryStore, SqliteStore, StoreWriter, UploadRecord

CLIENTS = 40  # more than are read from the store at a time
CONFIG = RunConfig(
    clients=CLIENTS,
    data=DataConfig(dataset="custom", classes=3),
    training=TrainingConfig(feature_dim=6),
    method_settings={"k_top": 2},
)
CACHE_BYTES = 1 << 20


def trained_upload(client: int, scale: float = 1.0) -> Payload:
    """Values of very different size, so that the order of summation shows in the last bits."""
    noise = np.random.default_rng(client)
    vectors = (noise.normal(size=(2, 6)) * 10.0 ** noise.integers(-9, 6, size=(2, 6)) * scale).astype(np.float32)
    return Payload(
        prototypes=PrototypeSet(
            class_ids=np.array([0, 2], np.int32), vectors=vectors, counts=np.array([1, 1], np.int32)
        ),
        fisher=FisherScores(noise.random((2, 6)).astype(np.float32)),
    )


async def save(thread: StoreWriter, client: int, payload: Payload, round_number: int = 0) -> None:
    encoded = encode(payload)
    record = UploadRecord(
        client_id=client,
        round=round_number,
        sha256=encoded.manifest.sha256,
        manifest=encoded.manifest.SerializeToString(),
    )
    await thread.run(lambda store: store.save_upload(record, encoded.body()))


def aggregator_of(config: RunConfig, thread: StoreWriter) -> Aggregator:
    return Aggregator(config, thread, cache_bytes=CACHE_BYTES)


def label_counts(_: int) -> list[int]:
    return [1, 1, 1]


@pytest.fixture(params=["memory", "sqlite"])
async def thread(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreWriter]:
    started = StoreWriter(MemoryStore() if request.param == "memory" else SqliteStore(tmp_path))
    yield started
    await started.close()


async def learnt_in_order(order: list[int], thread: StoreWriter, round_number: int) -> bytes:
    for client in order:
        await save(thread, client, trained_upload(client), round_number)
    encoded = await aggregator_of(CONFIG, thread).close_round(round_number, label_counts)
    return bytes(encoded.encoded.manifest.sha256)


async def test_the_order_of_arrival_does_not_change_a_bit(thread: StoreWriter) -> None:
    orders = [list(range(CLIENTS)), list(range(CLIENTS))[::-1]]
    for seed in range(3):
        shuffled = list(range(CLIENTS))
        random.Random(seed).shuffle(shuffled)
        orders.append(shuffled)
    digests = [await learnt_in_order(order, thread, number) for number, order in enumerate(orders)]
    assert len(set(digests)) == 1


def test_the_order_of_summation_would_have_shown() -> None:
    vectors = [prototypes_of(trained_upload(client)).vectors.astype(np.float64) for client in range(CLIENTS)]
    forward, backward = sum(vectors, np.zeros((2, 6))), sum(vectors[::-1], np.zeros((2, 6)))
    assert (forward != backward).any()


async def test_a_new_state_is_in_force_only_once_it_is_adopted(thread: StoreWriter) -> None:
    aggregator = aggregator_of(CONFIG, thread)
    before = aggregator.sha256
    await save(thread, 0, trained_upload(0))
    encoded = await aggregator.close_round(0, label_counts)
    assert aggregator.sha256 == before
    aggregator.adopt(encoded)
    assert aggregator.sha256 == encode(encoded.payload).manifest.sha256.hex() != before


async def test_an_empty_state_has_no_digest(thread: StoreWriter) -> None:
    assert aggregator_of(CONFIG, thread).sha256 == ""  # before the first round
    alone = aggregator_of(RunConfig(method="local", clients=CLIENTS), thread)
    alone.adopt(await alone.close_round(0, label_counts))
    assert alone.sha256 == ""


async def test_the_global_state_is_restored_bit_for_bit(thread: StoreWriter) -> None:
    first = aggregator_of(CONFIG, thread)
    await save(thread, 0, trained_upload(0))
    encoded = await first.close_round(0, label_counts)
    first.adopt(encoded)
    await thread.run(lambda store: store.save_aggregate(encoded.record(completed_rounds=1)))
    second = aggregator_of(CONFIG, thread)
    assert second.sha256 != first.sha256
    await second.restore()
    assert second.sha256 == first.sha256


async def test_a_client_is_personalised_with_its_newest_upload_before_the_round(thread: StoreWriter) -> None:
    aggregator = aggregator_of(CONFIG, thread)
    await save(thread, 0, trained_upload(0), 0)
    await save(thread, 1, trained_upload(1), 0)
    aggregator.adopt(await aggregator.close_round(0, label_counts))
    await save(thread, 0, trained_upload(0, scale=100.0), 1)

    def own_values(reply: Payload, sent: Payload) -> int:
        return int((prototypes_of(reply).vectors == prototypes_of(sent).vectors).sum())

    in_round_1 = await aggregator.download(0, 1, label_counts)
    assert (
        own_values(decode(in_round_1.manifest, in_round_1.body()), trained_upload(0)) >= 4
    )  # two channels, two classes
    in_round_2 = await aggregator.download(0, 2, label_counts)
    assert own_values(decode(in_round_2.manifest, in_round_2.body()), trained_upload(0, scale=100.0)) >= 4
    stranger = await aggregator.download(7, 1, label_counts)
    assert stranger.manifest.sha256.hex() == aggregator.sha256


async def test_replies_are_sent_in_the_wire_type_but_the_state_is_stored_in_full_precision() -> None:
    thread = StoreWriter(MemoryStore())
    config = CONFIG.model_copy(update={"wire": WireConfig(wire_dtype=RealType.BFLOAT16)})
    aggregator = aggregator_of(config, thread)
    await save(thread, 0, trained_upload(0))
    encoded = await aggregator.close_round(0, label_counts)
    aggregator.adopt(encoded)
    reply = await aggregator.download(5, 1, label_counts)
    await thread.close()
    assert reply.manifest.prototypes.matrix.dtype == pb.DTYPE_BFLOAT16
    assert reply.body() == encode(encoded.payload, real_type=WireType.BFLOAT16).body()
    assert aggregator.sha256 == encode(encoded.payload).manifest.sha256.hex()


async def test_a_state_that_cannot_be_encoded_fails_the_round_and_no_download(
    thread: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CONFIG.model_copy(update={"wire": WireConfig(wire_dtype=RealType.FLOAT16)})
    aggregator = aggregator_of(config, thread)
    before = await aggregator.download(0, 0, label_counts)
    monkeypatch.setattr(aggregator._strategy, "aggregate", lambda *_, **__: trained_upload(0, scale=1e6))
    with pytest.raises(PayloadError, match="prototypes"):
        await aggregator.close_round(0, label_counts)
    assert (await aggregator.download(0, 0, label_counts)) is before


async def test_a_strategy_of_ones_own_may_name_its_state_otherwise(
    thread: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregator = aggregator_of(CONFIG, thread)
    await save(thread, 0, trained_upload(0))
    monkeypatch.setattr(aggregator._strategy, "aggregate", lambda known, uploads, *, round_number: known)
    monkeypatch.setattr(aggregator._strategy, "reply", lambda known, own_upload: known)
    state = await aggregator.close_round(0, label_counts)
    aggregator.adopt(state)
    assert list(state.payload.arrays()) == []
    assert (await aggregator.download(0, 1, label_counts)).manifest.total_bytes == 0


async def test_an_error_of_the_strategy_is_raised_from_close_round(
    thread: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregator = aggregator_of(CONFIG, thread)
    await save(thread, 0, trained_upload(0))

    def broken(*_: object, **__: object) -> Payload:
        raise ArithmeticError("cannot count")

    monkeypatch.setattr(aggregator._strategy, "aggregate", broken)
    with pytest.raises(ArithmeticError, match="cannot count"):
        await asyncio.wait_for(aggregator.close_round(0, label_counts), timeout=10)


async def test_an_upload_that_cannot_be_read_is_an_error_and_no_hang(thread: StoreWriter) -> None:
    encoded = encode(trained_upload(0))
    record = UploadRecord(client_id=0, round=0, sha256=b"x" * 32, manifest=encoded.manifest.SerializeToString())
    await thread.run(lambda store: store.save_upload(record, encoded.body()[:5]))
    with pytest.raises(Exception, match="prototypes"):
        await asyncio.wait_for(aggregator_of(CONFIG, thread).close_round(0, label_counts), timeout=10)


async def test_cached_and_stored_uploads_give_the_same_bits(thread: StoreWriter) -> None:
    for client in range(CLIENTS):
        await save(thread, client, trained_upload(client))
    from_store, from_memory, from_both = (aggregator_of(CONFIG, thread) for _ in range(3))
    for client in range(CLIENTS):
        from_memory.cache(0, client, from_memory.kept_part(trained_upload(client)))
    for client in (1, CLIENTS - 1):
        from_both.cache(0, client, from_both.kept_part(trained_upload(client)))
    digests = {
        (await aggregator.close_round(0, label_counts)).encoded.manifest.sha256
        for aggregator in (from_store, from_memory, from_both)
    }
    assert len(digests) == 1


async def test_a_round_is_closed_without_reading_cached_uploads(thread: StoreWriter) -> None:
    aggregator = aggregator_of(CONFIG, thread)
    await save(thread, 0, trained_upload(0, scale=100.0))  # shows where the values come from
    aggregator.cache(0, 0, aggregator.kept_part(trained_upload(0)))
    encoded = (await aggregator.close_round(0, label_counts)).payload
    assert (prototypes_of(encoded).vectors == prototypes_of(trained_upload(0)).vectors).all()


async def test_a_reply_that_is_the_same_for_all_is_made_once_a_round(thread: StoreWriter) -> None:
    aggregator = aggregator_of(CONFIG.model_copy(update={"method": "fedproto", "method_settings": {}}), thread)
    replies = []
    for number in range(2):
        await save(thread, 0, trained_upload(number), number)
        aggregator.adopt(await aggregator.close_round(number, label_counts))
        first, second = [await aggregator.download(client, number + 1, label_counts) for client in (0, 1)]
        assert first is second
        replies.append(first.manifest.sha256)
    assert replies[0] != replies[1]


# --- rounds without exchange


async def prototypes_for(aggregator: Aggregator, client: int, round_number: int) -> FloatArray | None:
    reply = await aggregator.download(client, round_number, label_counts)
    received = decode(reply.manifest, reply.body()).prototypes
    return None if received is None else received.vectors


def own_prototypes(client: int, scale: float = 1.0) -> FloatArray:
    sent = trained_upload(client, scale).prototypes
    assert sent is not None
    return sent.vectors


async def after_rounds(aggregator: Aggregator, thread: StoreWriter, rounds: int, *, first: int = 0) -> None:
    for number in range(first, first + rounds):
        for client in (0, 1):
            await save(thread, client, trained_upload(client, scale=number + 1), number)
        aggregator.adopt(await aggregator.close_round(number, label_counts))


async def test_without_exchange_every_client_receives_the_result_of_its_own_upload(thread: StoreWriter) -> None:
    aggregator = aggregator_of(CONFIG.model_copy(update={"exchange": "off"}), thread)
    assert await prototypes_for(aggregator, 0, 0) is None
    await after_rounds(aggregator, thread, 2)
    for client in (0, 1):
        np.testing.assert_array_equal(await prototypes_for(aggregator, client, 2), own_prototypes(client, 2))
    assert await prototypes_for(aggregator, 7, 2) is None
    assert aggregator.sha256 == ""


async def test_fine_tuning_starts_from_the_last_exchange_and_goes_on_alone(thread: StoreWriter) -> None:
    config = CONFIG.model_copy(update={"rounds": 4, "finetune_rounds": 2, "method_settings": {"k_top": 0}})
    aggregator = aggregator_of(config, thread)
    await after_rounds(aggregator, thread, 2)
    exchanged, digest = await prototypes_for(aggregator, 0, 2), aggregator.sha256
    mean = (own_prototypes(0, 2).astype(np.float64) + own_prototypes(1, 2)) / 2
    np.testing.assert_array_equal(exchanged, mean.astype(np.float32))
    for client in (0, 1):
        await save(thread, client, trained_upload(client, scale=3), 2)
    aggregator.adopt(await aggregator.close_round(2, label_counts))
    np.testing.assert_array_equal(await prototypes_for(aggregator, 0, 3), own_prototypes(0, 3))
    assert aggregator.sha256 == digest


async def test_fine_tuning_keeps_the_state_of_the_last_exchange_if_it_is_asked_to(thread: StoreWriter) -> None:
    asked = {"rounds": 4, "finetune_rounds": 2, "finetune_state": "last", "method_settings": {"k_top": 0}}
    aggregator = aggregator_of(CONFIG.model_copy(update=asked), thread)
    await after_rounds(aggregator, thread, 2)
    exchanged, digest = await prototypes_for(aggregator, 0, 2), aggregator.sha256
    await after_rounds(aggregator, thread, 2, first=2)
    np.testing.assert_array_equal(await prototypes_for(aggregator, 0, 4), exchanged)
    assert aggregator.sha256 == digest


async def test_fine_tuning_fuses_the_last_global_prototypes_with_a_clients_newest_ones(thread: StoreWriter) -> None:
    config = CONFIG.model_copy(update={"rounds": 4, "finetune_rounds": 2, "finetune_state": "last"})
    aggregator = aggregator_of(config, thread)
    await after_rounds(aggregator, thread, 2)
    shared = await prototypes_for(aggregator, 7, 2)  # of no client's own
    assert shared is not None
    for completed in (2, 3, 4):
        received = await prototypes_for(aggregator, 0, completed)
        assert received is not None
        own = received != shared
        assert own.sum(axis=1).tolist() == [2, 2]
        np.testing.assert_array_equal(received[own], own_prototypes(0, completed)[own])
        if completed < 4:
            await after_rounds(aggregator, thread, 1, first=completed)


@pytest.mark.parametrize("kept", ["own", "last"])
async def test_fine_tuning_leaves_out_nobody_whom_the_last_exchange_left_out(kept: str, thread: StoreWriter) -> None:
    changed = {"rounds": 4, "finetune_rounds": 2, "finetune_state": kept}
    aggregator = aggregator_of(CONFIG.model_copy(update=changed), thread)
    await after_rounds(aggregator, thread, 1)
    for client, scale in ((0, 1.0), (1, 1.0), (2, 1e30)):
        await save(thread, client, trained_upload(client, scale), 1)
    exchanged = await aggregator.close_round(1, label_counts)
    assert exchanged.screening.left_out.keys() == {2}
    aggregator.adopt(exchanged)
    tuned = await aggregator.close_round(2, label_counts)
    assert tuned == replace(exchanged, screening=Screening())


async def test_an_upload_that_expands_to_much_more_is_not_expanded_as_it_arrives(thread: StoreWriter) -> None:
    rank, columns = 1, 64 * 53**2
    shapes = {
        "conv1.weight": (32, 3, 5, 5),
        "conv1.bias": (32,),
        "conv2.weight": (64, 32, 5, 5),
        "conv2.bias": (64,),
        "fc.weight.u": (512, rank),
        "fc.weight.sigma": (rank,),
        "fc.weight.v": (rank, columns),
        "fc.bias": (512,),
        "head.weight": (3, 6),
        "head.bias": (3,),
    }
    upload = Payload(tensors={name: np.full(shape, 0.001, np.float32) for name, shape in shapes.items()})
    config = RunConfig(method="fedkd", clients=CLIENTS, data=CONFIG.data, training=CONFIG.training)
    aggregator = aggregator_of(config, thread)
    check_manifest(encode(upload).manifest, aggregator.upload_rules, max_bytes=1 << 20)  # a client may send it
    tracemalloc.start()
    aggregator.cache(0, 0, aggregator.kept_part(upload))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 << 20


# --- newcomers


JOINED = CONFIG.model_copy(
    update={
        "clients": 4,  # the last two are newcomers
        "rounds": 6,
        "finetune_rounds": 1,
        "newcomers": 2,
        "newcomer_rounds": 4,
        "method_settings": {"k_top": 0},
    }
)


def mean_of(*vectors: FloatArray) -> FloatArray:
    return np.asarray(np.mean([each.astype(np.float64) for each in vectors], axis=0), dtype=np.float32)


async def test_a_newcomer_receives_the_final_state_and_then_what_it_makes_of_it_without_other_newcomers(
    thread: StoreWriter,
) -> None:
    aggregator = aggregator_of(JOINED, thread)
    await after_rounds(aggregator, thread, 2)
    digest, finished = aggregator.sha256, [own_prototypes(client, 2) for client in (0, 1)]
    for newcomer in (2, 3):
        np.testing.assert_array_equal(await prototypes_for(aggregator, newcomer, 2), mean_of(*finished))
    for number in (2, 3):
        for newcomer in (2, 3):
            await save(thread, newcomer, trained_upload(newcomer, scale=number + 1), number)
        aggregator.adopt(await aggregator.close_round(number, label_counts))
        await thread.run(lambda store: store.forget_superseded_uploads(number + 1))  # noqa: B023 - run at once
        for newcomer in (2, 3):
            own = own_prototypes(newcomer, number + 1)
            np.testing.assert_array_equal(
                await prototypes_for(aggregator, newcomer, number + 1), mean_of(*finished, own)
            )
    # what the others have learnt stays as it was
    assert aggregator.sha256 == digest
    np.testing.assert_array_equal(await prototypes_for(aggregator, 0, 4), mean_of(*finished))


async def test_in_the_last_rounds_a_newcomer_goes_on_alone(thread: StoreWriter) -> None:
    aggregator = aggregator_of(JOINED, thread)
    await after_rounds(aggregator, thread, 2)
    await save(thread, 3, trained_upload(3), 5)
    np.testing.assert_array_equal(await prototypes_for(aggregator, 3, 6), own_prototypes(3))


async def test_without_exchange_a_newcomer_receives_nothing_of_the_others(thread: StoreWriter) -> None:
    aggregator = aggregator_of(JOINED.model_copy(update={"exchange": "off"}), thread)
    await after_rounds(aggregator, thread, 2)
    assert await prototypes_for(aggregator, 3, 2) is None
    await save(thread, 3, trained_upload(3), 2)
    np.testing.assert_array_equal(await prototypes_for(aggregator, 3, 3), own_prototypes(3))


@pytest.mark.parametrize("method", ["fedtgp", "fedgen"])
def test_methods_whose_server_keeps_a_state_have_no_rounds_without_exchange(method: str) -> None:
    for setting in ({"exchange": "off"}, {"finetune_rounds": 3}, {"newcomers": 1, "newcomer_rounds": 3}):
        with pytest.raises(ConfigurationError, match=f"{method} has no rounds without exchange"):
            RunConfig.model_validate({"method": method, **setting})


def test_fine_tuning_with_the_last_state_suits_a_server_that_keeps_one_and_is_named_where_it_does() -> None:
    named = "; in fine-tuning, finetune_state = last keeps it$"
    with pytest.raises(ConfigurationError, match=named):
        RunConfig.model_validate({"method": "fedtgp", "finetune_rounds": 3})
    for setting in ({"method": "fedgen"}, {"method": "fedtgp", "exchange": "off"}):
        with pytest.raises(ConfigurationError, match=r"gives$"):
            RunConfig.model_validate({**setting, "finetune_rounds": 3})
    RunConfig.model_validate({"method": "fedtgp", "finetune_rounds": 3, "finetune_state": "last"})
