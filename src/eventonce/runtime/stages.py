"""Stages: batches of many callers on their way side by side, for `process_async` and the worker.

One thread claims for all that have come while it made its last call, another settles for all that
have finished, a third keeps dead letters; handlers run in slots, or on their caller's event loop.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from copy import copy
from functools import partial
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from eventonce.core import engine
from eventonce.core.engine import Ask, Enter, Execute, Keep, Settle, Wait, settlement
from eventonce.core.plan import Plan, Refusal, Run
from eventonce.errors import StoreUnavailable
from eventonce.log import log
from eventonce.runtime.gate import Hold
from eventonce.runtime.invoke import invoke
from eventonce.runtime.lane import MOST
from eventonce.runtime.occupancy import STEP
from eventonce.runtime.slots import Slots
from eventonce.runtime.visit import CopyWait, Visit
from eventonce.types import Claim, Letter, Outcome, Settlement

if TYPE_CHECKING:
    from eventonce.runtime.runtime import Runtime

Item = TypeVar("Item")

CANCELLED: Final = "cancelled before it began"

GATHER_TIME: Final = 0.001
"""Seconds that a call waits until as many have come as shared the last one. Callers that were
answered together come again together, but not in the same instant: without it the first of them is
asked for alone, and the wake-ups and calls for it cost more than all else. A lone caller waits for
nobody."""


class Starter(Protocol):
    """Starts handlers that must be awaited, on an event loop."""

    def start(self, run: Run, context: Context, returned: Callable[[Run], None]) -> None:
        """Run the handler in this context, and call `returned` when it has finished."""
        ...


class Ticket(Visit):
    """One batch on its way through the stages."""

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
        super().__init__(runtime, planned, copy_wait)
        self.ended = ended
        self.context = context
        self.starter = starter
        self.request: Any = None
        self.entry: Any = None
        self.parked = 0
        """Names what the batch waits for, so that it is woken for that alone; 0 for nothing."""
        self.pending = 0
        """Handlers that have not returned."""
        self.cancelled = False
        self.outcomes: list[Outcome] | None = None
        self.defect: BaseException | None = None
        """What was raised where nothing should be."""

    def result(self) -> list[Outcome]:
        """The outcomes; raises the defect, if there was one."""
        if self.outcomes is None:
            assert self.defect is not None
            raise self.defect
        return self.outcomes


class _Stage:
    """A thread that does the work of all who have come while it did the last."""

    def __init__(self, name: str, work: Callable[[list[Ticket]], float | None]) -> None:
        """`work` answers the seconds after which it wants to be called again, though nobody came;
        None for never."""
        self._name = name
        self._work = work
        self._some = threading.Condition()
        self._waiting: deque[Ticket] = deque()
        self._thread: threading.Thread | None = None
        self._wakes_at: float = 1
        """How many must have come for the thread to be woken; `inf` while it is awake."""
        self._closed = False

    def put(self, ticket: Ticket) -> None:
        """Let this one have its turn."""
        # In this order: a thread that goes to sleep looks once more after it has said so.
        self._waiting.append(ticket)
        if len(self._waiting) < self._wakes_at:
            return
        with self._some:
            self._wakes_at = inf
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"eventonce-{self._name}", daemon=True
                )
                self._thread.start()
            else:
                self._some.notify()

    def close(self) -> None:
        """End the thread, when nobody waits any more."""
        with self._some:
            self._closed = True
            self._some.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        pause: float | None = None
        last = 0
        while True:
            with self._some:
                self._wakes_at = 1
                if not self._waiting and (pause is not None or not self._closed):
                    self._some.wait(pause)
                if self._closed and not self._waiting and pause is None:
                    # Whoever comes later starts another.
                    self._thread, self._wakes_at = None, 1
                    return
                if last > 1 and self._waiting and not self._closed:
                    self._wakes_at = last
                    if len(self._waiting) < last:
                        self._some.wait(GATHER_TIME)
                self._wakes_at = inf
            last = len(self._waiting)
            pause = self._work([self._waiting.popleft() for _ in range(last)])


class Stages:
    """The threads, and what each does."""

    def __init__(self, runtime: Runtime, threads: int) -> None:
        """`threads`: plain handlers that run side by side at the most."""
        self._runtime = runtime
        self._claiming = _Stage("claim", self._claim)
        self._settling = _Stage("settle", self._settle)
        self._keeping = _Stage("letters", self._keep)
        self._slots: Slots[tuple[Ticket, Run, Hold]] = Slots(threads, self._run)
        self._lock = threading.Lock()
        self._asking: deque[Ticket] = deque()
        """Those that wait for the next call to the store; the claiming thread's alone."""
        self._later: list[tuple[float, int, int, Ticket]] = []
        """Those that wait for another run, by when they ask again at the latest."""
        self._numbers = count(1)
        self._cancelled = False

    @property
    def busy(self) -> int:
        """Plain handlers that run."""
        return self._slots.busy

    def submit(self, ticket: Ticket) -> None:
        """Bring the events of this batch to their outcomes. Up to its first claim in the caller's
        thread, for nothing waits there."""
        self._advance(ticket)

    def cancel(self) -> None:
        """Begin no handler any more: what waits for a slot is freed."""
        self._cancelled = True
        for item in self._slots.clear():
            self._run(item)

    def close(self) -> None:
        """End the threads, after what is under way."""
        for part in (self._claiming, self._slots, self._keeping, self._settling):
            part.close()

    # Each of the following is called by whoever has the batch now; nobody else touches it.

    def _advance(self, ticket: Ticket, answer: Any = None, error: Exception | None = None) -> None:
        """Answer what the batch asked for, and bring it to where its next request is done."""
        steps = ticket.requests
        try:
            while True:
                request = steps.send(answer) if error is None else steps.throw(error)
                ticket.request, answer, error = request, None, None
                match request:
                    case Ask():
                        self._claiming.put(ticket)
                        return
                    case Execute():
                        self._execute(ticket, request.runs)
                        return
                    case Settle():
                        self._settling.put(ticket)
                        return
                    case Keep():
                        self._keeping.put(ticket)
                        return
                    case Enter():
                        entered, answer = _enter(ticket, alone=request.alone)
                        if not entered:
                            self._claiming.put(ticket)
                            return
                    case Wait():
                        answer = self._park(ticket, request)
                        if answer is None:
                            return
        except StopIteration as stop:
            ticket.outcomes = cast("list[Outcome]", stop.value)
        except BaseException as defect:  # noqa: BLE001  the caller is told, in its own thread
            ticket.defect = defect
            # Whatever else fails now follows from it.
            with suppress(Exception):
                ticket.interrupted()
        try:
            ticket.ended(ticket)
        except BaseException:  # noqa: BLE001  it would end the thread that all others need
            log().exception("an outcome could not be told")

    def _park(self, ticket: Ticket, wanted: Wait) -> bool | None:
        """Let the batch wait for other runs; False if it shall not, None if it does."""
        number = ticket.parked = next(self._numbers)
        # In one step with the wake-up: the run may end before this comes to its end.
        with self._lock:
            seconds = ticket.wait(wanted, lambda: self._unpark(ticket, number))
            if not seconds or ticket.cancelled:
                ticket.parked = 0
                return False
            heapq.heappush(self._later, (time.monotonic() + seconds, number, number, ticket))
        return None

    def give_up(self, ticket: Ticket) -> None:
        """Nobody waits for the outcomes of this batch: begin no handler any more, and wait for no
        other run."""
        with self._lock:
            ticket.cancelled = True
            number = ticket.parked
        self._unpark(ticket, number)

    def _unpark(self, ticket: Ticket, number: int) -> None:
        with self._lock:
            if not number or ticket.parked != number:
                return
            ticket.parked = 0
        self._claiming.put(ticket)

    def _claim(self, tickets: list[Ticket]) -> float | None:
        """Claim for all in one call; those of one key one after the other."""
        polls = False
        for ticket in tickets:
            match ticket.request:
                case Wait():
                    self._advance(ticket, not ticket.cancelled)
                case Enter():
                    entered, answer = _entered(ticket)
                    if entered:
                        self._advance(ticket, answer)
                    else:
                        polls = True
                        self._claiming.put(ticket)
                case _:
                    self._asking.append(ticket)
        self._claim_together()
        self._unpark_late()
        if polls:
            time.sleep(STEP)
        return self._pause()

    def _claim_together(self) -> None:
        if not self._asking:
            return
        keys: set[bytes] = set()
        size = 0
        together: list[Ticket] = []
        left: deque[Ticket] = deque()
        while self._asking and size < MOST:
            ticket = self._asking.popleft()
            own = {claim.key for claim in ticket.request.claims}
            if keys.isdisjoint(own):
                keys |= own
                size += len(own)
                together.append(ticket)
            else:
                left.append(ticket)
        self._asking.extendleft(reversed(left))
        self._call(together, _claims, self._runtime.gate.claim)

    def _call(
        self,
        tickets: Sequence[Ticket],
        items_of: Callable[[Ticket], Sequence[Item]],
        call: Callable[[Sequence[Item]], Sequence[Any]],
    ) -> None:
        """Make one call for all, and give each its answers."""
        wanted = [items_of(ticket) for ticket in tickets]
        try:
            answers = call([item for items in wanted for item in items])
        except Exception as error:  # noqa: BLE001  the engine decides, or the caller is told
            if len(tickets) == 1 or isinstance(error, StoreUnavailable):
                for ticket in tickets:
                    self._advance(ticket, error=copy(error))
            else:
                # Refused for one of them: each is asked for by itself.
                for ticket in tickets:
                    self._call([ticket], items_of, call)
            return
        at = 0
        for ticket, items in zip(tickets, wanted, strict=True):
            self._advance(ticket, answers[at : at + len(items)])
            at += len(items)

    def _unpark_late(self) -> None:
        now = time.monotonic()
        late = []
        with self._lock:
            while self._later and (self._later[0][0] <= now or not self._is_parked(self._later[0])):
                _, _, number, ticket = heapq.heappop(self._later)
                if ticket.parked == number:
                    ticket.parked = 0
                    late.append(ticket)
        for ticket in late:
            self._advance(ticket, True)

    @staticmethod
    def _is_parked(entry: tuple[float, int, int, Ticket]) -> bool:
        return entry[3].parked == entry[2]

    def _pause(self) -> float | None:
        if self._asking:
            return 0.0
        with self._lock:
            if not self._later:
                return None
            # A run without end is waited for without end; nobody sleeps that long.
            return min(max(0.0, self._later[0][0] - time.monotonic()), 60.0)

    def _execute(self, ticket: Ticket, runs: Sequence[Run]) -> None:
        hold = ticket.execute(runs)
        ticket.pending = len(runs)
        plain = [(ticket, run, hold) for run in runs if not run.plan.asynchronous]
        if len(plain) < len(runs):
            starter = ticket.starter
            assert starter is not None
            for run in runs:
                if run.plan.asynchronous:
                    returned = partial(self._returned, ticket, hold)
                    starter.start(run, ticket.context.copy(), returned)
        if plain:
            self._slots.put(plain, nested=ticket.nested)
            if self._cancelled:
                # It came after the others were freed, and would wait for a handler that runs.
                self.cancel()

    def _run(self, item: tuple[Ticket, Run, Hold]) -> None:
        """In a slot: run a plain handler."""
        ticket, run, hold = item
        if ticket.cancelled or self._cancelled:
            ticket.cancelled = True
            engine.finish(run, error=InterruptedError(CANCELLED))
        else:
            # Each in a context of its own: what one leaves there the next shall not see.
            ticket.context.copy().run(invoke, run, self._runtime.transactions)
        self._returned(ticket, hold, run)

    def _returned(self, ticket: Ticket, hold: Hold, run: Run) -> None:
        run.took = time.monotonic() - run.started
        hold.finished.append(run)
        with self._lock:
            ticket.pending -= 1
            if ticket.pending:
                return
        ticket.executed()
        self._advance(ticket)

    def _settle(self, tickets: list[Ticket]) -> None:
        """Settle for all in one call."""
        gate, pauses = self._runtime.gate, self._runtime.pauses
        if tickets:
            self._call(tickets, _settlements, lambda some: gate.settle(some, pauses))

    def _keep(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            self._call([ticket], _letters, self._put_letters)

    def _put_letters(self, letters: Sequence[Letter]) -> Sequence[None]:
        self._runtime.letters.put_letters(letters)
        return [None] * len(letters)


def _claims(ticket: Ticket) -> Sequence[Claim]:
    return cast("Sequence[Claim]", ticket.request.claims)


def _settlements(ticket: Ticket) -> Sequence[Settlement]:
    return [settlement(run) for run in ticket.request.runs]


def _letters(ticket: Ticket) -> Sequence[Letter]:
    return cast("Sequence[Letter]", ticket.request.letters)


def _enter(ticket: Ticket, *, alone: bool) -> tuple[bool, bool | None]:
    if not alone and ticket.admitted():
        return True, False
    ticket.entry = ticket.entering(alone=alone)
    return _entered(ticket)


def _entered(ticket: Ticket) -> tuple[bool, bool | None]:
    """Whether the batch may begin now, and the answer to its `Enter`."""
    try:
        next(ticket.entry)
    except StopIteration as stop:
        return True, cast("bool | None", stop.value)
    return False, None
