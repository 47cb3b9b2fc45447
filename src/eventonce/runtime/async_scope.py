"""The transaction of one `async def` handler: its statements run on the event loop, and a thread
begins and ends it. `invoke.Scope`, which ends it, is the one of plain handlers."""

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

BEGINNING: Final = 8
"""Threads that begin transactions at the most: each of them may wait for a free connection."""

ENDING: Final = 32
"""Threads that end them at the most: commits that are under way together share a disk's write."""

NO_THREAD: Final = "no thread could be started that would begin a transaction"

Call = tuple[Future[Any], Callable[[], Any]]


class TransactionThreads:
    """Where the transactions of async handlers begin and end: the store's calls block.

    Apart from each other: whoever waits for a connection must not keep those from ending who have
    one.
    """

    def __init__(self) -> None:
        self._beginning: Slots[Call] = Slots(BEGINNING, _run)
        self._ending: Slots[Call] = Slots(ENDING, _run)

    def begin(self, call: Callable[[], Opened]) -> Future[Opened]:
        """Begin a transaction, in a thread."""
        future: Future[Opened] = Future()
        for _ in self._beginning.put([(future, call)]):
            future.set_exception(RuntimeError(NO_THREAD))
        return future

    def end(self, call: Callable[[], None]) -> Future[None]:
        """End one, in a thread."""
        future: Future[None] = Future()
        for item in self._ending.put([(future, call)]):
            # Here, then: a transaction that nobody ends keeps its locks and its connection.
            _run(item)
        return future

    def close(self) -> None:
        """End the threads, after what is under way."""
        self._beginning.close()
        self._ending.close()


def _run(item: Call) -> None:
    future, call = item
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001  whoever waits for it is told
            future.set_exception(error)


class AsyncScope:
    """The transaction an `async def` handler may open through `job.async_connection()`."""

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
        # Two coroutines of one handler may be the first at the same moment.
        async with self._opening:
            if self._take_back is None:
                opened = await self._open()
                if self._ended:
                    self._give_back(opened)
                    raise ConfigError("job.async_connection(): its handler has returned")
                self._scope.hold(opened)
                self._connection, self._take_back = self._store.async_connection(opened[1])
            return self._connection

    async def _open(self) -> Opened:
        opening = self._threads.begin(partial(open_transaction, self._store))
        try:
            return await asyncio.wrap_future(opening)
        except (StoreUnavailable, asyncio.CancelledError) as error:
            # Whatever the handler makes of it, it could not do its work.
            self._run.blameless = True
            if isinstance(error, asyncio.CancelledError):
                # Nobody waits for it any more: not for a server that does not answer, either.
                opening.add_done_callback(self._undo_opened)
            raise

    def _undo_opened(self, opening: Future[Opened]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._give_back(opening.result())

    def _give_back(self, opened: Opened) -> None:
        self._threads.end(lambda: _roll_back(opened))

    async def end(self, raised: BaseException | None) -> None:
        """Commit the handler's writes together with its completion, or undo them if it raised.

        To its end, however often this task is cancelled meanwhile; then it is cancelled.
        """
        scope = self._scope
        call = scope.keep if raised is None else partial(scope.undo, raised)
        self._ended = True
        self._job.connect_async = None
        if self._take_back is None:
            return
        cancelled: asyncio.CancelledError | None = None
        for step in (self._take_back, lambda: asyncio.wrap_future(self._threads.end(call))):
            # No task: who cancels all tasks of a loop would cancel the end, too.
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
    """The handler does not wait for its transaction any more."""


def _roll_back(opened: Opened) -> None:
    unused = _Unused()
    with suppress(_Unused):
        opened[0].__exit__(_Unused, unused, None)
