"""Batches on an event loop, and a loop for callers that have none.

Apart from `inline`, so that a program without async handlers does not import asyncio.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from eventonce import forks
from eventonce.core.outcomes import finish
from eventonce.core.plan import Plan, Refusal, Run
from eventonce.core.ports import AsyncTransactional, offers
from eventonce.runtime.async_scope import AsyncScope, TransactionThreads
from eventonce.runtime.gate import LeasedRuns
from eventonce.runtime.invoke import as_failure, check_it_ran, starts
from eventonce.runtime.loop_thread import LoopThread
from eventonce.runtime.running_batch import CopyWait, RunningBatch
from eventonce.runtime.shared_process import INSIDE_HANDLER, InsideHandler
from eventonce.runtime.stages import CANCELLED, NOT_BEGUN, StagedBatch, Stages
from eventonce.types import Job, Outcome

if TYPE_CHECKING:
    from eventonce.runtime.runtime import Runtime


NO_HANDLER_TASK: Final = "the handler did not begin, because its event loop made no task for it"

ScopeOf = Callable[[Run, Job], "AsyncScope | None"]
"""Makes the transaction scope of a handler; None if the store has none for async handlers."""


class Asynchronous:
    """The threads and the loops for one consumer's async handlers, made when first used."""

    def __init__(self, runtime: Runtime, threads: int) -> None:
        self._runtime = runtime
        self._threads = threads
        store = runtime.transactions
        self._transactions = store if offers(store, AsyncTransactional) else None
        self._begin()
        forks.register(self, Asynchronous._begin)

    def _begin(self) -> None:
        """Begin without threads. Also called in the child of a fork, which has no other thread."""
        self._lock = threading.Lock()
        self.loop_thread = LoopThread()
        self._stages: Stages | None = None
        self._submitter: LoopSubmitter | None = None
        self._transaction_threads = TransactionThreads()

    async def process(
        self, planned: Sequence[Plan | Refusal], copy_wait: CopyWait, *, awaits: bool
    ) -> list[Outcome]:
        """Bring every event to its outcome, on the running loop. `awaits`: whether a handler of
        these plans may have to be awaited."""
        submitter = self.submitter()
        calls = submitter.calls
        context = copy_context()
        context.run(INSIDE_HANDLER.set, True)
        ends: list[asyncio.Future[None]] = [calls.loop.create_future()]
        starter = _Starter(calls, self._scope_of) if awaits else None
        batch = StagedBatch(
            RunningBatch(self._runtime, planned, copy_wait),
            # No closure: its cells would be two more objects for the garbage collector to visit.
            partial(_wake_soon, calls, ends),
            context=context,
            starter=starter,
        )
        try:
            submitter.submit(batch)
            await ends[0]
        except asyncio.CancelledError:
            # A handler in a thread cannot be stopped; its lease is renewed until it ends.
            submitter.catch_up()
            submitter.stages.give_up(batch)
            if starter is not None:
                starter.cancel()
            await _ended(batch, ends)
            raise
        except BaseException:
            # A signal, or the loop is gone.
            submitter.stages.give_up(batch)
            raise
        return batch.result()

    def run(self, runs: Sequence[Run], leased: LeasedRuns, meanwhile: Callable[[], None]) -> None:
        """Run async handlers side by side on the consumer's own loop, and wait for them; call
        `meanwhile` in this thread before the wait."""
        self.loop_thread.run(_side_by_side(runs, leased, self._scope_of), meanwhile)

    def starter(self) -> _Starter:
        """Return a starter of handlers on the consumer's own loop, for a worker."""
        return _Starter(LoopCalls(self.loop_thread.loop()), self._scope_of)

    def cancel(self, within: float) -> None:
        """Cancel the handlers on the consumer's own loop; wait at most so many seconds for them."""
        self.loop_thread.cancel(within)

    def close(self) -> None:
        """Stop the loop and the threads; a later caller gets new ones."""
        with self._lock:
            stages, self._stages, self._submitter = self._stages, None, None
            transaction_threads = self._transaction_threads
            self._transaction_threads = TransactionThreads()
        if stages is not None:
            stages.close()
        self.loop_thread.close()
        transaction_threads.close()

    def _scope_of(self, run: Run, job: Job) -> AsyncScope | None:
        if self._transactions is None:
            return None
        return AsyncScope(run, job, self._transactions, self._transaction_threads)

    def submitter(self) -> LoopSubmitter:
        """Return the submitter of the running loop's batches to this consumer's stages."""
        loop = asyncio.get_running_loop()
        submitter = self._submitter
        if submitter is not None and submitter.calls.loop is loop:
            return submitter
        # Loops of several threads may come here at the same moment.
        with self._lock:
            if self._stages is None:
                self._stages = Stages(self._runtime, self._threads)
            self._submitter = submitter = LoopSubmitter(LoopCalls(loop), self._stages)
            return submitter


