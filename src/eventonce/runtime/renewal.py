"""Looks after the batches whose handlers run, from a thread of its own: keeps their leases alive,
and settles what has finished while one that stands behind it goes on and on.

Handlers may fill every other thread, or hold the event loop, without costing their leases.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from math import inf
from typing import Final
from weakref import WeakSet

import msgspec

from eventonce.core.engine import settlement
from eventonce.core.ledger import LONGEST_LEASE
from eventonce.core.ports import Store, Task
from eventonce.errors import StoreError
from eventonce.log import log
from eventonce.types import Claim, Settlement, effect_id

SHARE: Final = 3
"""A lease is renewed when a third of it has passed: two renewals may fail before it ends."""

SETTLE_INTERVAL: Final = 1.0
"""Seconds after which what has finished is settled although others of its batch still run: what a
crash may cost is then a second's work, and quick batches are settled in one call."""

IDLE: Final = 60.0
"""Seconds after which a thread with nothing to watch looks whether it is still needed."""


class Watched:
    """A batch that runs, and when to look after it."""

    __slots__ = ("due", "finished", "look", "settled", "tasks")

    def __init__(self, tasks: Sequence[Task], finished: Sequence[Task], now: float) -> None:
        self.tasks = tasks
        self.finished = finished
        """Those whose handlers have returned and that nobody settles yet; it grows meanwhile."""
        self.settled = 0
        self.plan(now)

    def plan(self, now: float) -> None:
        """When the first lease needs it, and when to look for what has finished."""
        self.due = _due(self.tasks)
        self.look = min(self.due, now + SETTLE_INTERVAL) if self.finished is not _NONE else self.due


_NONE: Final[Sequence[Task]] = ()


class Renewer:
    """Extends, in one call for all batches, what has run for a third of its lease."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._begin()
        _renewers.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._watched: dict[int, Watched] = {}
        self._next_look = inf
        self._thread: threading.Thread | None = None

    def watch(self, tasks: Sequence[Task], finished: Sequence[Task] = _NONE) -> int:
        """Renew these tasks until they finish or `leave` is called with the number answered.

        Where they run one after the other, the caller puts into `finished` what has returned: if
        it stands there for long, it is settled from here.
        """
        ticket = id(tasks)
        now = time.monotonic()
        for task in tasks:
            task.renewed = task.renewed or now
        watched = Watched(tasks, finished if len(tasks) > 1 else _NONE, now)
        due = watched.look
        if due == inf:
            return ticket
        with self._lock:
            self._watched[ticket] = watched
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._renew, name="eventonce-renewal", daemon=True
                )
                self._thread.start()
            elif due < self._next_look:
                # Once, and not again for every batch until then.
                self._next_look = due
                self._wake.notify()
        return ticket

    def leave(self, ticket: int) -> None:
        """Stop renewing what `watch` gave this number for."""
        with self._lock:
            self._watched.pop(ticket, None)

    def watched(self) -> list[Task]:
        """All that is being renewed."""
        with self._lock:
            return [task for watched in self._watched.values() for task in watched.tasks]

    def close(self) -> None:
        """Stop the thread."""
        with self._lock:
            self._thread = None
            self._wake.notify()

    def _renew(self) -> None:
        own = threading.current_thread()
        try:
            self._renew_as(own)
        finally:
            with self._lock:
                if self._thread is own:
                    self._thread = None

    def _renew_as(self, own: threading.Thread) -> None:
        while True:
            with self._lock:
                if self._thread is not own:
                    return
                now = time.monotonic()
                looked = [watched for watched in self._watched.values() if watched.look <= now]
                due = [watched for watched in looked if watched.due <= now]
                for watched in due:
                    for task in watched.tasks:
                        task.renewed = now
                for watched in looked:
                    watched.plan(now)
                if not looked:
                    # A quiet consumer's thread sleeps; a batch with an earlier need wakes it. It
                    # is not woken by every batch: that would cost more than a quick handler does.
                    times = [watched.look for watched in self._watched.values()]
                    if times:
                        self._next_look = min(*times, now + IDLE)
                    elif not now < self._next_look <= now + IDLE:
                        self._next_look = now + IDLE
                    idle = not self._wake.wait(self._next_look - now) and not self._watched
                    if idle and self._thread is own:
                        # A consumer that was dropped without `close` must not keep a thread.
                        self._thread = None
                    continue
            # Leases first: a store that is slow to settle must not cost them.
            self._extend([task for watched in due for task in watched.tasks])
            self._complete(looked)

    def _extend(self, tasks: Sequence[Task]) -> None:
        live = [task for task in tasks if task.token and not task.finished and not task.covered]
        if not live:
            return
        try:
            now = time.monotonic()
            answers = self._store.settle(
                [Settlement(_asked(task, now), task.token, "extend") for task in live]
            )
        except StoreError as error:
            log().warning("leases of %d runs not renewed, trying again: %s", len(live), error)
            return
        for task, kept in zip(live, answers, strict=True):
            if kept != "kept" and not task.finished:
                task.lose()
                name = effect_id(task.claim)
                log().warning("%s: outlived its lease, another run took over", name)

    def _complete(self, looked: Sequence[Watched]) -> None:
        """Settle what has returned while another of its batch runs; again is always safe."""
        returned = [(watched, list(watched.finished)) for watched in looked]
        fresh = [
            task
            for watched, tasks in returned
            for task in tasks[watched.settled :]
            if task.token and task.kept is None and task.error is None
        ]
        if fresh:
            try:
                answers = self._store.settle([settlement(task) for task in fresh])
            except StoreError as error:
                log().warning("%d runs not settled yet, trying again: %s", len(fresh), error)
                return
            for task, kept in zip(fresh, answers, strict=True):
                task.kept = kept
        for watched, tasks in returned:
            watched.settled = len(tasks)


def _due(tasks: Sequence[Task]) -> float:
    """When the first of them needs it, however often they were watched since; `inf` for never."""
    return min([inf if task.covered else task.renewed + _pause(task.claim) for task in tasks])


def _pause(claim: Claim) -> float:
    """Seconds between two renewals: whoever asks with a shorter lease may cut this one down."""
    return min(claim.lease, LONGEST_LEASE) / 1000 / SHARE


def _asked(task: Task, now: float) -> Claim:
    """The claim as it is renewed: no further than the end of the process."""
    claim = task.claim
    if now + claim.lease / 1000 <= task.ends:
        return claim
    return msgspec.structs.replace(claim, lease=max(1, int((task.ends - now) * 1000)))


_renewers: Final = WeakSet[Renewer]()


def _begin_anew() -> None:
    """In the child of a fork, where no thread lives on: what the parent runs is its to renew."""
    for renewer in _renewers:
        renewer._begin()  # noqa: SLF001  the module's own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
