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
from eventonce.core.reasons import STALLED, TOO_LATE
from eventonce.errors import ConfigError, Retry, StoreError, StoreUnavailable
from eventonce.runtime.brief_results import without_result
from eventonce.types import Job, SettleResult

Opened = tuple[AbstractContextManager[Transaction], Transaction]
"""A transaction, and the context manager that ends it."""


def open_transaction(store: Transactional) -> Opened:
    """Open a transaction; the caller ends it."""
    block = store.transaction()
    return block, block.__enter__()


class Scope(msgspec.Struct, eq=False):
    """The transaction that a handler may open through `job.connection`, with its end."""

    _run: Run
    _job: Job
    _store: Transactional | None = None
    """None if the caller opens the transaction and gives it to `use`."""
    _context: AbstractContextManager[Transaction] | None = None
    _transaction: Transaction | None = None

    def connect(self) -> Any:
        """Return the connection; the first call opens the transaction. A job's `connect`."""
        if self._transaction is None:
            assert self._store is not None
            try:
                self.use(open_transaction(self._store))
            except StoreUnavailable:
                # The attempt does not count, even where the handler catches this error.
                self._run.blameless = True
                raise
        assert self._transaction is not None
        return self._transaction.connection

    def use(self, opened: Opened) -> None:
        """Use this transaction for the handler's writes and for its completion."""
        self._context, self._transaction = opened
        self._run.in_transaction = True

    def commit(self) -> None:
        """Commit the writes of a handler that returned together with its completion, or neither.
        A run without a token is unguarded and has no completion."""
        self._job.connect = None
        if self._context is None or self._transaction is None:
            return
        try:
            kept: SettleResult = "kept"
            if self._run.token:
                kept = self._transaction.settle(without_result(settlement(self._run)))
            if kept != "kept":
                self.roll_back(_NotKept())
            else:
                self._context.__exit__(None, None, None)
                self._context = None
            self._run.kept = kept
        except StoreError as error:
            self.roll_back(error)
            self._run.blameless = isinstance(error, StoreUnavailable)
            finish(self._run, error=error)
        except BaseException as error:
            # A signal may interrupt before or during the commit: then `roll_back` exits once more.
            self.roll_back(error)
            raise

    def roll_back(self, why: BaseException) -> None:
        """Roll back the writes: the handler raised, or its completion was refused."""
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
    """Run a plain handler in this thread."""
    if (run.lost or run.plan.deadline is not None) and not starts(run):
        return
    run.started = time.monotonic()
    plan = run.plan
    handler = run.traced or plan.handler
    assert handler is not None
    # As `run.start`, without the cost of the call.
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
            scope.roll_back(error)
        # Also for an exit of the process: a handler that always exits must be given up in the end.
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
            scope.commit()


def check_it_ran(handler: Handler, value: object) -> None:
    """Raise if a handler returned an awaitable or a generator, whose code has not run."""
    if hasattr(value, "__await__"):
        if hasattr(value, "close"):
            # Otherwise Python warns later, at another place.
            value.close()
        raise ConfigError(_NOT_AWAITED.format(handler))
    if isinstance(value, GeneratorType | AsyncGeneratorType):
        raise ConfigError(f"{handler!r} returned a generator, which did not run; remove `yield`")


def starts(run: Run) -> bool:
    """Whether the handler may begin: not if another run took the event over while this one waited,
    or may have, nor if the process may end before the handler does."""
    if run.lost:
        run.finished, run.kept = True, "fenced"
        return False
    if run.stalled:
        finish(run, error=Retry(STALLED))
        return False
    now, deadline = time.monotonic(), run.plan.deadline
    if deadline is not None and now > deadline.last_start:
        finish(run, error=Retry(TOO_LATE))
        return False
    run.started = now
    return True


def _ends_the_process(error: BaseException) -> bool:
    """Whether this exception is meant for the process and not for the event. In the main thread a
    signal may have raised it; in other threads only the handler can have."""
    if isinstance(error, Exception | GeneratorExit) or current_thread() is not main_thread():
        return False
    # By name, because importing asyncio is slow.
    return type(error).__name__ != "CancelledError"


def as_failure(error: BaseException) -> Exception:
    """Return the handler's exception as an `Exception`, which an outcome can hold."""
    return error if isinstance(error, Exception) else InterruptedError(repr(error))


_NOT_AWAITED: Final = (
    "{!r} returned an awaitable, but is not an `async def` function, so nothing awaits it: "
    "declare it `async def`."
)
