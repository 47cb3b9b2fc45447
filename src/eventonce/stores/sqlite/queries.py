"""The statements of the store, over a connection with an open transaction: records, then letters.

What the law says of most batches is said here in a statement for many rows: facts that nobody has
asked for are inserted, and facts completed by their latest token updated. Where the count of rows
shows that something was not so, the law itself is asked, row by row. A statement carries many rows,
because each one gives other threads the interpreter, and with a busy one beside it every row would
wait for its turn.
"""
# ruff: noqa: S608  what is put into a statement is marks, their numbers and names of columns

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Final, cast

import msgspec

from eventonce.core import ledger
from eventonce.core.ledger import Record
from eventonce.stores.sqlite.codec import DONE, held, lives_until, pack, unpack
from eventonce.types import Claim, Letter, Settlement, SettleResult, Verdict

ROWS: Final = (256, 64, 16, 4, 1)
"""Rows in one statement: more do not make it faster, and few sizes are few statements to keep."""

COLUMNS: Final = 4

_key: Final = attrgetter("key")
_claimed_key: Final = attrgetter("claim.key")

Values = list[bytearray | int]
"""Row after row, each its key, token, until and body, by rising key so that the tree is gone
through once. Bytearrays, because the driver binds them as they are; for bytes it first looks for an
adapter, which costs as much as the row itself."""


@cache
def _insert(rows: int) -> str:
    return (
        "INSERT INTO eventonce_records (key, token, until, body) VALUES "
        + ", ".join(["(?, ?, ?, ?)"] * rows)
        + " ON CONFLICT (key) DO NOTHING"
    )


@cache
def _write(rows: int) -> str:
    return (
        "INSERT INTO eventonce_records (key, token, until, body) VALUES "
        + ", ".join(["(?, ?, ?, ?)"] * rows)
        + " ON CONFLICT (key) DO UPDATE"
        " SET token = excluded.token, until = excluded.until, body = excluded.body"
    )


@cache
def _complete(rows: int) -> str:
    # SQLite updates one row a statement, or many at twice the price, but upserts many at once. A
    # key that is not there must not come into being by it: its token is then below zero, as no
    # other's is, and `eventonce_strays` finds it.
    values = ", ".join(f"(?{n}, -?{n + 1}, ?{n + 2}, ?{n + 3})" for n in range(2, 4 * rows + 2, 4))
    return (
        f"INSERT INTO eventonce_records (key, token, until, body) VALUES {values}"
        " ON CONFLICT (key) DO UPDATE SET until = excluded.until, body = excluded.body"
        " WHERE token = -excluded.token AND until > ?1"
    )


@cache
def _read(rows: int) -> str:
    keys = ", ".join("?" * rows)
    return f"SELECT key, token, until, body FROM eventonce_records WHERE key IN ({keys})"


def claim(
    connection: sqlite3.Connection, claims: Sequence[Claim], now: int, *, hopeful: bool
) -> tuple[list[Verdict], bool]:
    """Judge a batch; answers also whether every key was new, to be hopeful the next time.

    Hope saves the look at what is there; where it was vain, a batch costs half as much again.
    """
    keys = [claim.key for claim in claims]
    if not all(
        0 < claim.lease <= ledger.UNSETTLED and not claim.peek and not claim.alone
        for claim in claims
    ):
        # What is inserted below must be held, by a lease that its record outlives, in short form.
        return _judge(connection, claims, read(connection, keys), {}, now), False
    known = {} if hopeful else read(connection, keys)
    new = [claim for claim in claims if claim.key not in known] if known else claims
    granted, values = _first_grants(new, now)
    if _run(connection, _insert, values) < len(new):
        # Some are there. What was inserted just now answers for itself: the law gives an ask that
        # is repeated its own grant again.
        return _judge(connection, claims, read(connection, keys), {}, now), False
    if known:
        return _judge(connection, claims, known, granted, now), False
    return [granted[key] for key in keys], True


