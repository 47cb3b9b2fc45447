"""Guards decide which deliveries run: eventonce with some rules, and the usual recipes.

A guard gives each delivery a key, and decides on the deliveries of one key in the order of arrival;
so a capture of any size needs one record in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from eventonce.core import ledger
from eventonce.core.ledger import Record
from eventonce.errors import ConfigError, EnvelopeError
from eventonce.rules import Ruleset
from eventonce.study.arrivals import Arrival
from eventonce.study.units import MINUTE
from eventonce.types import Claim, Event, Settlement

RACE_WINDOW: Final = 50
"""Milliseconds between a look and its mark: a copy that looks in this time passes too."""
REDELIVERY_DELAY: Final = 65_000
"""Milliseconds after which a transport delivers an event again: longer than a lease."""


class Look(NamedTuple):
    """One delivery as a guard sees it."""

    key: int
    at: int
    """The instant of arrival, in milliseconds."""
    line: int
    stamp: int
    """The order of a state; for a recipe that compares times, the time."""
    version: int
    """The version of a state."""
    remember: int
    within: int
    """Milliseconds in which the same state counts as unchanged."""
    fault: int
    """The fault of the delivery; 0 for none."""


CRASH: Final = 1
"""The worker dies during its work."""
OUTAGE: Final = 2
"""The store cannot be reached."""
AGAIN: Final = 3
"""The transport delivers the event again, because it was not acknowledged."""

Seen = tuple[int, int, int, int, int]
"""Key, stamp, version, remember and within."""
NO_ORDER: Final = -(1 << 63)
"""The stamp of a fact: an order may be negative."""


class _Decision(msgspec.Struct):
    """The decision of a guard on a line of the capture, in the form of `diagnose --lines`."""

    line: int
    copy_of: int | None


class DecidedGuard:
    """A guard of the user, by its decisions on the lines of the capture. These already include
    crashes and outages."""

    def __init__(self, file: Path) -> None:
        self.name = file.name
        """The name of the guard in reports."""
        self.decisions = _numbered(file)
        self._file = file
        self._decode = msgspec.json.Decoder(_Decision).decode

    def see(self, arrival: Arrival, detail: Any) -> Seen | None:  # noqa: ARG002  decided already
        """Return the key that the guard remembers for this delivery; None if the delivery becomes a
        dead letter. `detail` is decoded if possible."""
        number, text = next(self.decisions, (0, b""))
        if not number:
            raise ConfigError(
                f"{self._file} ends before the capture: it belongs to another one, or has no line "
                "for events that the guard ran"
            )
        try:
            line, copy_of = msgspec.structs.astuple(self._decode(text))
        except ValueError as error:
            raise ConfigError(f"{self._file}:{number}: no decision on a line: {error}") from error
        if line != number:
            raise ConfigError(f"{self._file}:{number}: expected line {number}, found {line}")
        if copy_of is not None and not 0 < copy_of < line:
            raise ConfigError(
                f"{self._file}:{number}: copy_of must be null or a line before {line}, found "
                f"{copy_of}"
            )
        return copy_of or line, -1, int(copy_of is not None), 0, 0

    def decide(self, looks: Iterable[Look]) -> Iterator[tuple[Look, str]]:
        """Yield the decision on each delivery of one key: `run`, or the reason of its drop; nothing
        for a delivery that comes again later."""
        for look in looks:
            if look.fault != AGAIN:
                yield look, "duplicate" if look.version else "run"


def _numbered(file: Path) -> Iterator[tuple[int, bytes]]:
    with file.open("rb") as stream:
        yield from enumerate((text for text in stream if text.strip()), start=1)


class RulesGuard:
    """eventonce: the rules of production, and the law of every store."""

    def __init__(self, name: str, rules: Ruleset) -> None:
        self.name = name
        self._rules = rules

    def see(self, arrival: Arrival, detail: Any) -> Seen | None:  # noqa: ARG002  the planner reads
        event = arrival.event
        if not isinstance(event, Event):
            return None
        try:
            _, claim = self._rules.plan(event, 1)
        except EnvelopeError:
            return None
        number = int.from_bytes(claim.key[-8:], "big")
        version = int.from_bytes(claim.digest[:7], "big")
        if claim.order is None:
            return number, NO_ORDER, 0, claim.remember, 0
        return number, claim.order, version, claim.remember, claim.unchanged_within

    def decide(self, looks: Iterable[Look]) -> Iterator[tuple[Look, str]]:
        record: Record | None = None
        again: list[Look] = []
        for look in _in_time(looks, again):
            if look.fault == OUTAGE:
                continue
            state = look.stamp != NO_ORDER
            claim = Claim(
                key=b"",
                nonce=look.line,
                lease=MINUTE,
                remember=look.remember,
                attempts=5,
                digest=look.version.to_bytes(8, "big") if state else b"",
                order=look.stamp if state else None,
                at=look.stamp if state else 0,
                unchanged_within=look.within,
            )
            verdict, granted = ledger.judge(record, claim, look.at)
            record = granted or record
            if verdict.kind == "busy":
                # Not acknowledged: the transport delivers it again.
                heappush(again, look._replace(at=look.at + REDELIVERY_DELAY, fault=AGAIN))
                continue
            if verdict.kind != "run":
                yield look, verdict.kind
                continue
            if look.fault == CRASH:
                continue
            settlement = Settlement(claim, verdict.token, "complete")
            record = ledger.settle(record, settlement, look.at)[1] or record
            yield look, "run"


class Recipe(NamedTuple):
    """A common recipe against copies: look for a key, mark it, then work."""

    name: str
    key: Callable[[Arrival, Any], str]
    """The function from the delivery and its decoded detail to the key."""
    remember: int
    atomic: bool = False
    """Whether look and mark are one step, like SET NX."""
    newest: bool = False
    """Whether an event with a later time passes under the same key."""
    errors_are_copies: bool = False
    """Whether an error of the store counts as a copy."""
    redelivered: bool = False
    """Whether a message that a queue delivers again passes: the queue knows only sent messages."""

    def see(self, arrival: Arrival, detail: Any) -> Seen | None:
        event = arrival.event
        if not isinstance(event, Event):
            return None
        key = self.key(arrival, detail if isinstance(detail, dict) else {})
        stamp = _timestamp(event, detail) if self.newest else 0
        again = 1 if arrival.receives > 1 else 0
        return _digest(self.name, key), stamp, again, self.remember, 0

    def decide(self, looks: Iterable[Look]) -> Iterator[tuple[Look, str]]:
        marked, until, newest = -RACE_WINDOW, -1, -1
        acknowledged: set[int] = set()
        for look in looks:
            if look.fault == AGAIN and look.line in acknowledged:
                continue
            if look.fault == OUTAGE:
                if self.errors_are_copies:
                    acknowledged.add(look.line)
                    yield look, "error"
                continue
            known = look.at < until and not (self.newest and look.stamp > newest)
            racing = not self.atomic and look.at - marked < RACE_WINDOW
            passes = self.redelivered and (look.version or look.fault == AGAIN)
            if known and not racing and not passes:
                yield look, "copy"
                continue
            marked, until, newest = look.at, look.at + look.remember, max(newest, look.stamp)
            if look.fault != CRASH:
                # The mark comes before the work: after a crash here, only the mark is left.
                yield look, "run"


class Powertools:
    """The idempotency of Powertools with a function's context: a record in progress, which ends
    with the function's time-out, then a complete record for an hour.

    Each write is one conditional step. A copy of an event in progress fails, and comes again.
    """

    def __init__(self, name: str, key: Callable[[Arrival, Any], str]) -> None:
        self.name = name
        self._key = key

    def see(self, arrival: Arrival, detail: Any) -> Seen | None:
        if not isinstance(arrival.event, Event):
            return None
        return _digest(self.name, self._key(arrival, detail)), 0, 0, 60 * MINUTE, 0

    def decide(self, looks: Iterable[Look]) -> Iterator[tuple[Look, str]]:
        complete_until = in_progress_until = -1
        again: list[Look] = []
        for look in _in_time(looks, again):
            if look.fault == OUTAGE:
                continue
            if look.at < complete_until:
                yield look, "copy"
            elif look.at < in_progress_until:
                heappush(again, look._replace(at=look.at + REDELIVERY_DELAY, fault=AGAIN))
            elif look.fault == CRASH:
                in_progress_until = look.at + MINUTE
            else:
                complete_until = look.at + look.remember
                yield look, "run"


Guard = DecidedGuard | RulesGuard | Recipe | Powertools
"""Decides which deliveries run."""


def _in_time(looks: Iterable[Look], again: list[Look]) -> Iterator[Look]:
    """Yield the deliveries of a key in time order, with those that are delivered again."""
    for look in looks:
        while again and again[0].at < look.at:
            yield heappop(again)
        yield look
    while again:
        yield heappop(again)


def _digest(*parts: str) -> int:
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def _body(detail: Any) -> Any:
    body = detail.get("eventBody") if isinstance(detail, dict) else None
    return body if isinstance(body, dict) else detail


def _timestamp(event: Event, detail: Any) -> int:
    from eventonce.study.fields import instant_of  # noqa: PLC0415  only recipes need it

    body = _body(detail)
    told = body.get("eventTime") if isinstance(body, dict) else None
    return int(instant_of(told) or instant_of(event.time) or 0)


def _id(arrival: Arrival, _: Any) -> str:
    return str(getattr(arrival.event, "id", ""))


def _conversation(arrival: Arrival, detail: Any) -> str:
    body = _body(detail)
    for name in ("conversationId", "id", "contactId"):
        if isinstance(body.get(name), str):
            return str(body[name])
    return _id(arrival, detail)


def _whole_detail(arrival: Arrival, _: Any) -> str:
    return hashlib.sha256(bytes(getattr(arrival.event, "detail_raw", b""))).hexdigest()


def _per_type(arrival: Arrival, detail: Any) -> str:
    body = msgspec.json.encode(_body(detail), order="deterministic")
    return f"{getattr(arrival.event, 'type', '')} {hashlib.sha256(body).hexdigest()}"


def _status(arrival: Arrival, detail: Any) -> str:
    body = _body(detail)
    status = body.get("status") or body.get("routingStatus") or body.get("presenceDefinition")
    return f"{_conversation(arrival, detail)} {msgspec.json.encode(status).decode()}"


def _whole_message(arrival: Arrival, _: Any) -> str:
    return hashlib.sha256(bytes(getattr(arrival.event, "raw", b""))).hexdigest()


RECIPES: Final[tuple[Guard, ...]] = (
    Recipe("event.id in a cache for 5 minutes (SET NX)", _id, 5 * MINUTE, atomic=True),
    Recipe("conversation id for 10 seconds (GET, then SETEX)", _conversation, 10_000),
    Recipe("newest timestamp per conversation", _conversation, 10**12, newest=True),
    Recipe(
        "hash of the detail for 5 minutes, errors count as copies",
        _whole_detail,
        5 * MINUTE,
        errors_are_copies=True,
    ),
    Recipe("hash of the body per type for an hour (GET, then SET)", _per_type, 60 * MINUTE),
    Recipe("the same status within 500 ms", _status, 500, atomic=True),
    Recipe(
        "an SQS FIFO queue, content for 5 minutes",
        _whole_message,
        5 * MINUTE,
        atomic=True,
        redelivered=True,
    ),
    Recipe("event.id in a table for ever (unique insert, then work)", _id, 10**14, atomic=True),
    Powertools("Powertools' idempotency, hash of the detail for an hour", _whole_detail),
)
"""The recipes against copies from forums and vendors; docs/recipes.md has the sources."""
