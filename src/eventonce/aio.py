"""Drives the engine on asyncio, and lends an event loop to callers that have none.

Apart from `runners`, so that who has no async handlers does not pay for importing asyncio.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, Final, TypeVar

from eventonce import engine
from eventonce.portal import Portal
from eventonce.ports import Task
from eventonce.runners import WAVE, World, invoke, is_async, salvage, settle_patiently
from eventonce.types import Claim, Kept, Letter, Settlement, Verdict

T = TypeVar("T")

STORE_THREADS: Final = 4
"""Store calls are short; these threads are apart from the handlers', who may fill all of theirs."""


class Asynchronous:
    """The threads and the loop that one consumer's async side needs, made when first used."""

    def __init__(self, world: World, threads: int) -> None:
        self._world = world
        self._threads = threads
        self._portal = Portal()
        self._process = os.getpid()

    def effects(self) -> OnAsyncio:
        """Effects for one batch on the running loop."""
        if self._process != os.getpid():
            # After a fork the threads are gone, and their pools do not know it.
            for pool in ("_stores", "_handlers"):
                self.__dict__.pop(pool, None)
            self._portal, self._process = Portal(), os.getpid()
        return OnAsyncio(self._world, stores=self._stores, handlers=self._handlers)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it on a loop of our own and wait: for plain callers of async handlers."""
        return self._portal.run(coroutine)

    @cached_property
    def _stores(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="eventonce-store")

    @cached_property
    def _handlers(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads, thread_name_prefix="eventonce-handler")

    def close(self) -> None:
        """Stop the loop and the threads."""
        self._portal.close()
        for pool in ("_stores", "_handlers"):
            if pool in self.__dict__:
                self.__dict__.pop(pool).shutdown(wait=True)


class OnAsyncio:
    """Effects on a loop: async handlers as tasks, plain ones in threads, the store in its own."""

    def __init__(self, world: World, *, stores: Executor, handlers: Executor) -> None:
        self._world = world
        self._stores = stores
        self._handlers = handlers
        self._started: dict[asyncio.Future[None], Task] = {}
        self._threads: dict[asyncio.Future[None], Future[None]] = {}
        self.now = world.clock

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        return await self._in_store(self._world.store.claim, claims)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Kept]:
        return await self._in_store(settle_patiently, self._world.store, settlements)

    async def shelve(self, letters: Sequence[Letter]) -> None:
        await self._in_store(self._world.shelf.put_letters, letters)

    async def _in_store(self, function: Callable[..., T], *args: Any) -> T:
        loop = asyncio.get_running_loop()
        call = loop.run_in_executor(self._stores, function, *args)
        try:
            # Shielded: a store call that is under way will have its effect, whoever stops waiting.
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            await asyncio.wait([call])
            await self._interrupted(list(self._started.values()))
            raise

    async def run(self, tasks: Sequence[Task]) -> Sequence[Task]:
        ticket = self._world.renewer.watch(tasks)
        try:
            started = set(map(id, self._started.values()))
            for task in tasks:
                if id(task) not in started:
                    self._started[self._start(task)] = task
            done, _ = await asyncio.wait(self._started, timeout=WAVE)
            if not done:
                done, _ = await asyncio.wait(self._started, return_when=asyncio.FIRST_COMPLETED)
            finished = [self._started.pop(future) for future in done]
            for future in done:
                self._threads.pop(future, None)
                future.result()
        except BaseException:
            await self._interrupted(tasks)
            raise
        else:
            return finished
        finally:
            self._world.renewer.leave(ticket)

    def _start(self, task: Task) -> asyncio.Future[None]:
        if is_async(task.handler):
            return asyncio.ensure_future(_awaited(task))
        context = contextvars.copy_context()
        thread = self._handlers.submit(context.run, invoke, task, self._world.transactions)
        future = asyncio.wrap_future(thread)
        self._threads[future] = thread
        return future

    async def _interrupted(self, tasks: Sequence[Task]) -> None:
        """Cancelled: end the async handlers and wait for the threads, which cannot be stopped."""
        for future in self._started:
            # Cancelling the future of a running thread would only stop us from seeing its end.
            self._threads.get(future, future).cancel()
        if self._started:
            await asyncio.wait(self._started)
        self._started.clear()
        if tasks:
            await self._in_store(salvage, tasks, self._world.store)


async def _awaited(task: Task) -> None:
    try:
        engine.finish(task, await task.handler(task.started()))
    except (KeyboardInterrupt, SystemExit) as stop:
        # asyncio lets these two through its loop, which would end it with all that runs on it.
        engine.finish(task, error=InterruptedError(repr(stop)))
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is None or current.cancelling():
            raise
        engine.finish(task, error=InterruptedError("something it awaited was cancelled"))
    except Exception as error:  # noqa: BLE001  whatever a handler raises is the event's outcome
        engine.finish(task, error=error)
