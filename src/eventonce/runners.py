"""Two ways to drive the engine with no event loop: inline, and around the body of a `with`.

The third, on asyncio, stands in `aio`.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, TypeVar, cast

from eventonce import engine
from eventonce.errors import ConfigError, StoreError, StoreUnavailable
from eventonce.ports import Handler, Shelf, Store, Task, Transaction, Transactional
from eventonce.renewal import Renewer
from eventonce.types import Claim, Job, Kept, Letter, Settlement, Verdict

T = TypeVar("T")

WAVE: Final = 1.0
"""Seconds after which what has finished is settled although others of its batch still run: what a
crash may cost is then a second's work, and quick batches are settled in one call."""

SETTLE_PAUSES: Final = (0.05, 0.2, 1.0)
"""Seconds between tries to settle while the store is away: the effect has happened, so it is worth
some patience, but the transport's own deadline must not pass meanwhile."""


class World:
    """What all runners of one consumer share."""

    def __init__(self, store: Store, shelf: Shelf, clock: Callable[[], int]) -> None:
        self.store = store
        self.shelf = shelf
        self.clock = clock
        self.renewer = Renewer(store)
        self.transactions = store if isinstance(store, Transactional) else None


def is_async(handler: Handler) -> bool:
    """Whether calling this handler gives something to await."""
    call = getattr(handler, "__call__", None)  # noqa: B004  its kind is asked, not its presence
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


class Scope:
    """The transaction a handler may open through `job.connection`, and what ends it."""

    def __init__(self, task: Task, job: Job, transactions: Transactional) -> None:
        self._task = task
        self._job = job
        self._transactions = transactions
        self._context: AbstractContextManager[Transaction] | None = None
        self._transaction: Transaction | None = None
        if task.token:
            job.connect = self._connect

    def _connect(self) -> Any:
        if self._transaction is None:
            self._context = self._transactions.transaction()
            self._transaction = self._context.__enter__()
        return self._transaction.connection

    def keep(self) -> None:
        """The handler returned: its writes and its completion commit together, or neither does."""
        self._job.connect = None
        if self._context is None or self._transaction is None:
            return
        try:
            kept = self._transaction.settle(engine.settlement(self._task))
            if kept != "kept":
                self.undo(_NotKept())
            else:
                context, self._context = self._context, None
                context.__exit__(None, None, None)
            self._task.kept = kept
        except StoreError as error:
            self.undo(error)
            engine.finish(self._task, error=error)

    def undo(self, why: BaseException) -> None:
        """The handler raised, or its completion was refused: what it wrote is undone."""
        self._job.connect = None
        context, self._context = self._context, None
        if context is not None:
            with suppress(type(why), StoreError):
                context.__exit__(type(why), why, None)


class _NotKept(Exception):
    """The completion was refused."""


def invoke(task: Task, transactions: Transactional | None) -> None:
    """Run a plain handler, here and now; not what another took over while it waited its turn."""
    if task.lost:
        task.finished, task.kept = True, "fenced"
        return
    job = task.started()
    scope = Scope(task, job, transactions) if transactions is not None else None
    try:
        value = task.handler(job)
        if value is not None and hasattr(value, "__await__"):
            raise ConfigError(_NOT_AWAITED.format(task.handler))
    except BaseException as error:
        if isinstance(error, Exception):
            engine.finish(task, error=error)
        if scope is not None:
            scope.undo(error)
        if not isinstance(error, Exception):
            raise
    else:
        engine.finish(task, value)
        if scope is not None:
            scope.keep()


_NOT_AWAITED: Final = (
    "{!r} returned something to await, but is not an `async def` function, so nobody awaits it: "
    "declare it `async def`."
)


def salvage(tasks: Sequence[Task], store: Store) -> None:
    """Interrupted: complete what returned, free the rest, as far as the store still answers."""
    settlements = [
        engine.settlement(task) if task.finished else Settlement(task.claim, task.token, "release")
        for task in tasks
        if task.token and task.kept is None
    ]
    with suppress(StoreError):
        store.settle(settlements)


class Inline:
    """Effects done here and now, one after the other: for Lambda, scripts and the command line."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.now = world.clock

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        return self._world.store.claim(claims)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Kept]:
        return settle_patiently(self._world.store, settlements)

    async def run(self, tasks: Sequence[Task]) -> Sequence[Task]:
        ticket = self._world.renewer.watch(tasks)
        transactions, clock = self._world.transactions, time.monotonic
        end = clock() + WAVE
        try:
            finished = []
            for task in tasks:
                invoke(task, transactions)
                finished.append(task)
                if clock() > end:
                    break
        except BaseException:
            salvage(tasks, self._world.store)
            raise
        else:
            return finished
        finally:
            self._world.renewer.leave(ticket)

    async def shelve(self, letters: Sequence[Letter]) -> None:
        self._world.shelf.put_letters(letters)


def settle_patiently(store: Store, settlements: Sequence[Settlement]) -> list[Kept]:
    """Settle, and try again for a while if the store is away; repeating it is always safe."""
    for pause in SETTLE_PAUSES:
        try:
            return store.settle(settlements)
        except StoreUnavailable:
            time.sleep(pause)
    return store.settle(settlements)


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits for a loop."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return cast("T", stop.value)
    raise AssertionError("an inline effect waited for an event loop")


class AroundBlock:
    """Effects around the body of a `with`: the engine stops where the handler would run."""

    def __init__(self, world: World) -> None:
        self._inline = Inline(world)
        self.now = world.clock
        self.claim = self._inline.claim
        self.settle = self._inline.settle
        self.shelve = self._inline.shelve
        self.tasks: Sequence[Task] = ()

    async def run(self, tasks: Sequence[Task]) -> Sequence[Task]:
        self.tasks = tasks
        await _Block()
        return tasks


class _Block(Awaitable[None]):
    """Suspends the engine until the body of the `with` is left."""

    def __await__(self) -> Generator[None, None, None]:
        yield
