"""How events come to the desk: as many as it has room for, while queue and store answer."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Final

from eventonce.core.ports import Source
from eventonce.errors import EventonceError, SourceUnavailable
from eventonce.worker.crew import ENDED, Crew
from eventonce.worker.desk import Desk
from eventonce.worker.pulse import Pulse

BATCH: Final = 10
"""Messages of one request: SQS gives no more."""

TICK: Final = 1.0
"""Seconds after which a receiver that waits for room looks whether it is still needed."""


class Receiving:
    """Several receivers; while little comes only the first asks, for each request costs."""

    def __init__(self, source: Source, desk: Desk, crew: Crew, queue: Pulse, store: Pulse) -> None:
        self._source = source
        self._desk = desk
        self._crew = crew
        self._queue = queue
        self._store = store
        self._plenty = threading.Event()

    def first(self) -> None:
        """Receive, and look out for the source's end, until the crew is stopping."""
        while not self._crew.stopping:
            # In this order: what comes again is with the source before it has left the desk.
            if self._desk.empty and self._source.ended:
                self._crew.release()
                self._crew.tell(ENDED)
                return
            self._receive()

    def another(self) -> None:
        """Receive while there is plenty, until the crew is stopping."""
        while not self._crew.stopping:
            if self._plenty.wait(TICK):
                self._receive()

    def _receive(self) -> None:
        if self._store.away:
            # What was received could only be given back, and would be a delivery closer to the
            # queue's own limit.
            self._crew.sleep(TICK)
            return
        promised = self._desk.promise(BATCH, TICK)
        if not promised:
            return
        kept, pause = False, 0.0
        try:
            kept = self._bring(promised)
        except EventonceError as error:
            if not isinstance(error, SourceUnavailable) and not self._queue.known:
                raise
            # Rights, credentials and keys that were good once may be so again.
            pause = self._queue.failed(error)
        finally:
            if not kept:
                self._desk.forgo(promised)
        if pause:
            self._crew.sleep(pause)

    def _bring(self, promised: int) -> bool:
        """Receive, and put it on the desk, or give it back if that is closed now."""
        received = self._source.receive(promised)
        self._queue.answered()
        if received:
            self._plenty.set()
        else:
            self._plenty.clear()
        if self._desk.put(promised, received):
            return True
        # If that fails they come again all the same, only later.
        with suppress(EventonceError):
            self._source.postpone([(one, 0.0) for one in received])
        return False
