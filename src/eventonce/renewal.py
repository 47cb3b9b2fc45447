"""Keeps the leases of running handlers alive, from a thread of its own.

Handlers may fill every other thread, or hold the event loop, without costing their leases.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

from eventonce.errors import StoreError
from eventonce.ports import Run, Store
from eventonce.types import Settlement

SHARE: Final = 3
"""A lease is renewed when a third of it has passed: two renewals may fail before it ends."""

log = logging.getLogger("eventonce")


class Renewer:
    """Extends, in one call for all batches, what has run for a third of its lease."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wake = threading.Condition()
        self._watched: dict[int, tuple[float, Sequence[Run]]] = {}
        self._next_look = float("inf")
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, runs: Sequence[Run]) -> int:
        """Renew these runs until they finish or `leave` is called with the number answered."""
        ticket = id(runs)
        due = time.monotonic() + _third(runs)
        with self._wake:
            self._watched[ticket] = (due, runs)
            if self._thread is None or not self._thread.is_alive():
                # None yet, or lost in a fork: threads do not survive it.
                self._closed = False
                self._thread = threading.Thread(
                    target=self._renew, name="eventonce-renewal", daemon=True
                )
                self._thread.start()
            elif due < self._next_look:
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
                for ticket, (_, runs) in due:
                    self._watched[ticket] = (now + _third(runs), runs)
                if not due:
                    # A quiet consumer's thread sleeps; a batch with an earlier need wakes it. It
                    # is not woken by every batch: that would cost more than a quick handler does.
                    times = [entry[0] for entry in self._watched.values()]
                    self._next_look = min(times, default=now + 60)
                    self._wake.wait(self._next_look - now)
                    continue
            self._extend([run for _, (_, runs) in due for run in runs])

    def _extend(self, runs: Sequence[Run]) -> None:
        live = [run for run in runs if not run.finished and not run.unguarded]
        if not live:
            return
        try:
            answers = self._store.settle(
                [Settlement(run.job.claim, run.job.token, "extend") for run in live]
            )
        except StoreError as error:
            log.warning("leases of %d runs not renewed, trying again: %s", len(live), error)
            return
        for run, kept in zip(live, answers, strict=True):
            if kept != "kept" and not run.finished:
                run.job.lost = True
                log.warning("%s: outlived its lease, another run took over", run.job.effect_id)


def _third(runs: Sequence[Run]) -> float:
    return min(run.job.claim.lease for run in runs) / 1000 / SHARE
