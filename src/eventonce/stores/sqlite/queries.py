"""The statements of the store, in an open transaction: records, then dead letters.

A record is two rows: its key, in a tree by key, and the fields that change, in a table that grows
at its end (`schema.sql` gives the reason). Both are written and deleted together.

Most batches need no call of the law for each event: new facts are inserted, and facts completed by
their latest token are updated, many rows in a statement. If the count of changed rows differs, the
law judges row by row. A statement has many rows, because each statement releases the GIL: with a
busy thread beside it, every row would wait for its turn.
"""
# ruff: noqa: S608  only placeholders, their numbers and names of columns are put into a statement

from __future__ import annotations

import sqlite3
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Final, Protocol, cast

import msgspec

from eventonce.core import ledger
from eventonce.core.ledger import Record
from eventonce.stores.sqlite.codec import DONE, held, lives_until, pack, unpack
from eventonce.types import Claim, Letter, Settlement, SettleResult, Verdict

ROWS: Final = (256, 64, 16, *range(8, 0, -1))
"""Rows in one statement: more are not faster, and few sizes need few prepared statements. Up to
eight every size has its own, because a statement costs as much as some rows, and requests with one
event each come a few at a time."""

_key: Final = attrgetter("key")
_claimed_key: Final = attrgetter("claim.key")

RECORD: Final = 3
"""The number of values of a record beside its key."""

Keys = list[bytearray]
Values = list[bytearray | int]
"""The keys in rising order, so that the tree is traversed once; and for each of them its token,
until and body. Bytearrays, because the driver binds them directly; for bytes it first looks for an
adapter, which costs as much as the row itself."""


class _Statement(Protocol):
    """A function that returns the statement for a number of rows."""

    def __call__(self, rows: int, /, *, alike: bool) -> str: ...


@cache
def _insert_records(rows: int, *, alike: bool) -> str:
    values = ", ".join(f"({marks})" for marks in _marks(rows, 0, alike=alike))
    return f"INSERT INTO eventonce_records (token, until, body) VALUES {values}"


@cache
def _insert_keys(rows: int) -> str:
    pairs = ", ".join(f"(?{n + 2}, ?1 + {n})" for n in range(rows))
    return f"INSERT INTO eventonce_keys (key, id) VALUES {pairs} ON CONFLICT (key) DO NOTHING"


@cache
def _update(rows: int, *, alike: bool) -> str:
    columns = "token = excluded.token, until = excluded.until, body = excluded.body"
    return f"{_upsert(rows, alike=alike)} SET {columns}"


@cache
def _complete(rows: int, *, alike: bool) -> str:
    return (
        f"{_upsert(rows, alike=alike)} SET until = excluded.until, body = excluded.body"
        " WHERE token = excluded.token AND until > ?1"
    )


def _upsert(rows: int, *, alike: bool) -> str:
    """Return the start of a statement that changes records; its values are one number, the keys,
    then the records.

    SQLite updates one row a statement, or many at twice the cost, but upserts many at once. Nothing
    is inserted by it, because each key has its record.
    """
    marks = enumerate(_marks(rows, 1 + rows, alike=alike), 2)
    values = ", ".join(f"(?{key}, {record})" for key, record in marks)
    return (
        "INSERT INTO eventonce_records (id, token, until, body)"
        f" SELECT id, column2, column3, column4 FROM (VALUES {values})"
        " CROSS JOIN eventonce_keys ON key = column1 WHERE true ON CONFLICT (id) DO UPDATE"
    )


def _marks(rows: int, before: int, *, alike: bool) -> list[str]:
    """Return the placeholders of each record, after `before` other values."""
    if alike:
        return [f"?{before + 1}, ?{before + 2}, ?{before + 3 + n}" for n in range(rows)]
    starts = range(before + 1, before + 1 + RECORD * rows, RECORD)
    return [f"?{n}, ?{n + 1}, ?{n + 2}" for n in starts]


def _given(values: Values, start: int, stop: int) -> tuple[bool, Values]:
    """Return whether these records share one token and one until, and their values: shared values
    are bound once, because binding is a large part of the work."""
    some = values[start * RECORD : stop * RECORD]
    tokens, untils = some[::RECORD], some[1::RECORD]
    if tokens.count(tokens[0]) == untils.count(untils[0]) == stop - start:
        return True, [tokens[0], untils[0], *some[2::RECORD]]
    return False, some


@cache
def _read(rows: int) -> str:
    keys = ", ".join("?" * rows)
    return f"SELECT key, token, until, body FROM {_RECORDS} WHERE key IN ({keys})"


