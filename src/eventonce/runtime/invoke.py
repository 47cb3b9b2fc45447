"""The call of one plain handler, with the transaction that it may open through `job.connection`."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, suppress
from threading import current_thread, main_thread
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Final

import msgspec

from eventonce.core.outcomes import finish, settlement
from eventonce.core.plan import Handler, Run
from eventonce.core.ports import Transaction, Transactional
from eventonce.core.reasons import TOO_LATE
from eventonce.errors import ConfigError, Retry, StoreError, StoreUnavailable
from eventonce.runtime.brief_results import without_result
from eventonce.types import Job, SettleResult

Opened = tuple[AbstractContextManager[Transaction], Transaction]
"""A transaction, and the block that it is open in."""


def open_transaction(store: Transactional) -> Opened:
    """Open a transaction, which whoever holds it ends."""
    block = store.transaction()
    return block, block.__enter__()


class Scope(msgspec.Struct, eq=False):
    """The transaction a handler may open through `job.connection`, and what ends it."""

    _run: Run
    _job: Job
    _store: Transactional | None = None
    """None where the transaction is opened elsewhere, and given to `hold`."""
    _context: AbstractContextManager[Transaction] | None = None
    _transaction: Transaction | None = None

    def connect(self) -> Any:
        """The connection; the first time it opens the transaction. It is the `connect` of a job."""
        if self._transaction is None:
            assert self._store is not None
            try:
                self.hold(open_transaction(self._store))
            except StoreUnavailable:
                # Whatever the handler makes of it, it could not do its work.
                self._run.blameless = True
                raise
        assert self._transaction is not None
        return self._transaction.connection

    def hold(self, opened: Opened) -> None:
        """From here on the handler's writes and its completion are in this transaction."""
        self._context, self._transaction = opened
        self._run.in_transaction = True

    def keep(self) -> None:
        """The handler returned: its writes and its completion commit together, or neither does.
        What ran unguarded has no completion."""
        self._job.connect = None
        if self._context is None or self._transaction is None:
            return
        try:
            kept: SettleResult = "kept"
            if self._run.token:
                kept = self._transaction.settle(without_result(settlement(self._run)))
            if kept != "kept":
                self.undo(_NotKept())
            else:
                self._context.__exit__(None, None, None)
                self._context = None
            self._run.kept = kept
        except StoreError as error:
            self.undo(error)
            self._run.blameless = isinstance(error, StoreUnavailable)
            finish(self._run, error=error)
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
                self._run.blameless = True
            with suppress(type(why), StoreError):
                context.__exit__(type(why), why, None)


class _NotKept(Exception):
    """The completion was refused."""


def invoke(run: Run, transactions: Transactional | None) -> None:
    """Run a plain handler, here and now."""
    if (run.lost or run.plan.deadline is not None) and not starts(run):
        return
    run.started = time.monotonic()
    plan = run.plan
    handler = run.traced or plan.handler
    assert handler is not None
    # As `run.start` does it, without the call.
    job = run.job = Job(plan.event, run.claim, plan.rule.name, run.token, run.attempt)
    scope = None
    if transactions is not None:
        scope = Scope(run, job, transactions)
        job.connect = scope.connect
    try:
        value = handler(job)
        if value is not None:
            check_it_ran(handler, value)
    except BaseException as error:
        run.took = time.monotonic() - run.started
        if scope is not None:
            scope.undo(error)
        # Also where it means the process: a handler that always exits is given up at last.
        finish(run, error=as_failure(error))
        if _ends_the_process(error):
            raise
    else:
        run.took = time.monotonic() - run.started
        if value is None:
            run.finished = True
        else:
            finish(run, value)
        if scope is not None:
            scope.keep()


def check_it_ran(handler: Handler, value: object) -> None:
    """Raises where a handler returned what somebody would have to run first."""
    if hasattr(value, "__await__"):
        if hasattr(value, "close"):
            # Or Python would warn of it, long after and elsewhere.
            value.close()
        raise ConfigError(_NOT_AWAITED.format(handler))
    if isinstance(value, GeneratorType | AsyncGeneratorType):
        raise ConfigError(f"{handler!r} returned a generator, of which nothing ran; remove `yield`")


def starts(run: Run) -> bool:
    """Whether the handler shall begin: not where another took the event over while it waited its
    turn, nor where the end of the process would cut it off."""
    if run.lost:
        run.finished, run.kept = True, "fenced"
        return False
    now, deadline = time.monotonic(), run.plan.deadline
    if deadline is not None and now > deadline.last_start:
        finish(run, error=Retry(TOO_LATE))
        return False
    run.started = now
    return True


def _ends_the_process(error: BaseException) -> bool:
    """Whether this means the process and not the event: in the main thread a signal raises it
    wherever the thread is, and in other threads nobody but the handler itself does."""
    if isinstance(error, Exception | GeneratorExit) or current_thread() is not main_thread():
        return False
    # asyncio's, without the import.
    return type(error).__name__ != "CancelledError"


def as_failure(error: BaseException) -> Exception:
    """The exception of a handler, as the failure of its event."""
    return error if isinstance(error, Exception) else InterruptedError(repr(error))


_NOT_AWAITED: Final = (
    "{!r} returned something to await, but is not an `async def` function, so nobody awaits it: "
    "declare it `async def`."
)
