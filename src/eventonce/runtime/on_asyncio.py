"""Drives the engine on asyncio, and lends an event loop to callers that have none.

Apart from `runners`, so that who has no async handlers does not pay for importing asyncio.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from eventonce.core import engine
from eventonce.core.ports import Task
from eventonce.errors import StoreError
from eventonce.runtime.inline import (
    Runtime,
    as_failure,
    invoke,
    is_async,
    salvage,
    settle_patiently,
)
from eventonce.runtime.loop_thread import LoopThread
from eventonce.runtime.occupancy import HERE, INSIDE, STEP, inside_handler
from eventonce.runtime.renewal import SETTLE_INTERVAL
from eventonce.types import Claim, Letter, Outcome, Settlement, SettleResult, Verdict

if TYPE_CHECKING:
    from eventonce.core.plan import Batch

T = TypeVar("T")

QUICK: Final = 0.001
"""Seconds in which one thread alone runs the plain handlers of a batch, one after the other. While
some still wait the threads are doubled again and again: slow ones soon run side by side, and quick
ones, which cost less than a thread's wake-up, have few threads."""

STORE_THREADS: Final = 4
"""Store calls are short; these threads are apart from the handlers', who may fill all of theirs."""


class Asynchronous:
    """The threads and the loop that one consumer's async side needs, made when first used."""

    def __init__(self, world: Runtime, threads: int) -> None:
        self._world = world
        self._threads = threads
        self._portal = LoopThread()
        self._process = os.getpid()

    def effects(self) -> OnAsyncio:
        """Effects for one batch on the running loop."""
        if self._process != os.getpid():
            # After a fork the threads are gone, and their pools do not know it.
            for pool in ("_stores", "_handlers"):
                self.__dict__.pop(pool, None)
            self._portal, self._process = LoopThread(), os.getpid()
        return OnAsyncio(self._world, self._stores, self._handlers, self._threads)

    async def process(self, batch: Batch) -> list[Outcome]:
        """Bring every event of a batch to its outcome, on the running loop."""
        effects = self.effects()
        try:
            return await batch.process(effects)
        except BaseException:
            await effects.interrupted(batch.tasks)
            raise

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it on a loop of our own and wait: for plain callers of async handlers."""
        return self._portal.run(coroutine)

    @cached_property
    def _stores(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="eventonce-store")

    @cached_property
    def _handlers(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads, thread_name_prefix="eventonce-handler")

    def cancel(self, within: float) -> None:
        """Cancel what runs on our own loop, and wait so long at most for it to end."""
        self._portal.cancel(within)

    def close(self) -> None:
        """Stop the loop and the threads."""
        self._portal.close()
        for pool in ("_stores", "_handlers"):
            if pool in self.__dict__:
                self.__dict__.pop(pool).shutdown(wait=True)


class OnAsyncio:
    """Effects on a loop: async handlers as tasks, plain ones in threads, the store in its own."""

    def __init__(self, world: Runtime, stores: Executor, handlers: Executor, most: int) -> None:
        self._world = world
        self._stores = stores
        self._handlers = handlers
        self._most = most
        self._under_way: Sequence[Task] = ()
        self._waiting: deque[Task] = deque()
        """Plain ones that no thread has taken yet."""
        self._returned: deque[Task] = deque()
        self._started: set[asyncio.Future[None]] = set()
        self._threads: dict[asyncio.Future[None], Future[None]] = {}
        self.now = world.clock

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        asked = self._begun(self._world.store.claim, claims)
        try:
            return await self._ended(asked)
        except asyncio.CancelledError:
            if asked.done() and asked.exception() is None:
                # Granted, and nobody is there to run it.
                freed = [
                    Settlement(claim, verdict.token, "return")
                    for claim, verdict in zip(claims, asked.result(), strict=True)
                    if verdict.token
                ]
                with suppress(StoreError):
                    await self._in_store(self._world.store.settle, freed)
            raise

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        world = self._world
        return await self._in_store(settle_patiently, world.store, settlements, world.pauses)

    async def shelve(self, letters: Sequence[Letter]) -> None:
        await self._in_store(self._world.letterbox.put_letters, letters)

    async def enter(self, *, alone: bool) -> bool | None:
        entering = HERE.entering(alone=alone)
        try:
            while True:
                try:
                    next(entering)
                except StopIteration as stop:
                    return cast("bool | None", stop.value)
                await asyncio.sleep(STEP)
        finally:
            entering.close()

    def leave(self, *, alone: bool) -> None:
        HERE.leave(alone=alone)

    async def _in_store(self, function: Callable[..., T], *args: Any) -> T:
        return await self._ended(self._begun(function, *args))

    def _begun(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._stores, function, *args)

    async def _ended(self, call: asyncio.Future[T]) -> T:
        try:
            # Shielded: a store call that is under way will have its effect, whoever stops waiting.
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            await asyncio.wait([call])
            raise

    async def run(self, tasks: Sequence[Task]) -> Sequence[Task]:
        ticket = self._world.renewer.watch(tasks)
        try:
            if not self._under_way:
                self._under_way = tasks
                await self._start(tasks)
            await self._wait(asyncio.ALL_COMPLETED)
            while not self._returned:
                await self._wait(asyncio.FIRST_COMPLETED)
            if self._started and len(self._returned) == len(tasks):
                # Their threads are about to say so, and the loop shall be there to hear it.
                await self._wait(asyncio.ALL_COMPLETED)
        except BaseException:
            # Before it is left: a thread cannot be stopped, and keeps its lease to its end.
            await self._end_handlers()
            raise
        finally:
            self._world.renewer.leave(ticket)
        if len(self._returned) == len(tasks):
            self._returned.clear()
            self._under_way = ()
            return tasks
        finished = {self._returned.popleft() for _ in range(len(self._returned))}
        self._under_way = [task for task in tasks if task not in finished]
        return list(finished)

    async def _wait(self, until: str) -> None:
        """For a wave at most: a thread that goes on with another handler says nothing."""
        done, self._started = await asyncio.wait(
            self._started, timeout=SETTLE_INTERVAL, return_when=until
        )
        for future in done:
            self._threads.pop(future, None)
            future.result()

    async def _start(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            if is_async(task.handler):
                self._started.add(asyncio.ensure_future(self._on_loop(task)))
            else:
                self._waiting.append(task)
        hired, most = 0, min(self._most, len(self._waiting))
        while self._waiting and hired < most:
            if hired:
                await asyncio.wait(self._threads, timeout=QUICK)
            more = min(max(1, hired), len(self._waiting), most - hired)
            for _ in range(more):
                self._hire()
            hired += more

    def _hire(self) -> None:
        thread = self._handlers.submit(self._work, contextvars.copy_context())
        future = asyncio.wrap_future(thread)
        self._started.add(future)
        self._threads[future] = thread

    def _work(self, context: contextvars.Context) -> None:
        """In a thread: the plain handlers that wait, one after the other."""
        context.run(INSIDE.set, True)
        while True:
            try:
                task = self._waiting.popleft()
            except IndexError:
                return
            # Each in a context of its own: what one leaves there the next shall not see.
            context.copy().run(invoke, task, self._world.transactions)
            self._returned.append(task)

    async def _on_loop(self, task: Task) -> None:
        await _awaited(task)
        self._returned.append(task)

    async def interrupted(self, tasks: Sequence[Task]) -> None:
        """Cancelled: complete what has returned of the batch, and free the rest."""
        await self._end_handlers()
        await self._in_store(salvage, tasks, self._world.store)

    async def _end_handlers(self) -> None:
        """End the async handlers, and wait for the threads."""
        self._waiting.clear()
        for future in self._started:
            # Cancelling the future of a running thread would only stop us from seeing its end.
            self._threads.get(future, future).cancel()
        if self._started:
            await asyncio.wait(self._started)
        self._started.clear()


async def _awaited(task: Task) -> None:
    try:
        with inside_handler():
            value = await task.handler(task.started())
        engine.finish(task, value)
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is None or current.cancelling():
            raise
        engine.finish(task, error=InterruptedError("something it awaited was cancelled"))
    except BaseException as error:  # noqa: BLE001  whatever a handler raises is the event's outcome
        # asyncio would let some of these through its loop, and end it with all that runs on it.
        engine.finish(task, error=as_failure(error))
