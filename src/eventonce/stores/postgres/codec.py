"""Claims and settlements as PostgreSQL reads them, and its rows as we do.

A batch travels as one array of composite values, written as text: one parameter to parse however
many fields a claim has, and less work for client and server than an array for each field.
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
from eventonce.errors import StoreError, StoreUnavailable
from eventonce.types import MAX_ORDER, Claim, Letter, Settlement, SettleResult, Verdict

A = TypeVar("A")
B = TypeVar("B")
Row = tuple[Any, ...]

PART: Final = 500
"""Claims or settlements in one statement. In the functions each row is looked up among the batch's
other keys, so their time grows with its square: measured on existing rows, a claim takes 64 µs in
parts of 250, 75 in parts of 500, 123 of 1,000 and 320 of 4,000. Smaller parts wait for the disk
more often."""

_BYTES: Final = '\\"\\\\\\\\x'
"""Begins a bytea within a composite within an array: each of the two takes away its backslashes."""


def asked(claims: Sequence[Claim]) -> str:
    """The claims as an array of `asked_1`."""
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
    """The settlements as an array of `ended_1`."""
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
    """Call for the whole batch, or for one part after the other where it is long or a key comes
    again in it: one statement cannot write a row twice.

    If a later part fails, `failed` answers for it and those after it, which would cost a time-out
    each; the answers before it would otherwise be lost.
    """
    if not batch:
        return []
    if len(batch) <= PART and len(set(keys)) == len(keys):
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
    """The places of these keys in bounded parts, the first of each key before the second."""
    rounds: list[list[int]] = []
    times: dict[bytes, int] = {}
    for place, key in enumerate(keys):
        turn = times.get(key, 0)
        times[key] = turn + 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(place)
    for places in rounds:
        for start in range(0, len(places), PART):
            yield places[start : start + PART]


class _Text(Loader):
    """Text of ours, which is ASCII, or a name in the catalogues, which is compared with ours."""

    format = Format.BINARY

    def load(self, data: Buffer) -> str:
        return bytes(data).decode(errors="replace")


def rows(connection: psycopg.Connection[Any], query: bytes, *args: object) -> list[Row]:
    """The rows of one statement, in binary, for numbers and bytes then need no parsing."""
    cursor = connection.cursor(binary=True, row_factory=tuple_row)
    if connection.info.encoding == "ascii":
        # SQL_ASCII: psycopg then hands text over as bytes, and a pool's encoding is its owner's.
        cursor.adapters.register_loader("text", _Text)
    # Never prepared: behind PgBouncer the next statement may meet another server.
    return cursor.execute(query, args, prepare=False).fetchall()


def verdicts(claims: Sequence[Claim], rows: Sequence[Row]) -> list[Verdict]:
    """The verdicts in the order of the claims."""
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
    """The answers in the order of the settlements, None where the row was locked."""
    kept: dict[bytes, SettleResult | None] = {
        key: None if answer == "locked" else answer for key, answer in rows
    }
    return [kept[settlement.claim.key] for settlement in settlements]


def record(row: Row) -> Record:
    """The record of a row of `show`."""
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


NAMES: Final = b"names"
"""The key of the row that has the names of the consumers; it is no record."""


def letter_row(letter: Letter) -> Row:
    """The dead letter as a row."""
    return (
        *map(text, (letter.id, letter.consumer, letter.status, letter.reason, letter.rule)),
        letter.key,
        letter.event,
        letter.at,
        letter.attempt,
    )


def letter(row: Row) -> Letter:
    """The dead letter of a row."""
    texts: Iterator[Any] = map(read_text, row[:5])
    return Letter(*texts, *row[5:])


def text(string: str) -> bytes:
    """Text as bytes, of every string there is: half a surrogate pair too."""
    return string.encode("utf-8", "surrogatepass")


def read_text(column: bytes) -> str:
    """The string that `text` made these bytes of."""
    return column.decode("utf-8", "surrogatepass")


def unfit(claim: Claim) -> StoreError | None:
    """The reason why no row can hold this claim, None if one can."""
    for field in ("nonce", "lease", "remember", "attempts", "order", "at", "unchanged_within"):
        value = getattr(claim, field)
        limit = MAX_ORDER if field != "attempts" else 2**31 - 1
        if value is not None and abs(value) > limit:
            return StoreError(f"a claim's {field} is {value}, the store holds up to {limit}")
    return None
