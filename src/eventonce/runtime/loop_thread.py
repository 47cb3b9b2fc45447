"""An event loop in a thread of its own: how plain code runs `async def` handlers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from eventonce.errors import ConfigError

T = TypeVar("T")


class LoopThread:
    """One loop for all calls, so that clients an async handler keeps stay on a living loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it on the loop and wait for its result."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._awaited(coroutine)
        coroutine.close()
        raise ConfigError(
            "Consumer.process would hold this event loop while its async handlers wait: "
            "use `await consumer.process_async(events)` here"
        )

    def _awaited(self, coroutine: Coroutine[Any, Any, T]) -> T:
        loop, ended = self._running(), SimpleQueue[None]()
        begun: list[asyncio.Task[T]] = []

        def end(_: object = None) -> None:
            # Twice: whoever is interrupted may have taken the first.
            ended.put(None)
            ended.put(None)

        def begin() -> None:
            begun.append(loop.create_task(coroutine))
            begun[0].add_done_callback(end)

        def cancel() -> None:
            if begun:
                begun[0].cancel()
            else:
                coroutine.close()
                end()

        try:
            loop.call_soon_threadsafe(begin)
            ended.get()
        except BaseException:
            # Interrupted: what runs must not go on as if somebody waited for it. If it was to begin
            # at all, it has begun when this is called.
            loop.call_soon_threadsafe(cancel)
            ended.get()
            raise
        return begun[0].result()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="eventonce-loop", daemon=True
                )
                self._thread.start()
            return self._loop

    def cancel(self, within: float) -> None:
        """Cancel what runs on the loop, and wait so long at most for it to end."""
        if self._loop is not None and self._thread is not None and self._thread.is_alive():
            others = asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop)
            with suppress(TimeoutError):
                others.result(within)

    def close(self) -> None:
        """Stop the loop."""
        with self._lock:
            # In the child of a fork there is a loop, and no thread that runs it.
            if self._loop is not None and self._thread is not None and self._thread.is_alive():
                # Who waits for a loop that is stopped waits for ever.
                asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()
            self._loop = self._thread = None


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