def _first_grants(claims: Sequence[Claim], now: int) -> tuple[dict[bytes, Verdict], Values]:
    """What the law gives these claims if none of their keys is known, and the rows to write."""
    granted: dict[bytes, Verdict] = {}
    values: Values = []
    facts: dict[tuple[int, int], tuple[Verdict, Record, int]] = {}
    asked: tuple[int, int, int] | None = None
    # Of claims on the same key the first stays first.
    for claim in sorted(claims, key=_key):
        key = claim.key
        if claim.order is None:
            # Facts on the same terms differ in nothing but their key, their nonce and their `by`.
            if asked != (asks := (claim.lease, claim.remember, claim.nonce)):
                asked, terms = asks, asks[:2]
                if terms not in facts:
                    facts[terms] = _grant(claim, now)
                verdict, record, until = facts[terms]
                start = bytearray(held(record.attempt, claim.nonce, record.held_until, b""))
            body = start + claim.by
        else:
            asked = None
            verdict, record, until = _grant(claim, now)
            body = bytearray(pack(record))
        values += (bytearray(key), record.token, until, body)
        granted[key] = verdict
    return granted, values


def _grant(claim: Claim, now: int) -> tuple[Verdict, Record, int]:
    verdict, record = ledger.judge(None, claim, now)
    record = cast("Record", record)  # the law writes down what it grants
    return verdict, record, lives_until(record)


def _judge(
    connection: sqlite3.Connection,
    claims: Sequence[Claim],
    known: dict[bytes, Record],
    granted: Mapping[bytes, Verdict],
    now: int,
) -> list[Verdict]:
    verdicts: list[Verdict] = []
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
    write(connection, changed)
    return verdicts


def settle(
    connection: sqlite3.Connection, settlements: Sequence[Settlement], now: int
) -> list[SettleResult]:
    """Settle a batch."""
    values = _completions(settlements, now)
    if values:
        updated = _run(connection, _complete, values, now)
        strays = connection.execute(
            "DELETE FROM eventonce_records INDEXED BY eventonce_strays WHERE token < 0"
        ).rowcount
        if updated == len(settlements) and not strays:
            return ["kept"] * len(settlements)
        # Those that were updated answer as they did: the law keeps a completion that is repeated.
    known = read(connection, [settlement.claim.key for settlement in settlements])
    answers: list[SettleResult] = []
    changed: dict[bytes, Record] = {}
    for settlement in settlements:
        key = settlement.claim.key
        kept, record = ledger.settle(known.get(key), settlement, now)
        if record is not None:
            known[key] = changed[key] = record
        answers.append(kept)
    write(connection, changed)
    return answers


def _completions(settlements: Sequence[Settlement], now: int) -> Values:
    """The rows of `ledger.completed_fact`; none where the batch holds anything else."""
    values: Values = []
    done = bytearray(DONE)
    for settlement in sorted(settlements, key=_claimed_key):
        claim = settlement.claim
        token = settlement.token
        if (
            settlement.action != "complete"
            or claim.order is not None
            or claim.remember <= 0
            or token <= 0
        ):
            return []
        if settlement.result is None and not claim.digest:
            until = now + claim.remember
            values += (bytearray(claim.key), token, until, done + claim.by)
        else:
            record = ledger.completed_fact(settlement, now)
            values += (bytearray(claim.key), token, record.expires, bytearray(pack(record)))
    return values


def read(connection: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, Record]:
    """The records there are under these keys, expired ones too."""
    wanted = [bytearray(key) for key in keys]
    return {
        key: unpack(token, until, body)
        for start, stop in _chunks(len(wanted))
        # All at once, by a cursor that no variable holds: one that an exception's traceback keeps
        # in the midst of its rows would keep the connection in the past.
        for key, token, until, body in _cursor(connection)
        .execute(_read(stop - start), wanted[start:stop])
        .fetchall()
    }


def _cursor(connection: sqlite3.Connection) -> sqlite3.Cursor:
    cursor = connection.cursor()
    # The caller of a transaction may have set one on the connection.
    cursor.row_factory = None
    return cursor


def write(connection: sqlite3.Connection, records: Mapping[bytes, Record]) -> None:
    """Put these records where their keys' were."""
    values: Values = []
    for key in sorted(records):
        record = records[key]
        values += (bytearray(key), record.token, lives_until(record), bytearray(pack(record)))
    _run(connection, _write, values)


