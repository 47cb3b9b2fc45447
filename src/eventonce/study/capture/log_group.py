"""A log group of CloudWatch Logs, with events from a rule or a tap."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from eventonce.aws import errors
from eventonce.aws.sessions import Access, Client, connect
from eventonce.clock import wall_clock
from eventonce.envelope.captured import Arrived, written_line
from eventonce.errors import ConfigError, EventonceError, SourceUnavailable
from eventonce.study.capture import EMPTY_INTERVAL, Brought

READ_TIMEOUT: Final = 30.0
LOGS_ATTEMPTS: Final = 8
"""How often a request is sent: more than five a second are throttled."""
PAGE_LINES: Final = 10_000
FOLLOW_INTERVAL: Final = 5.0
"""Seconds between two requests for new lines, with --follow."""
OVERLAP: Final = 5 * 60_000
"""Milliseconds that a request goes back: a line may be stored later than its time."""

FUNCTION_GROUPS: Final = "/aws/lambda/"
"""The prefix of the log groups of functions: there, only the lines of a tap are events."""
TAP_FILTER: Final = "{ $.eventonce = 1 }"

log = logging.getLogger("eventonce.capture")

Position = dict[str, Any]


class LogGroupFeed:
    """The lines of a log group by their time, from one instant to another."""

    def __init__(
        self,
        name: str,
        access: Access,
        *,
        begin: int = 0,
        end: int | None = None,
        follow: bool = False,
    ) -> None:
        """`begin` and `end` are in milliseconds."""
        self.notes: list[str] = []
        self.broken = False
        self.name = name
        self._where = (access.region, access.endpoint)
        make = partial(connect, "logs", access, read_timeout=READ_TIMEOUT, attempts=LOGS_ATTEMPTS)
        self._client = Client(make, self._explain)
        self._begin, self._end = begin, end
        self._follow = follow
        self._at = begin
        self._seen: dict[str, int] = {}
        """The ids of lines that a later request may return again, with their times."""
        self._others = 0

    def __str__(self) -> str:
        where = ", ".join(filter(None, self._where))
        return f"log group {self.name}" + (f" ({where})" if where else "")

    def resume(self, position: Position | None) -> None:
        if position is not None:
            self._at, self._seen = position["at"], dict(position["seen"])
            if self._begin < position["begin"]:
                raise ConfigError(
                    f"{self}: this capture began with later lines than --since asks for now. Name "
                    f"another file with -o, or leave --since as it was"
                )
            self._begin = position["begin"]

    def __iter__(self) -> Iterator[Sequence[Brought]]:
        answered = False
        while True:
            # A late line must be found, but no line before --since.
            back = OVERLAP if self._follow else 0
            try:
                for page in self._pages(max(self._begin, self._at - back)):
                    yield self._new(page)
                    answered = True
            except SourceUnavailable as error:
                if not self._follow or not answered:
                    raise
                log.warning("%s; trying again in %g s", error, FOLLOW_INTERVAL)
            if not self._follow or (self._end is not None and wall_clock() >= self._end):
                return
            for _ in range(int(FOLLOW_INTERVAL / EMPTY_INTERVAL)):
                time.sleep(EMPTY_INTERVAL)
                yield ()

    def position(self) -> Position:
        return {"at": self._at, "seen": self._seen, "begin": self._begin}

    def committed(self) -> None:
        """Do nothing: a log keeps its lines."""

    def close(self) -> None:
        self._client.close()
        if self._others:
            self.notes.append(f"{self._others} lines of the log are no events, and were left out")
        if self._follow:
            self.notes.append(
                f"a line that CloudWatch Logs stores more than {OVERLAP // 60_000} minutes after "
                f"its time is missed with --follow; without --follow, into another file, all lines "
                f"are read"
            )

    def _pages(self, begin: int) -> Iterator[list[dict[str, Any]]]:
        asked: dict[str, Any] = {"logGroupName": self.name, "startTime": begin, "limit": PAGE_LINES}
        if self._end is not None:
            asked["endTime"] = self._end
        if self.name.startswith(FUNCTION_GROUPS):
            asked["filterPattern"] = TAP_FILTER
        while True:
            answer = self._client.call("filter_log_events", **asked)
            # A page that is not the last may be empty.
            yield answer.get("events") or []
            if not answer.get("nextToken"):
                return
            asked["nextToken"] = answer["nextToken"]

    def _new(self, page: Sequence[dict[str, Any]]) -> list[Brought]:
        found: list[Brought] = []
        for one in page:
            at, name = one["timestamp"], one["eventId"]
            if name in self._seen:
                continue
            self._seen[name] = at
            self._at = max(self._at, at)
            brought = self._brought(one)
            if brought is None:
                self._others += 1
            else:
                found.append(brought)
        oldest = self._at - (OVERLAP if self._follow else 0)
        self._seen = {name: at for name, at in self._seen.items() if at >= oldest}
        return found

    def _brought(self, one: dict[str, Any]) -> Brought | None:
        message = str(one["message"]).strip()
        raw = message.encode("utf-8", "surrogatepass")
        line = written_line(raw)
        if line is not None:
            return line
        if not message.startswith("{") or self.name.startswith(FUNCTION_GROUPS):
            return None
        arrived = one.get("ingestionTime") or one["timestamp"]
        return Arrived(raw, f"logs:{self.name}", one["eventId"], arrived)

    def _explain(self, error: Exception) -> EventonceError:
        kind = errors.kind_of(error)
        if kind == "absent":
            return ConfigError(
                f"{self}: there is no such log group for these credentials. Check its name and "
                f"region; `aws logs describe-log-groups` lists them"
            )
        if kind == "denied":
            return ConfigError(f"{self}: permission denied. Reading needs logs:FilterLogEvents")
        return errors.explain(error, self, noun="log group")
