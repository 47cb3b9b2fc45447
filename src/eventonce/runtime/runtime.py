"""The runtime of one consumer: the parts that its batches share, and the ways to run a batch.

Users have a `Consumer`; the worker, Lambda and the command line use the runtime, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from math import inf
from typing import TYPE_CHECKING, Final, cast

from eventonce.arguments import check_function, check_iterable
from eventonce.core.plan import Deadline, Handler, Plan, Refusal
from eventonce.core.planner import Incoming, Planner
from eventonce.core.ports import LetterSink, Observer, Store, StoreNames, Transactional, offers
from eventonce.core.routing import Route, Routes
from eventonce.errors import ConfigError
from eventonce.log import log
from eventonce.runtime import inline
from eventonce.runtime.background_task import BackgroundTask, keep_name
from eventonce.runtime.brief_results import BriefResults
from eventonce.runtime.gate import SETTLE_PAUSES, Gate
from eventonce.runtime.nonces import new_nonce
from eventonce.runtime.retention import Retention
from eventonce.runtime.running_batch import CopyWait, RunningBatch, Tracer
from eventonce.runtime.unhandled import Unhandled
from eventonce.types import Event, Outcome

if TYPE_CHECKING:
    from eventonce.runtime.on_asyncio import Asynchronous

CANCELLING: Final = 1.0
"""Seconds that cancelled handlers have to clean up."""

COPY_WAIT: Final = 5.0
"""Seconds that a copy waits for a run of this process before it is `busy`."""

ONE: Final = (bytes, bytearray, memoryview, str, Mapping, Event)
"""The types that are one event, and not several."""


class Runtime:
    """The gate, the planner, the routes and the threads of one consumer."""

    def __init__(
        self,
        name: str,
        store: Store,
        letters: LetterSink,
        planner: Planner,
        *,
        handler: Handler | None,
        unhandled: str,
        threads: int,
        observers: Sequence[Observer],
        clock: Callable[[], int],
    ) -> None:
        self.name = name
        self.letters = letters
        self.planner = planner
        self.routes = Routes(handler)
        self.unhandled = Unhandled(unhandled, clock)
        self.threads = threads
        self.observers = list(observers)
        self.clock = clock
        self.gate = Gate(store)
        self.pauses: Sequence[float] = SETTLE_PAUSES
        """Seconds between tries to settle while the store is away."""
        self.retention: Retention | None = None
        """Drops old dead letters; None if they are kept for ever."""
        self.tracer: Tracer | None = None
        self.transactions = store if offers(store, Transactional) else None
        self._unnamed = offers(store, StoreNames)
        """Whether the store has yet to be told the consumer's name."""
        # The end of a program waits for it: many a program has one batch, and closes nothing.
        work = partial(keep_name, cast("StoreNames", store), name)
        self._naming = BackgroundTask("names", work, at_exit=True)
        self._closing: list[Callable[[], None]] = []

    def keep_brief_results(self) -> None:
        """Keep results with `keep_result` in records of their own. This stays on when the rules
        change, because runs in progress may need it."""
        if not isinstance(self.gate.store, BriefResults):
            self.gate.store = BriefResults(self.gate.store)

    def wrap(self, around: Callable[[Handler], Handler]) -> None:
        """Wrap every handler that is registered so far, for example in a tracer or a fault."""
        check_function("wrap", around)
        self.routes = self.routes.wrapped(around)

    def plan(
        self,
        events: Iterable[Incoming] | Incoming,
        route_of: Callable[[str], Route | None] | None = None,
        *,
        redrive: bool = False,
        deadline: Deadline | None = None,
        deliveries: float = inf,
    ) -> list[Plan | Refusal]:
        """Return the plan for each event, without a call to the store."""
        if route_of is None and not self.routes:
            raise ConfigError(
                "Consumer: there is no handler yet; register one with @consumer.on() or handler=…"
            )
        if type(events) is not list:
            if isinstance(events, ONE):
                events = [events]
            else:
                check_iterable("process", events, "events: dicts, JSON text or bytes")
        return self.planner.plan_all(
            events,
            route_of or self.routes.of,
            self.unhandled,
            new_nonce(),
            redrive=redrive,
            deadline=deadline,
            deliveries=deliveries,
        )

    def run(self, planned: Sequence[Plan | Refusal], copy_wait: CopyWait) -> list[Outcome]:
        """Bring planned events to their outcomes, in the caller's thread."""
        if self.routes.asynchronous and any(
            type(one) is Plan and one.asynchronous for one in planned
        ):
            from eventonce.runtime.loop_thread import refuse_on_loop  # noqa: PLC0415  as below

            refuse_on_loop()
            return inline.process(RunningBatch(self, planned, copy_wait), self.awaiting)
        return inline.process(RunningBatch(self, planned, copy_wait))

    def run_again(self, events: Iterable[Incoming]) -> list[Outcome]:
        """Run events that were given up; an event that took effect meanwhile does not run.

        The caller may delete an event that is `done` or a copy. Any other event that is
        acknowledged, unless it is `ignored`, is a dead letter of this consumer now.
        """
        started = time.perf_counter()
        planned = self.plan(events, redrive=True)
        return self.tell(self.run(planned, CopyWait(COPY_WAIT)), started)

    def tell(self, outcomes: list[Outcome], started: float) -> list[Outcome]:
        """Tell the observers the outcomes, with the seconds since `started`; return the outcomes.
        The first event of a type that no handler takes is logged."""
        if self._unnamed:
            self._unnamed = False
            self._naming.begin()
        if self.retention is not None:
            self.retention.look_if_due()
        for outcome in outcomes:
            if outcome.warned:
                outcomes = self.unhandled.warn(outcomes)
                break
        if not self.observers:
            return outcomes
        seconds = time.perf_counter() - started
        for observer in self.observers:
            calls = (
                [partial(observer, outcome) for outcome in outcomes]
                if callable(observer)
                else [partial(observer.batch, outcomes)]
            )
            for call in calls:
                try:
                    call(seconds)
                except Exception:  # noqa: BLE001  an observer's error must not harm an event
                    log().exception("observer %r failed", observer)
        return outcomes

    def flush(self) -> None:
        """Let the observers write their buffers, as far as they can; before that, wait for the
        consumer's name to be kept, and for a look for old dead letters."""
        self._naming.wait()
        if self.retention is not None:
            self.retention.wait()
        for observer in self.observers:
            flush = getattr(observer, "flush", None)
            if flush is not None:
                try:
                    flush()
                except Exception:  # noqa: BLE001  as in `tell`
                    log().exception("observer %r failed", observer)

    @cached_property
    def awaiting(self) -> Asynchronous:
        """The part that runs async handlers, and batches side by side."""
        from eventonce.runtime.on_asyncio import Asynchronous  # noqa: PLC0415  slow to import

        # Two threads may come here at the same moment.
        made: Asynchronous = self.__dict__.setdefault("awaiting", Asynchronous(self, self.threads))
        return made

    def abandon(self) -> None:
        """Cancel async handlers, settle finished runs and free the others, before the process ends.
        A plain handler cannot be stopped: end the process at once."""
        if "awaiting" in self.__dict__:
            self.awaiting.cancel(within=CANCELLING)
        self.gate.salvage(self.gate.held())

    def on_close(self, close: Callable[[], None]) -> None:
        """Call this function when the consumer is closed and none of its handlers runs any more."""
        self._closing.append(close)

    def close(self) -> None:
        """Stop the threads, then call the functions given to `on_close`, the last first."""
        if "awaiting" in self.__dict__:
            self.awaiting.close()
        self.gate.close()
        self._naming.wait()
        if self.retention is not None:
            self.retention.wait()
        while self._closing:
            self._closing.pop()()
