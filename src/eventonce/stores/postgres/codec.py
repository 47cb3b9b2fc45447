"""Claims and settlements as PostgreSQL reads them, and its rows as records and verdicts.

A batch is one array of composite values, written as text: one parameter to parse for all fields of
all claims, and less work for client and server than an array for each field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.rows import tuple_row

from eventonce.core.ledger import Record
from eventonce.errors import StoreUnavailable
from eventonce.types import Claim, Letter, Settlement, SettleResult, Verdict

A = TypeVar("A")
B = TypeVar("B")
Row = tuple[Any, ...]

BATCH_ROWS: Final = 500
"""The most claims or settlements in one statement. The functions look each row up among the keys of
the batch, so their time grows with its square: measured on existing rows, a claim takes 64 µs in
parts of 250, 75 in parts of 500, 123 of 1,000 and 320 of 4,000. Smaller parts wait for the disk
more often."""

_BYTES: Final = '\\"\\\\\\\\x'
"""The start of a bytea in a composite in an array: each of the two removes its backslashes."""


def asked(claims: Sequence[Claim]) -> str:
    """Return the claims as an array of `asked_1`."""
    b, e = _BYTES, '\\"'
    return ",".join(
        [
            f'"({b}{c.key.hex()}{e},{c.nonce},{c.lease},{c.remember},{c.attempts},'
            f"{b}{c.by.hex()}{e},{c.sliding:d},{b}{c.digest.hex()}{e},"
            f"{'' if c.order is None else c.order},{c.at},{c.unchanged_within},"
            f'{c.redrive:d},{c.peek:d},{c.alone:d})"'
            for c in claims
        ]
    ).join("{}")


def ended(settlements: Sequence[Settlement]) -> str:
    """Return the settlements as an array of `ended_1`."""
    b, e = _BYTES, '\\"'
    return ",".join(
        [
            f'"({b}{c.key.hex()}{e},{s.token},{s.action},{c.nonce},{c.lease},{c.remember},'
            f"{b}{c.by.hex()}{e},{b}{c.digest.hex()}{e},"
            f"{'' if c.order is None else c.order},{c.at},"
            f'{"" if s.result is None else f"{b}{s.result.hex()}{e}"})"'
            for s in settlements
            for c in (s.claim,)
        ]
    ).join("{}")


def by_parts(
    call: Callable[[Sequence[A], int | None], list[B]],
    batch: Sequence[A],
    keys: Sequence[bytes],
    now: int | None,
    failed: Callable[[StoreUnavailable], B] | None = None,
) -> list[B]:
    """Call for the whole batch; or part by part if it is long or has a key twice, because one
    statement cannot write a row twice.

    If a later part fails, `failed` answers for it and for all parts after it, which would cost a
    time-out each; the answers before it are kept.
    """
    if not batch:
        return []
    if len(batch) <= BATCH_ROWS and len(set(keys)) == len(keys):
        return call(batch, now)
    answers: dict[int, B] = {}
    for places in _parts(keys):
        try:
            found = call([batch[place] for place in places], now)
        except StoreUnavailable as error:
            if failed is None or not answers:
                raise
            return [answers.get(place) or failed(error) for place in range(len(batch))]
        answers.update(zip(places, found, strict=True))
    return [answers[place] for place in range(len(batch))]


def _parts(keys: Sequence[bytes]) -> Iterator[list[int]]:
    """Yield the places of the keys in limited parts; the second place of a key comes later."""
    rounds: list[list[int]] = []
    times: dict[bytes, int] = {}
    for place, key in enumerate(keys):
        turn = times.get(key, 0)
        times[key] = turn + 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(place)
    for places in rounds:
        for start in range(0, len(places), BATCH_ROWS):
            yield places[start : start + BATCH_ROWS]


class _Text(Loader):
    """Our own text, which is ASCII, or a name in the catalogues, which is compared with ours."""

    format = Format.BINARY

    def load(self, data: Buffer) -> str:
        return bytes(data).decode(errors="replace")


def rows(connection: psycopg.Connection[Any], query: bytes, *args: object) -> list[Row]:
    """Return the rows of one statement, in binary: numbers and bytes then need no parsing."""
    cursor = connection.cursor(binary=True, row_factory=tuple_row)
    if connection.info.encoding == "ascii":
        # SQL_ASCII: psycopg then returns text as bytes, and a pool's encoding is its owner's.
        cursor.adapters.register_loader("text", _Text)
        # Never prepared: behind PgBouncer the next statement may run on another server.
    return cursor.execute(query, args, prepare=False).fetchall()


def verdicts(claims: Sequence[Claim], rows: Sequence[Row]) -> list[Verdict]:
    """Return the verdicts in the order of the claims."""
    answers = {
        key: Verdict(
            kind,
            token or 0,
            attempt or 0,
            wait or 0,
            same_id,
            order,
            result,
            alone=alone or False,
            spared=spared or 0,
        )
        for key, kind, token, attempt, wait, same_id, order, result, alone, spared in rows
    }
    return [answers[claim.key] for claim in claims]


def answers(settlements: Sequence[Settlement], rows: Sequence[Row]) -> list[SettleResult | None]:
    """Return the answers in the order of the settlements; None if the row was locked."""
    kept: dict[bytes, SettleResult | None] = {
        key: None if answer == "locked" else answer for key, answer in rows
    }
    return [kept[settlement.claim.key] for settlement in settlements]


def record(row: Row) -> Record:
    """Return the record of a row of `show`."""
    token, attempt, nonce, held_until, expires, done, by, result, digests, dead, *state = row
    order, at, tried, trying, dirty, alone, spared = state
    return Record(
        token=token,
        attempt=attempt or 0,
        nonce=nonce or 0,
        held_until=held_until or 0,
        expires=expires,
        done=done,
        by=by or b"",
        result=result,
        digests=tuple(digests or ()),
        dead=tuple(dead or ()),
        order=order,
        at=at or 0,
        tried=tried,
        trying=trying or b"",
        dirty=bool(dirty),
        alone=bool(alone),
        spared=spared or 0,
    )


NAMES_KEY: Final = b"names"
"""The key of the row that has the names of the consumers; it is no record."""


def letter_row(letter: Letter) -> Row:
    """Return the dead letter as a row."""
    return (
        *map(text, (letter.id, letter.consumer, letter.status, letter.reason, letter.rule)),
        letter.key,
        letter.event,
        letter.at,
        letter.attempt,
    )


def letter(row: Row) -> Letter:
    """Return the dead letter of a row."""
    texts: Iterator[Any] = map(read_text, row[:5])
    return Letter(*texts, *row[5:])


def text(string: str) -> bytes:
    """Return any string as bytes, half a surrogate pair too."""
    return string.encode("utf-8", "surrogatepass")


def read_text(column: bytes) -> str:
    """Return the string of bytes that `text` made."""
    return column.decode("utf-8", "surrogatepass")
