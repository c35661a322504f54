"""Slots that callers wait for as long as one is given back now and then."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from feddbp_server.run.admission.fairness import SlotsWithTimeout

FOREVER = timedelta(hours=1)


async def test_slots_are_given_in_the_order_in_which_callers_came() -> None:
    slots = SlotsWithTimeout(1, FOREVER)
    assert await slots.take()
    order: list[int] = []

    async def caller(number: int) -> None:
        assert await slots.take()
        order.append(number)
        slots.release()

    waiting = [asyncio.create_task(caller(number)) for number in range(5)]
    await asyncio.sleep(0)
    slots.release()
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2, 3, 4]
    assert await slots.take()


async def test_callers_go_without_a_slot_if_none_comes_free() -> None:
    slots = SlotsWithTimeout(1, timedelta(milliseconds=1))
    assert await slots.take()
    async with asyncio.timeout(10):
        assert await asyncio.gather(*(slots.take() for _ in range(3))) == [False] * 3
    slots.release()
    assert await slots.take()


async def test_without_a_timeout_nobody_waits() -> None:
    slots = SlotsWithTimeout(1, timedelta(0))
    assert await slots.take()
    assert not await slots.take()


@pytest.mark.parametrize("given_first", [True, False])
async def test_a_caller_that_is_cancelled_keeps_no_slot(given_first: bool) -> None:
    slots = SlotsWithTimeout(1, FOREVER)
    assert await slots.take()
    cancelled = asyncio.create_task(slots.take())
    await asyncio.sleep(0)
    if given_first:
        slots.release()
        cancelled.cancel()
    else:
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        slots.release()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert await slots.take()
