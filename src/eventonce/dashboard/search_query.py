"""The query of the search page, checked and made into a search."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request

from eventonce.clock import wall_clock
from eventonce.core.status import MEANINGS
from eventonce.dashboard.forms import typed
from eventonce.history import Search
from eventonce.history.search import SAME_ID
from eventonce.rules.instants import asked

FIELD_OPTIONS: Final = {
    "conversation": "--conversation",
    "event": "--event",
    "subject": "--subject",
    "key": "--key",
    "type": "--type",
    "rule": "--rule",
    "status": "--status",
    "copies": "--copies",
    "reason": "--reason",
    "consumer": "--name",
    "since": "--since",
    "until": "--until",
}
"""The fields of a search, each with the same option of `eventonce history`."""

CHOICES: Final[Mapping[str, Collection[str]]] = {"status": MEANINGS, "copies": SAME_ID}
"""The values of fields that have one of a list, or several, separated by commas."""

USUAL_DECISIONS: Final = 100
MOST_DECISIONS: Final = 1000
"""The most decisions on a page, and their usual number."""


class SearchQuery(msgspec.Struct, frozen=True):
    """The search of one request."""

    given: Mapping[str, str]
    """The fields that have a value, as they were typed."""
    search: Search
    limit: int
    fault: str = ""
    """The first field that is wrong, and why."""

    @property
    def one(self) -> bool:
        """Whether the search is about one conversation, event, subject or key; then its page is a
        story."""
        search = self.search
        return bool(search.conversation or search.id or search.subject or search.key)

    def options(self) -> list[str]:
        """Return the options of `eventonce history` for the same search."""
        return [
            *(f"{FIELD_OPTIONS[name]}={value}" for name, value in self.given.items()),
            f"--limit={self.limit}",
        ]


def read(request: Request) -> SearchQuery:
    """Return the search of a request."""
    params = request.query_params
    given = {name: value for name in FIELD_OPTIONS if (value := typed(params, name))}
    fields: dict[str, Any] = {}
    fault = ""
    for name, value in given.items():
        try:
            fields["id" if name == "event" else name] = _value(name, value)
        except ValueError as error:
            fault = fault or f"{name}: {error}"
    limit = params.get("limit", "")
    many = (
        min(MOST_DECISIONS, max(1, int(limit)))
        if limit.isdecimal() and len(limit) < 6
        else USUAL_DECISIONS
    )
    return SearchQuery(given, Search(**fields), many, fault)


def _value(name: str, value: str) -> Any:
    if name in ("since", "until"):
        return asked(value, wall_clock())
    if name == "key":
        try:
            return bytes.fromhex(value)
        except ValueError:
            raise ValueError(f"{value!r} is not hexadecimal") from None
    if name in CHOICES:
        several = dict.fromkeys(one.strip() for one in value.split(","))
        for one in several:
            if one not in CHOICES[name]:
                raise ValueError(f"{one!r} is unknown; choose from {', '.join(CHOICES[name])}")
        return ",".join(several)
    return value
