"""Uploads of lying members to every method, under every rule: no round fails, and every client can use what it gets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from member_uploads import VARIANTS, Member, lies_of, member, run_of

from feddbp_common.config.run import RunConfig
from feddbp_common.errors import PayloadError
from feddbp_common.methods import METHODS
from feddbp_common.methods.contract import ALL_RULES
from feddbp_common.wire import Payload, check_values, decode, encode
from feddbp_server.aggregation.aggregator import Aggregator, GlobalState
from feddbp_server.aggregation.screening import GUARD_MULTIPLE
from feddbp_server.run.admission.limits import DEFAULT_LIMITS
from feddbp_server.store import MemoryStore, Store, StoreWriter, UploadRecord

HONEST = 4
EXCHANGING = [*(name for name in METHODS if name != "local"), *VARIANTS]
PAIRS = [
    (method, rule)
    for method, rule in product(EXCHANGING, ALL_RULES)
    if rule in run_of(method).method_spec.aggregation_rules(run_of(method).settings)
]
LIES = [
    (method, rule, image_size, lie)
    for (method, rule), image_size in product(PAIRS, (16, None))
    for lie in lies_of(run_of(method, image_size=image_size))
    if image_size or lie == "other images"
]


async def close(
    config: RunConfig, rounds: Sequence[Sequence[Member]], *, order: int = 0, cached: bool = True
) -> tuple[GlobalState, list[Payload]]:
    """Closes rounds with uploads in some order of arrival; returns the last state, and what each client receives."""
    store = MemoryStore()
    thread = StoreWriter(store)
    try:
        aggregator = Aggregator(config, thread, cache_bytes=DEFAULT_LIMITS.cached_upload_bytes)
        state: GlobalState | None = None
        for number, members in enumerate(rounds):
            arriving = list(enumerate(members))
            random.Random(order).shuffle(arriving)
            for client, sent in arriving:
                encoded = encode(sent.payload, real_type=config.wire_type)
                record = UploadRecord(
                    client_id=client,
                    round=number,
                    sha256=encoded.manifest.sha256,
                    manifest=encoded.manifest.SerializeToString(),
                )
                try:
                    aggregator.check_layout(encoded.manifest)
                except PayloadError:  # other shapes than most clients had in the first round: refused at the door
                    continue
                body = encoded.body()
                await thread.run(partial(_save, record, body))
                if cached:
                    aggregator.cache(number, client, aggregator.kept_part(decode(encoded.manifest, body)))
            state = await aggregator.close_round(number, partial(_label_counts, members))
            aggregator.adopt(state)
        assert state is not None
        left_out = frozenset(state.screening.left_out)
        replies = [
            await aggregator.download(client, len(rounds), partial(_label_counts, rounds[-1]), left_out)
            for client in range(len(rounds[-1]))
        ]
    finally:
        await thread.close()
    rules = config.method_spec.download_rules(config.settings, config.exchange_shape)
    received = [decode(reply.manifest, reply.body()) for reply in replies]
    for payload in received:
        check_values(payload, rules, real_type=config.wire_type)
    return state, received


def _save(record: UploadRecord, body: bytes, store: Store) -> None:
    store.save_upload(record, body)


def _label_counts(members: Sequence[Member], client: int) -> list[int]:
    return members[client].label_counts


def members_of(config: RunConfig, lie: str, liars: int, *, huge_counts: bool = False) -> list[list[Member]]:
    return [
        [
            *(member(config, client, number=number) for client in range(HONEST)),
            *(member(config, HONEST + client, lie, number=number, huge_counts=huge_counts) for client in range(liars)),
        ]
        for number in range(2)
    ]


def largest(received: Sequence[Payload]) -> float:
    norms = [norm for payload in received for norm in payload.norms().values()]
    return max(norms, default=0.0)


async def check_lie(
    method: str, rule: str, lie: str, liars: int, *, huge_counts: bool, image_size: int | None = 16
) -> None:
    config = run_of(method, rule=rule, image_size=image_size)
    rounds = members_of(config, lie, liars, huge_counts=huge_counts)
    state, received = await close(config, rounds)
    again, _ = await close(config, rounds, order=7, cached=False)  # as after a restart, in another order of arrival
    assert again.encoded.manifest.sha256 == state.encoded.manifest.sha256
    assert again.screening.left_out.keys() == state.screening.left_out.keys()
    if liars < HONEST:
        assert all(client >= HONEST for client in state.screening.left_out)
        _, usual = await close(config, [members[:HONEST] for members in rounds])
        # a mean of what is not left out, and no more
        assert largest(received[:HONEST]) <= GUARD_MULTIPLE * max(largest(usual), 1.0)


@pytest.mark.parametrize(("method", "rule"), PAIRS)
async def test_a_huge_upload_leaves_every_client_with_something_usable(method: str, rule: str) -> None:
    await check_lie(method, rule, "huge", 2, huge_counts=True)


FORGED = [
    ("fedkd", "parallel factors", 16),
    ("fedkd", "factors of full rank", 16),
    ("fedkd:update", "another round", 16),
    ("fedkd", "other images", None),
    ("fedmrl", "other images", None),
    ("fedavg", "other images", None),
]


@pytest.mark.parametrize(("method", "lie", "image_size"), FORGED)
async def test_weights_of_a_forged_form_leave_every_client_with_something_usable(
    method: str, lie: str, image_size: int | None
) -> None:
    await check_lie(method, "mean", lie, 2, huge_counts=False, image_size=image_size)


@pytest.mark.full
@pytest.mark.parametrize("liars", [1, 3, 4, 6], ids=lambda liars: f"{liars} liars")
@pytest.mark.parametrize(("method", "rule", "image_size", "lie"), LIES)
async def test_no_lie_of_the_family_ends_a_run(
    method: str, rule: str, image_size: int | None, lie: str, liars: int
) -> None:
    for huge_counts in (False, True):
        await check_lie(method, rule, lie, liars, huge_counts=huge_counts, image_size=image_size)


@pytest.mark.parametrize("examples", [25, pytest.param(1_000, marks=[pytest.mark.full, pytest.mark.timeout(3600)])])
def test_any_mixture_of_lies_can_be_aggregated(examples: int) -> None:
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        data=st.data(), pair=st.sampled_from(PAIRS), huge_counts=st.booleans(), image_size=st.sampled_from([16, None])
    )
    def holds(data: st.DataObject, pair: tuple[str, str], huge_counts: bool, image_size: int | None) -> None:
        method, rule = pair
        config = run_of(method, rule=rule, image_size=image_size)
        lies = data.draw(st.lists(st.sampled_from([None, *lies_of(config)]), min_size=2, max_size=7))
        asyncio.run(check_mixture(config, lies, huge_counts=huge_counts))

    holds()


async def check_mixture(config: RunConfig, lies: Sequence[str | None], *, huge_counts: bool) -> None:
    rounds = [
        [
            member(config, client, lie, number=number, huge_counts=huge_counts and lie is not None)
            for client, lie in enumerate(lies)
        ]
        for number in range(2)
    ]
    state, _ = await close(config, rounds)
    assert len(state.screening.left_out) < len(lies)
    assert all(np.isfinite(array).all() for _, array in state.payload.arrays())
