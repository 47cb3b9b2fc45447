"""Linearizability: whether the law, applied to one call at a time, explains overlapping calls.

A history is correct if its operations can be put in an order in which each takes effect between its
call and its return, and in which the law gives every answer of the store. Keys are independent, so
each is searched alone: depth first, after Wing and Gong, and with Lowe's memory of every pair of
placed operations and record that led nowhere. `recorder` records histories and prints violations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Final

import msgspec
from msgspec.structs import replace

from eventonce.core import ledger
from eventonce.core.ledger import Record
from eventonce.types import Claim, Settlement, SettleResult, Verdict

Answer = Verdict | SettleResult

COMPLETED: Final = ("complete", "kept")


class Operation(msgspec.Struct, frozen=True):
    """One claim or settlement of one key: its call, its return, and its answer."""

    client: str
    ask: Claim | Settlement
    answer: Answer | None
    """None for an open operation: its reply was lost, or its process killed. It may have taken
    effect at any moment after the call, or never."""
    called: int
    """Nanoseconds of a clock that all clients share."""
    returned: int | None
    earliest: int
    """The instants between which the store's clock was at the decision; the same one twice if the
    call gave its instant."""
    latest: int

    @property
    def claim(self) -> Claim:
        """The claim that is asked, or whose run is settled."""
        return self.ask if isinstance(self.ask, Claim) else self.ask.claim

    @property
    def action(self) -> str:
        """The kind of call: `claim`, or the action of the settlement."""
        return "claim" if isinstance(self.ask, Claim) else self.ask.action

    @property
    def token(self) -> int:
        """The token in the answer, right or wrong; 0 if there is none."""
        return self.answer.token if isinstance(self.answer, Verdict) else 0

    @property
    def granted(self) -> bool:
        """Whether the answer is a run."""
        return isinstance(self.answer, Verdict) and self.answer.kind == "run" and self.token > 0


class Violation(msgspec.Struct, frozen=True):
    """The fault in the operations of one key."""

    operations: tuple[Operation, ...]
    """All operations of the key, by the time of their call."""
    reason: str
    placed: tuple[int, ...] = ()
    """The longest order that the law explains, as indexes of operations."""
    stuck: tuple[tuple[int, tuple[Answer, ...]], ...] = ()
    """The operations that could have come next, each with the answers of the law."""


def violation(operations: Sequence[Operation]) -> Violation | None:
    """Return the violation in these operations of one key; None if the law explains them all."""
    ordered = tuple(sorted(operations, key=lambda it: it.called))
    for broken in (_token_without_run, _shared_token, _completed_twice):
        if reason := broken(ordered):
            return Violation(ordered, reason)
    search = _Search(ordered)
    if search.explains(0, None, ()):
        return None
    reason = "the law explains no order of its operations"
    return Violation(ordered, reason, search.longest, tuple(search.impasse()))


def _token_without_run(operations: Sequence[Operation]) -> str:
    for it in operations:
        if isinstance(it.answer, Verdict) and it.token and not it.granted:
            return f"{it.client} got {it.answer.kind} with a token"
    return ""


def _shared_token(operations: Sequence[Operation]) -> str:
    holders: dict[int, Operation] = {}
    for it in operations:
        if it.granted:
            first = holders.setdefault(it.token, it)
            # A repeated claim gets its own grant again.
            if first.claim.nonce != it.claim.nonce:
                return f"one token was given to two runs, of {first.client} and of {it.client}"
    return ""


def _completed_twice(operations: Sequence[Operation]) -> str:
    latest = max((it.latest for it in operations), default=0)
    winners: dict[int, Operation] = {}
    for it in operations:
        fact = it.claim.order is None and latest < it.earliest + it.claim.remember
        if fact and isinstance(it.ask, Settlement) and (it.action, it.answer) == COMPLETED:
            winners.setdefault(it.ask.token, it)
    if len(winners) > 1:
        clients = " and of ".join(it.client for it in winners.values())
        return f"more than one run completed this fact, of {clients}"
    return ""


class _Search:
    """The search for an order of one key's operations."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = operations
        self.ends = [inf if it.returned is None else it.returned for it in operations]
        self.must = sum(1 << i for i, it in enumerate(operations) if it.answer is not None)
        self.hints = _hints(operations)
        self.futile: set[tuple[int, Record | None]] = set()
        self.longest: tuple[int, ...] = ()
        self.record: Record | None = None
        """The record after the longest order."""

    def explains(self, placed: int, record: Record | None, order: tuple[int, ...]) -> bool:
        """Return whether the rest has an order; `placed` has a bit for each operation so far."""
        if placed & self.must == self.must:
            return True
        if (placed, record) in self.futile:
            return False
        if len(order) > len(self.longest):
            self.longest, self.record = order, record
        outcomes = {i: self._outcomes(record, i) for i in self._next(placed)}
        for i, after in outcomes.items():
            if after and _inert(self.operations[i]):
                # It can come now in any order that explains the rest.
                outcomes = {i: after}
                break
        for i, after in outcomes.items():
            for left in after:
                if self.explains(placed | 1 << i, left, (*order, i)):
                    return True
        self.futile.add((placed, record))
        return False

    def impasse(self) -> Iterator[tuple[int, tuple[Answer, ...]]]:
        """Yield the operations that may follow the longest order, with the answers of the law."""
        for i in self._next(sum(1 << i for i in self.longest)):
            it = self.operations[i]
            if it.answer is not None:
                instants = self._instants(self.record, i)
                laws = [law(self.record, it.ask, now)[0] for now in instants]
                yield i, tuple(said for n, said in enumerate(laws) if said not in laws[:n])

    def _next(self, placed: int) -> list[int]:
        """Return the operations that may come next: none left has returned before their call."""
        left = [i for i in range(len(self.operations)) if not placed >> i & 1]
        first = min((self.ends[i] for i in left), default=inf)
        return [i for i in left if self.operations[i].called <= first]

    def _outcomes(self, record: Record | None, i: int) -> set[Record | None]:
        """Return the records that this operation may leave, if its answer is the law's."""
        it = self.operations[i]
        found: set[Record | None] = set()
        for now in self._instants(record, i):
            answer, written = law(record, it.ask, now)
            if it.answer is None and written is None:
                continue  # an open operation without an effect can be left out
            if it.answer is None or _agree(it, answer):
                assert written is None or not _inert(it)
                found.add(record if written is None else written)
        if self._passed_over(i):
            found.add(record)
        return found

    def _passed_over(self, i: int) -> bool:
        """Return whether this is a `busy` that needs no lease: a store may give this answer, and do
        nothing, while another operation on the key is in flight."""
        it = self.operations[i]
        if not isinstance(it.answer, Verdict) or it.answer != Verdict("busy", wait=it.answer.wait):
            return False
        return any(
            other.called <= self.ends[i] and it.called <= self.ends[j]
            for j, other in enumerate(self.operations)
            if j != i
        )

    def _instants(self, record: Record | None, i: int) -> list[int]:
        """Return the instants at which to ask the law, one for every possible answer or record.

        The law compares the instant with those in the record, and writes instants that later
        answers show (`hints`). Of all other instants the earliest is enough: leases and memories
        that begin then end soonest.
        """
        it = self.operations[i]
        marks = {it.earliest, it.latest, *self.hints}
        if record is not None:
            wait = ledger.NEWER_WAIT_LEASES * it.claim.lease
            marks |= {record.held_until, record.expires, record.held_until + wait}
        return sorted(mark for mark in marks if it.earliest <= mark <= it.latest)


