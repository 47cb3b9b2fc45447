"""Statuses, and the meaning of each, in one table for every way in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

Status = Literal[
    "done",
    "duplicate",
    "stale",
    "unchanged",
    "ignored",
    "busy",
    "failed",
    "fenced",
    "dead",
    "conflict",
    "invalid",
    "unguarded",
]
"""The status of an event: how its processing ended."""


class Meaning(NamedTuple):
    """The meaning of a status."""

    http: int
    """The HTTP status of a response for this event alone."""
    acknowledged: bool = True
    """Whether the transport may forget the event; otherwise the event must come again."""
    dead_letter: bool = False
    """Whether the whole event is kept as a dead letter: the transport will not deliver it again."""
    ran: bool = False
    """Whether a handler was called, so that the time of the event counts for handlers."""
    copy: bool = False
    """Whether the event was dropped as a copy, or as an older or unchanged version."""
    effective: bool = False
    """Whether the effect has happened: a dead letter of the event can be deleted."""
    failure: bool = False
    """Whether something went wrong that a later try may mend, and not another run of the same
    event: counted as a failure, with a reason that is new to its dead letter."""
    usual: bool = False
    """Whether the status is normal; the others are warnings in a log."""


MEANINGS: Final[Mapping[Status, Meaning]] = {
    "done": Meaning(200, ran=True, effective=True, usual=True),
    "duplicate": Meaning(200, copy=True, effective=True, usual=True),
    "stale": Meaning(200, copy=True, effective=True, usual=True),
    "unchanged": Meaning(200, copy=True, effective=True, usual=True),
    "ignored": Meaning(200, usual=True),
    "unguarded": Meaning(200, ran=True, effective=True),
    "busy": Meaning(429, acknowledged=False),
    "failed": Meaning(503, acknowledged=False, ran=True, failure=True),
    "fenced": Meaning(503, acknowledged=False, ran=True),
    "dead": Meaning(200, dead_letter=True),
    "conflict": Meaning(422, dead_letter=True),
    "invalid": Meaning(400, dead_letter=True),
}
"""EventBridge's API destinations send again after 401, 407, 409, 429 and 5xx, and most webhooks
after 429 and 5xx at least. So 429 and 503 are for events that must come again, copies are a
success, and a conflict, whose dead letter is kept, is not a 409."""

ACKNOWLEDGED: Final = frozenset[str](name for name, says in MEANINGS.items() if says.acknowledged)
DEAD_LETTERS: Final = frozenset[str](name for name, says in MEANINGS.items() if says.dead_letter)
COPIES: Final = frozenset[str](name for name, says in MEANINGS.items() if says.copy)
RAN: Final = frozenset[str](name for name, says in MEANINGS.items() if says.ran)
EFFECTIVE: Final = frozenset[str](name for name, says in MEANINGS.items() if says.effective)
FAILURES: Final = frozenset[str](name for name, says in MEANINGS.items() if says.failure)
USUAL: Final = frozenset[str](name for name, says in MEANINGS.items() if says.usual)
