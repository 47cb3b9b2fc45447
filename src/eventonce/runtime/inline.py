"""Two ways to drive the engine with no event loop: inline, and around the body of a `with`.

The third, on asyncio, stands in `aio`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import AbstractContextManager, suppress
from math import inf
from threading import current_thread, main_thread
from types import FunctionType
from typing import Any, Final, TypeGuard, TypeVar, cast

from eventonce.core import engine
from eventonce.core.ports import Handler, LetterSink, Store, Task, Transaction, Transactional
from eventonce.core.reasons import TOO_LATE
from eventonce.errors import ConfigError, Retry, StoreError, StoreUnavailable
from eventonce.runtime.occupancy import HERE, STEP, inside_handler
from eventonce.runtime.renewal import SETTLE_INTERVAL, Renewer
from eventonce.types import Claim, Job, Letter, Settlement, SettleResult, Verdict

T = TypeVar("T")

SETTLE_PAUSES: Final = (0.05, 0.2, 1.0)
"""Seconds between tries to settle while the store is away: the effect has happened, so it is worth
some patience, but the transport's own deadline must not pass meanwhile."""


WorkOff = Callable[[Sequence[Task], list[Task], Callable[[Task], None]], None]
"""Runs these tasks, and appends each that has returned to the list; it may leave some for another
time. When it comes back or raises, none of them runs any more."""


class Runtime:
    """What all runners of one consumer share."""

    def __init__(self, store: Store, letterbox: LetterSink, clock: Callable[[], int]) -> None:
        self.store = store
        self.letterbox = letterbox
        self.clock = clock
        self.renewer = Renewer(store)
        self.pauses: Sequence[float] | None = None
        """Between tries to settle, where others than `SETTLE_PAUSES` are wanted."""
        self.work_off: WorkOff = one_by_one
        """How the plain handlers of a batch are run."""
        self.transactions = store if isinstance(store, Transactional) else None

    def run(self, task: Task) -> None:
        """Run a plain handler, here and now."""
        invoke(task, self.transactions)


def is_async(handler: Handler) -> bool:
    """Whether calling this handler gives something to await."""
    if _is_plain(handler):
        return bool(handler.__code__.co_flags & _COROUTINE)
    from inspect import iscoroutinefunction  # noqa: PLC0415  slow to import, and seldom needed

    call = getattr(handler, "__call__", None)  # noqa: B004  its kind is asked, not its presence
    return iscoroutinefunction(handler) or iscoroutinefunction(call)


def is_generator(handler: Handler) -> bool:
    """Whether calling this handler runs nothing of it yet."""
    if _is_plain(handler):
        return bool(handler.__code__.co_flags & (_GENERATOR | _ASYNC_GENERATOR))
    from inspect import isasyncgenfunction, isgeneratorfunction  # noqa: PLC0415  likewise

    return isgeneratorfunction(handler) or isasyncgenfunction(handler)


def _is_plain(handler: object) -> TypeGuard[FunctionType]:
    """Whether it is a function, and nobody marked it as something else."""
    return type(handler) is FunctionType and not handler.__dict__


_GENERATOR: Final = 0x20
_COROUTINE: Final = 0x80
_ASYNC_GENERATOR: Final = 0x200
"""What Python's compiler says of a function in its flags; `inspect` names them."""


class Scope:
    """The transaction a handler may open through `job.connection`, and what ends it."""

    def __init__(self, task: Task, job: Job, transactions: Transactional) -> None:
        self._task = task
        self._job = job
        self._transactions = transactions
        self._context: AbstractContextManager[Transaction] | None = None
        self._transaction: Transaction | None = None
        job.connect = self._connect

    def _connect(self) -> Any:
        if self._transaction is None:
            try:
                context = self._transactions.transaction()
                self._transaction = context.__enter__()
            except StoreUnavailable:
                # Whatever the handler makes of it, it could not do its work.
                self._task.blameless = True
                raise
            self._context = context
            self._task.in_transaction = True
        return self._transaction.connection

    def keep(self) -> None:
        """The handler returned: its writes and its completion commit together, or neither does.
        What ran unguarded has no completion."""
        self._job.connect = None
        if self._context is None or self._transaction is None:
            return
        try:
            kept: SettleResult = "kept"
            if self._task.token:
                kept = self._transaction.settle(engine.settlement(self._task))
            if kept != "kept":
                self.undo(_NotKept())
            else:
                self._context.__exit__(None, None, None)
                self._context = None
            self._task.kept = kept
        except StoreError as error:
            self.undo(error)
            self._task.blameless = isinstance(error, StoreUnavailable)
            engine.finish(self._task, error=error)
        except BaseException as error:
            # Interrupted by a signal: an exit that was not reached, or not to its end, is repeated.
            self.undo(error)
            raise

    def undo(self, why: BaseException) -> None:
        """The handler raised, or its completion was refused: what it wrote is undone."""
        self._job.connect = None
        context, self._context = self._context, None
        if context is not None:
            if self._transaction is not None and self._transaction.failed(why):
                self._task.blameless = True
            with suppress(type(why), StoreError):
                context.__exit__(type(why), why, None)


