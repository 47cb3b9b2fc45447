"""The tables of a history, the same in SQLite and PostgreSQL; `search` has the conditions.

The fields that many decisions share (consumer, worker, channel, status, rule, type, source) make a
kind, which is stored once; a decision has the number of its kind. Counts by minute and kind answer
how many decisions there were without reading them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib.resources import files
from math import inf
from operator import attrgetter
from time import monotonic
from typing import Any, Final
from zlib import crc32

from eventonce.core.reasons import AGAIN
from eventonce.core.status import Status
from eventonce.errors import StoreMismatch
from eventonce.history.decision import (
    LOOKED_UP,
    NO_VERSION,
    Decision,
    Kind,
    Own,
    storable,
    without_ids,
)
from eventonce.history.digests import (
    DIGEST,
    DIGITS,
    MARK,
    NO_DIGESTS,
    SECRET_DIGITS,
    Digests,
    What,
    plain,
)
from eventonce.history.driver import Driver, places
from eventonce.history.leases import WORKERS, StateTable
from eventonce.history.search import Conditions, Search
from eventonce.history.subjects import SUBJECTS, Row, Subjects
from eventonce.history.winners import LEADING, TOOK_EFFECT, Lead

MINUTE: Final = 60_000

KIND_LENGTH: Final = 8
"""The number of fields that make the kind of a decision: its first ones."""

MOST_KINDS: Final = 20_000
"""The most kinds that one process remembers. If a sender has ever new types, events beyond this
are kept without their type and source."""

UNUSED_KIND_AGE: Final = 3_600_000
"""Milliseconds after which a kind without decisions is deleted; much longer than a process
remembers the numbers of kinds (`KINDS_KNOWN`)."""

SEGMENT_BITS: Final = 14
"""The segment of a decision is its number without these last bits. A hash in an index begins with
the segment that was the latest at the time of writing, so that new hashes fall on a few pages;
hashes all over an index of millions would cost several times as much. In return, a search looks
for a hash in each segment, a few hundred."""

LAST_INDEX: Final = "eventonce_history_reason_4"
"""The index that is created last. Its number grows with each incompatible change of the tables."""

TABLES: Final = {
    "eventonce_history": "at",
    "eventonce_history_kinds": "seen",
    "eventonce_history_minutes": "events",
    SUBJECTS: "seen",
    WORKERS: "told",
}
"""The tables, each with a column that may be written."""

MOST_LEADS: Final = 100_000
"""The most decisions that are read to find winners or runs."""

KINDS_KNOWN: Final = 60.0
"""Seconds for which a process remembers the numbers of kinds."""

COLUMNS: Final = tuple(it for it in Decision.__struct_fields__ if it not in LOOKED_UP)
KIND_FIELDS: Final = COLUMNS[:KIND_LENGTH]
_OWN: Final = COLUMNS[KIND_LENGTH:]
_SUBJECT: Final = f"coalesce((SELECT s.subject FROM {SUBJECTS} s WHERE s.key = h.key), '')"  # noqa: S608  ours
_SELECTED: Final = ", ".join(
    [f"k.{name}" for name in KIND_FIELDS] + [f"h.{name}" for name in _OWN] + [_SUBJECT]
)

_WRITTEN: Final = (*_OWN, "kind", "id_hash", "conversation_hash", "key_hash")
_LATER: Final = "SELECT number, at FROM eventonce_history WHERE number >= ? ORDER BY number LIMIT 1"
_COUNT: Final = (
    "INSERT INTO eventonce_history_minutes (minute, kind, events, took) "
    "VALUES (?, ?, ?, ?) ON CONFLICT (minute, kind) DO UPDATE SET "
    "events = eventonce_history_minutes.events + excluded.events, "
    "took = eventonce_history_minutes.took + excluded.took"
)


class Tables:
    """A history in a database; for one thread at a time. `make` and `add` commit; after all other
    calls the caller commits, because PostgreSQL begins a transaction for a question, too."""

    def __init__(self, driver: Driver, digests: Digests = NO_DIGESTS) -> None:
        self._driver = driver
        self._digests = digests
        self._kinds: dict[Kind, int] = {}
        self._kinds_until = -inf
        self._kinds_dropped = -inf
        self.subjects = Subjects(driver, digests)
        self._conditions = Conditions(driver, digests, self.subjects)
        self.states = StateTable(driver)
        self.close = driver.close
        self.commit = driver.commit
        self.rollback = driver.rollback
        self.removed = driver.removed
        self.empty_log = driver.empty_log
        self.scrub = driver.scrub
        self.refused = driver.refused
        self.fixed = driver.fixed
        self.missing = driver.missing

    def make(self) -> None:
        """Create the tables, unless they exist; then no right to create tables is needed."""
        driver = self._driver
        try:
            driver.begin()
            if not self.made():
                schema = files("eventonce.history").joinpath("schema.sql").read_text()
                typed = schema.format(number=driver.number, row=driver.row, octets=driver.octets)
                for statement in [*driver.first, *typed.split(";")[:-1]]:
                    driver.run(statement)
        except BaseException:
            driver.rollback()
            raise
        driver.commit()

    def made(self) -> bool:
        """Whether the tables exist; StoreMismatch if they are of another version."""
        if self._driver.has(LAST_INDEX):
            return True
        if self._driver.has("eventonce_history"):
            raise StoreMismatch(
                "another version of eventonce created its tables; name another database in "
                "[history], or delete the tables whose names begin with eventonce_history"
            )
        return False

    def add(self, decisions: Iterable[tuple[Kind, Own]], subjects: Sequence[Row] = ()) -> None:
        """Store these decisions, all or none."""
        tallies: list[list[int]] = []
        """For each minute and kind: both, the number of decisions, and the time of handlers."""
        latest: dict[Kind, tuple[list[int], str]] = {}
        """The latest tally of each kind, with its type, which may contain the id of an event."""
        values: list[Any] = []
        """The values of all rows, one row after another."""
        bare = not self._digests
        if monotonic() > self._kinds_until:
            # An idle process must not use the numbers of kinds that were deleted meanwhile.
            self._kinds.clear()
            self._kinds_until = monotonic() + KINDS_KNOWN
        try:
            segment = self._segment() << 32
            for kind, own in decisions:
                at, reason, id_, conversation, key, _, _, took, _, _ = own
                if bare and (MARK in id_ or MARK in conversation):
                    id_, conversation = plain(id_), plain(conversation)
                    values += (at, reason, id_, conversation, *own[4:])
                else:
                    values += own
                found = latest.get(kind)
                if (
                    found is None
                    or found[0][0] != at // MINUTE
                    or (id_ and id_ in found[1])
                    or (conversation and conversation in found[1])
                ):
                    found = self._tally(
                        without_ids(kind, id_, conversation), at // MINUTE, latest, tallies
                    )
                tally = found[0]
                tally[2] += 1
                tally[3] += took
                values += (
                    tally[1],
                    segment | crc32(id_.encode()) if id_ else 0,
                    segment | crc32(conversation.encode()) if conversation else 0,
                    segment | crc32(key) if key else 0,
                )
            self._driver.insert("eventonce_history", _WRITTEN, values)
            # One order for all writers prevents deadlocks.
            self._driver.run_many(_COUNT, sorted(tallies))
            if subjects:
                self.subjects.write(subjects)
            self._driver.commit()
            self.subjects.written(subjects)
        except BaseException:
            self._kinds.clear()
            self._driver.rollback()
            raise

    def _tally(
        self,
        kind: Kind,
        minute: int,
        latest: dict[Kind, tuple[list[int], str]],
        tallies: list[list[int]],
    ) -> tuple[list[int], str]:
        """Return the tally of this kind and minute."""
        found = latest.get(kind)
        if found is None or found[0][0] != minute:
            number = self._kinds.get(kind) or self._numbered(kind, minute * MINUTE)
            found = latest[kind] = [minute, number, 0, 0], kind[-2]
            tallies.append(found[0])
        return found

    def _segment(self) -> int:
        """Return the latest segment. Segments begin with 1, so that no hash is 0."""
        ((last,),) = self._driver.rows("SELECT max(number) FROM eventonce_history")
        return ((last or 0) >> SEGMENT_BITS) + 1

    def _numbered(self, given: Kind, at: int) -> int:
        kind = _storable(given)
        known = self._kinds.get(kind)
        if known is not None:
            return known
        if len(self._kinds) >= MOST_KINDS:
            kind = (*kind[:-2], "", "")
        values: list[Any] = [*kind]
        same_id = values[KIND_FIELDS.index("same_id")]
        values[KIND_FIELDS.index("same_id")] = -1 if same_id is None else int(same_id)
        equal = " AND ".join(f"{name} = ?" for name in KIND_FIELDS)
        self._driver.run(
            f"INSERT INTO eventonce_history_kinds ({', '.join(KIND_FIELDS)}, seen) "  # noqa: S608  ours
            f"VALUES ({places(KIND_LENGTH + 1)}) ON CONFLICT ({', '.join(KIND_FIELDS)}) "
            "DO UPDATE SET seen = excluded.seen",
            (*values, at),
        )
        query = f"SELECT kind FROM eventonce_history_kinds WHERE {equal}"  # noqa: S608  ours
        ((number,),) = self._driver.rows(query, values)
        self._kinds[kind] = number
        return int(number)

    def drop(self, before: int, most: int, limit: int, start: int = 0) -> tuple[int, int | None]:
        """Look at the next `limit` decisions from the number `start` on, and delete those that are
        older than `before` or beyond the latest `most`. Return how many were deleted, and the
        number to continue at: None if the next decision is to be kept. A decision whose clock was
        ahead blocks no others."""
        self._kinds.clear()
        ((first, last),) = self._driver.rows(
            "SELECT (SELECT min(number) FROM eventonce_history WHERE number >= ?), "
            "(SELECT max(number) FROM eventonce_history)",
            (start,),
        )
        if first is None:
            return 0, None
        dropped = self._driver.run(
            "DELETE FROM eventonce_history "
            "WHERE number >= ? AND number < ? AND (at < ? OR number <= ?)",
            (first, first + limit, before, last - most),
        )
        ((number, at),) = self._driver.rows(_LATER, (first + limit,)) or ((None, 0),)
        return dropped, number if at < before or (number or 0) <= last - most else None

    def drop_unused(self, before: int, now: int) -> None:
        """Delete the counts, the subjects and the kinds that no decision has any more."""
        at = self.begin() or now
        began = at if at <= now else before
        self._driver.run(
            "DELETE FROM eventonce_history_minutes WHERE minute < ?", (began // MINUTE,)
        )
        self.subjects.drop_unused(began)
        # Seldom, because this reads all decisions.
        if monotonic() > self._kinds_dropped + UNUSED_KIND_AGE / 1000:
            self._kinds_dropped = monotonic()
            self._driver.run(
                "DELETE FROM eventonce_history_kinds WHERE seen < ? AND kind NOT IN "
                "(SELECT DISTINCT kind FROM eventonce_history)",
                (now - UNUSED_KIND_AGE,),
            )

    def consumers(self) -> list[str]:
        """Return the names of the consumers of all kinds."""
        names = "SELECT DISTINCT consumer FROM eventonce_history_kinds ORDER BY consumer"
        return [name for (name,) in self._driver.rows(names)]

    def types(self) -> list[tuple[str, str]]:
        """Return the types and sources of all kinds."""
        rows = self._driver.rows("SELECT DISTINCT type, source FROM eventonce_history_kinds")
        return [(type_, source) for type_, source in rows]

    def begin(self) -> int | None:
        """Return the time of the oldest decision; None if there is none."""
        ((at,),) = self._driver.rows(
            "SELECT at FROM eventonce_history ORDER BY number LIMIT 1"
        ) or ((None,),)
        return at

    def find(self, search: Search, limit: int) -> list[Decision]:
        """Return the latest decisions that match, oldest first. A search by an id finds all
        decisions about the events that had it, also copies with other ids."""
        return self._matching(search, *self._conditions.where(search), limit)

    def runs(self, search: Search, keys: Collection[bytes]) -> list[Decision]:
        """Return the runs that match and took effect under these keys, oldest first; if there are
        very many, the latest."""
        where, values = self._conditions.where(search)
        where += f" AND {self._conditions.keyed(keys)} AND k.status IN ({places(len(TOOK_EFFECT))})"
        return self._matching(search, where, [*values, *TOOK_EFFECT], MOST_LEADS)

    def _matching(
        self, search: Search, where: str, values: Sequence[Any], limit: int
    ) -> list[Decision]:
        # SQLite begins with the first table of a cross join: the kinds of these statuses are few.
        tables = "eventonce_history_kinds k CROSS JOIN eventonce_history h"
        if not search.reasoned:
            tables = "eventonce_history h, eventonce_history_kinds k"
        rows = self._driver.rows(
            f"SELECT {_SELECTED} FROM {tables} "  # noqa: S608  ours
            # The order of numbers is that of times, except for seconds between two writers.
            f"WHERE k.kind = h.kind AND {where} ORDER BY h.number DESC LIMIT ?",
            (*values, limit),
        )
        return sorted(map(_decision, reversed(rows)), key=attrgetter("at"))

    def leads(
        self, keys: Collection[bytes], versions: Collection[int | None] | None
    ) -> Iterator[Lead]:
        """Yield the decisions that lead to a winner under these keys, in these versions (None for
        all versions); if there are very many, the latest."""
        these = "1 = 1"
        if versions is not None:
            numbers = {str(NO_VERSION if it is None else it) for it in versions}
            these = f"h.version IN ({', '.join(numbers)})"
        rows = self._driver.rows(
            "SELECT k.consumer, h.key, h.version, k.status, h.at, h.id, h.reason "  # noqa: S608  ours
            "FROM eventonce_history h, eventonce_history_kinds k WHERE k.kind = h.kind "
            f"AND {self._conditions.keyed(keys)} AND {these} "
            f"AND k.status IN ({places(len(LEADING))}) "
            f"ORDER BY h.number DESC LIMIT {MOST_LEADS}",
            [*LEADING],
        )
        for consumer, key, version, *lead in reversed(rows):
            yield Lead((consumer, bytes(key), None if version == NO_VERSION else version), *lead)

    def count_lately(self, status: Status, reason: str, since: int) -> int:
        """Return how many decisions since then have this status and this reason. The status must
        be one that always has a reason. Older decisions are skipped by their numbers."""
        first = self._number_of(since - MINUTE)
        ((many,),) = self._driver.rows(
            "SELECT count(*) FROM eventonce_history_kinds k CROSS JOIN eventonce_history h "
            "WHERE k.kind = h.kind AND k.status = ? AND h.reason <> '' AND h.number >= ? "
            "AND h.reason = ? AND h.at >= ?",
            (status, first, reason, since),
        )
        return int(many)

    def _number_of(self, at: int) -> int:
        """Return about the number of the first decision since then, by binary search."""
        first, last = self._ends()
        end = last + 1
        while first < end:
            middle = (first + end) // 2
            ((number, moment),) = self._driver.rows(_LATER, (middle,)) or ((middle, at),)
            if moment < at:
                first = number + 1
            else:
                end = middle
        return first

    def counts(
        self, since: int, until: int, fields: Sequence[str] = KIND_FIELDS, step: int = MINUTE
    ) -> Iterator[tuple[int, tuple[Any, ...], int, int]]:
        """Yield the number of decisions and the microseconds of their handlers, by steps of `step`
        milliseconds (whole minutes) and by these fields of a kind."""
        if not set(fields) <= set(KIND_FIELDS):
            raise ValueError(f"counts: fields must be among {', '.join(KIND_FIELDS)}")
        named = ", ".join(f"k.{name}" for name in fields)
        minutes = max(1, step // MINUTE)
        rows = self._driver.rows(
            f"SELECT m.begin, SUM(m.events), SUM(m.took), {named} FROM "  # noqa: S608  ours
            f"(SELECT minute / {minutes} AS begin, kind, SUM(events) AS events, SUM(took) AS took "
            "FROM eventonce_history_minutes WHERE minute >= ? AND minute < ? "
            f"GROUP BY minute / {minutes}, kind) m "
            "JOIN eventonce_history_kinds k ON k.kind = m.kind "
            f"GROUP BY m.begin, {named} ORDER BY m.begin",
            (since // MINUTE, -(-until // MINUTE)),
        )
        for begin, events, took, *kind in rows:
            yield begin * minutes * MINUTE, tuple(kind), int(events), int(took)

    def forget(self, conversation: str) -> int:
        """Delete all decisions about this conversation, and return their number. An empty name
        deletes nothing: decisions without a conversation stay."""
        if not conversation:
            return 0
        names = self._digests.names("conversation", conversation)
        hashes = self._conditions.in_segments("conversation", map(str.encode, names))
        about = (
            "FROM eventonce_history WHERE conversation_hash <> 0 "
            f"AND conversation_hash IN ({hashes}) AND conversation IN ({places(len(names))})"
        )
        states = f"SELECT DISTINCT key {about} AND version <> {NO_VERSION}"
        keys = [bytes(key) for (key,) in self._driver.rows(states, names)]
        dropped = self._driver.run(f"DELETE {about}", names)
        self.subjects.drop(key for key in keys if not self._has(key))
        return dropped

    def _has(self, key: bytes) -> bool:
        """Whether there is a decision with this key."""
        one = "SELECT 1 FROM eventonce_history h"
        query = f"{one} WHERE {self._conditions.hashed('key', [key])} AND h.key = ? LIMIT 1"
        return bool(self._driver.rows(query, (key,)))

    def try_to_write(self) -> None:
        """Use every right that a writer needs, and change nothing."""
        run = self._driver.run
        try:
            for table, column in TABLES.items():
                none = f"FROM {table} WHERE 1 = 0"
                run(f"INSERT INTO {table} ({column}) SELECT {column} {none}")
                run(f"DELETE {none}")
                # A decision never changes.
                if table != "eventonce_history":
                    run(f"UPDATE {table} SET {column} = {column} WHERE 1 = 0")  # noqa: S608  ours
        finally:
            self._driver.rollback()

    def span(self) -> int:
        """Return the number of decisions, including some deleted ones between others."""
        first, last = self._ends()
        return last - first + 1 if last else 0

    def _ends(self) -> tuple[int, int]:
        """Return the lowest and the highest number; 0 for none. Two subqueries, because SQLite
        would read all decisions for both in one."""
        ((first, last),) = self._driver.rows(
            "SELECT (SELECT min(number) FROM eventonce_history), "
            "(SELECT max(number) FROM eventonce_history)"
        )
        return int(first or 0), int(last or 0)

    def hidden(self, what: What, name: str) -> int:
        """Return how many decisions may have this id, conversation or subject as a digest under an
        unknown secret. If `name` is a digest itself, these are all decisions that are not under
        its secret. This reads all decisions."""
        begin = f"substr({what}, 1, {SECRET_DIGITS})"
        if DIGEST.fullmatch(name):
            where, values = f"{what} <> '' AND {begin} <> ?", [name[:SECRET_DIGITS]]
        else:
            where, values = f"length({what}) = {DIGITS} AND substr({what}, 1, 1) = '{MARK}'", []
            if self._digests:
                values = [*self._digests.begins]
                where += f" AND {begin} NOT IN ({places(len(values))})"
        table = "eventonce_history h"
        if what == "subject":
            table += f" JOIN {SUBJECTS} s ON s.key = h.key"
        count = f"SELECT count(*) FROM {table} WHERE {where}"  # noqa: S608  ours
        ((many,),) = self._driver.rows(count, values)
        return int(many)


def _storable(kind: Kind) -> Kind:
    consumer, worker, channel, status, same_id, rule, type_, source = kind
    ours = (storable(consumer), storable(worker), storable(channel))
    return (*ours, status, same_id, storable(rule), storable(type_), storable(source))


def _decision(row: Sequence[Any]) -> Decision:
    fields = dict(zip((*COLUMNS, "subject"), row, strict=True))
    same_id = fields["same_id"]
    fields["same_id"] = None if same_id < 0 else bool(same_id)
    fields["key"] = bytes(fields["key"])
    if fields["version"] == NO_VERSION:
        fields["version"] = None
    if fields["status"] == "duplicate" and not fields["reason"]:
        fields["reason"] = AGAIN[fields["same_id"]]
    return Decision(**fields)
