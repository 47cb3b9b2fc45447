"""An event loop in a thread of its own, on which plain code runs `async def` handlers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from eventonce.errors import ConfigError
from eventonce.log import log

T = TypeVar("T")


def refuse_on_loop() -> None:
    """Raise if the caller's thread runs an event loop, which a wait would block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(
        "Consumer.process would block this event loop while its async handlers run: "
        "use `await consumer.process_async(events)` here"
    )


class _Call(Generic[T]):
    """A coroutine on the loop, and the thread that waits for its result."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._ended = SimpleQueue[None]()

    def begin(self) -> None:
        self._loop.call_soon_threadsafe(self._begin)

    def result(self) -> T:
        self._ended.get()
        assert self._task is not None
        return self._task.result()

    def cancel(self) -> None:
        """Cancel the coroutine and wait for its end: it must not go on without its caller."""
        # The loop calls `_begin`, if it was scheduled at all, before `_cancel`.
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            # The loop was closed, which ended its tasks.
            self._coroutine.close()
        else:
            self._ended.get()

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._end)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            self._coroutine.close()
            self._end()

    def _end(self, _: object = None) -> None:
        # Twice: an interrupted caller may have taken the first, and `cancel` waits again.
        self._ended.put(None)
        self._ended.put(None)


class LoopThread:
    """One loop for all calls, because a client that an async handler keeps belongs to its loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        """Set when the loop shall not run any longer."""

    def run(
        self, coroutine: Coroutine[Any, Any, T], meanwhile: Callable[[], object] | None = None
    ) -> T:
        """Run the coroutine on the loop, call `meanwhile` here, and wait for the result."""
        call: _Call[T] | None = None
        try:
            # Under one lock: a loop that is closed in between would not run the coroutine.
            with self._lock:
                call = _Call(self._living(), coroutine)
                call.begin()
            if meanwhile is not None:
                meanwhile()
            return call.result()
        except BaseException:
            if call is None:
                coroutine.close()
            else:
                call.cancel()
            raise

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop, which runs."""
        with self._lock:
            return self._living()

    def _living(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._thread is None or not self._thread.is_alive():
            loop = asyncio.new_event_loop()
            ended = threading.Event()
            thread = threading.Thread(
                target=_run, args=(loop, ended), name="eventonce-loop", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                loop.close()
                raise
            self._loop, self._thread, self._ended = loop, thread, ended
        return self._loop

    def cancel(self, within: float) -> None:
        """Cancel the tasks on the loop, and wait for their end, at most so many seconds."""
        if self._loop is not None and self._thread is not None and self._thread.is_alive():
            others = asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop)
            with suppress(TimeoutError):
                others.result(within)

    def close(self) -> None:
        """Stop the loop."""
        with self._lock:
            # In the child of a fork there is a loop, and no thread that runs it.
            if self._loop is not None and self._thread is not None and self._thread.is_alive():
                # A caller that waits for a stopped loop would wait for ever.
                asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
                self._ended.set()
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()
            self._loop = self._thread = None


def _run(loop: asyncio.AbstractEventLoop, ended: threading.Event) -> None:
    """Run the loop until `ended` is set: a handler must not end the handlers of other events."""
    while not ended.is_set():
        try:
            # Returns also if a handler stops its loop.
            loop.run_forever()
        except (KeyboardInterrupt, SystemExit):
            # Only these leave a loop; a handler that awaits the task gets the exception, too.
            log().exception("a task of an async handler ended its event loop, which runs again")


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
