"""Stages: the steps of many callers' batches side by side, for `process_async` and the worker.

One thread claims for all batches that have come; so it is for settling and keeping dead letters.
Handlers run in slots, or on their caller's event loop. While handlers are quick, one thread does
everything: it claims for several batches, runs their handlers one by one and settles them together.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from eventonce.core.engine import Ask, Enter, Execute, Keep, Request, Settle, Wait
from eventonce.core.outcomes import finish, settlement
from eventonce.core.plan import Run
from eventonce.errors import StoreUnavailable
from eventonce.log import log
from eventonce.runtime.invoke import as_failure, invoke
from eventonce.runtime.lane import MOST_ITEMS, copied
from eventonce.runtime.running_batch import RunningBatch
from eventonce.runtime.shared_process import ENTER_INTERVAL
from eventonce.runtime.slots import Later, Slots
from eventonce.types import Claim, Letter, Outcome, Settlement

if TYPE_CHECKING:
    from eventonce.runtime.runtime import Runtime

Item = TypeVar("Item")

CANCELLED: Final = "cancelled before the handler had finished"
NOT_BEGUN: Final = "cancelled before the handler began"
NO_HANDLER_THREAD: Final = "the handler did not begin, because no thread could be started"


class Starter(Protocol):
    """A starter of async handlers on an event loop."""

    def start(self, run: Run, context: Context, returned: Callable[[Run], None]) -> None:
        """Run the handler in this context, and call `returned` when it has finished."""
        ...

    def is_stopped(self, runs: Sequence[Run]) -> bool:
        """Whether one of these runs has not returned, and its loop is stopped: it may never run
        again."""
        ...

    def end_stopped(self) -> None:
        """End the runs that have finished on a loop that is stopped now, and all on a loop that was
        closed meanwhile: no task of the loop can."""
        ...


class StagedBatch:
    """A running batch on its way through the stages."""

    request: Any = None
    wait_number = 0
    """The number of the current wait, which its end must name; 0 while the batch does not wait."""
    at_the_latest: Later | None = None
    """The call that ends the wait at the latest."""
    returned: Iterator[int]
    """Counts the handlers that have returned, if there are several."""
    plain: list[Run]
    """The runs whose plain handlers have not begun, the next one last; the slots have the batch
    once for each."""
    behind: deque[StagedBatch] | None = None
    """Batches that share a key with this one, and are claimed after it."""
    cancelled = False
    defect: BaseException | None = None
    """An unexpected exception, which the caller gets."""

    def __init__(
        self,
        running: RunningBatch,
        ended: Callable[[StagedBatch], None],
        *,
        context: Context,
        starter: Starter | None = None,
    ) -> None:
        """`ended` is called once, in any thread; handlers run in copies of `context`."""
        self.running = running
        self.ended = ended
        self.context = context
        self.starter = starter

    def result(self) -> list[Outcome]:
        """The outcomes; raises the defect, if there was one."""
        if self.running.outcomes is None:
            assert self.defect is not None
            raise self.defect
        return self.running.outcomes


class _Stage:
    """One step, done by one thread at a time for all batches that have come to it."""

    def __init__(
        self,
        slots: Slots[StagedBatch],
        work: Callable[[list[StagedBatch]], None],
        fail: Callable[[StagedBatch, BaseException], None],
    ) -> None:
        """`fail` is called for each batch for which no thread can be started."""
        self._slots = slots
        self._work = work
        self._fail = fail
        self._lock = threading.Lock()
        self._waiting: deque[StagedBatch] = deque()
        self._begun = False
        """Whether a thread does the step, or is about to."""

    def put(self, batch: StagedBatch) -> None:
        """Add this batch, and begin."""
        self.add(batch)
        self.begin(nested=batch.running.nested)

    def add(self, batch: StagedBatch) -> None:
        """Add this batch, for the next `begin`."""
        self._waiting.append(batch)

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
            for batch in self._taken():
                for each in (batch, *(batch.behind or ())):
                    self._fail(each, copied(error))

    def _taken(self) -> list[StagedBatch]:
        """Take the batches that have come by now."""
        batches: list[StagedBatch] = []
        # The thread of a nested batch may take some at the same time.
        with suppress(IndexError):
            for _ in range(len(self._waiting)):
                batches.append(self._waiting.popleft())  # noqa: PERF401  kept after an IndexError
        return batches

    def take(self) -> bool:
        """Whether this thread must call `run`, because no other does or is about to."""
        with self._lock:
            taken, self._begun = not self._begun, True
            return taken

    def run(self) -> None:
        """Do the step for the batches that have come."""
        try:
            if batches := self._taken():
                self._work(batches)
        finally:
            self._begun = False
            if self._waiting:
                self.begin()


class Stages:
    """The slots, and the stages before and after them."""

    def __init__(
        self, runtime: Runtime, threads: int, waiting: Callable[[int], None] | None = None
    ) -> None:
        """`threads` is the most plain handlers that run side by side. `waiting` is called with 1
        when a batch begins to wait for the runs of others, and with -1 when its wait ends."""
        self._runtime = runtime
        self._transactions = runtime.transactions
        self._slots: Slots[StagedBatch] = Slots(threads, self._run)
        self._starting = _Stage(self._slots, self._start, self._fail)
        self._claiming = _Stage(self._slots, self._claim, self._fail)
        self._stages: Mapping[type[Request], _Stage] = {
            Ask: self._claiming,
            Settle: _Stage(self._slots, self._settle, self._fail),
            Keep: _Stage(self._slots, self._keep, self._fail),
        }
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._waiting = waiting
        self._cancelled = False

    def submit(self, batches: Sequence[StagedBatch]) -> None:
        """Bring the events of these batches to their outcomes; the batches are claimed together."""
        for batch in batches:
            self.add(batch)
        self.begin(nested=any(batch.running.nested for batch in batches))

    def add(self, batch: StagedBatch) -> None:
        """Bring the events of this batch to their outcomes, after the next `begin`."""
        self._starting.add(batch)

    def begin(self, *, nested: bool) -> None:
        """Begin with the batches that were added; `nested` if a handler waits for one of them. An
        interrupted caller calls it again."""
        self._starting.begin(nested=nested)

    def cancel(self) -> None:
        """Begin no more handlers: the runs that wait for a slot are freed."""
        self._cancelled = True
        for batch in self._slots.clear():
            self._run(batch)

    def close(self) -> None:
        """End the threads, after the work that waits or runs."""
        self._slots.close()

    # The methods below are called by the one thread that owns the batch at that moment.

    def _advance(
        self,
        batch: StagedBatch,
        answer: Any = None,
        error: BaseException | None = None,
        begun: list[StagedBatch] | None = None,
    ) -> None:
        """Answer the last request of the batch, and pass the next one on. Plain handlers go to
        `begun`, if it is given, and to the slots otherwise."""
        running = batch.running
        steps = running.steps or running.begin()
        try:
            request = steps.send(answer) if error is None else steps.throw(error)
            # In a loop: a cancelled batch of many events is told for each that it cannot enter.
            while type(request) is Enter and self._is_cancelled(batch):
                request = steps.send(None)
            batch.request = request
            if type(request) is Execute:
                self._execute(batch, request.runs, begun)
            elif (stage := self._stages.get(type(request))) is not None:
                stage.put(batch)
            elif isinstance(request, Wait):
                self._begin_wait(batch, request)
            else:
                assert isinstance(request, Enter)
                self._enter(batch, running.entering(alone=request.alone))
        except StopIteration as stop:
            running.end(stop.value)
            self._end(batch)
        except BaseException as defect:  # noqa: BLE001  raised in the caller's own thread
            self._fail(batch, defect)

    def _fail(self, batch: StagedBatch, defect: BaseException) -> None:
        """End the batch with this exception, which the caller gets, and free its runs."""
        batch.defect = defect
        # A second error follows from the first.
        with suppress(Exception):
            batch.running.interrupted()
        self._end(batch)

    def _end(self, batch: StagedBatch) -> None:
        # The garbage collector does not visit requests: with one, a batch that the traceback of a
        # handler refers to would be part of a cycle that is never freed.
        batch.request = None
        try:
            batch.ended(batch)
        except BaseException:  # noqa: BLE001  it must not end a thread that other batches need
            log().exception("the caller could not be told that its batch has ended")

    def _enter(self, batch: StagedBatch, entry: Generator[None, None, bool | None]) -> None:
        """Go on with the batch as soon as it may begin."""
        answer: bool | None = None
        if not self._is_cancelled(batch):
            try:
                next(entry)
            except StopIteration as stop:
                answer = stop.value
            else:
                self._slots.call_later(ENTER_INTERVAL, partial(self._enter, batch, entry))
                return
        self._advance(batch, answer)

    def _is_cancelled(self, batch: StagedBatch) -> bool:
        """Whether the batch must not enter: freed after its claim, an event that ended a process
        would run beside others next."""
        if self._cancelled:
            batch.cancelled = True
        return batch.cancelled

    def _begin_wait(self, batch: StagedBatch, wanted: Wait) -> None:
        """Let the batch wait for other runs, or go on if it must not wait."""
        number = next(self._numbers)
        end_wait = partial(self._end_wait, batch, number)
        # Under the lock of `_end_wait`: the other run may end before the number is set.
        with self._lock:
            seconds = batch.running.wait(wanted, end_wait)
            waits = seconds > 0 and not batch.cancelled
            if waits:
                batch.at_the_latest = self._slots.call_later(seconds, end_wait)
                batch.wait_number = number
                if self._waiting is not None:
                    self._waiting(1)
        if not waits:
            self._advance(batch, answer=False)

    def give_up(self, batch: StagedBatch) -> None:
        """Cancel this batch, whose caller is gone: begin no more handlers, and wait for no other
        run."""
        with self._lock:
            batch.cancelled = True
            number = batch.wait_number
        self._end_wait(batch, number)

    def _end_wait(self, batch: StagedBatch, number: int) -> None:
        with self._lock:
            if not number or batch.wait_number != number:
                return
            batch.wait_number = 0
            assert batch.at_the_latest is not None
            self._slots.forget(batch.at_the_latest)
            if self._waiting is not None:
                self._waiting(-1)
        try:
            self._slots.call(lambda: self._advance(batch, not batch.cancelled))
        except RuntimeError as no_thread:
            self._fail(batch, no_thread)

    def _start(self, batches: Sequence[StagedBatch]) -> None:
        """Bring each batch to its first claim: in a slot, where no signal interrupts it."""
        claims_here = self._claiming.take()
        for batch in batches:
            self._advance(batch)
        if claims_here:
            self._claiming.run()

    def _claim(self, batches: Sequence[StagedBatch]) -> None:
        """Claim for all batches in one call; batches that share a key one after the other."""
        first: dict[bytes, StagedBatch] = {}
        together: list[StagedBatch] = []
        for batch in batches:
            own = [claim.key for claim in _claims(batch)]
            if not first.keys().isdisjoint(own):
                _hold_back(batch, next(first[key] for key in own if key in first))
            elif len(first) < MOST_ITEMS:
                first.update(dict.fromkeys(own, batch))
                together.append(batch)
            else:
                self._claiming.put(batch)
        for batch in together:
            if behind := batch.behind:
                # Only the first, with the others behind it: otherwise each is looked at many times.
                following = behind.popleft()
                following.behind, batch.behind = behind, None
                self._claiming.put(following)
        self._call(together, _claims, self._runtime.gate.claim)

    def _call(
        self,
        batches: Sequence[StagedBatch],
        items_of: Callable[[StagedBatch], Sequence[Item]],
        call: Callable[[Sequence[Item]], Sequence[Any]],
    ) -> None:
        """Make one call for all batches, or several if they have more than `MOST_ITEMS` together;
        give each batch its answers."""
        wanted = [items_of(batch) for batch in batches]
        if len(batches) > 1 and sum(map(len, wanted)) > MOST_ITEMS:
            half = len(batches) // 2
            for some in (batches[:half], batches[half:]):
                self._call(some, items_of, call)
            return
        try:
            answers = call([item for items in wanted for item in items])
        except BaseException as error:  # noqa: BLE001  for the engine, or for the caller
            if len(batches) == 1 or isinstance(error, StoreUnavailable):
                for batch in batches:
                    self._advance(batch, error=copied(error))
            else:
                # The call was refused because of one batch: make a call for each.
                for batch in batches:
                    self._call([batch], items_of, call)
            return
        at = 0
        begun: list[StagedBatch] = []
        for batch, items in zip(batches, wanted, strict=True):
            own = answers[at : at + len(items)]
            at += len(items)
            self._advance(batch, own, begun=begun)
        if begun:
            self._put(begun)

    def _execute(
        self, batch: StagedBatch, runs: Sequence[Run], begun: list[StagedBatch] | None
    ) -> None:
        running = batch.running
        running.execute(runs)
        assert running.leased is not None
        running.leased.starter = batch.starter
        if running.leased.shared:
            batch.returned = count(1)
        starter, plain = batch.starter, runs
        if starter is not None:
            plain = [run for run in runs if not run.plan.asynchronous]
        # Before the first start: a batch of async handlers alone may be in its next round after it.
        batch.plain = [*reversed(plain)]
        if starter is not None:
            for run in runs:
                if not run.plan.asynchronous:
                    continue
                if batch.cancelled or self._cancelled:
                    self._free(batch, run)
                else:
                    starter.start(run, batch.context.copy(), partial(self._returned, batch))
        places = [batch] * len(plain)
        if begun is not None and not running.nested:
            begun += places
        elif places:
            self._put(places, nested=running.nested)

    def _put(self, plain: Sequence[StagedBatch], *, nested: bool = False) -> None:
        for batch in self._slots.put(plain, nested=nested):
            run = batch.plain.pop()
            finish(run, error=InterruptedError(NO_HANDLER_THREAD))
            self._returned(batch, run)
        if self._cancelled:
            # These came after the others were freed, and would wait for a handler that runs.
            self.cancel()

    def _run(self, batch: StagedBatch) -> None:
        """Run the next plain handler of this batch, in a slot."""
        run = batch.plain.pop()
        if batch.cancelled or self._cancelled:
            self._free(batch, run)
            return
        # A new copy of the context for each handler: the next must not see its variables.
        try:
            batch.context.copy().run(invoke, run, self._transactions)
        except BaseException as error:  # noqa: BLE001  the transaction's end; the thread must go on
            finish(run, error=as_failure(error))
        self._returned(batch, run)

    def _free(self, batch: StagedBatch, run: Run) -> None:
        """End a run of a cancelled batch whose handler has not begun."""
        batch.cancelled = True
        finish(run, error=InterruptedError(NOT_BEGUN))
        self._returned(batch, run)

    def _returned(self, batch: StagedBatch, run: Run) -> None:
        leased = batch.running.leased
        if leased is not None and leased.shared:
            leased.finished.append(run)
            # `next` is atomic: of several threads exactly one is the last.
            if next(batch.returned) < len(leased.runs):
                return
            self._runtime.gate.take_back(leased)
        self._advance(batch)

    def _settle(self, batches: Sequence[StagedBatch]) -> None:
        """Settle for all batches in one call."""
        gate, pauses = self._runtime.gate, self._runtime.pauses
        self._call(batches, _settlements, lambda some: gate.settle(some, pauses))

    def _keep(self, batches: Sequence[StagedBatch]) -> None:
        for batch in batches:
            self._call([batch], _letters, self._put_letters)

    def _put_letters(self, letters: Sequence[Letter]) -> Sequence[None]:
        self._runtime.letters.put_letters(letters)
        return [None] * len(letters)


def _hold_back(batch: StagedBatch, ahead: StagedBatch) -> None:
    """Claim this batch, and those behind it, after the batch ahead."""
    shorter, behind = sorted((ahead.behind or deque(), batch.behind or deque()), key=len)
    behind.append(batch)
    behind += shorter
    ahead.behind, batch.behind = behind, None


def _claims(batch: StagedBatch) -> Sequence[Claim]:
    claims: Sequence[Claim] = batch.request.claims
    return claims


def _settlements(batch: StagedBatch) -> Sequence[Settlement]:
    return [settlement(run) for run in batch.request.runs]


def _letters(batch: StagedBatch) -> Sequence[Letter]:
    letters: Sequence[Letter] = batch.request.letters
    return letters