def _run(
    connection: sqlite3.Connection, statement: Callable[[int], str], values: Values, *first: int
) -> int:
    """Run the statement for all rows; answers how many it changed."""
    changed = 0
    for start, stop in _chunks(len(values) // COLUMNS):
        row = [*first, *values[start * COLUMNS : stop * COLUMNS]]
        changed += connection.execute(statement(stop - start), row).rowcount
    return changed


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    start = 0
    for size in ROWS:
        while count - start >= size:
            yield start, start + size
            start += size


def forget(connection: sqlite3.Connection, keys: Sequence[bytes]) -> int:
    """Drop these records; answers how many there were."""
    return connection.executemany(
        "DELETE FROM eventonce_records WHERE key = ?", [(key,) for key in keys]
    ).rowcount


def sweep(
    connection: sqlite3.Connection, after: bytes, limit: int, now: int
) -> tuple[int, int, bytes]:
    """Drop what expired of so many records after this key; answers how many there were, how many
    were dropped, and after which key to go on. Nothing is written where nothing has expired."""
    looked, last, soonest = connection.execute(
        "SELECT count(*), max(key), min(until) FROM"
        " (SELECT key, until FROM eventonce_records WHERE key > ? ORDER BY key LIMIT ?)",
        (after, limit),
    ).fetchone()
    dropped = 0
    if looked and soonest <= now:
        dropped = connection.execute(
            "DELETE FROM eventonce_records WHERE until <= ?3 AND key > ?1 AND key <= ?2",
            (after, last, now),
        ).rowcount
    # Fewer than asked for: that was the last of them, and the next round begins.
    return looked, dropped, last if looked == limit else b""


def sweep_on(connection: sqlite3.Connection, limit: int, now: int) -> tuple[int, int]:
    """Sweep from where the last sweep of any process stopped; answers looked at and dropped."""
    (after,) = connection.execute("SELECT swept FROM eventonce_tables").fetchone()
    looked, dropped, last = sweep(connection, after, limit, now)
    if not looked and after:
        looked, dropped, last = sweep(connection, b"", limit, now)
    connection.execute("UPDATE eventonce_tables SET swept = ?", (last,))
    return looked, dropped


def counts(connection: sqlite3.Connection) -> tuple[int, int]:
    """How many records and how many letters there are."""
    (records,) = connection.execute("SELECT count(*) FROM eventonce_records").fetchone()
    (letters,) = connection.execute("SELECT count(*) FROM eventonce_letters").fetchone()
    return records, letters


_LETTER: Final = "id, consumer, status, reason, rule, key, event, at, attempt"
"""The fields of a letter, in their order; a later release's come after them."""

_LETTER_MARKS: Final = ", ".join("?" * len(_LETTER.split(", ")))

BEFORE_ALL_LETTERS: Final = (-(2**63), "")
"""Before every letter."""


def put_letters(connection: sqlite3.Connection, new: Sequence[Letter]) -> None:
    """Keep these letters; one that is there already is left as it is."""
    connection.executemany(
        f"INSERT INTO eventonce_letters ({_LETTER}) VALUES ({_LETTER_MARKS})"
        " ON CONFLICT (id) DO NOTHING",
        [msgspec.structs.astuple(one) for one in new],
    )


def letters(
    connection: sqlite3.Connection, consumer: str | None, after: tuple[int, str], limit: int
) -> list[Letter]:
    """So many letters after the one of this instant and id, oldest first."""
    rows = connection.execute(
        f"SELECT {_LETTER} FROM eventonce_letters WHERE (at, id) > (?1, ?2)"
        " AND (?3 IS NULL OR consumer = ?3) ORDER BY at, id LIMIT ?4",
        (*after, consumer, limit),
    )
    return [Letter(*row) for row in rows]


def letter(connection: sqlite3.Connection, id: str) -> Letter | None:
    """The letter of this id."""
    row = connection.execute(
        f"SELECT {_LETTER} FROM eventonce_letters WHERE id = ?", (id,)
    ).fetchone()
    return None if row is None else Letter(*row)


def drop_letters(connection: sqlite3.Connection, ids: Sequence[str]) -> int:
    """Drop these letters; answers how many there were."""
    return connection.executemany(
        "DELETE FROM eventonce_letters WHERE id = ?", [(each,) for each in ids]
    ).rowcount