def law(record: Record | None, ask: Claim | Settlement, now: int) -> tuple[Answer, Record | None]:
    """Return the answer to this ask, and the record to write, by the law."""
    if isinstance(ask, Claim):
        return ledger.judge(record, ask, now)
    return ledger.settle(record, ask, now)


def _agree(it: Operation, answer: Answer) -> bool:
    """Return whether this answer is the law's. The wait is compared only if the instant is known,
    because it is counted from the store's instant."""
    said = it.answer
    if answer == said or it.earliest == it.latest:
        return answer == said
    if not isinstance(answer, Verdict) or not isinstance(said, Verdict):
        return False
    return replace(answer, wait=0) == replace(said, wait=0)


def _inert(it: Operation) -> bool:
    """Return whether this answer proves that nothing was written, whatever the record was."""
    if not isinstance(it.answer, Verdict):
        return it.answer in ("fenced", "unknown")
    return (
        it.claim.peek
        or it.answer.kind in ("busy", "conflict")
        or (it.answer.kind in ("duplicate", "stale") and not it.claim.sliding)
        or (it.answer.kind == "dead" and not it.answer.attempt)
    )


def _hints(operations: Sequence[Operation]) -> set[int]:
    """Return the instants that follow from the answers of this history."""
    leases = {it.claim.lease for it in operations}
    # A lease ends some leases before the wait of an older version; it began a lease earlier, or
    # was cut down then.
    spans = {0, *leases, *(ledger.NEWER_WAIT_LEASES * lease for lease in leases)}
    spans |= {ledger.NEWER_WAIT_LEASES * lease + other for lease in leases for other in leases}
    hints = set()
    for it in operations:
        if isinstance(it.answer, Verdict) and it.answer.wait:
            ends = {it.earliest + it.answer.wait, it.latest + it.answer.wait}
            hints |= {end - span for end in ends for span in spans}
        if it.token:
            hints.add(it.token // 1_000)
    return hints
