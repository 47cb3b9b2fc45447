"""The recorder: keeps what observers are told, in the background, and never makes the work wait."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, starmap
from typing import Any, Final, Self

from msgspec.structs import replace

from eventonce.clock import wall_clock
from eventonce.consumer import Consumer
from eventonce.core.masking import masked
from eventonce.errors import ConfigError, EventonceError, StoreMismatch, StoreUnavailable
from eventonce.history.decision import Decision, Kind, Own, decided
from eventonce.history.digests import DIGEST, Digests, What
from eventonce.history.leases import STATES_KEPT, Watched, WorkerState, process_name
from eventonce.history.search import Search
from eventonce.history.sqlite import SQLiteDriver, location_of
from eventonce.history.tables import KIND_FIELDS, MINUTE, Tables
from eventonce.history.winners import with_winners
from eventonce.log import Outage, log
from eventonce.rules.instants import duration
from eventonce.runtime.background import Background
from eventonce.stores import check_uri
from eventonce.stores.sqlite.errors import may
from eventonce.types import Outcome, Status

POSTGRES: Final = ("postgresql", "postgres")
KEEP: Final = "30d"
MOST: Final = 5_000_000
"""Decisions that are kept: about 1 GB."""
WAITING: Final = 50_000
"""Decisions that may wait to be written: some seconds of the busiest worker."""
SHARE: Final = 4096
"""Bytes of an event that count as one decision more: while its decision waits, it lies in memory.
All that waits is 200 MB at most."""
TIDY_INTERVAL: Final = 60.0
"""Seconds between two looks for what is too old or too much."""
TELL_INTERVAL: Final = 5.0
"""Seconds between two times that a process tells which leases it holds."""
TIDY: Final = 50_000
"""Decisions that are looked at in one transaction."""

FLUSH_WAIT: Final = 1.0
"""Seconds that the end of an invocation waits for its decisions to be written."""

_inherited: Final[list[Tables]] = []

Told = tuple[Sequence[Outcome], int, Consumer, str]
"""The outcomes of a batch, the moment, the consumer, and the channel of its events."""


class History:
    """What was decided, in a database; of all consumers that are given its observers."""

    def __init__(
        self,
        uri: str,
        *,
        keep: float | str = KEEP,
        most: int = MOST,
        worker: str = "",
        look: bool = False,
        secrets: Sequence[bytes] = (),
    ) -> None:
        """`sqlite:///PATH` or `postgresql://…`. Decisions are kept for so long, and no more than
        so many of them. `worker` names this process, by default its host and process id. With
        `look` nothing is made: the history must be there. With `secrets`, ids of conversations and
        of events, and subjects, are kept as keyed digests, by the first, and found by all of
        them."""
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
        self._process = 0
        self._ready = False
        self._begun = False
        self._opened: Tables
        self._due = time.monotonic() + TIDY_INTERVAL
        self._untidy = Outage()
        self._watched: dict[tuple[str, str], Watched] = {}
        """What is asked about each consumer and channel."""
        self._tell_due = 0.0
        self._telling = 0
        """The process that has told its state; the child of a fork tells its own."""
        self._began = os.getpid(), wall_clock()
        self._untold = Outage()
        self._full = Outage()
        self._seen = 0
        self._told = 0
        self._told_missing = False
        self._background = Background[Told](
            "history", self._write, WAITING, self._disconnect, self._beside
        )
        if look and not exists(uri):
            raise ConfigError(f"history {uri}: there is no such file")
        if not look:
            try:
                with self._tables():
                    pass
            except EventonceError as error:
                if not isinstance(error, StoreUnavailable):
                    self._disconnect()
                    raise
                # A server comes back, and a right is given; the work does not wait for either.
                log().warning("history: what is decided waits for its database: %s", error)
                self._untidy.tells()
                self._untold.tells()
                self._background.outage.tells()
            self._begun = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def keep_up(self) -> None:
        """Drop what is too old now and once a minute, and tell other processes the state of this
        one, also where nothing is decided."""
        self._due = 0.0
        self._background.start()

    def observer(
        self, consumer: Consumer, channel: str = "", *, in_flight: Callable[[], int] | None = None
    ) -> _Observer:
        """An observer for this consumer, whose events come in by this channel. Other processes see
        the leases of the consumer; `in_flight` answers how many events it has received and not
        acknowledged yet."""
        self._watched[consumer.name, channel] = Watched(consumer.runtime.gate.held, in_flight)
        return _Observer(self._background, consumer, channel)

    @property
    def dropped(self) -> int:
        """Decisions that could not be kept."""
        return self._background.dropped

    def find(self, search: Search, limit: int = 1000, *, partly: bool = False) -> list[Decision]:
        """The latest decisions of which all this is true, in their order. ConfigError where none is
        found and one may be `hidden`; with `partly` nothing is answered then."""
        with self._tables() as tables:
            found = tables.find(search, limit)
            if not found and not partly:
                for what, name in _named(search).items():
                    self._check_secrets(tables, what, name)
            return found

    def with_winners(self, decisions: Sequence[Decision]) -> list[Decision]:
        """These decisions, each copy with the transport id of the event that took effect, where the
        history has it."""
        with self._tables() as tables:
            return with_winners(decisions, tables.leads)

    def hidden(self, what: What, name: str) -> int:
        """How many decisions may be of this conversation, or have this transport id or subject, and
        cannot be found by it: they have digests under a secret that is not among `secrets`. All
        decisions are read."""
        with self._tables() as tables:
            return tables.hidden(what, name)

    def counts(
        self, since: int, until: int, fields: Sequence[str] = KIND_FIELDS, step: int = MINUTE
    ) -> list[tuple[int, tuple[Any, ...], int, int]]:
        """By steps of so many milliseconds, whole minutes, and by these fields of a kind: how many
        there were, and the microseconds of their handlers."""
        with self._tables() as tables:
            return list(tables.counts(since, until, fields, step))

    def count_lately(self, status: Status, reason: str, since: int) -> int:
        """How many decisions of this status, one that always has a reason, have this reason since
        then."""
        with self._tables() as tables:
            return tables.count_lately(status, reason, since)

    def consumers(self) -> list[str]:
        """The names of the consumers that it has decisions of."""
        with self._tables() as tables:
            return tables.consumers()

    def states(self) -> list[WorkerState]:
        """The states that processes told of themselves; of a process that was killed, the last."""
        with self._tables() as tables:
            return tables.states.read()

    def begin(self) -> int | None:
        """The moment of the oldest decision; None where there is none."""
        with self._tables() as tables:
            return tables.begin()

    def types(self) -> list[tuple[str, str]]:
        """The types of the events that it has decisions about, each with a source; and of those
        that run."""
        with self._tables() as tables:
            held = {(it.type, "") for state in tables.states.read() for it in state.load.leases}
            return [*tables.types(), *held]

    def names(self, name: str, what: What = "conversation") -> list[str]:
        """All that may stand for this conversation here: its id, and its digests."""
        return self._digests.names(what, name)

    def subjects(self, having: Callable[[str], bool]) -> list[bytes]:
        """The keys of all subjects of which this is true."""
        with self._tables() as tables:
            found = [key for key, subject in tables.subjects.all() if having(subject)]
            tables.commit()
        return found

    def drop_subjects(self, keys: Iterable[bytes]) -> None:
        """Drop the subjects of these keys; their decisions stay."""
        with self._tables() as tables:
            tables.subjects.drop(keys)
            tables.commit()

    def forget(self, conversation: str, *, partly: bool = False) -> int:
        """Drop all decisions about this conversation; answers how many there were. ConfigError,
        and nothing is dropped, where others may be `hidden`; with `partly` those stay."""
        with self._tables() as tables:
            if not partly:
                self._check_secrets(tables, "conversation", conversation)
            return tables.forget(conversation)

    def _check_secrets(self, tables: Tables, what: What, name: str) -> None:
        """ConfigError where this name may stand there as a digest that nobody here can make."""
        if not name or DIGEST.fullmatch(name):
            return
        hidden = tables.hidden(what, name)
        if hidden:
            raise ConfigError(f"history {masked(self._uri)}: {hidden_text(hidden)}")

    def try_to_write(self) -> None:
        """StoreUnavailable where this user may not write; nothing is changed."""
        with self._tables() as tables:
            tables.try_to_write()

    def reaches_back(self, milliseconds: int) -> bool:
        """Whether the bounds of this history let it keep all decisions of so long a time; what was
        decided before the history was begun is not known here."""
        return self._keep >= milliseconds and self.span() < self._most

    def span(self) -> int:
        """How many decisions there are, and some that were dropped among them; `most` bounds it."""
        with self._tables() as tables:
            return tables.span()

    def hidden_from(self, search: Search) -> int:
        """How many decisions may be of what this search names, and cannot be found by its id."""
        named = _named(search).items()
        asked = [(what, it) for what, it in named if it and not DIGEST.fullmatch(it)]
        return max((self.hidden(what, it) for what, it in asked), default=0)

    def empty_log(self) -> None:
        """Take what was dropped out of the log beside the file, unless somebody is in the way."""
        with self._tables() as tables:
            tables.empty_log()

    def scrub(self) -> str:
        """See to it that no byte of what was dropped stays in a file; answers why not."""
        with self._tables() as tables:
            return tables.scrub()

    def tidy(self) -> int:
        """Drop what is too old or too much; answers how many decisions that were."""
        total = 0
        start: int | None = 0
        before = wall_clock() - self._keep
        while start is not None:
            with self._tables() as tables:
                dropped, start = tables.drop(before, self._most, TIDY, start)
            total += dropped
            if self._background.ending:
                # Whoever ends waits for this; the next process goes on.
                break
        with self._tables() as tables:
            if total:
                tables.drop_unused(before, wall_clock())
            tables.states.drop(wall_clock() - STATES_KEPT)
        return total

    def flush(self) -> None:
        """Write what waits now."""
        self._background.flush()

    def close(self) -> None:
        """Write what waits, and close the database."""
        ends = self._background.close()
        self._say_dropped()
        if ends:
            with self._background.writing:
                self._disconnect()

    def _disconnect(self) -> None:
        """Close the database until it is used again. Also before a fork: SQLite in the child
        would take the locks of its parent for its own, and lose what it writes once the parent
        has closed the file."""
        if self._process == os.getpid():
            self._process = 0
            self._opened.close()

    def _write(self, some: list[Told]) -> None:
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

    def _beside(self) -> None:
        """Once a second, also while nothing can be written."""
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
        """Once a minute, whether something is decided or not."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + TIDY_INTERVAL
        try:
            self.tidy()
        except Exception as error:  # noqa: BLE001  it must not end the thread that writes
            if self._untidy.tells():
                log().warning("history: what is old is not dropped yet: %s", error)
        else:
            self._untidy.ended()

    def _tell_if_due(self) -> None:
        """Every few seconds, whether something is decided or not."""
        if not self._watched or self._look or time.monotonic() < self._tell_due:
            return
        self._tell_due = time.monotonic() + TELL_INTERVAL
        self._telling = os.getpid()
        if self._began[0] != os.getpid():
            self._began = os.getpid(), wall_clock()
        try:
            # The work is asked before the database is waited for.
            states = self._states()
            with self._tables() as tables:
                tables.states.tell(states)
        except Exception as error:  # noqa: BLE001  likewise
            if self._untold.tells() and not self._background.outage.lasts:
                log().warning("history: others do not see the leases of this one yet: %s", error)
        else:
            self._untold.ended()

    def _take_back(self) -> None:
        """At the end no state is told any more but that of a consumer which leaves runs behind:
        their leases end later."""
        if self._telling != os.getpid() or self._untold.lasts or self._background.outage.lasts:
            return
        self._telling = 0
        # Whoever does not hear of the end sees that nothing is told any more.
        with suppress(Exception):
            states = self._states()
            with self._tables() as tables:
                tables.states.tell([one for one in states if one.load.leases])
                tables.states.remove([one for one in states if not one.load.leases])

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
                "history: %d decisions are not kept: there was no room for them while others "
                "waited to be written",
                dropped - self._told,
            )
            self._told = dropped

    @contextmanager
    def _tables(self) -> Iterator[Tables]:
        """The tables, for this thread alone; opened, and made or looked for, when first used in a
        process."""
        with self._background.writing:
            if self._process == os.getpid() and self._opened.removed():
                log().warning(
                    "history %s: the file was removed or replaced; the decisions in it are gone, "
                    "and later ones are kept in the file that is there now",
                    masked(self._uri),
                )
                self._disconnect()
            elif self._process == os.getpid() and self._opened.fixed:
                self._disconnect()
            if self._process != os.getpid():
                if self._process:
                    # The fork could not wait for the parent's write: to close the parent's
                    # connection here would harm it there.
                    _inherited.append(self._opened)
                self._open()
                self._process = os.getpid()
                self._ready = False
                if self._opened.missing and not self._told_missing:
                    self._told_missing = True
                    log().warning("history %s: %s", masked(self._uri), self._opened.missing)
            try:
                if not self._ready:
                    self._begin()
                yield self._opened
            except self._module.Error as error:
                self._opened.rollback()
                why = self._opened.refused(error)
                if why:
                    # A file that was opened to read alone stays so, whatever is granted later.
                    self._disconnect()
                # A value that the database refuses is refused again, however long it waits.
                refused = isinstance(error, self._module.DataError)
                kind = EventonceError if refused else StoreUnavailable
                raise kind(f"history {masked(self._uri)}: {error}{why}") from error

    def _open(self) -> None:
        try:
            self._opened, self._module = _opened(self._uri, self._digests, look=self._look)
        except ConfigError as error:
            if not self._begun:
                raise
            # The address was right as this began: what is there now may go again.
            raise StoreUnavailable(str(error)) from error

    def _begin(self) -> None:
        """Make the tables; where one only looks, see that they are there."""
        try:
            if not self._look:
                self._opened.make()
            elif not self._opened.made():
                raise ConfigError(
                    f"history {masked(self._uri)}: no history was begun there, or this user may "
                    "not see its tables; `run` and `serve` begin it once [history] names it"
                )
        except StoreMismatch as error:
            kind = StoreUnavailable if self._begun else StoreMismatch
            raise kind(f"history {masked(self._uri)}: {error}") from None
        self._ready = True


