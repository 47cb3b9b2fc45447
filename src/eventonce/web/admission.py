"""What is under way in the receiver, in requests and in bytes: who may come in beside it, how long
the oldest is there, and whether anybody gets through."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Final

from eventonce.http_report import Answer
from eventonce.web.limits import Limits
from eventonce.web.refusals import refuse

WARNING_INTERVAL: Final = 10.0
"""Seconds between two lines in the log about the same trouble."""

log = logging.getLogger("eventonce.web")


class Request:
    """One request that is under way, with the bytes that its body holds."""

    def __init__(self, since: float, held: int) -> None:
        self.since = since
        self.held = held


class Admission:
    """Lets requests in up to a number and a sum of bytes: memory goes by the bytes.

    `threads` is how many plain handlers run side by side: as many that do not return let nobody
    else through.
    """

    def __init__(
        self, limits: Limits, threads: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._threads = threads
        self._clock = clock
        self._under_way: dict[int, Request] = {}
        self._held = 0
        self._left_at = -inf
        self._warned_at = -inf

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def oldest(self) -> float:
        """Seconds that the oldest request is under way."""
        return max((self._clock() - one.since for one in self._under_way.values()), default=0.0)

    @property
    def stuck(self) -> bool:
        """Whether an event that came now would be refused, or would wait behind handlers that do
        not return: as many as there are threads outlast their answer, and no other got through."""
        if len(self) >= self._limits.concurrency:
            return True
        now, patience = self._clock(), self._limits.answer_within
        overdue = sum(now - one.since > patience for one in self._under_way.values())
        return overdue >= self._threads and now - self._left_at > patience

    def refusal(self, size: int) -> Answer | None:
        """The answer to a request with a body of this size that cannot come in now."""
        if len(self) >= self._limits.concurrency:
            return self._refuse(f"{len(self)} requests are under way, and that is the limit")
        return self._too_much(size)

    @contextmanager
    def entered(self, size: int) -> Iterator[Request]:
        """A request with a body of this size, under way until its handlers are through."""
        request = Request(self._clock(), size)
        self._under_way[id(request)] = request
        self._held += size
        try:
            yield request
        finally:
            del self._under_way[id(request)]
            self._held -= request.held
            self._left_at = self._clock()

    def grow(self, request: Request, size: int) -> Answer | None:
        """Count a body that turned out to have this size; the answer if that is too much."""
        more = size - request.held
        if more <= 0:
            return None
        refused = self._too_much(more)
        if refused is None:
            request.held += more
            self._held += more
        return refused

    def warn_of_slow(self) -> None:
        """Say in the log, now and then, that handlers outlast their answers."""
        self._warn("handlers are still running after %gs", self._limits.answer_within)

    def _too_much(self, more: int) -> Answer | None:
        if self._held + more > self._limits.max_in_flight:
            reason = f"bodies of {self._held} bytes are under way, and {more} more are too many"
            return self._refuse(reason)
        return None

    def _refuse(self, reason: str) -> Answer:
        self._warn("requests are refused: %s", reason)
        return refuse(503, reason)

    def _warn(self, text: str, *about: object) -> None:
        now = self._clock()
        if now - self._warned_at >= WARNING_INTERVAL:
            self._warned_at = now
            log.warning(
                f"{text}; %d requests are under way, the oldest for %.1f s",  # noqa: G004  ours
                *about,
                len(self),
                self.oldest,
            )
