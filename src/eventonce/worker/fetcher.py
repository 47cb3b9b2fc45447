"""The fetcher: receives as many events as there is room for, while queue and store answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from eventonce.core.ports import Delivery, Source
from eventonce.errors import EventonceError, SourceUnavailable
from eventonce.worker.availability import Availability
from eventonce.worker.inflight import BATCH_EVENTS, Inflight
from eventonce.worker.threads import CHECK_INTERVAL, SOURCE_ENDED, Threads


class Fetcher:
    """Several receivers. While no events come, only the first sends requests, because each request
    costs."""

    def __init__(
        self,
        source: Source,
        inflight: Inflight,
        threads: Threads,
        queue: Availability,
        store: Availability,
        begin: Callable[[Sequence[Delivery]], None],
    ) -> None:
        """`begin` gets the events that may begin."""
        self._source = source
        self._inflight = inflight
        self._threads = threads
        self._queue = queue
        self._store = store
        self._begin = begin
        self._plenty = threading.Event()

    def first(self) -> None:
        """Receive until the threads are stopping, or the source has ended."""
        while not self._threads.stopping:
            # In this order: a postponed event is at the source again before it leaves the buffer.
            if self._inflight.empty and self._source.ended:
                self._threads.release()
                self._threads.end(SOURCE_ENDED)
                return
            self._receive()

    def another(self) -> None:
        """Receive while many events come, until the threads are stopping."""
        while not self._threads.stopping:
            if self._plenty.wait(CHECK_INTERVAL):
                self._receive()

    def _receive(self) -> None:
        if self._store.away:
            # A received event could only be postponed, and each delivery counts towards the limit
            # of the queue.
            self._threads.sleep(CHECK_INTERVAL)
            return
        reserved = self._inflight.reserve(BATCH_EVENTS, CHECK_INTERVAL)
        if not reserved:
            return
        begun: list[Delivery] | None = None
        pause = 0.0
        try:
            begun = self._bring(reserved)
        except EventonceError as error:
            if not isinstance(error, SourceUnavailable) and not self._queue.known:
                raise
            # Permissions, credentials and keys that worked before may work again.
            pause = self._queue.failed(error)
        finally:
            if begun is None:
                self._inflight.forgo(reserved)
        if begun:
            # Outside the block: an error here, such as a consumer without handlers, is not about
            # the queue. It would come with every event, so it ends the worker.
            self._begin(begun)
        if pause:
            self._threads.sleep(pause)

    def _bring(self, reserved: int) -> list[Delivery] | None:
        """Receive events and put them into the buffer; return those that may begin now. None if the
        buffer is closed, and the events are postponed."""
        received = self._source.receive(reserved)
        self._queue.answered()
        if received:
            self._plenty.set()
        else:
            self._plenty.clear()
        begun = self._inflight.put(reserved, received)
        if begun is not None:
            return begun
        # If this fails, the events still come again, only later.
        with suppress(EventonceError):
            self._source.postpone([(one, 0.0) for one in received])
        return None
