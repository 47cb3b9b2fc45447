"""The index of a capture: a row for each line, in DuckDB, with all that distinguishes copies.

A row has only numbers: the key that production would claim, and hashes of values that are compared
and never shown. Values stay in the capture, and are read again for the few lines that are shown.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread
from typing import Any, Final, NamedTuple

import msgspec

from eventonce.errors import EnvelopeError
from eventonce.rules import Ruleset
from eventonce.sources.files import Capture, Progress
from eventonce.sources.inputs import Place
from eventonce.study.arrivals import arrival, instant
from eventonce.study.fields import Sample, leaves_of
from eventonce.study.scratch import Scratch
from eventonce.types import Claim, Event

BATCH_LINES: Final = 4_000
"""Lines that a process gets at once: so many that the transfer costs little."""
ONE_PROCESS_LINES: Final = 5 * BATCH_LINES
"""The number of lines up to which a second process costs more than it saves."""
BATCHES_AHEAD: Final = 3
"""Batches per process that may wait; this limits the memory."""
UINT64_MASK: Final = (1 << 64) - 1
MOST_FAULTS: Final = 1_000
"""The most different reasons for lines without a key: some contain a value."""
OTHER_FAULTS: Final = "other reasons"
_AT_BYTE: Final = re.compile(r" at byte \d+")

EVENT_ROW: Final = {
    "line": "BIGINT",
    "arrived": "BIGINT",
    "kind": "UBIGINT",
    "source": "UBIGINT",
    "channel": "UBIGINT",
    "message": "UBIGINT",
    "receives": "USMALLINT",
    "id": "UBIGINT",
    "time": "BIGINT",
    "replay": "UTINYINT",
    "content": "UBIGINT",
    "essence": "UBIGINT",
    "key": "UBIGINT",
    "subject": "UBIGINT",
    "version": "BIGINT",
    "state": "UBIGINT",
}


class Kind(NamedTuple):
    """Events that are compared with each other: of one organisation and type, under one rule."""

    org: str
    type: str
    rule: str
    """The name of the rule; empty for a line that is no event or has no key."""


class Names(NamedTuple):
    """The names behind the hashes of the index."""

    kinds: dict[int, Kind]
    sources: dict[int, str]
    channels: dict[int, str]
    faults: dict[str, tuple[int, int]]
    """The reasons for lines without a key, each with its count and its first line."""


class Planned(NamedTuple):
    """The rules that make keys: those under study, and those that find versions of a state."""

    rules: Ruleset
    states: Ruleset
    """Only used to find events that repeat a state: a stale event is not a copy."""


def _hash(value: str | bytes | tuple[Any, ...]) -> int:
    return hash(value) & UINT64_MASK


class Indexer:
    """Makes rows of lines; each of the processes that share the work has one."""

    def __init__(self, planned: Planned) -> None:
        self._planned = planned
        self._stated: dict[tuple[str, str, str], bool] = {}
        """The kinds of event that a state rule may take: all others need no plan."""
        self.names = Names({}, {}, {}, {})

    def rows(self, first: int, lines: Sequence[bytes]) -> tuple[bytes, Names]:
        """Return the rows of these lines, of which the first has this number, as tab-separated
        text; and the names in them."""
        self.names = Names({}, {}, {}, {})
        row = self._row
        text = "".join([row(number, raw) for number, raw in enumerate(lines, start=first)])
        return text.encode(), self.names

    def _row(self, number: int, raw: bytes) -> str:
        event, arrived, channel, message, receives = arrival(raw)
        where, told = _hash(channel), "" if arrived is None else arrived
        if where not in self.names.channels:
            self.names.channels[where] = channel
        sent = _hash(message) if message else 0
        head = f"{number}\t{told}\t"
        if not isinstance(event, Event):
            kind = self._kind(Kind("", "", ""))
            self._fault(event, number)
            return f"{head}{kind}\t0\t{where}\t{sent}\t{receives}\t0\t\t0\t{_hash(raw)}\t\t\t\t\t\n"
        source = _hash(event.source)
        if source not in self.names.sources:
            self.names.sources[source] = event.source
        try:
            rule, claim = self._planned.rules.plan(event, number)
            name, key = rule.name, str(_fact(claim))
        except EnvelopeError as error:
            self._fault(error, number)
            name, key = "", ""
        kind = self._kind(Kind(event.org, event.type, name))
        time = instant(event.time)
        detail = bytes(event.detail_raw)
        return (
            f"{head}{kind}\t{source}\t{where}\t{sent}\t{receives}\t"
            f"{_hash(event.id) if event.id else 0}\t{'' if time is None else time}\t"
            f"{1 if event.replay else 0}\t{_hash(detail)}\t{_essence(detail)}\t{key}\t"
            f"{self._version(event)}\n"
        )

    def _kind(self, kind: Kind) -> int:
        hashed = _hash(kind)
        self.names.kinds.setdefault(hashed, kind)
        return hashed

    def _fault(self, error: EnvelopeError, number: int) -> None:
        fault = _AT_BYTE.sub("", str(error))
        times, first = self.names.faults.get(fault, (0, number))
        self.names.faults[fault] = (times + 1, first)

    def _version(self, event: Event) -> str:
        """Return subject, order and state of the event of a state; empty for any other."""
        states = self._planned.states
        kind = (event.form, event.source, event.type)
        stated = self._stated.get(kind)
        if stated is None:
            stated = any(rule.subject and rule.match.fits(*kind) for rule in states.rules)
            self._stated[kind] = stated
        if not stated:
            return "\t\t"
        try:
            _, claim = states.plan(event, 0)
        except EnvelopeError:
            return "\t\t"
        if claim.order is None:
            return "\t\t"
        return f"{_hash(claim.key)}\t{claim.order}\t{_hash(claim.digest)}"


class _Notice(msgspec.Struct, gc=False):
    """A detail with fields of its notice beside the body, like that of Genesys."""

    body: msgspec.Raw = msgspec.field(name="eventBody", default=msgspec.Raw(b""))


_notice: Final = msgspec.json.Decoder(_Notice).decode


def _essence(detail: bytes) -> int:
    """Return the hash of a detail without the fields that the source writes about its notice."""
    if b'"eventBody"' in detail:
        try:
            return _hash(bytes(_notice(detail).body) or detail)
        except ValueError:
            pass
    return _hash(detail)


def _fact(claim: Claim) -> int:
    """Return the hash that all copies share: for a state, with its version."""
    if claim.order is None:
        return _hash(claim.key)
    return _hash((claim.key, claim.order, claim.digest))


class Index(Scratch):
    """The rows of a capture, and the names behind their hashes."""

    def __init__(
        self, paths: Sequence[Place], planned: Planned, progress: Progress | None = None
    ) -> None:
        self.unread: list[str] = []
        """The files that could not be read to their end, and the place."""
        self.capture = Capture(paths, unread=self.unread, progress=progress)
        super().__init__()
        self.planned = planned
        self.names = Names({}, {}, {}, {})
        self.lines = 0
        self.table("events", EVENT_ROW)

    def build(self, processes: int | None = None) -> None:
        """Read the capture once and fill the index."""
        batches = _batches(self.capture)
        early = list(islice(batches, ONE_PROCESS_LINES // BATCH_LINES))
        share = processes or min(4, os.cpu_count() or 1)
        indexer = Indexer(self.planned)
        if len(early) < ONE_PROCESS_LINES // BATCH_LINES or share == 1:
            for batch in chain(early, batches):
                self._take(*indexer.rows(self.lines + 1, batch), len(batch))
            return
        # Forked, so that all processes compute the same hashes.
        with ProcessPoolExecutor(share, get_context("fork"), _start, (self.planned,)) as pool:
            waiting: deque[tuple[Future[tuple[bytes, Names]], int]] = deque()
            given = 0
            for batch in chain(early, batches):
                waiting.append((pool.submit(_rows, given + 1, batch), len(batch)))
                given += len(batch)
                if len(waiting) >= share * BATCHES_AHEAD:
                    self._finish(waiting)
            while waiting:
                self._finish(waiting)

    def _finish(self, waiting: deque[tuple[Future[tuple[bytes, Names]], int]]) -> None:
        future, lines = waiting.popleft()
        self._take(*future.result(), lines)

    def _take(self, rows: bytes, names: Names, lines: int) -> None:
        self.load("events", EVENT_ROW, [rows])
        self.lines += lines
        self.names.kinds.update(names.kinds)
        self.names.sources.update(names.sources)
        self.names.channels.update(names.channels)
        for fault, (more, begun) in names.faults.items():
            named = fault if len(self.names.faults) < MOST_FAULTS else OTHER_FAULTS
            named = fault if fault in self.names.faults else named
            times, first = self.names.faults.get(named, (0, begun))
            self.names.faults[named] = (times + more, first)


def lines_at(capture: Capture, wanted: Iterator[int]) -> Iterator[tuple[int, bytes]]:
    """Yield these lines of a capture that was read, whose numbers rise, in one pass; in none if
    there are none. ConfigError if lines are not there any more."""
    number = next(wanted, None)
    if number is None:
        return
    for line, raw in enumerate(capture.again(), start=1):
        if line == number:
            yield line, raw
            number = next(wanted, None)
            if number is None:
                return


def samples_at(capture: Capture, wanted: Iterator[int]) -> Iterator[tuple[Event, Sample]]:
    """Yield the events in these lines, whose numbers rise, each with its fields; in one pass."""
    for line, raw in lines_at(capture, wanted):
        here = arrival(raw)
        event = here.event
        if isinstance(event, Event):
            at = instant(event.time) if here.arrived is None else here.arrived
            leaves = leaves_of(bytes(event.detail_raw))
            yield event, Sample(line, hash(event.id), at or 0, leaves)


_indexer: Indexer


def _start(planned: Planned) -> None:
    global _indexer  # noqa: PLW0603  one in each worker process
    _indexer = Indexer(planned)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process with its parent: a killed parent cannot do so, and this would wait for
    ever."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _rows(first: int, lines: list[bytes]) -> tuple[bytes, Names]:
    return _indexer.rows(first, lines)


def _batches(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    each = iter(lines)
    while batch := list(islice(each, BATCH_LINES)):
        yield batch
