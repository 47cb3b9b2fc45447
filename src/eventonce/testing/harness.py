"""The harness of the `eventonce` fixture: a store, a clock, and deliveries with copies and
crashes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Literal

from eventonce.arguments import check_count, check_iterable
from eventonce.consumer import Consumer, RuleSpec
from eventonce.core.plan import Handler
from eventonce.core.planner import Incoming
from eventonce.core.routing import is_async
from eventonce.errors import ConfigError, StoreUnavailable
from eventonce.runtime.runtime import ONE
from eventonce.stores.memory import MemoryStore
from eventonce.types import Claim, Job, Letter, Outcome, Settlement, SettleResult, Verdict

CLOCK_START: Final = 1_790_000_000_000
"""The start of a manual clock: a day in September 2026, because the law needs epoch times."""

MAX_DELIVERIES: Final = 1_000
"""Deliveries after which an event that is never settled is a bug, in eventonce or the handler."""


class ManualClock:
    """A clock that moves only when told."""

    def __init__(self, now: int = CLOCK_START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self.now += int(seconds * 1000)


class Crash(BaseException):
    """The worker dies here: its later steps do not happen."""


class CrashableStore:
    """A worker's handle on the store; after the worker's death it settles and releases nothing."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.dead = False

    def _alive(self) -> MemoryStore:
        if self.dead:
            raise StoreUnavailable("this worker has crashed")
        return self._store

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        return self._alive().claim(claims, now)

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        return self._alive().settle(settlements, now)

    def put_letters(self, letters: Sequence[Letter]) -> None:
        self._alive().put_letters(letters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Harness:
    """A memory store, a manual clock, and `deliver`."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)

    def deliver(
        self,
        events: Incoming | Sequence[Incoming],
        *,
        to: Handler | Consumer,
        copies: int = 1,
        shuffle: int | None = None,
        crash_after: Literal["claim", "effect"] | None = None,
        rules: RuleSpec | Sequence[RuleSpec] = "auto",
    ) -> list[Outcome]:
        """Deliver events to a handler, or to a consumer's handlers, until all are acknowledged.

        Each is delivered `copies` times, in an order shuffled by the seed `shuffle`. With
        `crash_after` the first run of every event dies, before (`"claim"`) or after (`"effect"`)
        the handler's work, and the event comes again, as from a queue. An event that is not
        acknowledged comes again at its `retry_at`. Return the outcomes of all deliveries that
        did not crash.
        """
        check_count("deliver: copies", copies)
        if crash_after not in (None, "claim", "effect"):
            raise ConfigError(
                f'deliver: crash_after must be "claim" or "effect", not {crash_after!r}'
            )
        given = [events] if isinstance(events, ONE) else events
        check_iterable("deliver", given, "events: dicts, JSON text or bytes")
        deliveries = [event for event in given for _ in range(copies)]
        if shuffle is not None and shuffle is not False:
            random.Random(shuffle).shuffle(deliveries)
        crashing = _Crashing(crash_after)
        outcomes: list[Outcome] = []
        budget = MAX_DELIVERIES * max(1, len(deliveries))
        while deliveries:
            delivery = deliveries.pop(0)
            worker = CrashableStore(self.store)
            consumer = (
                to.over(worker, clock=self.clock)
                if isinstance(to, Consumer)
                else Consumer(worker, name="default", rules=rules, handler=to, clock=self.clock)
            )
            consumer.runtime.wrap(partial(crashing.around, worker=worker))
            try:
                with consumer:
                    (outcome,) = consumer.process([delivery])
            except Crash:
                deliveries.append(delivery)
                continue
            outcomes.append(outcome)
            if not outcome.ack:
                deliveries.append(delivery)
                if len(deliveries) == 1 or outcome.status == "busy":
                    self.clock.now = max(self.clock.now + 1, outcome.retry_at or 0)
            budget -= 1
            if not budget:
                raise AssertionError(f"never settled: {outcome}")
        return outcomes


class _Crashing:
    """Kills the worker in the first run of each event."""

    def __init__(self, after: Literal["claim", "effect"] | None) -> None:
        self._after = after
        self._died: set[str] = set()

    def around(self, handler: Handler, worker: CrashableStore) -> Handler:
        if self._after is None:
            return handler

        def die_at(point: str, job: Job) -> None:
            if self._after == point and job.effect_id not in self._died:
                self._died.add(job.effect_id)
                worker.dead = True
                raise Crash

        if is_async(handler):

            async def awaited(job: Job) -> Any:
                die_at("claim", job)
                value = await handler(job)
                die_at("effect", job)
                return value

            return awaited

        def called(job: Job) -> Any:
            die_at("claim", job)
            value = handler(job)
            die_at("effect", job)
            return value

        return called
