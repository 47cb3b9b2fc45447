"""The tables of a history, the same in SQLite and PostgreSQL.

What repeats from decision to decision (consumer, worker, channel, status, rule, type, source) is a
kind, and stands once; a decision has the number of its kind. Counts by minute and kind tell how
many there were without a look at the decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from math import inf
from operator import attrgetter
from time import monotonic
from typing import Any, Final, Protocol
from zlib import crc32

import msgspec

from eventonce.core.reasons import AGAIN
from eventonce.core.status import MEANINGS
from eventonce.history.decision import Decision, Kind, Own, storable

MINUTE: Final = 60_000

KIND: Final = 8
"""Fields of a decision that make its kind: the first ones."""

MOST_KINDS: Final = 20_000
"""Kinds that one process knows at a time: whoever sends events of ever new types has those beyond
kept without their type."""

UNUSED: Final = 3_600_000
"""Milliseconds after which a kind that no decision has is dropped: no process remembers the numbers
of kinds for nearly as long."""

KNOWN: Final = 60.0
"""Seconds for which a process remembers the numbers of kinds."""

REASONED: Final = frozenset(MEANINGS) - {"done", "duplicate", "unguarded"}
"""Statuses whose decisions always have a reason."""

COLUMNS: Final = Decision.__struct_fields__
_KIND: Final = COLUMNS[:KIND]
_OWN: Final = COLUMNS[KIND:]
_SELECTED: Final = ", ".join([f"k.{name}" for name in _KIND] + [f"h.{name}" for name in _OWN])


_INSERT: Final = (
    f"INSERT INTO eventonce_history (kind, id_hash, conversation_hash, {', '.join(_OWN)}) "  # noqa: S608  ours
    f"VALUES ({', '.join('?' * (3 + len(_OWN)))})"
)
_COUNT: Final = (
    "INSERT INTO eventonce_history_minutes (minute, kind, events, took) "
    "VALUES (?, ?, ?, ?) ON CONFLICT (minute, kind) DO UPDATE SET "
    "events = eventonce_history_minutes.events + excluded.events, "
    "took = eventonce_history_minutes.took + excluded.took"
)


class Driver(Protocol):
    """A database: what differs between the two. `?` stands for a value in all queries."""

    number: str
    """The type of a column that counts by itself."""
    octets: str
    """The type of bytes."""

    def prepare(self) -> bool:
        """Begin to make the tables; answers whether some may be missing."""
        ...

    def made(self) -> bool:
        """Whether the tables are there."""
        ...

    def removed(self) -> bool:
        """Whether the database that is open is no longer the one at its address."""
        ...

    def run(self, query: str, values: Sequence[Any] = ()) -> int:
        """Execute a query; answers how many rows it changed."""
        ...

    def run_many(self, query: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute a query for each of these rows."""
        ...

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        ...

    def commit(self) -> None:
        """End the transaction."""
        ...

    def rollback(self) -> None:
        """Undo the transaction, whatever has become of the connection."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Search(msgspec.Struct, frozen=True):
    """What decisions are looked for; all that is given must be true of them."""

    conversation: str = ""
    id: str = ""
    key: bytes = b""
    consumer: str = ""
    status: str = ""
    type: str = ""
    rule: str = ""
    reason: str = ""
    """A part of the reason."""
    since: int | None = None
    until: int | None = None
    """In milliseconds; None for no end."""


class Tables:
    """A history in a database; for one thread at a time."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._kinds: dict[Kind, int] = {}
        self._kinds_until = -inf
        self._kinds_dropped = -inf
        self.close = driver.close
        self.rollback = driver.rollback
        self.made = driver.made
        self.removed = driver.removed

    def make(self) -> None:
        """Make the tables, unless they are there."""
        schema = files("eventonce.history").joinpath("schema.sql").read_text()
        typed = schema.format(number=self._driver.number, octets=self._driver.octets)
        if self._driver.prepare():
            for statement in typed.split(";")[:-1]:
                self._driver.run(statement)
        self._driver.commit()

    def add(self, decisions: Iterable[tuple[Kind, Own]]) -> None:
        """Keep these, all or none."""
        counts: dict[tuple[int, int], list[int]] = {}
        rows: list[tuple[Any, ...]] = []
        kinds = self._kinds
        if monotonic() > self._kinds_until:
            # One that was idle must not use the numbers of kinds that are dropped by now.
            kinds.clear()
            self._kinds_until = monotonic() + KNOWN
        try:
            for kind, own in decisions:
                at, _, id_, conversation, _, _, _, took, _, _ = own
                number = kinds.get(kind) or self._numbered(kind, at)
                rows.append((number, _hash(id_), _hash(conversation), *own))
                count = counts.setdefault((at // MINUTE, number), [0, 0])
                count[0] += 1
                count[1] += took
            self._driver.run_many(_INSERT, rows)
            self._driver.run_many(
                _COUNT, [(*which, *count) for which, count in sorted(counts.items())]
            )
            self._driver.commit()
        except BaseException:
            self._kinds.clear()
            self._driver.rollback()
            raise

    def _numbered(self, kind: Kind, at: int) -> int:
        if len(self._kinds) >= MOST_KINDS:
            kind = (*kind[:-2], "", "")
        values: list[Any] = [*kind]
        same_id = values[_KIND.index("same_id")]
        values[_KIND.index("same_id")] = -1 if same_id is None else int(same_id)
        equal = " AND ".join(f"{name} = ?" for name in _KIND)
        self._driver.run(
            f"INSERT INTO eventonce_history_kinds ({', '.join(_KIND)}, seen) "  # noqa: S608  ours
            f"VALUES ({_places(KIND + 1)}) ON CONFLICT ({', '.join(_KIND)}) "
            "DO UPDATE SET seen = excluded.seen",
            (*values, at),
        )
        query = f"SELECT kind FROM eventonce_history_kinds WHERE {equal}"  # noqa: S608  ours
        ((number,),) = self._driver.rows(query, values)
        self._kinds[kind] = number
        return int(number)

    def drop(self, before: int, most: int, limit: int, start: int = 0) -> tuple[int, int | None]:
        """Of the next `limit` decisions from the number `start` on, drop those of before this
        moment and those beyond so many. Answers how many were dropped, and where to go on: None
        where all later ones are to be kept. One whose clock was ahead holds up no other."""
        self._kinds.clear()
        ((first, last),) = self._driver.rows(
            "SELECT (SELECT min(number) FROM eventonce_history WHERE number >= ?), "
            "(SELECT max(number) FROM eventonce_history)",
            (start,),
        )
        if first is None:
            self._driver.commit()
            return 0, None
        dropped = self._driver.run(
            "DELETE FROM eventonce_history "
            "WHERE number >= ? AND number < ? AND (at < ? OR number <= ?)",
            (first, first + limit, before, last - most),
        )
        later = "SELECT number, at FROM eventonce_history WHERE number >= ? ORDER BY number LIMIT 1"
        ((number, at),) = self._driver.rows(later, (first + limit,)) or ((None, 0),)
        self._driver.commit()
        return dropped, number if at < before or (number or 0) <= last - most else None

    def drop_unused(self, before: int, now: int) -> None:
        """Drop the counts and the kinds that no decision has any more."""
        oldest = "SELECT at FROM eventonce_history ORDER BY number LIMIT 1"
        ((at,),) = self._driver.rows(oldest) or ((now,),)
        began = at if at <= now else before
        self._driver.run(
            "DELETE FROM eventonce_history_minutes WHERE minute < ?", (began // MINUTE,)
        )
        # It reads all decisions once.
        if monotonic() > self._kinds_dropped + UNUSED / 1000:
            self._kinds_dropped = monotonic()
            self._driver.run(
                "DELETE FROM eventonce_history_kinds WHERE seen < ? AND kind NOT IN "
                "(SELECT DISTINCT kind FROM eventonce_history)",
                (now - UNUSED,),
            )
        self._driver.commit()

    def find(self, search: Search, limit: int) -> list[Decision]:
        """The latest decisions of which all this is true, in their order."""
        where, values = _where(search)
        # SQLite begins with the first table of a cross join: with the few kinds of that status.
        tables = "eventonce_history_kinds k CROSS JOIN eventonce_history h"
        if search.status not in REASONED:
            tables = "eventonce_history h, eventonce_history_kinds k"
        rows = self._driver.rows(
            f"SELECT {_SELECTED} FROM {tables} WHERE k.kind = h.kind "  # noqa: S608  ours
            # Their numbers follow their moments, but for the seconds of others' writers.
            f"AND {where} ORDER BY h.number DESC LIMIT ?",
            (*values, limit),
        )
        self._driver.commit()
        return sorted(map(_decision, reversed(rows)), key=attrgetter("at"))

    def counts(self, since: int, until: int) -> Iterator[tuple[int, Kind, int, int]]:
        """By minute and kind: how many there were, and the microseconds of their handlers."""
        rows = self._driver.rows(
            "SELECT m.minute, m.events, m.took, "  # noqa: S608  ours
            f"{', '.join(f'k.{name}' for name in _KIND)} FROM eventonce_history_minutes m "
            "JOIN eventonce_history_kinds k ON k.kind = m.kind "
            "WHERE m.minute >= ? AND m.minute < ? ORDER BY m.minute",
            (since // MINUTE, -(-until // MINUTE)),
        )
        self._driver.commit()
        for minute, events, took, *kind in rows:
            yield minute * MINUTE, tuple(kind), events, took

    def forget(self, conversation: str) -> int:
        """Drop all decisions about this conversation; answers how many there were. No name is no
        conversation: what belongs to none stays."""
        dropped = self._driver.run(
            "DELETE FROM eventonce_history WHERE conversation_hash <> 0 AND conversation_hash = ? "
            "AND conversation = ?",
            (_hash(storable(conversation)), storable(conversation)),
        )
        self._driver.commit()
        return dropped


def _places(many: int) -> str:
    return ", ".join("?" * many)


def _where(search: Search) -> tuple[str, list[Any]]:
    conversation, id_ = storable(search.conversation), storable(search.id)
    wanted: list[tuple[str, Any]] = [
        # What is not 0 and not empty has an index. One by a hash is a third as large as by a text.
        ("h.conversation_hash <> 0 AND h.conversation_hash = ?", _hash(conversation)),
        ("h.conversation = ?", conversation),
        ("h.id_hash <> 0 AND h.id_hash = ?", _hash(id_)),
        ("h.id = ?", id_),
        ("h.key = ?", search.key),
        ("k.consumer = ?", storable(search.consumer)),
        ("h.reason <> '' AND k.status = ?", search.status in REASONED and search.status),
        ("k.status = ?", search.status),
        ("k.type = ?", storable(search.type)),
        ("k.rule = ?", storable(search.rule)),
        ("h.reason LIKE ? ESCAPE '!'", _containing(storable(search.reason))),
    ]
    times = [("h.at >= ?", search.since), ("h.at < ?", search.until)]
    given = [one for one in wanted if one[1]] + [one for one in times if one[1] is not None]
    where = " AND ".join(condition for condition, _ in given)
    return where or "1 = 1", [value for _, value in given]


def _hash(text: str) -> int:
    """Never 0, unless there is no text."""
    return crc32(text.encode()) or 1 if text else 0


def _containing(text: str) -> str:
    if not text:
        return ""
    for special in "!%_":
        text = text.replace(special, f"!{special}")
    return f"%{text}%"


def _decision(row: Sequence[Any]) -> Decision:
    fields = dict(zip(COLUMNS, row, strict=True))
    same_id = fields["same_id"]
    fields["same_id"] = None if same_id < 0 else bool(same_id)
    fields["key"] = bytes(fields["key"])
    if fields["status"] == "duplicate" and not fields["reason"]:
        fields["reason"] = AGAIN[fields["same_id"]]
    return Decision(**fields)
