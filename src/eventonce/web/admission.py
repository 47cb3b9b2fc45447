"""The admission of requests: the receiver's limits as checked numbers, and the requests under
way."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

import msgspec

from eventonce.config import Serve
from eventonce.core.routing import SHOWN
from eventonce.errors import ConfigError
from eventonce.http_report import Answer
from eventonce.rules.instants import duration
from eventonce.web.responses import ErrorResponse, refuse

WARNING_INTERVAL: Final = 10.0
"""Seconds between two log lines about the same problem."""

REFUSALS_INTERVAL: Final = 60.0
"""Seconds between two log lines about requests whose sender must be corrected."""

FOR_GOOD: Final = frozenset((401, 413, 415))
"""The refusals that stay until somebody corrects the sender, or the settings."""

log = logging.getLogger("eventonce.web")


class Limits(NamedTuple):
    """The limits of number, size and time; times in seconds."""

    max_body: int
    max_events: int
    concurrency: int
    max_in_flight: int
    header_timeout: float
    body_timeout: float
    answer_within: float
    drain: float


def limits(settings: Serve) -> Limits:
    """Return the limits of these settings; ConfigError for a limit that cannot be kept."""
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
    """Raise ConfigError if a body of the largest size would always be refused."""
    if settings.max_in_flight < settings.max_body:
        raise ConfigError(
            f"serve: max_in_flight is {settings.max_in_flight}: it must be at least max_body, "
            f"which is {settings.max_body}"
        )


def seconds(settings: Serve, name: str) -> float:
    """Return the setting of this name as seconds; ConfigError if it is 0."""
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
        raise ConfigError(f"serve: {name} is {found}: it must be at least 1")
    return found


class Permit:
    """The permit of one request under way, with the size of its body."""

    __slots__ = ("held", "since")

    def __init__(self, since: float, held: int) -> None:
        self.since = since
        self.held = held


class Admission:
    """Admits requests up to a number and a sum of bytes, which bounds the memory.

    `threads` is the number of plain handlers that run at once: if that many do not return, no
    other event runs.
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
        self._refusals = 0
        self._told_refusals_at = -inf

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def oldest(self) -> float:
        """The age of the oldest request, in seconds."""
        return max((self._clock() - one.since for one in self._under_way), default=0.0)

    @property
    def stuck(self) -> bool:
        """Whether a new event would be refused, or would wait for handlers that do not return: as
        many requests as there are threads are overdue, and no other request ended meanwhile."""
        if len(self) >= self._limits.concurrency:
            return True
        now, within = self._clock(), self._limits.answer_within
        overdue = sum(now - one.since > within for one in self._under_way)
        return overdue >= self._threads and now - self._left_at > within

    def refusal(self, size: int) -> Answer | None:
        """Return the refusal of a request with a body of this size; None if it can be admitted."""
        if len(self._under_way) >= self._limits.concurrency:
            return self._refuse(f"{len(self)} requests are under way, which is the limit")
        return self._too_much(size)

    def enter(self, size: int) -> Permit:
        """Admit a request with a body of this size; the caller gives the permit to `leave`."""
        permit = Permit(self._clock(), size)
        self._under_way.add(permit)
        self._held += size
        return permit

    def leave(self, permit: Permit) -> None:
        """Note that the handlers of this request have ended."""
        self._under_way.discard(permit)
        self._held -= permit.held
        self._left_at = self._clock()

    def grow(self, permit: Permit, size: int) -> Answer | None:
        """Count a body that has this size by now; return a refusal if that is too much."""
        more = size - permit.held
        if more <= 0:
            return None
        refused = self._too_much(more)
        if refused is None:
            permit.held += more
            self._held += more
        return refused

    def warn_of_slow(self) -> None:
        """Warn, at intervals, that handlers still run after their request was answered."""
        self._warn("handlers are still running after %gs", self._limits.answer_within)

    def count_refusal(self, answer: Answer) -> None:
        """Count an answer if it refuses for good, and warn of all of them, at intervals: otherwise
        nobody would learn that events of this sender are lost once it gives up."""
        if answer.status not in FOR_GOOD:
            return
        self._refusals += 1
        now = self._clock()
        if now - self._told_refusals_at >= REFUSALS_INTERVAL:
            reason = msgspec.json.decode(answer.body, type=ErrorResponse).reason
            log.warning(
                "refused requests: %d, the last with %d: %s. Correct the sender or the "
                "settings: the events are lost once the sender gives up",
                self._refusals,
                answer.status,
                reason[:SHOWN].removesuffix("."),
            )
            self._refusals, self._told_refusals_at = 0, now

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
                f"{text}; requests under way: %d, the oldest for %.1f s",  # noqa: G004  ours
                *about,
                len(self),
                self.oldest,
            )
