"""The history of a program: outcomes are written to it in the background, so that no batch waits,
and it is searched. `connection` opens its database, and `tables` has the queries."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, starmap
from typing import Any, Final, Self

from msgspec.structs import replace

from eventonce.clock import wall_clock
from eventonce.consumer import Consumer
from eventonce.core.masking import masked
from eventonce.errors import ConfigError, EventonceError, StoreUnavailable
from eventonce.history.connection import Connection, exists
from eventonce.history.decision import Decision, Kind, Own, decided
from eventonce.history.digests import DIGEST, Digests, What
from eventonce.history.leases import (
    REPORT_INTERVAL,
    STATES_KEPT,
    Watched,
    WorkerState,
    process_name,
)
from eventonce.history.search import Search
from eventonce.history.tables import KIND_FIELDS, MINUTE, Tables
from eventonce.history.winners import with_runs, with_winners
from eventonce.log import Outage, log
from eventonce.rules.instants import duration
from eventonce.runtime.background import Background
from eventonce.types import Outcome, Status

DEFAULT_KEEP: Final = "30d"
DEFAULT_MOST: Final = 5_000_000
"""The most decisions that are kept: about 1 GB."""
MOST_WAITING: Final = 50_000
"""The most decisions that may wait to be written: some seconds of the busiest worker."""
DECISION_BYTES: Final = 4096
"""Bytes of an event that count as one more decision: the event stays in memory while its decision
waits. So waiting events have at most 200 MB."""
TIDY_INTERVAL: Final = 60.0
"""Seconds between two deletions of decisions that are too old or too many."""
TIDY_STEP: Final = 50_000
"""Decisions that one transaction of a deletion reads."""

FLUSH_WAIT: Final = 1.0
"""Seconds that the end of an invocation waits for its decisions to be written."""

ObservedBatch = tuple[Sequence[Outcome], int, Consumer, str]
"""The outcomes of a batch, the moment, the consumer, and the channel of its events."""


class History:
    """A database of decisions, of all consumers that have an observer of it."""

    def __init__(
        self,
        uri: str,
        *,
        keep: float | str = DEFAULT_KEEP,
        most: int = DEFAULT_MOST,
        worker: str = "",
        look: bool = False,
        secrets: Sequence[bytes] = (),
    ) -> None:
        """The URI is `sqlite:///PATH` or `postgresql://…`. Decisions are kept for the time `keep`,
        and at most `most` of them. `worker` names this process, by default its host and process id.
        With `look` no table is created: the history must exist. With `secrets`, ids of
        conversations and of events, and subjects, are stored as keyed digests under the first
        secret, and found under all of them."""
        self._uri = uri
        self._keep = duration(keep)
        self._most = most
        if self._keep <= 0 or most < 1:
            raise ConfigError(
                f"history {masked(uri)}: keep must be a duration such as '30d', and most at least 1"
            )
        self._worker = worker
        self._look = look
        self._digests = Digests(secrets)
        self._connection = Connection(uri, self._digests, look=look)
        self._due = time.monotonic() + TIDY_INTERVAL
        self._untidy = Outage()
        self._watched: dict[tuple[str, str], Watched] = {}
        """The functions that report on each consumer and channel."""
        self._tell_due = 0.0
        self._telling = 0
        """The process that has reported its state; the child of a fork reports its own."""
        self._began = os.getpid(), wall_clock()
        self._untold = Outage()
        self._full = Outage()
        self._seen = 0
        self._told = 0
        self._background = Background[ObservedBatch](
            "history", self._write, MOST_WAITING, self._connection.disconnect, self._after_turn
        )
        if look and not exists(uri):
            raise ConfigError(f"history {uri}: there is no such file")
        if not look:
            try:
                with self._tables():
                    pass
            except EventonceError as error:
                if not isinstance(error, StoreUnavailable):
                    self._connection.disconnect()
                    raise
                # A server comes back, and a right is granted; the work does not wait for either.
                log().warning("history: decisions wait in memory for the database: %s", error)
                self._untidy.tells()
                self._untold.tells()
                self._background.outage.tells()
            self._connection.begun = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def keep_up(self) -> None:
        """Delete old decisions now and once a minute, and report the state of this process to
        others, even while there are no decisions to write."""
        self._due = 0.0
        self._background.start()

    def observer(
        self, consumer: Consumer, channel: str = "", *, in_flight: Callable[[], int] | None = None
    ) -> _Observer:
        """Return an observer for this consumer, whose events come through this channel. Other
        processes see the leases of the consumer; `in_flight` returns the number of its events in
        flight."""
        self._watched[consumer.name, channel] = Watched(consumer.runtime.gate.held, in_flight)
        return _Observer(self._background, consumer, channel)

    @property
    def dropped(self) -> int:
        """The number of decisions that could not be kept."""
        return self._background.dropped

    def find(self, search: Search, limit: int = 1000, *, partly: bool = False) -> list[Decision]:
        """Return the latest decisions that match, oldest first. ConfigError if none is found and
        some may be `hidden`; with `partly` the list is empty then."""
        with self._tables() as tables:
            found = tables.find(search, limit)
            if not found and not partly:
                for what, name in _named(search).items():
                    self._check_secrets(tables, what, name)
            return found

    def story(
        self, search: Search, limit: int = 1000, *, runs: bool = True
    ) -> tuple[list[Decision], int]:
        """Return what `find` returns, each copy with the transport id of the event that took
        effect, if the history has that event; and the time of the earliest within the limit, 0 if
        the limit left none out. If it did, each event without a run among them comes with the
        latest run that took effect and matches, unless `runs` is false."""
        found = self.find(search, limit)
        cut = found[0].at if len(found) == limit else 0
        with self._tables() as tables:
            if cut and runs:
                found = with_runs(found, partial(tables.runs, search))
            return with_winners(found, tables.leads), cut

    def hidden(self, what: What, name: str) -> int:
        """Return how many decisions may have this conversation, transport id or subject and cannot
        be found by it: their digests are under a secret that is not among `secrets`. This reads all
        decisions."""
        with self._tables() as tables:
            return tables.hidden(what, name)

    def counts(
        self, since: int, until: int, fields: Sequence[str] = KIND_FIELDS, step: int = MINUTE
    ) -> list[tuple[int, tuple[Any, ...], int, int]]:
        """Return the number of decisions and the microseconds of their handlers, by steps of
        `step` milliseconds (whole minutes) and by these fields of a kind."""
        with self._tables() as tables:
            return list(tables.counts(since, until, fields, step))

    def count_lately(self, status: Status, reason: str, since: int) -> int:
        """Return how many decisions since then have this status and this reason. The status must
        be one that always has a reason."""
        with self._tables() as tables:
            return tables.count_lately(status, reason, since)

    def consumers(self) -> list[str]:
        """Return the names of the consumers of all decisions."""
        with self._tables() as tables:
            return tables.consumers()

    def states(self) -> list[WorkerState]:
        """Return the states that processes reported; for a killed process, its last one."""
        with self._tables() as tables:
            return tables.states.read()

    def begin(self) -> int | None:
        """Return the time of the oldest decision; None if there is none."""
        with self._tables() as tables:
            return tables.begin()

    def types(self) -> list[tuple[str, str]]:
        """Return the types and sources of the events of all decisions, and the types of events
        that run now."""
        with self._tables() as tables:
            held = {(it.type, "") for state in tables.states.read() for it in state.load.leases}
            return [*tables.types(), *held]

    def names(self, name: str, what: What = "conversation") -> list[str]:
        """Return all texts that may stand for this value in the history: itself, and its digests
        under each secret."""
        return self._digests.names(what, name)

    def subjects(self, having: Callable[[str], bool]) -> list[bytes]:
        """Return the keys of all subjects for which `having` is true."""
        with self._tables() as tables:
            return [key for key, subject in tables.subjects.all() if having(subject)]

    def drop_subjects(self, keys: Iterable[bytes]) -> None:
        """Delete the subjects of these keys; their decisions stay."""
        with self._tables() as tables:
            tables.subjects.drop(keys)

    def forget(self, conversation: str, *, partly: bool = False) -> int:
        """Delete all decisions about this conversation, and return their number. ConfigError, and
        nothing is deleted, if more of them may be `hidden`; with `partly` the hidden ones stay."""
        with self._tables() as tables:
            if not partly:
                self._check_secrets(tables, "conversation", conversation)
            return tables.forget(conversation)

    def _check_secrets(self, tables: Tables, what: What, name: str) -> None:
        """Raise ConfigError if this value may be stored as a digest under an unknown secret."""
        if not name or DIGEST.fullmatch(name):
            return
        hidden = tables.hidden(what, name)
        if hidden:
            raise ConfigError(f"history {masked(self._uri)}: {hidden_text(hidden)}")

    def try_to_write(self) -> None:
        """Raise StoreUnavailable if this user may not write; change nothing."""
        with self._tables() as tables:
            tables.try_to_write()

    def reaches_back(self, milliseconds: int) -> bool:
        """Whether the limits of this history let it keep all decisions of this time. The history
        may be younger than that."""
        return self._keep >= milliseconds and self.span() < self._most

    def span(self) -> int:
        """Return the number of decisions, including some deleted ones between others; it is at
        most `most` after `tidy`."""
        with self._tables() as tables:
            return tables.span()

    def hidden_from(self, search: Search) -> int:
        """Return how many decisions may match the id, conversation or subject of this search and
        are `hidden`."""
        named = _named(search).items()
        asked = [(what, it) for what, it in named if it and not DIGEST.fullmatch(it)]
        return max((self.hidden(what, it) for what, it in asked), default=0)

    def empty_log(self) -> None:
        """Remove deleted data from the write-ahead log, unless another connection prevents it."""
        with self._tables() as tables:
            tables.empty_log()

    def scrub(self) -> str:
        """Erase deleted data from the files, and return why that failed; empty if it did not."""
        with self._tables() as tables:
            return tables.scrub()

    def tidy(self) -> int:
        """Delete decisions that are too old or too many, and return their number."""
        total = 0
        start: int | None = 0
        before = wall_clock() - self._keep
        while start is not None:
            with self._tables() as tables:
                dropped, start = tables.drop(before, self._most, TIDY_STEP, start)
            total += dropped
            if self._background.ending:
                # The end of the process waits for this thread; the next process continues.
                break
        if total:
            with self._tables() as tables:
                tables.drop_unused(before, wall_clock())
        with self._tables() as tables:
            tables.states.drop(wall_clock() - STATES_KEPT)
        return total

    def flush(self) -> None:
        """Write the waiting decisions now."""
        self._background.flush()

    def close(self) -> None:
        """Write the waiting decisions, and close the database."""
        ends = self._background.close()
        self._say_dropped()
        if ends:
            with self._background.writing:
                self._connection.disconnect()

    def _write(self, some: list[ObservedBatch]) -> None:
        worker = self._worker or process_name()
        decisions: Iterable[tuple[Kind, Own]] = chain.from_iterable(
            decided(outcomes, at, consumer.name, worker, channel)
            for outcomes, at, consumer, channel in some
        )
        if self._digests:
            decisions = starmap(self._digests.kept, decisions)
        with self._tables() as tables:
            ruled = ((outcomes, consumer.rules) for outcomes, _, consumer, _ in some)
            tables.add(decisions, tables.subjects.unknown(ruled, wall_clock()))

    def _after_turn(self) -> None:
        """Do the periodic work. Called once a second, also while nothing can be written."""
        dropped = self._background.crowded_out
        if dropped > self._seen:
            self._seen = dropped
            if self._full.tells():
                self._say_dropped()
        elif not self._background.outage.lasts:
            self._full.ended()
            self._say_dropped()
        self._tidy_if_due()
        if self._background.ending:
            self._take_back()
        else:
            self._tell_if_due()

    def _tidy_if_due(self) -> None:
        """Delete old decisions once a minute, also while there are no new ones."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + TIDY_INTERVAL
        try:
            self.tidy()
        except Exception as error:  # noqa: BLE001  it must not end the thread that writes
            if self._untidy.tells():
                log().warning("history: old decisions are not deleted yet: %s", error)
        else:
            self._untidy.ended()

    def _tell_if_due(self) -> None:
        """Report the state of this process every few seconds, also while there are no decisions."""
        if not self._watched or self._look or time.monotonic() < self._tell_due:
            return
        self._tell_due = time.monotonic() + REPORT_INTERVAL
        self._telling = os.getpid()
        if self._began[0] != os.getpid():
            self._began = os.getpid(), wall_clock()
        try:
            # Outside `_tables`: the consumers are asked while no lock is held.
            states = self._states()
            with self._tables() as tables:
                tables.states.tell(states)
        except Exception as error:  # noqa: BLE001  likewise
            if self._untold.tells() and not self._background.outage.lasts:
                log().warning("history: the leases of this process are not visible yet: %s", error)
        else:
            self._untold.ended()

    def _take_back(self) -> None:
        """Delete the states of this process at its end: its leases are settled or freed by then."""
        if self._telling != os.getpid() or self._untold.lasts or self._background.outage.lasts:
            return
        self._telling = 0
        # If this fails, the states become stale, and readers see that.
        with suppress(Exception), self._tables() as tables:
            tables.states.remove(self._states())

    def _states(self) -> list[WorkerState]:
        process, now = process_name(), wall_clock()
        worker = self._worker or process
        return [
            WorkerState(worker, *which, process, self._began[1], now, watched.load())
            for which, watched in list(self._watched.items())
        ]

    def _say_dropped(self) -> None:
        dropped = self._background.crowded_out
        if dropped > self._told:
            log().warning(
                "history: %d decisions were lost: too many others waited to be written",
                dropped - self._told,
            )
            self._told = dropped

    @contextmanager
    def _tables(self) -> Iterator[Tables]:
        """Yield the tables, for this thread alone, and commit at the end."""
        with self._background.writing, self._connection.tables() as tables:
            yield tables


