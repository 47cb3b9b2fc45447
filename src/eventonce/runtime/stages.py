"""Stages: the steps of many callers' batches side by side, for `process_async` and the worker.

One thread claims for all batches that have come; so it is for settling and keeping dead letters.
Handlers run in slots, or on their caller's event loop. While handlers are quick, one thread does
everything: it claims for several batches, runs their handlers one by one and settles them together.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from eventonce.core.engine import Ask, Enter, Execute, Keep, Request, Settle, Wait
from eventonce.core.outcomes import finish, settlement
from eventonce.core.plan import Plan, Refusal, Run
from eventonce.errors import StoreUnavailable
from eventonce.log import log
from eventonce.runtime.invoke import as_failure, invoke
from eventonce.runtime.lane import MOST_ITEMS, copied
from eventonce.runtime.shared_process import ENTER_INTERVAL
from eventonce.runtime.slots import Later, Slots
from eventonce.runtime.visit import CopyWait, Visit
from eventonce.types import Claim, Letter, Outcome, Settlement

if TYPE_CHECKING:
    from eventonce.runtime.runtime import Runtime

Item = TypeVar("Item")

CANCELLED: Final = "cancelled before the handler had finished"
NO_HANDLER_THREAD: Final = "the handler did not begin, because no thread could be started"


class Starter(Protocol):
    """A starter of async handlers on an event loop."""

    def start(self, run: Run, context: Context, returned: Callable[[Run], None]) -> None:
        """Run the handler in this context, and call `returned` when it has finished."""
        ...

    def look(self) -> None:
        """End the runs on a loop that was closed meanwhile: no task of the loop can."""
        ...


class Ticket(Visit):
    """One batch on its way through the stages."""

    request: Any = None
    entry: Any = None
    parked = 0
    """The number of the current wait, which a wake-up must name; 0 while it does not wait."""
    at_the_latest: Later | None = None
    """The call that ends the wait at the latest."""
    returned: Iterator[int]
    """Counts the handlers that have returned."""
    behind: deque[Ticket] | None = None
    """Batches that share a key with this one, and are claimed after it."""
    cancelled = False
    defect: BaseException | None = None
    """An unexpected exception, which the caller gets."""

    def __init__(
        self,
        runtime: Runtime,
        planned: Sequence[Plan | Refusal],
        copy_wait: CopyWait,
        ended: Callable[[Ticket], None],
        *,
        context: Context,
        starter: Starter | None = None,
    ) -> None:
        """`ended` is called once, in any thread; handlers run in copies of `context`."""
        Visit.__init__(self, runtime, planned, copy_wait)
        self.ended = ended
        self.context = context
        self.starter = starter

    def result(self) -> list[Outcome]:
        """The outcomes; raises the defect, if there was one."""
        if self.outcomes is None:
            assert self.defect is not None
            raise self.defect
        return self.outcomes


class _Stage:
    """One step, done by one thread at a time for all batches that have come to it."""

    def __init__(
        self,
        slots: Slots[tuple[Ticket, Run]],
        work: Callable[[list[Ticket]], None],
        fail: Callable[[Ticket, BaseException], None],
    ) -> None:
        """`fail` is called for each batch for which no thread can be started."""
        self._slots = slots
        self._work = work
        self._fail = fail
        self._lock = threading.Lock()
        self._waiting: deque[Ticket] = deque()
        self._begun = False
        """Whether a thread does the step, or is about to."""

    def put(self, ticket: Ticket) -> None:
        """Add this batch, and begin."""
        self.add(ticket)
        self.begin(nested=ticket.nested)

    def add(self, ticket: Ticket) -> None:
        """Add this batch, for the next `begin`."""
        self._waiting.append(ticket)

    def begin(self, *, nested: bool = False) -> None:
        """Start the step for the batches that have come; idempotent."""
        # Without the lock: a thread that ends looks for new batches after it clears `_begun`.
        if self._begun and not nested:
            return
        try:
            with self._lock:
                if self._begun and not nested:
                    return
                self._begun = True
            self._slots.call(self.run, nested=nested)
        except BaseException as error:
            self._begun = False
            if not isinstance(error, RuntimeError):
                # A signal: the interrupted caller calls `begin` again.
                raise
            for ticket in self._taken():
                for each in (ticket, *(ticket.behind or ())):
                    self._fail(each, copied(error))

    def _taken(self) -> list[Ticket]:
        """Take the batches that have come by now."""
        tickets: list[Ticket] = []
        # The thread of a nested batch may take some at the same time.
        with suppress(IndexError):
            for _ in range(len(self._waiting)):
                tickets.append(self._waiting.popleft())  # noqa: PERF401  kept after an IndexError
        return tickets

    def take(self) -> bool:
        """Whether this thread must call `run`, because no other does or is about to."""
        with self._lock:
            taken, self._begun = not self._begun, True
            return taken

    def run(self) -> None:
        """Do the step for the batches that have come."""
        try:
            if tickets := self._taken():
                self._work(tickets)
        finally:
            self._begun = False
            if self._waiting:
                self.begin()


class Stages:
    """The slots, and the stages before and after them."""

    def __init__(self, runtime: Runtime, threads: int) -> None:
        """`threads` is the most plain handlers that run side by side."""
        self._runtime = runtime
        self._transactions = runtime.transactions
        self._slots: Slots[tuple[Ticket, Run]] = Slots(threads, self._run)
        self._coming = _Stage(self._slots, self._come, self._fail)
        self._claiming = _Stage(self._slots, self._claim, self._fail)
        self._stages: Mapping[type[Request], _Stage] = {
            Ask: self._claiming,
            Settle: _Stage(self._slots, self._settle, self._fail),
            Keep: _Stage(self._slots, self._keep, self._fail),
        }
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._cancelled = False

    @property
    def busy(self) -> int:
        """Threads that run plain handlers."""
        return self._slots.busy

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Bring the events of these batches to their outcomes; the batches are claimed together."""
        for ticket in tickets:
            self.add(ticket)
        self.begin(nested=any(ticket.nested for ticket in tickets))

    def add(self, ticket: Ticket) -> None:
        """Bring the events of this batch to their outcomes, after the next `begin`."""
        self._coming.add(ticket)

    def begin(self, *, nested: bool) -> None:
        """Begin with the batches that were added; `nested` if a handler waits for one of them. An
        interrupted caller calls it again."""
        self._coming.begin(nested=nested)

    def cancel(self) -> None:
        """Begin no more handlers: the runs that wait for a slot are freed."""
        self._cancelled = True
        for item in self._slots.clear():
            self._run(item)

    def close(self) -> None:
        """End the threads, after the work that waits or runs."""
        self._slots.close()

    # The methods below are called by the one thread that owns the batch at that moment.

    def _advance(
        self,
        ticket: Ticket,
        answer: Any = None,
        error: BaseException | None = None,
        begun: list[tuple[Ticket, Run]] | None = None,
    ) -> None:
        """Answer the last request of the batch, and pass the next one on. Plain handlers go to
        `begun`, if it is given, and to the slots otherwise."""
        steps = ticket.requests
        if steps is None:
            steps = ticket.requests = ticket.steps()
        try:
            while True:
                request = steps.send(answer) if error is None else steps.throw(error)
                ticket.request, error = request, None
                if type(request) is Execute:
                    self._execute(ticket, request.runs, begun)
                    return
                stage = self._stages.get(type(request))
                if stage is not None:
                    stage.put(ticket)
                    return
                if isinstance(request, Wait):
                    answer = self._park(ticket, request)
                    if answer is None:
                        return
                else:
                    assert isinstance(request, Enter)
                    ticket.entry = ticket.entering(alone=request.alone)
                    entered, answer = self._entered(ticket)
                    if not entered:
                        return
        except StopIteration as stop:
            ticket.outcomes = stop.value
            if ticket.trace is not None:
                ticket.trace.end(ticket.outcomes)
            self._end(ticket)
        except BaseException as defect:  # noqa: BLE001  raised in the caller's own thread
            self._fail(ticket, defect)

    def _fail(self, ticket: Ticket, defect: BaseException) -> None:
        """End the batch with this exception, which the caller gets, and free its runs."""
        ticket.defect = defect
        # A second error follows from the first.
        with suppress(Exception):
            ticket.interrupted()
        self._end(ticket)

    def _end(self, ticket: Ticket) -> None:
        try:
            ticket.ended(ticket)
        except BaseException:  # noqa: BLE001  it must not end a thread that other batches need
            log().exception("the caller could not be told that its batch has ended")

    def _entered(self, ticket: Ticket) -> tuple[bool, bool | None]:
        """Whether the batch may begin now, and the answer to its `Enter`; else ask again later."""
        if ticket.cancelled:
            return True, None
        try:
            next(ticket.entry)
        except StopIteration as stop:
            return True, cast("bool | None", stop.value)
        self._slots.call_later(ENTER_INTERVAL, partial(self._enter_again, ticket))
        return False, None

    def _enter_again(self, ticket: Ticket) -> None:
        entered, answer = self._entered(ticket)
        if entered:
            self._advance(ticket, answer)

    def _park(self, ticket: Ticket, wanted: Wait) -> bool | None:
        """Let the batch wait for other runs; False if it must not wait, None if it does."""
        number = next(self._numbers)
        unpark = partial(self._unpark, ticket, number)
        # Under the lock of `_unpark`: the other run may end before `parked` is set.
        with self._lock:
            seconds = ticket.wait(wanted, unpark)
            if not seconds or ticket.cancelled:
                return False
            ticket.at_the_latest = self._slots.call_later(seconds, unpark)
            ticket.parked = number
        return None

    def give_up(self, ticket: Ticket) -> None:
        """Cancel this batch, whose caller is gone: begin no more handlers, and wait for no other
        run."""
        with self._lock:
            ticket.cancelled = True
            number = ticket.parked
        self._unpark(ticket, number)

    def _unpark(self, ticket: Ticket, number: int) -> None:
        with self._lock:
            if not number or ticket.parked != number:
                return
            ticket.parked = 0
            assert ticket.at_the_latest is not None
            self._slots.forget(ticket.at_the_latest)
        try:
            self._slots.call(lambda: self._advance(ticket, not ticket.cancelled))
        except RuntimeError as no_thread:
            self._fail(ticket, no_thread)

    def _come(self, tickets: Sequence[Ticket]) -> None:
        """Bring each batch to its first claim: in a slot, where no signal interrupts it."""
        claims_here = self._claiming.take()
        for ticket in tickets:
            self._advance(ticket)
        if claims_here:
            self._claiming.run()

    def _claim(self, tickets: Sequence[Ticket]) -> None:
        """Claim for all batches in one call; batches that share a key one after the other."""
        first: dict[bytes, Ticket] = {}
        together: list[Ticket] = []
        for ticket in tickets:
            own = [claim.key for claim in _claims(ticket)]
            if not first.keys().isdisjoint(own):
                _hold_back(ticket, next(first[key] for key in own if key in first))
            elif len(first) < MOST_ITEMS:
                first.update(dict.fromkeys(own, ticket))
                together.append(ticket)
            else:
                self._claiming.put(ticket)
        for ticket in together:
            if line := ticket.behind:
                # Only the first, with the others behind it: otherwise each is looked at many times.
                following = line.popleft()
                following.behind, ticket.behind = line, None
                self._claiming.put(following)
        self._call(together, _claims, self._runtime.gate.claim)

    def _call(
        self,
        tickets: Sequence[Ticket],
        items_of: Callable[[Ticket], Sequence[Item]],
        call: Callable[[Sequence[Item]], Sequence[Any]],
    ) -> None:
        """Make one call for all batches, and give each its answers."""
        wanted = [items_of(ticket) for ticket in tickets]
        try:
            answers = call([item for items in wanted for item in items])
        except BaseException as error:  # noqa: BLE001  for the engine, or for the caller
            if len(tickets) == 1 or isinstance(error, StoreUnavailable):
                for ticket in tickets:
                    self._advance(ticket, error=copied(error))
            else:
                # The call was refused because of one batch: make a call for each.
                for ticket in tickets:
                    self._call([ticket], items_of, call)
            return
        at = 0
        begun: list[tuple[Ticket, Run]] = []
        for ticket, items in zip(tickets, wanted, strict=True):
            some = answers[at : at + len(items)]
            at += len(items)
            self._advance(ticket, some, begun=begun)
        if begun:
            self._put(begun)

    def _execute(
        self, ticket: Ticket, runs: Sequence[Run], begun: list[tuple[Ticket, Run]] | None
    ) -> None:
        ticket.execute(runs)
        assert ticket.hold is not None
        if ticket.starter is not None:
            ticket.hold.looked = ticket.starter.look
        ticket.returned = count(1)
        plain: list[tuple[Ticket, Run]] = []
        for run in runs:
            if run.plan.asynchronous:
                assert ticket.starter is not None
                ticket.starter.start(run, ticket.context.copy(), partial(self._returned, ticket))
            else:
                plain.append((ticket, run))
        if plain and begun is not None and not ticket.nested:
            begun += plain
        elif plain:
            self._put(plain, nested=ticket.nested)

    def _put(self, plain: Sequence[tuple[Ticket, Run]], *, nested: bool = False) -> None:
        for ticket, run in self._slots.put(plain, nested=nested):
            finish(run, error=InterruptedError(NO_HANDLER_THREAD))
            self._returned(ticket, run)
        if self._cancelled:
            # These came after the others were freed, and would wait for a handler that runs.
            self.cancel()

    def _run(self, item: tuple[Ticket, Run]) -> None:
        """Run a plain handler, in a slot."""
        ticket, run = item
        if ticket.cancelled or self._cancelled:
            ticket.cancelled = True
            finish(run, error=InterruptedError(CANCELLED))
        else:
            # A new copy of the context for each handler: the next must not see its variables.
            try:
                ticket.context.copy().run(invoke, run, self._transactions)
            except BaseException as error:  # noqa: BLE001  the transaction's end; the thread must go on
                finish(run, error=as_failure(error))
        self._returned(ticket, run)

    def _returned(self, ticket: Ticket, run: Run) -> None:
        hold = ticket.hold
        if hold is not None and hold.shared:
            hold.finished.append(run)
            # `next` is atomic: of several threads exactly one is the last.
            if next(ticket.returned) < len(hold.runs):
                return
            self._runtime.gate.unsettled(hold)
        self._advance(ticket)

    def _settle(self, tickets: Sequence[Ticket]) -> None:
        """Settle for all batches in one call."""
        gate, pauses = self._runtime.gate, self._runtime.pauses
        self._call(tickets, _settlements, lambda some: gate.settle(some, pauses))

    def _keep(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            self._call([ticket], _letters, self._put_letters)

    def _put_letters(self, letters: Sequence[Letter]) -> Sequence[None]:
        self._runtime.letters.put_letters(letters)
        return [None] * len(letters)


def _hold_back(ticket: Ticket, ahead: Ticket) -> None:
    """Claim this batch, and those behind it, after the batch ahead."""
    shorter, line = sorted((ahead.behind or deque(), ticket.behind or deque()), key=len)
    line.append(ticket)
    line += shorter
    ahead.behind, ticket.behind = line, None


def _claims(ticket: Ticket) -> Sequence[Claim]:
    claims: Sequence[Claim] = ticket.request.claims
    return claims


def _settlements(ticket: Ticket) -> Sequence[Settlement]:
    return [settlement(run) for run in ticket.request.runs]


def _letters(ticket: Ticket) -> Sequence[Letter]:
    letters: Sequence[Letter] = ticket.request.letters
    return letters