class LoopCalls:
    """Calls of other threads on an event loop: one wake-up of the loop makes all that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[tuple[Callable[..., None], Any]] = deque()
        self._called = False

    def call(self, function: Callable[..., None], argument: Any) -> None:
        """Call this function on the loop; safe in any thread."""
        self._waiting.append((function, argument))
        if not self._called:
            self._called = True
            try:
                self.loop.call_soon_threadsafe(self.make)
            except RuntimeError:
                # The loop was closed, and no task waits there any more.
                self._waiting.clear()
                self._called = False

    def make(self) -> None:
        """Make the calls that wait; call this on the loop."""
        # Before the queue is emptied: a call that comes after that must wake the loop again.
        self._called = False
        try:
            while self._waiting:
                function, argument = self._waiting[0]
                # `_wake` is idempotent, so it may be repeated; a handler must not begin twice.
                if function is _wake:
                    _wake(argument)
                self._waiting.popleft()
                if function is not _wake:
                    function(argument)
        except BaseException:
            # A signal: without this the rest would not be made.
            self.loop.call_soon(self.make)
            raise


class LoopSubmitter:
    """The submitter of an event loop's batches to the stages: those of one turn of the loop begin
    together."""

    def __init__(self, calls: LoopCalls, stages: Stages) -> None:
        self.calls = calls
        self.stages = stages
        self._nested = False
        """Whether a handler waits for one of the batches of this turn."""
        self._scheduled = False
        """Whether the loop will call `_begin`."""

    def submit(self, batch: StagedBatch) -> None:
        """Add this batch to the stages; it begins with all others of this turn of the loop."""
        self.stages.add(batch)
        self._nested = self._nested or batch.running.nested
        if not self._scheduled:
            self.calls.loop.call_soon(self._begin)
            self._scheduled = True

    def catch_up(self) -> None:
        """Repeat the calls of the loop: a signal may have interrupted them as they began."""
        self._begin()
        self.calls.make()

    def _begin(self) -> None:
        try:
            self._scheduled = False
            self.stages.begin(nested=self._nested)
            self._nested = False
        except BaseException:
            # A signal: without this the batches would not begin.
            self.calls.loop.call_soon(self._begin)
            raise


class _Starter:
    """The async handlers of one batch, or of a worker, on their loop."""

    def __init__(self, calls: LoopCalls, scope_of: ScopeOf) -> None:
        self._calls = calls
        self._scope_of = scope_of
        self._handlers: set[asyncio.Task[None]] = set()
        self._started: dict[Run, Callable[[Run], None]] = {}
        """Runs that have not returned, each with its callback; code that removes one calls it."""
        self._cancelled = False

    def start(self, run: Run, context: Context, returned: Callable[[Run], None]) -> None:
        self._started[run] = returned
        self._calls.call(self._begin, (run, context))

    def is_stopped(self, runs: Sequence[Run]) -> bool:
        return not self._calls.loop.is_running() and any(run in self._started for run in runs)

    def end_stopped(self) -> None:
        loop = self._calls.loop
        if not loop.is_running():
            for run in list(self._started):
                if _has_ended(run) or loop.is_closed():
                    self._end(run)

    def cancel(self) -> None:
        """Cancel the handlers, also those that begin later; call this on the loop."""
        self._cancelled = True
        for handler in self._handlers:
            handler.cancel()

    def _end(self, run: Run) -> None:
        returned = self._started.pop(run, None)
        if returned is not None:
            _fail_unless_finished(run)
            returned(run)

    def _begin(self, wanted: tuple[Run, Context]) -> None:
        run, context = wanted

        def end(task: asyncio.Task[None]) -> None:
            self._handlers.discard(task)
            self._end(run)

        handler = awaited(run, self._scope_of)
        try:
            task = self._calls.loop.create_task(handler, context=context)
        except Exception as error:  # noqa: BLE001  a loop may have a task factory of the user
            handler.close()
            finish(run, error=InterruptedError(f"{NO_HANDLER_TASK}: {error!r}"))
            self._end(run)
            return
        self._handlers.add(task)
        task.add_done_callback(end)
        if self._cancelled:
            task.cancel()


def _fail_unless_finished(run: Run) -> None:
    """Note an error if the handler's task was cancelled before the handler had finished."""
    if not _has_ended(run):
        finish(run, error=InterruptedError(NOT_BEGUN if run.job is None else CANCELLED))


