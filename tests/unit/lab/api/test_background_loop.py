"""The event loop behind the blocking calls: interrupts, closing, and the end of the interpreter."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any

import pytest

from feddbp_common.errors import ConfigurationError
from feddbp_lab.api.background_loop import BackgroundLoop

WAIT_SECONDS = 30
MAIN_THREAD = threading.main_thread().ident or 0
PRELUDE = """
import asyncio, sys
from feddbp_lab.api.background_loop import BackgroundLoop
loop = BackgroundLoop(closed="closed")
async def numbers():
    try:
        for number in range(10):
            yield number
    finally:
        print("closed", flush=True)
async def leave():
    sys.exit(7)
"""


@pytest.fixture
def loop() -> Iterator[BackgroundLoop]:
    loop = BackgroundLoop(closed="the door is closed")
    yield loop
    loop.close()


def script(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + code], capture_output=True, text=True, timeout=WAIT_SECONDS
    )


async def count(closed: threading.Event) -> AsyncGenerator[int, None]:
    try:
        for number in range(10):
            yield number
    finally:
        await asyncio.sleep(0)
        closed.set()


def test_a_script_that_ends_within_an_iteration_closes_the_generator_and_exits() -> None:
    ended = script("items = loop.iterate(numbers())\nnext(items)\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "closed\n", "")


def test_a_system_exit_in_a_coroutine_ends_the_script_with_its_code() -> None:
    ended = script("loop.call(leave())\n")
    assert (ended.returncode, ended.stderr) == (7, "")


def test_calls_work_after_one_raised_a_system_exit(loop: BackgroundLoop) -> None:
    async def leave() -> None:
        raise SystemExit(7)

    with pytest.raises(SystemExit):
        loop.call(leave())
    assert loop.call(asyncio.sleep(0, "answer")) == "answer"


def test_a_call_after_close_raises_and_leaves_no_coroutine_unawaited() -> None:
    ended = script(
        "loop.close()\n"
        "from feddbp_common.errors import ConfigurationError\n"
        "for late in (lambda: loop.call(asyncio.sleep(0)), lambda: loop.iterate(numbers())):\n"
        "    try:\n"
        "        late()\n"
        "    except ConfigurationError as error:\n"
        "        print(error)\n"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "closed\nclosed\n", "")


def test_closing_the_loop_closes_its_generators_and_ends_their_iteration(loop: BackgroundLoop) -> None:
    closed = threading.Event()
    items = loop.iterate(count(closed))
    assert next(items) == 0
    loop.close()
    assert closed.is_set()
    with pytest.raises(ConfigurationError, match="the door is closed"):
        next(items)


def test_closing_an_iteration_closes_its_generator(loop: BackgroundLoop) -> None:
    closed = threading.Event()
    items = loop.iterate(count(closed))
    next(items)
    items.close()
    assert closed.is_set()


def test_a_call_in_another_thread_raises_when_the_loop_is_closed(loop: BackgroundLoop) -> None:
    started, errors = threading.Event(), list[BaseException]()
    caller = threading.Thread(target=_call, args=(loop, _wait_for_ever(started), errors))
    caller.start()
    assert started.wait(WAIT_SECONDS)
    loop.close()
    caller.join(WAIT_SECONDS)
    assert [str(error) for error in errors] == ["the door is closed"]


def test_an_interrupt_cancels_its_own_call_and_no_other(loop: BackgroundLoop) -> None:
    started, errors, cancelled = threading.Event(), list[BaseException](), list[str]()
    other = threading.Thread(target=_call, args=(loop, _wait_for_ever(started), errors))
    other.start()
    assert started.wait(WAIT_SECONDS)

    async def interrupted() -> None:
        try:
            signal.pthread_kill(MAIN_THREAD, signal.SIGINT)  # what Ctrl-C does while the main thread waits
            await asyncio.Event().wait()
        finally:
            cancelled.append("own")

    with pytest.raises(KeyboardInterrupt):
        loop.call(interrupted())
    assert cancelled == ["own"]
    assert other.is_alive()
    assert errors == []
    loop.close()
    other.join(WAIT_SECONDS)


def test_an_unreferenced_loop_ends_its_thread() -> None:
    loop = BackgroundLoop(closed="closed")
    thread = loop._thread
    del loop
    gc.collect()
    assert not thread.is_alive()


async def _wait_for_ever(started: threading.Event) -> None:
    started.set()
    await asyncio.Event().wait()


def _call(loop: BackgroundLoop, work: Coroutine[Any, Any, None], errors: list[BaseException]) -> None:
    try:
        loop.call(work)
    except BaseException as error:
        errors.append(error)
