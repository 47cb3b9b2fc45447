"""The tables of a history, the same in SQLite and PostgreSQL; `search` has the question to them.

What repeats from decision to decision (consumer, worker, channel, status, rule, type, source) is a
kind, and stands once; a decision has the number of its kind. Counts by minute and kind tell how
many there were without a look at the decisions.
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
    FOUND,
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
from eventonce.history.leases import TABLE as WORKERS
from eventonce.history.leases import StateTable
from eventonce.history.search import Conditions, Search
from eventonce.history.subjects import TABLE as SUBJECTS
from eventonce.history.subjects import Row, Subjects
from eventonce.history.winners import LEADING, Lead

MINUTE: Final = 60_000

KIND: Final = 8
"""Fields of a decision that make its kind: the first ones."""

MOST_KINDS: Final = 20_000
"""Kinds that one process knows at a time: whoever sends events of ever new types has those beyond
kept without their type."""

UNUSED: Final = 3_600_000
"""Milliseconds after which a kind that no decision has is dropped: no process remembers the numbers
of kinds for nearly as long."""

SEGMENT: Final = 14
"""Bits of a decision's number that tell it within its segment. A hash in an index begins with the
number of the segment that was the last when its decision was written: what is written now then
falls on a few pages, and not anywhere in an index of millions, which costs several times as much.
Whoever looks for a hash looks in each segment, a few hundred."""

LAST: Final = "eventonce_history_reason_3"
"""What is made last. Its number grows with a change after which what was written is not found."""

ADDED: Final = (SUBJECTS, WORKERS)
"""Tables that came later. A history of before is given them by whoever may make tables, and is read
and written without them by others."""

MOST_LEADS: Final = 100_000
"""Decisions that are read to find winners."""

KNOWN: Final = 60.0
"""Seconds for which a process remembers the numbers of kinds."""

COLUMNS: Final = tuple(it for it in Decision.__struct_fields__ if it not in FOUND)
KIND_FIELDS: Final = COLUMNS[:KIND]
_OWN: Final = COLUMNS[KIND:]
_SELECTED: Final = ", ".join([f"k.{name}" for name in KIND_FIELDS] + [f"h.{name}" for name in _OWN])


_WRITTEN: Final = (*_OWN, "kind", "id_hash", "conversation_hash", "key_hash")
_LATER: Final = "SELECT number, at FROM eventonce_history WHERE number >= ? ORDER BY number LIMIT 1"
_COUNT: Final = (
    "INSERT INTO eventonce_history_minutes (minute, kind, events, took) "
    "VALUES (?, ?, ?, ?) ON CONFLICT (minute, kind) DO UPDATE SET "
    "events = eventonce_history_minutes.events + excluded.events, "
    "took = eventonce_history_minutes.took + excluded.took"
)


class Tables:
    """A history in a database; for one thread at a time."""

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
        self.refused = driver.refused
        self.fixed = driver.fixed
        self.missing = driver.missing

    def make(self) -> None:
        """Make the tables, unless they are there; who finds them needs no right to make any."""
        driver, made = self._driver, False
        try:
            driver.begin()
            made = self.made()
            lacking = [name for name in ADDED if not driver.has(name)]
            if not made or lacking:
                schema = files("eventonce.history").joinpath("schema.sql").read_text()
                typed = schema.format(number=driver.number, row=driver.row, octets=driver.octets)
                statements = [*driver.first, *typed.split(";")[:-1]]
                for statement in statements:
                    # The owner of the others may be somebody else.
                    if not made or any(name in statement for name in lacking):
                        driver.run(statement)
        except BaseException as error:
            driver.rollback()
            if not made or not isinstance(error, Exception):
                raise
            return
        driver.commit()

    def made(self) -> bool:
        """Whether the tables are there; StoreMismatch where those of another version are."""
        if self._driver.has(LAST):
            return True
        if self._driver.has("eventonce_history"):
            raise StoreMismatch(
                "another version of eventonce made its tables; name another database in [history], "
                "or delete the tables whose names begin with eventonce_history"
            )
        return False

    def add(self, decisions: Iterable[tuple[Kind, Own]], subjects: Sequence[Row] = ()) -> None:
        """Keep these, all or none."""
        tallies: list[list[int]] = []
        """Of each minute and kind: these two, how many there are, and the time of their
        handlers."""
        latest: dict[Kind, tuple[list[int], str]] = {}
        """The tally of each kind, with its type, which may have the id of one event in it."""
        values: list[Any] = []
        """The values of all rows, row after row."""
        bare = not self._digests
        if monotonic() > self._kinds_until:
            # One that was idle must not use the numbers of kinds that are dropped by now.
            self._kinds.clear()
            self._kinds_until = monotonic() + KNOWN
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
            # In one order for all who write, so that none of them waits for another in a circle.
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
        """The tally of this kind and minute."""
        found = latest.get(kind)
        if found is None or found[0][0] != minute:
            number = self._kinds.get(kind) or self._numbered(kind, minute * MINUTE)
            found = latest[kind] = [minute, number, 0, 0], kind[-2]
            tallies.append(found[0])
        return found

    def _segment(self) -> int:
        """The last segment; they begin with 1, so that no hash is 0."""
        ((last,),) = self._driver.rows("SELECT max(number) FROM eventonce_history")
        return ((last or 0) >> SEGMENT) + 1

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
            f"VALUES ({places(KIND + 1)}) ON CONFLICT ({', '.join(KIND_FIELDS)}) "
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
        ((number, at),) = self._driver.rows(_LATER, (first + limit,)) or ((None, 0),)
        self._driver.commit()
        return dropped, number if at < before or (number or 0) <= last - most else None

    def drop_unused(self, before: int, now: int) -> None:
        """Drop the counts and the kinds that no decision has any more."""
        at = self._oldest() or now
        began = at if at <= now else before
        self._driver.run(
            "DELETE FROM eventonce_history_minutes WHERE minute < ?", (began // MINUTE,)
        )
        self.subjects.drop_unused(began)
        # It reads all decisions once.
        if monotonic() > self._kinds_dropped + UNUSED / 1000:
            self._kinds_dropped = monotonic()
            self._driver.run(
                "DELETE FROM eventonce_history_kinds WHERE seen < ? AND kind NOT IN "
                "(SELECT DISTINCT kind FROM eventonce_history)",
                (now - UNUSED,),
            )
        self._driver.commit()

    def consumers(self) -> list[str]:
        """The names of the consumers of all kinds."""
        names = "SELECT DISTINCT consumer FROM eventonce_history_kinds ORDER BY consumer"
        rows = self._driver.rows(names)
        self._driver.commit()
        return [name for (name,) in rows]

    def types(self) -> list[tuple[str, str]]:
        """The types and sources of all kinds."""
        rows = self._driver.rows("SELECT DISTINCT type, source FROM eventonce_history_kinds")
        self._driver.commit()
        return [(type_, source) for type_, source in rows]

    def begin(self) -> int | None:
        """The moment of the oldest decision; None where there is none."""
        at = self._oldest()
        self._driver.commit()
        return at

    def _oldest(self) -> int | None:
        ((at,),) = self._driver.rows(
            "SELECT at FROM eventonce_history ORDER BY number LIMIT 1"
        ) or ((None,),)
        return at

    def find(self, search: Search, limit: int) -> list[Decision]:
        """The latest decisions of which all this is true, in their order. By an id are found all
        decisions about the events that had it: its copies may have come under other ids."""
        where, values = self._conditions.where(search)
        # SQLite begins with the first table of a cross join: with the few kinds of these statuses.
        tables = "eventonce_history_kinds k CROSS JOIN eventonce_history h"
        if not search.reasoned:
            tables = "eventonce_history h, eventonce_history_kinds k"
        rows = self._driver.rows(
            f"SELECT {_SELECTED}, {self.subjects.selected()} FROM {tables} "  # noqa: S608  ours
            # Their numbers follow their moments, but for the seconds of others' writers.
            f"WHERE k.kind = h.kind AND {where} ORDER BY h.number DESC LIMIT ?",
            (*values, limit),
        )
        self._driver.commit()
        return sorted(map(_decision, reversed(rows)), key=attrgetter("at"))

    def leads(
        self, keys: Collection[bytes], versions: Collection[int | None] | None
    ) -> Iterator[Lead]:
        """The decisions that lead to a winner under these keys, in these versions, None for
        all; the latest, where there are very many."""
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
        self._driver.commit()
        for consumer, key, version, *lead in reversed(rows):
            yield Lead((consumer, bytes(key), None if version == NO_VERSION else version), *lead)

    def count_lately(self, status: Status, reason: str, since: int) -> int:
        """How many decisions of this status, one that always has a reason, have this reason since
        then. Only what was written since then is read: nearly all numbers follow their moments."""
        first = self._number_of(since - MINUTE)
        ((many,),) = self._driver.rows(
            "SELECT count(*) FROM eventonce_history_kinds k CROSS JOIN eventonce_history h "
            "WHERE k.kind = h.kind AND k.status = ? AND h.reason <> '' AND h.number >= ? "
            "AND h.reason = ? AND h.at >= ?",
            (status, first, reason, since),
        )
        self._driver.commit()
        return int(many)

    def _number_of(self, at: int) -> int:
        """The number of about the first decision since then: each question halves what is left."""
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
        """By steps of so many milliseconds, whole minutes, and by these fields of a kind: how many
        there were, and the microseconds of their handlers."""
        if not set(fields) <= set(KIND_FIELDS):
            raise ValueError(f"counts: a kind has the fields {', '.join(KIND_FIELDS)}")
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
        self._driver.commit()
        for begin, events, took, *kind in rows:
            yield begin * minutes * MINUTE, tuple(kind), int(events), int(took)

    def forget(self, conversation: str) -> int:
        """Drop all decisions about this conversation; answers how many there were. No name is no
        conversation: what belongs to none stays."""
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
        self._driver.commit()
        return dropped

    def _has(self, key: bytes) -> bool:
        """Whether there is a decision of this key."""
        one = "SELECT 1 FROM eventonce_history h"
        query = f"{one} WHERE {self._conditions.hashed('key', [key])} AND h.key = ? LIMIT 1"
        return bool(self._driver.rows(query, (key,)))

    def try_to_write(self) -> None:
        """Ask for all that a writer needs, and change nothing."""
        minutes = "eventonce_history_minutes"
        try:
            self._driver.run("UPDATE eventonce_history_kinds SET seen = seen WHERE 1 = 0")
            self._driver.run(f"INSERT INTO {minutes} SELECT * FROM {minutes} WHERE 1 = 0")  # noqa: S608  ours
            self._driver.run("DELETE FROM eventonce_history WHERE 1 = 0")
            self.subjects.try_to_write()
            self.states.try_to_write()
        finally:
            self._driver.rollback()

    def span(self) -> int:
        """How many decisions there are, and some that were dropped among them."""
        first, last = self._ends()
        self._driver.commit()
        return last - first + 1 if last else 0

    def _ends(self) -> tuple[int, int]:
        """The lowest and the highest number, 0 for none. Each is asked for by itself: for both at
        once SQLite reads all decisions."""
        ((first, last),) = self._driver.rows(
            "SELECT (SELECT min(number) FROM eventonce_history), "
            "(SELECT max(number) FROM eventonce_history)"
        )
        return int(first or 0), int(last or 0)

    def scrub(self) -> str:
        """See to it that no byte of what was dropped stays; answers why not."""
        return self._driver.scrub()

    def hidden(self, what: What, name: str) -> int:
        """How many decisions may have this id, conversation or subject under a digest that cannot
        be made here: by a secret that is not known; for a name that is a digest itself, all that
        are not by its secret. All decisions are read."""
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
            if not self.subjects.readable:
                return 0
            table += f" JOIN {SUBJECTS} s ON s.key = h.key"
        count = f"SELECT count(*) FROM {table} WHERE {where}"  # noqa: S608  ours
        ((many,),) = self._driver.rows(count, values)
        self._driver.commit()
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
