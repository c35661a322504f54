"""An event loop in a thread of its own, so that blocking calls work in scripts and in notebooks alike."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from feddbp_common.errors import ConfigurationError

T = TypeVar("T")
_END: Final = object()


class BackgroundLoop:
    """Runs coroutines from code that is not async; a notebook's own loop is already running and cannot.

    It is closed by `close`, when it is collected, or when the interpreter exits. Later calls raise a
    ConfigurationError with the text `closed`.
    """

    def __init__(self, *, closed: str) -> None:
        self._closed = closed
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=_serve, args=(self._loop,), name="feddbp-api", daemon=True)
        self._thread.start()
        # runs at exit before daemon threads are frozen; a call after that would never return
        self._finalizer = weakref.finalize(self, _shut_down, self._loop, self._thread, self._lock)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Blocks until the coroutine ends. An interrupt, such as Ctrl-C, cancels it and waits for its clean-up."""
        call = _Call(work)
        try:
            scheduled = self._schedule(call.start)
            if scheduled:
                call.ended.wait()
        except BaseException:
            if self._schedule(call.cancel):
                call.ended.wait()
            else:
                self._thread.join()  # the loop is being closed, which cancels the call
            raise
        if not scheduled:
            work.close()
            raise ConfigurationError(self._closed)
        try:
            return call.result()
        except asyncio.CancelledError:
            if self._is_open():
                raise
            raise ConfigurationError(self._closed) from None

    def iterate(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """The items of an async generator, which is closed when the iteration ends early."""
        if not self._is_open():
            raise ConfigurationError(self._closed)
        return self._iterate(items)

    def close(self) -> None:
        """Cancels what is still running, and ends the thread."""
        self._finalizer()

    def _iterate(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        try:
            while (item := self.call(_next_or_end(items))) is not _END:
                yield item  # type: ignore[misc]  # _END was ruled out
        finally:
            # collected in the loop's own thread, which cannot wait for itself, `items` is closed by the loop's hook
            if threading.current_thread() is not self._thread:
                with suppress(ConfigurationError):  # closing the loop has closed `items`
                    self.call(_close(items))

    def _schedule(self, step: Callable[[], None]) -> bool:
        # under the lock it runs before the loop is stopped, or is not scheduled at all
        with self._lock:
            is_open = self._is_open()
            if is_open:
                self._loop.call_soon_threadsafe(step)
        return is_open

    def _is_open(self) -> bool:
        return self._finalizer.alive and self._thread.is_alive() and not sys.is_finalizing()


class _Call(Generic[T]):
    """One coroutine as a task of the loop. `start` and `cancel` run in the loop's thread, in this order."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.ended = threading.Event()
        self._work = work
        self._task: asyncio.Task[T | _Raised] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(_raised_as_value(self._work))
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # the interrupt came before `start` was scheduled
            self._work.close()
            self.ended.set()

    def result(self) -> T:
        assert self._task is not None
        outcome = self._task.result()
        if isinstance(outcome, _Raised):
            raise outcome.error
        return outcome

    def _end(self, _: asyncio.Task[T | _Raised]) -> None:
        self._work.close()  # a task that is cancelled before its first step has not started it
        self.ended.set()


class _Raised:
    def __init__(self, error: BaseException) -> None:
        self.error = error


async def _raised_as_value(work: Coroutine[Any, Any, T]) -> T | _Raised:
    """SystemExit or KeyboardInterrupt raised in a task would end the loop, and with it the thread."""
    try:
        return await work
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return _Raised(error)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """The thread: runs the loop until it is stopped, then cancels its tasks and closes it."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(_cancel_others())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _shut_down(loop: asyncio.AbstractEventLoop, thread: threading.Thread, lock: threading.Lock) -> None:
    with lock, suppress(RuntimeError):  # the loop is closed already if its thread has ended
        loop.call_soon_threadsafe(loop.stop)
    if threading.current_thread() is not thread:
        thread.join()


async def _next_or_end(items: AsyncGenerator[T, None]) -> T | object:
    return await anext(items, _END)


async def _close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