class _Observer:
    """Told of the batches of one consumer."""

    def __init__(self, background: Background[Told], consumer: Consumer, channel: str) -> None:
        self._background = background
        self._consumer = consumer
        self._channel = channel

    def batch(self, outcomes: Sequence[Outcome], _seconds: float, /) -> None:
        """Have these kept."""
        kept = [
            outcome if outcome.error is None and outcome.result is None else _lean(outcome)
            for outcome in outcomes
        ]
        held = sum([len(one.event.raw) for one in kept if one.event is not None])
        told = (kept, wall_clock(), self._consumer, self._channel)
        self._background.add(told, len(kept) + held // SHARE, len(kept))

    def flush(self) -> None:
        """Have what waits written: Lambda stops the process after each invocation. A database that
        is silent must not hold up the invocation."""
        self._background.flush_within(FLUSH_WAIT)


def _lean(outcome: Outcome) -> Outcome:
    """The outcome without what no decision keeps: a traceback holds the variables of the handler,
    and a result may be large. Nobody counts how much waits with them."""
    return replace(outcome, error=None, result=None)


def _named(search: Search) -> dict[What, str]:
    """All of a search that may stand there as a digest."""
    return {"conversation": search.conversation, "id": search.id, "subject": search.subject}


def hidden_text(many: int) -> str:
    """The words about so many decisions that are hidden."""
    return (
        f"it has digests under a secret that the file does not name ({many} "
        f"decision{'s' if many > 1 else ''}), and these are not found by an id; add the secret to "
        "`secrets`, after the first"
    )


def exists(uri: str) -> bool:
    """Whether a history was begun there; of a server nobody knows before it is asked."""
    return not uri.startswith("sqlite:") or may(location_of(uri).path, os.F_OK)


def check(uri: str) -> None:
    """ConfigError for a URI that is no history's; nothing is connected to."""
    scheme = uri.partition(":")[0]
    if scheme == "sqlite":
        location_of(uri)
    elif scheme in POSTGRES:
        check_uri(uri)
    else:
        raise ConfigError(f"history {masked(uri)}: expected sqlite:///PATH or postgresql://…")


def _opened(uri: str, digests: Digests, *, look: bool) -> tuple[Tables, Any]:
    """The tables at this URI, and the module of their database, which has its errors."""
    check(uri)
    if uri.startswith("sqlite:"):
        return Tables(SQLiteDriver(location_of(uri), look=look), digests), sqlite3
    # An extra, which `check` has found installed.
    import psycopg  # noqa: PLC0415

    from eventonce.history.postgres import PostgresDriver  # noqa: PLC0415

    return Tables(PostgresDriver(uri), digests), psycopg