class _Observer:
    """The observer of one consumer."""

    def __init__(
        self, background: Background[ObservedBatch], consumer: Consumer, channel: str
    ) -> None:
        self._background = background
        self._consumer = consumer
        self._channel = channel

    def batch(self, outcomes: Sequence[Outcome], _seconds: float, /) -> None:
        """Queue these outcomes for the history."""
        kept = [
            outcome if outcome.error is None and outcome.result is None else _lean(outcome)
            for outcome in outcomes
        ]
        held = sum([len(one.event.raw) for one in kept if one.event is not None])
        told = (kept, wall_clock(), self._consumer, self._channel)
        self._background.add(told, len(kept) + held // DECISION_BYTES, len(kept))

    def flush(self) -> None:
        """Write the queued outcomes, because Lambda stops the process after each invocation. The
        wait is limited: a silent database must not delay the invocation."""
        self._background.flush_within(FLUSH_WAIT)


def _lean(outcome: Outcome) -> Outcome:
    """Return the outcome without the fields that no decision has. A traceback holds the variables
    of the handler, and a result may be large; `DECISION_BYTES` does not count either."""
    return replace(outcome, error=None, result=None)


def _named(search: Search) -> dict[What, str]:
    """Return the fields of a search whose values may be stored as digests."""
    return {"conversation": search.conversation, "id": search.id, "subject": search.subject}


def hidden_text(many: int) -> str:
    """Return the message about this many hidden decisions."""
    return (
        f"{many} decision{'s' if many > 1 else ''} cannot be found by an id, because of digests "
        "under a secret that the file does not name; add the secret to `secrets`, after the first"
    )
