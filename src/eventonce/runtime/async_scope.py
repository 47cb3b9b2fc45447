"""The transaction of one `async def` handler: its statements run on the event loop, and threads
begin and end it. `invoke.Scope`, as for plain handlers, commits it or rolls it back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Final

from eventonce.core.plan import Run
from eventonce.core.ports import AsyncTransactional
from eventonce.errors import ConfigError, StoreUnavailable
from eventonce.runtime.invoke import Opened, Scope, open_transaction
from eventonce.runtime.slots import Slots
from eventonce.types import Job

BEGINNING_THREADS: Final = 8
"""The most threads that begin transactions: each of them may wait for a free connection."""

ENDING_THREADS: Final = 32
"""The most threads that end transactions: concurrent commits share one write to the disk."""

NO_TRANSACTION_THREAD: Final = "no thread could be started to begin a transaction"

Call = tuple[Future[Any], Callable[[], Any]]


class TransactionThreads:
    """The threads that begin and end the transactions of async handlers: the store's calls block.

    There are two pools, because a handler that waits for a connection must not delay the end of a
    transaction, which frees a connection.
    """

    def __init__(self) -> None:
        self._beginning: Slots[Call] = Slots(BEGINNING_THREADS, _run)
        self._ending: Slots[Call] = Slots(ENDING_THREADS, _run)

    def begin(self, call: Callable[[], Opened]) -> Future[Opened]:
        """Begin a transaction, in a thread."""
        future: Future[Opened] = Future()
        for _ in self._beginning.put([(future, call)]):
            future.set_exception(RuntimeError(NO_TRANSACTION_THREAD))
        return future

    def end(self, call: Callable[[], None]) -> Future[None]:
        """End a transaction, in a thread."""
        future: Future[None] = Future()
        for item in self._ending.put([(future, call)]):
            # In this thread, then: a transaction without an end keeps its locks and its connection.
            _run(item)
        return future

    def close(self) -> None:
        """End the threads, after the calls that wait or run."""
        self._beginning.close()
        self._ending.close()


def _run(item: Call) -> None:
    future, call = item
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001  raised where the future is awaited
            future.set_exception(error)


class AsyncScope:
    """The transaction that an `async def` handler may open through `job.async_connection()`."""

    def __init__(
        self, run: Run, job: Job, store: AsyncTransactional, threads: TransactionThreads
    ) -> None:
        self._run = run
        self._job = job
        self._store = store
        self._threads = threads
        self._scope = Scope(run, job)
        self._opening = asyncio.Lock()
        self._connection: Any = None
        self._take_back: Callable[[], Awaitable[None]] | None = None
        self._ended = False
        job.connect_async = self._connect

    async def _connect(self) -> Any:
        # Two coroutines of one handler may ask for the connection at the same moment.
        async with self._opening:
            if self._take_back is None:
                opened = await self._open()
                if self._ended:
                    self._give_back(opened)
                    raise ConfigError("job.async_connection(): await it before the handler returns")
                self._scope.use(opened)
                self._connection, self._take_back = self._store.async_connection(opened[1])
            return self._connection

    async def _open(self) -> Opened:
        opening = self._threads.begin(partial(open_transaction, self._store))
        try:
            return await asyncio.wrap_future(opening)
        except (StoreUnavailable, asyncio.CancelledError) as error:
            # The attempt does not count, even where the handler catches this error.
            self._run.blameless = True
            if isinstance(error, asyncio.CancelledError):
                # The handler does not wait until the server answers; a callback rolls back.
                opening.add_done_callback(self._give_back_opened)
            raise

    def _give_back_opened(self, opening: Future[Opened]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._give_back(opening.result())

    def _give_back(self, opened: Opened) -> None:
        self._threads.end(lambda: _roll_back(opened))

    async def end(self, raised: BaseException | None) -> None:
        """Commit the handler's writes together with its completion, or roll them back if it raised.

        A cancellation of this task does not interrupt the end; it is raised afterwards.
        """
        scope = self._scope
        call = scope.commit if raised is None else partial(scope.roll_back, raised)
        self._ended = True
        self._job.connect_async = None
        if self._take_back is None:
            return
        cancelled: asyncio.CancelledError | None = None
        for step in (self._take_back, lambda: asyncio.wrap_future(self._threads.end(call))):
            # Futures, not tasks: code that cancels all tasks of the loop must not cancel them.
            future = asyncio.ensure_future(step())
            while not future.done():
                try:
                    await asyncio.wait([future])
                except asyncio.CancelledError as error:
                    cancelled = error
            future.result()
        if cancelled is not None:
            raise cancelled


class _Unused(Exception):
    """The exception that rolls back a transaction for which the handler no longer waits."""


def _roll_back(opened: Opened) -> None:
    unused = _Unused()
    with suppress(_Unused):
        opened[0].__exit__(_Unused, unused, None)
