"""What the receiver bears, as checked numbers: from the `[serve]` table to bytes and seconds."""

from __future__ import annotations

from typing import NamedTuple

from eventonce.config import Serve
from eventonce.errors import ConfigError
from eventonce.rules.instants import duration


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
    if settings.max_in_flight < settings.max_body:
        raise ConfigError(
            f"serve: max_in_flight is {settings.max_in_flight}: at least max_body, which is "
            f"{settings.max_body}, was expected"
        )
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


def seconds(settings: Serve, name: str) -> float:
    """The setting of this name as seconds, more than none."""
    try:
        found = duration(getattr(settings, name))
    except ValueError as error:
        raise ConfigError(f"serve: {name}: {error}") from None
    if not found:
        raise ConfigError(f"serve: {name} is 0: nothing could be done in that time")
    return found / 1000


def _count(settings: Serve, name: str) -> int:
    found: int = getattr(settings, name)
    if found < 1:
        raise ConfigError(f"serve: {name} is {found}: at least 1 was expected")
    return found
