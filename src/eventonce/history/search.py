"""The question to a history, and its conditions in SQL.

Ids, conversations and keys are found by their hashes, which `tables` writes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain
from typing import Any, Final
from zlib import crc32

import msgspec

from eventonce.core.status import MEANINGS
from eventonce.history.decision import storable
from eventonce.history.digests import Digests, What
from eventonce.history.driver import Driver, places
from eventonce.history.subjects import Subjects

MOST_PROBES: Final = 100_000
"""The most entries of an index to look up: beyond this, reading all decisions once is faster."""

MOST_OF_AN_ID: Final = 100
"""The most decisions of one transport id whose events are searched for copies, the latest. An id
belongs to one event of each consumer, unless a sender uses it again and again."""

WITH_REASON: Final = frozenset(MEANINGS) - {"done", "duplicate", "unguarded"}
"""Statuses whose decisions always have a reason."""

SAME_ID: Final = {"same": 1, "other": 0, "unknown": -1}
"""Whether a copy has the transport id of the event that took effect: in words, and as the tables
have it."""


class Search(msgspec.Struct, frozen=True):
    """A search for decisions; they must match every field that is given."""

    conversation: str = ""
    id: str = ""
    """The transport id of the event, or of one of its copies."""
    key: bytes = b""
    subject: str = ""
    """The subject of a state, the whole text."""
    consumer: str = ""
    status: str = ""
    """One status, or several, separated by commas."""
    copies: str = ""
    """Words of `SAME_ID`, separated by commas: only duplicates, by their transport id."""
    type: str = ""
    rule: str = ""
    reason: str = ""
    """A part of the reason."""
    since: int | None = None
    until: int | None = None
    """The end of the time, in milliseconds; None for no end."""

    @property
    def kinds(self) -> list[tuple[str, list[Any]]]:
        """The given fields of a kind, each with the values that it may have."""
        wanted: dict[str, list[Any]] = {
            "consumer": [storable(self.consumer)],
            "status": self.status.split(","),
            "type": [storable(self.type)],
            "rule": [storable(self.rule)],
        }
        given = [(name, values) for name, values in wanted.items() if any(values)]
        if self.copies:
            same = [SAME_ID[one] for one in self.copies.split(",")]
            given += [("status", ["duplicate"]), ("same_id", same)]
        return given

    @property
    def whole(self) -> bool:
        """Whether all decisions about an event match if one of them matches."""
        about = (self.conversation, self.status, self.copies, self.type, self.rule, self.reason)
        return bool(self.key or self.id) and not any(about) and self.since is self.until is None

    @property
    def reasoned(self) -> bool:
        """Whether all decisions of these statuses have a reason."""
        return WITH_REASON.issuperset(self.status.split(","))


class Conditions:
    """The conditions on decisions `h` and their kinds `k`; for one thread at a time."""

    def __init__(self, driver: Driver, digests: Digests, subjects: Subjects) -> None:
        self._driver = driver
        self._digests = digests
        self._subjects = subjects

    def where(self, search: Search) -> tuple[str, list[Any]]:
        """Return the condition for a search, and its values."""
        wanted: list[tuple[str, Any]] = [
            ("h.key = ?", search.key),
            ("h.reason LIKE ? ESCAPE '!'", _containing(storable(search.reason))),
        ]
        times = [("h.at >= ?", search.since), ("h.at < ?", search.until)]
        given = [one for one in wanted if one[1]] + [one for one in times if one[1] is not None]
        conditions, values = [one for one, _ in given], [one for _, one in given]
        for name, allowed in search.kinds:
            conditions.append(f"k.{name} IN ({places(len(allowed))})")
            values += allowed
        if search.reasoned:
            conditions.append("h.reason <> ''")
        if search.key:
            conditions.append(self.hashed("key", [search.key]))
        if search.subject:
            keys = self._subjects.keys(search.subject)
            same = f"{self.hashed('key', keys)} AND h.key IN ({places(len(keys))})"
            conditions.append(same if keys else "1 = 0")
            values += keys
        if search.conversation:
            condition, names = self._named("conversation", search.conversation)
            conditions.append(condition)
            values += names
        if search.id:
            condition, names = self._about(search.id)
            conditions.append(condition)
            values += names
        return " AND ".join(conditions) or "1 = 1", values

    def _about(self, id_: str) -> tuple[str, list[Any]]:
        """Return the condition that a decision is about an event that had this id. The copies of
        the event may have other ids: they are found by its key and version."""
        named, values = self._named("id", id_)
        events = self._driver.rows(
            "SELECT DISTINCT key, version FROM (SELECT key, version FROM eventonce_history h "  # noqa: S608  ours
            f"WHERE key_hash <> 0 AND {named} ORDER BY number DESC LIMIT {MOST_OF_AN_ID}) latest",
            values,
        )
        if not events:
            return named, values
        hashes = self.hashed("key", [key for key, _ in events])
        same = " OR ".join(["h.key = ? AND h.version = ?"] * len(events))
        return f"({named} OR {hashes} AND ({same}))", [*values, *chain.from_iterable(events)]

    def _named(self, what: What, text: str) -> tuple[str, list[Any]]:
        """Return the condition that a decision has this id or this conversation."""
        names = self._digests.names(what, text)
        hashes = self.hashed(what, map(str.encode, names))
        return f"{hashes} AND h.{what} IN ({places(len(names))})", [*names]

    def hashed(self, what: str, values: Iterable[bytes]) -> str:
        """Return the condition that a decision has the hash of one of these ids, conversations or
        keys. The index has the hashes that are not 0; it is cheaper than an index of the texts."""
        return f"h.{what}_hash <> 0 AND h.{what}_hash IN ({self.in_segments(what, values)})"

    def keyed(self, keys: Collection[bytes]) -> str:
        """Return the condition that a decision has the hash of one of these keys, which may be
        very many."""
        first, last = self._segments("key")
        if len(keys) * (last - first + 1) <= MOST_PROBES:
            return self.hashed("key", keys)
        hashes = ", ".join({str(crc32(key)) for key in keys})
        return f"h.key_hash <> 0 AND h.key_hash & {2**32 - 1} IN ({hashes})"

    def in_segments(self, what: str, values: Iterable[bytes]) -> str:
        """Return all numbers that the hashes of these values may have in the index of ids,
        conversations or keys, as a list for `IN`: one for each segment."""
        first, last = self._segments(what)
        segments = range(first, last + 1)
        wanted = sorted({*map(crc32, values)})
        return ", ".join(str(segment << 32 | one) for segment in segments for one in wanted)

    def _segments(self, what: str) -> tuple[int, int]:
        """Return the first and the last segment, from the ends of the index. The numbers of
        decisions would not do: after all were deleted, PostgreSQL counts on, and segments begin
        with 1 again."""
        index = f"FROM eventonce_history WHERE {what}_hash <> 0"
        ((first, last),) = self._driver.rows(
            f"SELECT (SELECT min({what}_hash) {index}), (SELECT max({what}_hash) {index})"
        )
        return (first or 0) >> 32, (last or 0) >> 32


def _containing(text: str) -> str:
    if not text:
        return ""
    for special in "!%_":
        text = text.replace(special, f"!{special}")
    return f"%{text}%"