def _has_ended(run: Run) -> bool:
    """Whether the handler has finished, and its transaction, if there is one, has ended: before
    that it may not have taken effect."""
    return run.finished and not (run.in_transaction and run.kept is None and not run.error)


def _wake(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _wake_soon(calls: LoopCalls, futures: Sequence[asyncio.Future[None]], _: StagedBatch) -> None:
    calls.call(_wake, futures)


async def _ended(batch: StagedBatch, futures: list[asyncio.Future[None]]) -> None:
    """Wait for the end of a batch whose caller was cancelled, also if it is cancelled again."""
    loop = asyncio.get_running_loop()
    while batch.running.outcomes is None and batch.defect is None:
        futures.append(loop.create_future())
        with suppress(asyncio.CancelledError):
            await futures[-1]


async def _side_by_side(runs: Sequence[Run], leased: LeasedRuns, scope_of: ScopeOf) -> None:
    async def one(run: Run) -> None:
        await awaited(run, scope_of)
        leased.finished.append(run)

    # A handler that cancels its own task ends no other run: all are awaited.
    await asyncio.gather(*(one(run) for run in runs), return_exceptions=True)
    for run in runs:
        _fail_unless_finished(run)


async def awaited(run: Run, scope_of: ScopeOf) -> None:
    """Run an async handler."""
    handler = run.traced or run.plan.handler
    assert handler is not None
    if not starts(run):
        return
    job = run.start()
    scope = scope_of(run, job)
    seconds = run.plan.rule.timeout / 1000
    value: Any = None
    raised: BaseException | None = None
    failure: Exception | None = None
    cancelled: asyncio.CancelledError | None = None
    try:
        with InsideHandler():
            async with asyncio.timeout(seconds or None) as limit:
                value = await handler(job)
                if value is not None:
                    check_it_ran(handler, value)
    except TimeoutError as error:
        late = TimeoutError(f"the handler took longer than its rule's timeout, {seconds:g} s")
        raised, failure = error, late if limit.expired() else error
    except asyncio.CancelledError as error:
        raised, failure = error, InterruptedError("something the handler awaited was cancelled")
        current = asyncio.current_task()
        if current is None or current.cancelling() > 0:
            # The caller was cancelled: the run ends, and the attempt does not count.
            cancelled, run.blameless = error, True
    except BaseException as error:  # noqa: BLE001  whatever a handler raises is the event's outcome
        # asyncio would raise some of these out of its loop, and so end all tasks on the loop.
        raised, failure = error, as_failure(error)
    run.took = time.monotonic() - run.started
    if raised is None:
        finish(run, value)
    # After a `GeneratorExit` the loop is gone, and nothing can be awaited.
    if scope is not None and not isinstance(raised, GeneratorExit):
        try:
            await scope.end(raised)
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException as error:  # noqa: BLE001  it is not known whether it was committed
            failure = failure or as_failure(error)
    if failure is not None:
        finish(run, error=failure)
    if cancelled is not None:
        raise cancelled
