"""Instants and durations as people and vendors write them, to integer milliseconds."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

_ISO: Final = re.compile(
    r"\d{4}-\d\d-\d\d(?:[Tt ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:[Zz]|[+-]\d\d:?\d\d)?)?", re.ASCII
)
_NUMBER: Final = re.compile(r"-?\d{1,16}(?:\.\d{1,9})?", re.ASCII)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.ASCII)
_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

SECONDS_BELOW: Final = 10**11
"""A number below this is read as seconds, to the year 5138; others as milliseconds, from 1973."""

_LIMIT: Final = 2**53
"""The limit in milliseconds: stores that count in doubles would round a higher number."""

EARLIEST_EVENT: Final = 946_684_800_000
LATEST_EVENT: Final = 253_370_764_799_999
"""The years 2000 to 9998. Any other time is not that of an event: software writes 1970, the year 1
or 9999 if it has no time, and a small number is a counter."""

LATEST: Final = 253_402_300_799_999
"""The end of the year 9999, and of Python's calendar."""

MAX_DURATION: Final = 36_500 * _UNITS["d"]
"""A hundred years: a longer one is a typing error, and would be too large for some stores."""


def instant(value: Any, form: str = "") -> int | None:
    """Return the instant in milliseconds, rounded down; None if the value is not an instant.

    `form` is `s`, `ms` or `iso`. Without it the size of a number decides between `s` and `ms`, and
    strings are ISO 8601, in UTC if they have no offset.
    """
    if isinstance(value, str):
        if form != "iso" and _NUMBER.fullmatch(value):
            return _from_number(Decimal(value), form)
        return _from_iso(value) if form in ("", "iso") else None
    if form == "iso" or isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not -_LIMIT < value < _LIMIT:
        return None
    # Through `repr`: 1700000000.123 seconds end with 123 ms, but the float is a little less.
    return _from_number(Decimal(repr(value)), form)


@lru_cache(maxsize=1024)
def event_instant(text: str) -> int | None:
    """Return the instant of an envelope's time, cached: EventBridge dates events to the second, so
    many events have the same time."""
    return instant(text)


def _from_number(value: Decimal, form: str) -> int | None:
    seconds = form == "s" or (not form and abs(value) < SECONDS_BELOW)
    at = math.floor(value * 1000 if seconds else value)
    return at if abs(at) < _LIMIT else None


def _from_iso(text: str) -> int | None:
    if not _ISO.fullmatch(text):
        return None
    try:
        moment = datetime.fromisoformat(text.upper())
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return (moment - _EPOCH) // _MILLISECOND
    except (ValueError, OverflowError):
        return None


def asked(text: str, now: int) -> int:
    """Return the moment that a person asks for: a time, in UTC if it has no offset, or a duration
    before now."""
    try:
        at = datetime.fromisoformat(text)
        # In UTC, in which the moment must be within Python's calendar.
        utc = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
        return int(utc.timestamp() * 1000)
    except (ValueError, OverflowError):
        pass
    try:
        return now - duration(text)
    except ValueError:
        raise ValueError(
            f"{text!r} must be a time, such as 2026-11-16T08:00Z, or an age, such as 7d."
        ) from None


def duration_text(milliseconds: int) -> str:
    """Return a duration as people write it, in the largest unit that has no fraction."""
    unit = next(unit for unit in reversed(_UNITS) if milliseconds % _UNITS[unit] == 0)
    return f"{milliseconds // _UNITS[unit]}{unit}"


def duration(value: Any) -> int:
    """Return the milliseconds of `"500ms"`, `"10s"`, `"5m"`, `"24h"`, `"10d"` or of seconds."""
    expected = (
        'expected a duration such as "500ms", "10s", "5m", "24h", "10d" or a number of seconds'
    )
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if not match:
            raise ValueError(f"{expected}, not {value!r}")
        result = int(Decimal(match[1]) * _UNITS[match[2]])
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value):
        result = int(min(value, MAX_DURATION) * 1000)
    else:
        raise ValueError(f"{expected}, not {value!r}")
    if not 0 <= result <= MAX_DURATION:
        raise ValueError(f"{expected}, from 0 to 36500d, not {value!r}")
    return result