class _NotKept(Exception):
    """The completion was refused."""


def invoke(task: Task, transactions: Transactional | None) -> None:
    """Run a plain handler, here and now; not what another took over while it waited its turn, nor
    what the end of its process would cut off."""
    if task.lost:
        task.finished, task.kept = True, "fenced"
        return
    if task.last_call < inf and time.monotonic() > task.last_call:
        engine.finish(task, error=Retry(TOO_LATE))
        return
    job = task.started()
    scope = Scope(task, job, transactions) if transactions is not None else None
    try:
        value = task.handler(job)
        if value is not None and hasattr(value, "__await__"):
            if hasattr(value, "close"):
                # Or Python would warn of it, long after and elsewhere.
                value.close()
            raise ConfigError(_NOT_AWAITED.format(task.handler))
    except BaseException as error:
        if scope is not None:
            scope.undo(error)
        # Also where it means the process: a handler that always exits is given up at last.
        engine.finish(task, error=as_failure(error))
        if _ends_the_process(error):
            raise
    else:
        engine.finish(task, value)
        if scope is not None:
            scope.keep()


def _ends_the_process(error: BaseException) -> bool:
    """Whether this means the process and not the event: in the main thread a signal raises it
    wherever the thread is, and in other threads nobody but the handler itself does."""
    if isinstance(error, Exception | GeneratorExit) or current_thread() is not main_thread():
        return False
    # asyncio's, without the import.
    return type(error).__name__ != "CancelledError"


def as_failure(error: BaseException) -> Exception:
    """What a handler raised, as what became of its event."""
    return error if isinstance(error, Exception) else InterruptedError(repr(error))


_NOT_AWAITED: Final = (
    "{!r} returned something to await, but is not an `async def` function, so nobody awaits it: "
    "declare it `async def`."
)


def salvage(tasks: Sequence[Task], store: Store) -> None:
    """Interrupted: complete what returned, free the rest, as far as the store still answers.

    A run with a transaction of its own is freed too: as long as that can still be committed, so
    can its completion.
    """
    # Of several versions of one subject all but the latest are settled.
    latest = {task.claim.key: task for task in sorted(tasks, key=_token) if task.token}
    settlements = [_salvaged(task) for task in latest.values() if task.kept is None]
    with suppress(StoreError):
        store.settle(settlements)


def _token(task: Task) -> int:
    return task.token


def _salvaged(task: Task) -> Settlement:
    if not task.finished or task.in_transaction:
        return Settlement(task.claim, task.token, "return")
    if task.outcome.status == "dead":
        # Perhaps its dead letter was not kept. Where it was, and this is buried, that stands.
        return Settlement(task.claim, task.token, "release")
    return engine.settlement(task)


def one_by_one(tasks: Sequence[Task], finished: list[Task], run: Callable[[Task], None]) -> None:
    """Here and now, in their order; after a while the rest is left, and what returned settled."""
    clock = time.monotonic
    end = clock() + SETTLE_INTERVAL
    for task in tasks:
        run(task)
        finished.append(task)
        if clock() > end:
            break


class Inline:
    """Effects done here and now, one after the other: for Lambda, scripts and the command line."""

    def __init__(self, world: Runtime) -> None:
        self._world = world
        self.now = world.clock

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        return self._world.store.claim(claims)

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        return settle_patiently(self._world.store, settlements, self._world.pauses)

    async def run(self, tasks: Sequence[Task]) -> Sequence[Task]:
        finished: list[Task] = []
        ticket = self._world.renewer.watch(tasks, finished)
        try:
            with inside_handler():
                self._world.work_off(tasks, finished, self._world.run)
            return finished
        finally:
            self._world.renewer.leave(ticket)

    async def shelve(self, letters: Sequence[Letter]) -> None:
        self._world.letterbox.put_letters(letters)

    async def enter(self, *, alone: bool) -> bool | None:
        entering = HERE.entering(alone=alone)
        while True:
            try:
                next(entering)
            except StopIteration as stop:
                return cast("bool | None", stop.value)
            time.sleep(STEP)  # noqa: ASYNC251  there is no loop: this runs in the caller's thread

    def leave(self, *, alone: bool) -> None:
        HERE.leave(alone=alone)


def settle_patiently(
    store: Store, settlements: Sequence[Settlement], pauses: Sequence[float] | None = None
) -> list[SettleResult]:
    """Settle, and try again for a while if the store is away; repeating it is always safe."""
    for pause in SETTLE_PAUSES if pauses is None else pauses:
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

    def __init__(self, world: Runtime) -> None:
        self._inline = Inline(world)
        self.now = world.clock
        self.claim = self._inline.claim
        self.settle = self._inline.settle
        self.shelve = self._inline.shelve
        self.enter = self._inline.enter
        self.leave = self._inline.leave
        self.tasks: Sequence[Task] = ()

    async def run(self, tasks: Sequence[Task]) -> Sequence[Task]:
        self.tasks = tasks
        await _Block()
        return tasks


class _Block(Awaitable[None]):
    """Suspends the engine until the body of the `with` is left."""

    def __await__(self) -> Generator[None, None, None]:
        yield
