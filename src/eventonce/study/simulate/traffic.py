"""The types and functions that all simulated sources share: a fact, its identifiers and times."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from time import gmtime, strftime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

if TYPE_CHECKING:
    from eventonce.study.simulate.cxone import CXone
    from eventonce.study.simulate.genesys import Genesys
    from eventonce.study.simulate.unknown import Unknown

json: Final = msgspec.json.Encoder().encode

Detail = Callable[[int, int], bytes]
"""A function that returns the JSON of a detail, from its emission (milliseconds after the first, 0
for the first) and its publication (0 for the first): volatile fields differ between them."""


class Fact(NamedTuple):
    """A fact that happened once and must take effect once."""

    at: int
    """When the fact happened, by the source, in milliseconds."""
    type: str
    detail: Detail


Traffic: TypeAlias = "Genesys | CXone | Unknown"
"""A source of facts."""


def uuid(chance: Random) -> str:
    """Return a text in the form of a UUID; ids of EventBridge are not of version 4 either."""
    text = f"{chance.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def iso(milliseconds: int) -> str:
    """Return the instant as ISO text with milliseconds."""
    return f"{seconds(milliseconds)[:-1]}.{milliseconds % 1000:03d}Z"


def seconds(milliseconds: int) -> str:
    """Return the instant as ISO text in whole seconds."""
    return strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(milliseconds // 1000))


def fixed(body: dict[str, Any]) -> Detail:
    """Return a detail that is the same at every emission and publication."""
    encoded = json(body)
    return lambda _emission, _publication: encoded
