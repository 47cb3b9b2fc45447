"""The admission of requests: the receiver's limits as checked numbers, the requests under way
within them, and when one of them is due."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from itertools import count
from math import inf
from typing import Final, NamedTuple

from eventonce.config import Serve
from eventonce.errors import ConfigError
from eventonce.http_report import Answer
from eventonce.rules.instants import duration
from eventonce.web.responses import refuse

WARNING_INTERVAL: Final = 10.0
"""Seconds between two lines in the log about the same trouble."""

log = logging.getLogger("eventonce.web")


class Limits(NamedTuple):
    """How much at once, how large and how slow; times in seconds."""

    max_body: int
    max_events: int
    concurrency: int
    max_in_flight: int
    header_timeout: float
    body_timeout: float
    answer_within: float
    drain: float


def limits(settings: Serve) -> Limits:
    """The limits these settings name; ConfigError for one that nobody can keep."""
    check_bytes(settings)
    return Limits(
        max_body=_count(settings, "max_body"),
        max_events=_count(settings, "max_events"),
        concurrency=_count(settings, "concurrency"),
        max_in_flight=_count(settings, "max_in_flight"),
        header_timeout=seconds(settings, "header_timeout"),
        body_timeout=seconds(settings, "body_timeout"),
        answer_within=seconds(settings, "answer_within"),
        drain=seconds(settings, "drain"),
    )


def check_bytes(settings: Serve) -> None:
    """ConfigError if the largest body would never be let in."""
    if settings.max_in_flight < settings.max_body:
        raise ConfigError(
            f"serve: max_in_flight is {settings.max_in_flight}: at least max_body, which is "
            f"{settings.max_body}, was expected"
        )


def seconds(settings: Serve, name: str) -> float:
    """The setting of this name as seconds, more than none."""
    try:
        found = duration(getattr(settings, name))
    except ValueError as error:
        raise ConfigError(f"serve: {name}: {error}") from None
    if not found:
        raise ConfigError(f"serve: {name} must be greater than 0")
    return found / 1000


def _count(settings: Serve, name: str) -> int:
    found: int = getattr(settings, name)
    if found < 1:
        raise ConfigError(f"serve: {name} is {found}: at least 1 was expected")
    return found


class Permit:
    """The permit of one request that is under way, with the bytes that its body holds."""

    __slots__ = ("held", "since")

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
        self._under_way: set[Permit] = set()
        self._held = 0
        self._left_at = -inf
        self._warned_at = -inf

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def oldest(self) -> float:
        """Seconds that the oldest request is under way."""
        return max((self._clock() - one.since for one in self._under_way), default=0.0)

    @property
    def stuck(self) -> bool:
        """Whether an event that came now would be refused, or would wait behind handlers that do
        not return: as many as there are threads outlast their answer, and no other got through."""
        if len(self) >= self._limits.concurrency:
            return True
        now, patience = self._clock(), self._limits.answer_within
        overdue = sum(now - one.since > patience for one in self._under_way)
        return overdue >= self._threads and now - self._left_at > patience

    def refusal(self, size: int) -> Answer | None:
        """The answer to a request with a body of this size that cannot come in now."""
        if len(self._under_way) >= self._limits.concurrency:
            return self._refuse(f"{len(self)} requests are under way, and that is the limit")
        return self._too_much(size)

    def enter(self, size: int) -> Permit:
        """The permit of a request with a body of this size, which is under way until it leaves."""
        permit = Permit(self._clock(), size)
        self._under_way.add(permit)
        self._held += size
        return permit

    def leave(self, permit: Permit) -> None:
        """The handlers of this request are through."""
        self._under_way.discard(permit)
        self._held -= permit.held
        self._left_at = self._clock()

    def grow(self, permit: Permit, size: int) -> Answer | None:
        """Count a body that turned out to have this size; the answer if that is too much."""
        more = size - permit.held
        if more <= 0:
            return None
        refused = self._too_much(more)
        if refused is None:
            permit.held += more
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


class Deadlines:
    """Calls that are due the same time after each was set, unless it is cleared before.

    One timer is for all of them, because the first that was set is the first that is due: a timer
    a request would cost a twentieth of it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due: dict[int, tuple[float, Callable[..., object], tuple[object, ...]]] = {}
        self._numbers = count()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop whose timer runs."""

    def set(
        self, loop: asyncio.AbstractEventLoop, call: Callable[..., object], *given: object
    ) -> int:
        """Make this call in time, on the loop that runs; the number it is cleared by."""
        number = next(self._numbers)
        self._due[number] = (loop.time() + self._seconds, call, given)
        if self._loop is not loop:
            self._loop = loop
            loop.call_later(self._seconds, self._fire, loop)
        return number

    def clear(self, number: int) -> None:
        """Not due any more; nothing happens if it was made."""
        self._due.pop(number, None)

    def _fire(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        while self._due:
            number, (due, call, given) = next(iter(self._due.items()))
            if due > now:
                loop.call_at(due, self._fire, loop)
                return
            del self._due[number]
            call(*given)
        self._loop = None
