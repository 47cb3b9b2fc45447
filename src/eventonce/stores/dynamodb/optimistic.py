"""The law over a table, without DynamoDB's transactions, which cost too much.

A record is read, or assumed to be as last seen. The law decides, and its record is written on the
condition that the item has not changed. If it has, the law decides again on the item that is there
now. So every answer is the law's about a record that was in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from eventonce.core.ledger import Record
from eventonce.errors import EventonceError, StoreMismatch
from eventonce.stores.dynamodb.codec import STAMP, Insert, Item, Seen, Update, Write, new_stamp
from eventonce.stores.dynamodb.table import Refused, Table, pause

MOST_ROUNDS: Final = 10
"""How often others may change a record between our read and our write. Each time somebody's write
succeeded, so a key that needs more rounds is in heavy demand."""

CLOCK_ERROR: Final = 1_000
"""Milliseconds by which the instant of a decision may be wrong before it is decided again."""

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")
Law = Callable[[Record | None, Ask, int], tuple[Answer, Record | None]]


class Ground(msgspec.Struct, frozen=True):
    """The state of an item that a decision is based on."""

    record: Record | None
    """The record that the law judges; None for an unknown key."""
    there: Seen | None
    """The item that must be in the table for the write; None for no item."""
    proven: bool
    """Whether the record was just read; an assumed one must be confirmed by a write."""


NEW_FACT: Final = Ground(None, None, proven=False)
"""The ground of a fact that is assumed to be unknown."""


class Decided(msgspec.Struct, Generic[Answer], frozen=True):
    """The answer to one ask, and the record as written, or as read if nothing was written."""

    answer: Answer
    seen: Seen | None
    existed: bool
    """Whether there was a record before the decision."""


class Contended(msgspec.Struct, frozen=True):
    """No answer: others changed the record in every round."""


Answered = Decided[Answer] | Contended | EventonceError


class _Open(msgspec.Struct, Generic[Ask]):
    """An ask that has no answer yet."""

    place: int
    name: str
    ask: Ask
    ground: Ground | None
    corrected: bool = False


def decide(
    table: Table,
    law: Law[Ask, Answer],
    asks: Sequence[tuple[str, Ask, Ground | None]],
    now: int | None,
) -> list[Answered[Answer]]:
    """Answer each ask: the name of the item, the question, and the assumed ground (None: read)."""
    answers: list[Answered[Answer]] = [Contended()] * len(asks)
    waiting = [_Open(place, *ask) for place, ask in enumerate(asks)]
    for attempt in range(MOST_ROUNDS):
        # A second ask about an item waits for the first: one request cannot write an item twice.
        turn = {it.name: it for it in reversed(waiting)}
        later = [it for it in waiting if turn[it.name] is not it]
        still = _round(table, law, [it for it in waiting if turn[it.name] is it], answers, now)
        if not still and not later:
            break
        if still and attempt:
            pause(attempt - 1)
        waiting = sorted(still + later, key=lambda it: it.place)
    return answers


def _round(
    table: Table,
    law: Law[Ask, Answer],
    turn: Sequence[_Open[Ask]],
    answers: list[Answered[Answer]],
    now: int | None,
) -> list[_Open[Ask]]:
    """Read unknown items, ask the law, and write; return the asks that have no answer yet."""
    still: list[_Open[Ask]] = []
    writing: list[tuple[_Open[Ask], Answer, Seen]] = []
    writes: list[Write] = []
    faults = _look(table, [it for it in turn if it.ground is None])
    offset = table.clock.offset
    instant = table.clock.now() if now is None else now
    for it in turn:
        if it.ground is None:
            answers[it.place] = faults[it.name]
            continue
        answer, record = law(it.ground.record, it.ask, instant)
        if record is not None:
            write, seen = _written(table, it.name, it.ground.there, record)
            writes.append(write)
            writing.append((it, answer, seen))
        elif it.ground.proven:
            answers[it.place] = Decided(answer, it.ground.there, it.ground.there is not None)
        else:
            it.ground = None
            still.append(it)
    outcomes = table.write(writes) if writes else []
    # Before the first answer, and after this machine slept or its clock was set, the instant was a
    # guess; a lease with an end in the past would be taken by others at once.
    mistimed = now is None and abs(table.clock.offset - offset) > CLOCK_ERROR
    for (it, answer, seen), outcome in zip(writing, outcomes, strict=True):
        assert it.ground is not None
        if isinstance(outcome, EventonceError):
            answers[it.place] = outcome
        elif isinstance(outcome, Refused):
            it.ground = _ground_of_refusal(table, outcome.item)
            still.append(it)
        elif mistimed and not it.corrected:
            # Decided again from the same ground at the right instant; overwrites the first.
            it.ground = Ground(it.ground.record, seen, proven=True)
            it.corrected = True
            still.append(it)
        else:
            answers[it.place] = Decided(answer, seen, it.ground.record is not None)
    return still


def _look(table: Table, unknown: Sequence[_Open[Ask]]) -> dict[str, EventonceError]:
    """Read the ground of these asks; return the errors of items that could not be read."""
    faults: dict[str, EventonceError] = {}
    if not unknown:
        return faults
    found = table.read([it.name for it in unknown])
    for it in unknown:
        item = found[it.name]
        if isinstance(item, EventonceError):
            faults[it.name] = item
            continue
        try:
            it.ground = _ground(table, item)
        except StoreMismatch as mismatch:
            faults[it.name] = mismatch
    return faults


def _ground_of_refusal(table: Table, item: Item | None) -> Ground | None:
    """Return the ground in the item of a refusal; None if the refusal has none or a newer release
    wrote it: then the table must be read."""
    try:
        return None if item is None else _ground(table, item)
    except StoreMismatch:
        return None


def _ground(table: Table, item: Item | None) -> Ground:
    if item is None:
        return Ground(None, None, proven=True)
    seen = table.layout.seen(item)
    return Ground(seen.record, seen, proven=True)


def _written(table: Table, name: str, there: Seen | None, record: Record) -> tuple[Write, Seen]:
    """Return the write that turns the item `there` into this record, and the item after it."""
    values = table.layout.values(record)
    stamp = new_stamp()
    seen = Seen(record, values, ((STAMP, stamp),))
    if there is None:
        return Insert({table.layout.key: {"S": name}, **values, STAMP: stamp}), seen
    put = {field: value for field, value in values.items() if there.values.get(field) != value}
    put[STAMP] = stamp
    gone = tuple(field for field in there.values if field not in values)
    return Update(name, put, gone, there.guard), seen