_RECORDS: Final = "eventonce_keys CROSS JOIN eventonce_records USING (id)"
"""Keys with their records, found by key."""


def claim(
    connection: sqlite3.Connection, claims: Sequence[Claim], now: int, *, hopeful: bool
) -> tuple[list[Verdict], bool]:
    """Judge a batch; return the verdicts, and whether every key was new (`hopeful` next time).

    A hopeful call saves the read of existing records; if a key exists, the batch costs half as much
    again.
    """
    keys = [claim.key for claim in claims]
    for claim in claims:
        if claim.peek or claim.alone or not 0 < claim.lease <= ledger.UNSETTLED:
            # An inserted record must be held, by a lease that the record outlives, and have the
            # short form.
            return _judge(connection, claims, read(connection, keys), {}, now), False
    known = {} if hopeful else read(connection, keys)
    new = [claim for claim in claims if claim.key not in known] if known else claims
    granted, new_keys, values = _first_grants(new, now)
    if not _insert(connection, new_keys, values):
        return _judge(connection, claims, read(connection, keys), {}, now), False
    if known:
        return _judge(connection, claims, known, granted, now), False
    return [granted[key] for key in keys], True


def _first_grants(claims: Sequence[Claim], now: int) -> tuple[dict[bytes, Verdict], Keys, Values]:
    """Return the law's verdicts on these claims if all keys are new, and the rows to write."""
    granted: dict[bytes, Verdict] = {}
    keys: Keys = []
    values: Values = []
    grants: dict[tuple[int, int], tuple[Verdict, Record, int]] = {}
    facts: dict[tuple[int, int, int], tuple[Verdict, Record, int, bytearray]] = {}
    asked: tuple[int, int, int] | None = None
    # The sort is stable: of claims on one key the first stays first.
    for claim in sorted(claims, key=_key):
        key = claim.key
        if claim.order is None:
            # Facts with the same terms differ only in their key, their nonce and their `by`.
            if asked != (asks := (claim.lease, claim.remember, claim.nonce)):
                asked = asks
                if asks not in facts:
                    terms = asks[:2]
                    if terms not in grants:
                        grants[terms] = _grant(claim, now)
                    record = grants[terms][1]
                    start = bytearray(held(record.attempt, claim.nonce, record.held_until, b""))
                    facts[asks] = (*grants[terms], start)
                verdict, record, until, start = facts[asks]
            body = start + claim.by
        else:
            asked = None
            verdict, record, until = _grant(claim, now)
            body = bytearray(pack(record))
        keys.append(bytearray(key))
        values += (record.token, until, body)
        granted[key] = verdict
    return granted, keys, values


def _grant(claim: Claim, now: int) -> tuple[Verdict, Record, int]:
    verdict, record = ledger.judge(None, claim, now)
    record = cast("Record", record)  # the law returns a record with every grant
    return verdict, record, lives_until(record)


def _judge(
    connection: sqlite3.Connection,
    claims: Sequence[Claim],
    known: dict[bytes, Record],
    granted: Mapping[bytes, Verdict],
    now: int,
) -> list[Verdict]:
    verdicts: list[Verdict] = []
    there = frozenset(known)
    changed: dict[bytes, Record] = {}
    for claim in claims:
        key = claim.key
        if key in granted:
            verdicts.append(granted[key])
            continue
        verdict, record = ledger.judge(known.get(key), claim, now)
        if record is not None:
            known[key] = changed[key] = record
        verdicts.append(verdict)
    _write(connection, changed, there)
    return verdicts


def settle(
    connection: sqlite3.Connection, settlements: Sequence[Settlement], now: int
) -> list[SettleResult]:
    """Settle a batch."""
    keys, values = _completions(settlements, now)
    if keys and _run(connection, _complete, keys, values, now) == len(settlements):
        return ["kept"] * len(settlements)
    # Rows that were updated get the same answer again: the law keeps a repeated completion.
    known = read(connection, [settlement.claim.key for settlement in settlements])
    there = frozenset(known)
    answers: list[SettleResult] = []
    changed: dict[bytes, Record] = {}
    for settlement in settlements:
        key = settlement.claim.key
        kept, record = ledger.settle(known.get(key), settlement, now)
        if record is not None:
            known[key] = changed[key] = record
        answers.append(kept)
    _write(connection, changed, there)
    return answers


