"""The words that all simulated sources share: a fact, its identifiers and its times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from time import gmtime, strftime
from typing import Any, Final, NamedTuple, Protocol

import msgspec

SECOND: Final = 1_000
MINUTE: Final = 60_000
HOUR: Final = 3_600_000
DAY: Final = 86_400_000

json: Final = msgspec.json.Encoder().encode

Detail = Callable[[int, int], bytes]
"""The JSON of a detail, from its emission (milliseconds after the first one, 0 for the first) and
its publication (0 for the first): whatever a source writes anew each time differs between them."""


class Fact(NamedTuple):
    """A fact that happened once and must take effect once."""

    at: int
    """When the source says that it happened, in milliseconds."""
    type: str
    detail: Detail


class Traffic(Protocol):
    """A source of facts."""

    source: str
    types: tuple[str, ...]

    def second(self) -> str:
        """The source that a second integration of the same organisation has."""

    def conversation(self, start: int, chance: Random) -> Iterator[Fact]:
        """The facts of one conversation that begins at this instant, and what goes with it."""


def uuid(chance: Random) -> str:
    """A text in the form of a UUID; transport ids of EventBridge are no version 4 either."""
    text = f"{chance.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def iso(milliseconds: int) -> str:
    """The instant as ISO text with milliseconds."""
    return f"{seconds(milliseconds)[:-1]}.{milliseconds % 1000:03d}Z"


def seconds(milliseconds: int) -> str:
    """The instant as ISO text in whole seconds."""
    return strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(milliseconds // 1000))


def fixed(body: dict[str, Any]) -> Detail:
    """The detail of a source that writes the same at every emission and publication."""
    encoded = json(body)
    return lambda _emission, _publication: encoded
