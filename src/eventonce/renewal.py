"""Keeps the leases of running handlers alive, from a thread of its own.

Handlers may fill every other thread, or hold the event loop, without costing their leases.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Final

from eventonce.errors import StoreError
from eventonce.ports import Store, Task
from eventonce.types import Settlement, effect_id

SHARE: Final = 3
"""A lease is renewed when a third of it has passed: two renewals may fail before it ends."""

IDLE: Final = 60.0
"""Seconds after which a thread with nothing to watch looks whether it is still needed."""

log = logging.getLogger("eventonce")


class Renewer:
    """Extends, in one call for all batches, what has run for a third of its lease."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wake = threading.Condition()
        self._watched: dict[int, tuple[float, Sequence[Task]]] = {}
        self._next_look = float("inf")
        self._thread: threading.Thread | None = None
        self._closed = False
        self._process = os.getpid()

    def watch(self, tasks: Sequence[Task]) -> int:
        """Renew these tasks until they finish or `leave` is called with the number answered."""
        ticket = id(tasks)
        now = time.monotonic()
        for task in tasks:
            task.renewed = task.renewed or now
        due = _due(tasks)
        with self._wake:
            if self._process != os.getpid():
                # After a fork: what the parent runs is the parent's to renew.
                self._watched, self._process = {}, os.getpid()
            self._watched[ticket] = (due, tasks)
            if self._thread is None or not self._thread.is_alive():
                # None yet, or lost in a fork: threads do not survive it.
                self._closed = False
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
        with self._wake:
            self._watched.pop(ticket, None)

    def close(self) -> None:
        """Stop the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()

    def _renew(self) -> None:
        while True:
            with self._wake:
                if self._closed:
                    return
                now = time.monotonic()
                due = [entry for entry in self._watched.items() if entry[1][0] <= now]
                for ticket, (_, tasks) in due:
                    for task in tasks:
                        task.renewed = now
                    self._watched[ticket] = (_due(tasks), tasks)
                if not due:
                    # A quiet consumer's thread sleeps; a batch with an earlier need wakes it. It
                    # is not woken by every batch: that would cost more than a quick handler does.
                    times = [entry[0] for entry in self._watched.values()]
                    if times:
                        self._next_look = min(times)
                    elif not now < self._next_look <= now + IDLE:
                        self._next_look = now + IDLE
                    if not self._wake.wait(self._next_look - now) and not self._watched:
                        # A consumer that was dropped without `close` must not keep a thread.
                        self._thread = None
                        return
                    continue
            self._extend([task for _, (_, tasks) in due for task in tasks])

    def _extend(self, tasks: Sequence[Task]) -> None:
        live = [task for task in tasks if task.token and not task.finished]
        if not live:
            return
        try:
            answers = self._store.settle(
                [Settlement(task.claim, task.token, "extend") for task in live]
            )
        except StoreError as error:
            log.warning("leases of %d runs not renewed, trying again: %s", len(live), error)
            return
        for task, kept in zip(live, answers, strict=True):
            if kept != "kept" and not task.finished:
                task.lose()
                log.warning("%s: outlived its lease, another run took over", effect_id(task.claim))


def _due(tasks: Sequence[Task]) -> float:
    """When the first of them needs it, however often they were watched since."""
    return min([task.renewed + task.claim.lease / 1000 / SHARE for task in tasks])