def _completions(settlements: Sequence[Settlement], now: int) -> tuple[Keys, Values]:
    """Return the rows of completed facts; nothing if the batch has anything else."""
    keys: Keys = []
    values: Values = []
    done = bytearray(DONE)
    for settlement in sorted(settlements, key=_claimed_key):
        claim = settlement.claim
        token = settlement.token
        if settlement.action != "complete" or claim.order is not None or claim.remember <= 0:
            return [], []
        keys.append(bytearray(claim.key))
        if settlement.result is None and not claim.digest:
            values += (token, now + claim.remember, done + claim.by)
        else:
            record = ledger.completed_fact(settlement, now)
            values += (token, record.expires, bytearray(pack(record)))
    return keys, values


def read(connection: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, Record]:
    """Return the records of these keys, expired ones too."""
    wanted = [bytearray(key) for key in keys]
    return {
        key: unpack(token, until, body)
        for start, stop in _chunks(len(wanted))
        # `fetchall`, and no variable for the cursor: a cursor with unread rows, kept alive by the
        # traceback of an exception, would hold the connection's old view of the file.
        for key, token, until, body in _cursor(connection)
        .execute(_read(stop - start), wanted[start:stop])
        .fetchall()
    }


def _cursor(connection: sqlite3.Connection) -> sqlite3.Cursor:
    cursor = connection.cursor()
    # The caller of a transaction may have set a row factory on the connection.
    cursor.row_factory = None
    return cursor


def _write(
    connection: sqlite3.Connection, records: Mapping[bytes, Record], there: Container[bytes]
) -> None:
    """Update the records of keys that are `there`, and insert the others."""
    old = sorted(key for key in records if key in there)
    new = sorted(key for key in records if key not in there)
    _run(connection, _update, *_rows(records, old), 0)
    if not _insert(connection, *_rows(records, new)):
        raise sqlite3.IntegrityError("a key has lost its record; run `eventonce store check`")


def _rows(records: Mapping[bytes, Record], keys: Sequence[bytes]) -> tuple[Keys, Values]:
    values: Values = []
    for key in keys:
        record = records[key]
        values += (record.token, lives_until(record), bytearray(pack(record)))
    return [bytearray(key) for key in keys], values


def _insert(connection: sqlite3.Connection, keys: Keys, values: Values) -> bool:
    """Insert these records if every key is new, otherwise nothing; return whether it was done."""
    first = 0
    for start, stop in _chunks(len(keys)):
        count = stop - start
        alike, given = _given(values, start, stop)
        last = connection.execute(_insert_records(count, alike=alike), given).lastrowid
        assert last is not None
        # Rows of one statement at the end of the table have consecutive ids.
        lowest = last - count + 1
        first = first or lowest
        pairs = [lowest, *keys[start:stop]]
        if connection.execute(_insert_keys(count), pairs).rowcount < count:
            connection.execute("DELETE FROM eventonce_records WHERE id >= ?", (first,))
            connection.executemany(
                "DELETE FROM eventonce_keys WHERE key = ? AND id >= ?",
                [(key, first) for key in keys[:stop]],
            )
            return False
    return True


def _run(
    connection: sqlite3.Connection,
    statement: _Statement,
    keys: Keys,
    values: Values,
    own: int,
) -> int:
    """Run the statement for all rows, with `own` as its first value; return the changed rows."""
    changed = 0
    for start, stop in _chunks(len(keys)):
        alike, given = _given(values, start, stop)
        sql = statement(stop - start, alike=alike)
        changed += connection.execute(sql, [own, *keys[start:stop], *given]).rowcount
    return changed


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    start = 0
    for size in ROWS:
        while count - start >= size:
            yield start, start + size
            start += size


def forget(connection: sqlite3.Connection, keys: Sequence[bytes]) -> int:
    """Delete these records; return how many there were."""
    each = [(key,) for key in keys]
    connection.executemany(
        "DELETE FROM eventonce_records WHERE id = (SELECT id FROM eventonce_keys WHERE key = ?)",
        each,
    )
    return connection.executemany("DELETE FROM eventonce_keys WHERE key = ?", each).rowcount


def clear_results(connection: sqlite3.Connection, keys: Sequence[bytes]) -> int:
    """Delete the results of these records; return how many had one."""
    known = read(connection, keys)
    cleared = {key: it for key in known if (it := ledger.without_result(known[key])) is not None}
    _write(connection, cleared, known)
    return len(cleared)


def sweep(
    connection: sqlite3.Connection, after: bytes, limit: int, now: int
) -> tuple[int, int, bytes]:
    """Delete the expired ones of `limit` records after this key; return how many there were, how
    many were deleted, and the key to continue after. Writes only if a record has expired."""
    looked, last, soonest = connection.execute(
        "SELECT count(*), max(key), min(until) FROM"
        f" (SELECT key, until FROM {_RECORDS} WHERE key > ? ORDER BY key LIMIT ?)",
        (after, limit),
    ).fetchone()
    dropped = 0
    if looked and soonest <= now:
        connection.execute(
            "DELETE FROM eventonce_records WHERE until <= ?3 AND id IN"
            " (SELECT id FROM eventonce_keys WHERE key > ?1 AND key <= ?2)",
            (after, last, now),
        )
        dropped = connection.execute(
            "DELETE FROM eventonce_keys WHERE key > ?1 AND key <= ?2 AND NOT EXISTS"
            " (SELECT 1 FROM eventonce_records WHERE id = eventonce_keys.id)",
            (after, last),
        ).rowcount
    # Fewer records than the limit: the end was reached, and the next round begins at the first.
    return looked, dropped, last if looked == limit else b""


def sweep_on(connection: sqlite3.Connection, limit: int, now: int) -> tuple[int, int]:
    """Continue the last sweep of any process; return how many were checked and deleted."""
    (after,) = connection.execute("SELECT swept FROM eventonce_tables").fetchone()
    looked, dropped, last = sweep(connection, after, limit, now)
    if not looked and after:
        looked, dropped, last = sweep(connection, b"", limit, now)
    connection.execute("UPDATE eventonce_tables SET swept = ?", (last,))
    return looked, dropped


def counts(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return how many records and how many dead letters there are."""
    (records,) = connection.execute("SELECT count(*) FROM eventonce_keys").fetchone()
    (letters,) = connection.execute("SELECT count(*) FROM eventonce_letters").fetchone()
    return records, letters


_LETTER: Final = "id, consumer, status, reason, rule, key, event, at, attempt"
"""The fields of a dead letter, in their order; a later release adds its own after them."""

_LETTER_MARKS: Final = ", ".join("?" * len(_LETTER.split(", ")))

BEFORE_ALL_LETTERS: Final = (-(2**63), "")
"""The instant and id that sort before every dead letter."""


def put_letters(connection: sqlite3.Connection, new: Sequence[Letter]) -> None:
    """Store these dead letters; one whose id exists is not changed."""
    connection.executemany(
        f"INSERT INTO eventonce_letters ({_LETTER}) VALUES ({_LETTER_MARKS})"
        " ON CONFLICT (id) DO NOTHING",
        [msgspec.structs.astuple(one) for one in new],
    )


def letters(
    connection: sqlite3.Connection, consumer: str | None, after: tuple[int, str], limit: int
) -> list[Letter]:
    """Return up to `limit` dead letters after this instant and id, oldest first."""
    rows = connection.execute(
        f"SELECT {_LETTER} FROM eventonce_letters WHERE (at, id) > (?1, ?2)"
        " AND (?3 IS NULL OR consumer = ?3) ORDER BY at, id LIMIT ?4",
        (*after, consumer, limit),
    )
    return [Letter(*row) for row in rows]


def letter(connection: sqlite3.Connection, id: str) -> Letter | None:
    """Return the dead letter of this id."""
    row = connection.execute(
        f"SELECT {_LETTER} FROM eventonce_letters WHERE id = ?", (id,)
    ).fetchone()
    return None if row is None else Letter(*row)


def drop_letters(connection: sqlite3.Connection, ids: Sequence[str], before: int | None) -> int:
    """Delete these dead letters; with `before`, only those of an earlier instant. Return how many
    were deleted."""
    return connection.executemany(
        "DELETE FROM eventonce_letters WHERE id = ?1 AND (?2 IS NULL OR at < ?2)",
        [(each, before) for each in ids],
    ).rowcount


def names(connection: sqlite3.Connection) -> list[str]:
    """Return the names of the consumers that use the file."""
    ours = "SELECT 1 FROM sqlite_master WHERE name = 'eventonce_names'"
    if connection.execute(ours).fetchone() is None:
        return []
    return [name for (name,) in connection.execute("SELECT name FROM eventonce_names")]


def add_name(connection: sqlite3.Connection, name: str) -> None:
    """Store this name. The table is made for the first name: older releases work without it."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS eventonce_names (name TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID"
    )
    connection.execute(
        "INSERT INTO eventonce_names (name) VALUES (?) ON CONFLICT DO NOTHING", (name,)
    )
