"""The state that each process reports of its consumers, with the leases that it holds, and the
table that has these reports; `workers` shows them beside the decisions."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Final, NamedTuple

import msgspec

from eventonce.clock import wall_clock
from eventonce.core.plan import Run
from eventonce.history.decision import conversation_of, id_kept, id_pattern, storable
from eventonce.history.driver import Driver
from eventonce.runtime.gate import is_overdue

MOST_LEASES: Final = 100
"""The most leases of a consumer that are reported, the oldest: the row is rewritten every few
seconds."""

REPORT_INTERVAL: Final = 5.0
"""Seconds between two reports of a process."""

STALE_AFTER: Final = 30_000
"""Milliseconds without a report after which a process was most likely killed."""

STATES_KEPT: Final = 3_600_000
"""Milliseconds for which the last state of a killed process is kept."""

WORKERS: Final = "eventonce_history_workers"


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A lease, and its run. Only the key identifies the event, and the key is a digest."""

    type: str
    """The type of the event, without its ids."""
    rule: str
    attempt: int
    key: str
    """The key in hexadecimal."""
    started: int
    """The time at which the handler began, in milliseconds; 0 while the run waits."""
    renewed: int
    """The time at which the lease was granted or last renewed, in milliseconds."""
    lasts: int
    """Milliseconds from `renewed` to the end of the lease; 0 if the run has no lease."""
    condition: str = ""
    """`lost`: another run has taken over; `overdue`: the run takes longer than its rule allows;
    `unguarded`: the run has no lease. Not an enumeration: a later version may report others."""

    @property
    def ends(self) -> int:
        """The time at which the lease ends unless it is renewed; 0 if there is no lease."""
        held = self.renewed and self.lasts and self.condition != "lost"
        return self.renewed + self.lasts if held else 0


class Load(msgspec.Struct, frozen=True):
    """The work of a consumer at one moment."""

    held: int = 0
    """The number of runs whose leases are kept."""
    running: int = 0
    """The number of these runs whose handlers run."""
    in_flight: int | None = None
    """The number of events in flight: received, not acknowledged yet; None if unknown."""
    leases: tuple[Lease, ...] = ()
    """The leases of the oldest runs."""


class WorkerState(msgspec.Struct, frozen=True):
    """The state of one consumer in one process."""

    worker: str
    consumer: str
    channel: str
    process: str
    """The host and the process id; several processes may have the same name as workers."""
    started: int
    told: int
    """The time of this report, in milliseconds."""
    load: Load

    def is_stale(self, now: int) -> bool:
        """Whether the report is so old that the process was most likely killed."""
        return now - self.told > STALE_AFTER

    @property
    def killed_leases_end(self) -> int:
        """The moment by which the leases have ended if the process was killed; 0 for no leases. The
        process may have renewed each of them until its next report was due."""
        lasts = max((it.lasts for it in self.load.leases if it.ends), default=0)
        return self.told + int(REPORT_INTERVAL * 1000) + lasts if lasts else 0


class Watched(NamedTuple):
    """Functions that return the runs of a consumer, and the number of its events in flight (None
    if no transport counts them)."""

    held: Callable[[], Sequence[Run]]
    in_flight: Callable[[], int] | None

    def load(self) -> Load:
        """Return the work of the consumer now."""
        in_flight = self.in_flight() if self.in_flight is not None else None
        runs = sorted(self.held(), key=lambda run: run.started or inf)
        running = sum(bool(run.started) and not run.finished for run in runs)
        ago, now = time.monotonic(), wall_clock()
        leases = tuple(_lease(run, now, ago) for run in runs[:MOST_LEASES])
        return Load(len(runs), running, in_flight, leases)


def process_name() -> str:
    """Return the host and the id of this process; containers of one host name may share both."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _lease(run: Run, now: int, monotonic: float) -> Lease:
    """Return the lease of a run; `now` and `monotonic` are the same moment on two clocks."""

    def at(moment: float) -> int:
        return now - int((monotonic - moment) * 1000) if moment else 0

    event, token = run.plan.event, run.token
    named = id_pattern((id_kept(event.id), conversation_of(event)))
    return Lease(
        storable(named.sub("{id}", event.type) if named is not None else event.type),
        storable(run.plan.rule.name),
        run.attempt,
        run.claim.key.hex(),
        at(run.started),
        at(run.renewed) if token else 0,
        run.claim.lease if token else 0,
        _condition(run, monotonic),
    )


def _condition(run: Run, monotonic: float) -> str:
    if run.lost:
        return "lost"
    if not run.finished and is_overdue(run, monotonic):
        return "overdue"
    return "" if run.token else "unguarded"


class StateTable:
    """The table of reports in the database of a history; for one thread at a time."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def tell(self, states: Iterable[WorkerState]) -> None:
        """Store these states instead of the earlier ones of the same processes."""
        rows = [
            (*_which(one), one.started, one.told, msgspec.json.encode(one.load).decode())
            for one in states
        ]
        self._driver.run_many(
            f"INSERT INTO {WORKERS} (worker, consumer, channel, process, started, told, state) "  # noqa: S608  ours
            "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (worker, consumer, channel, process) "
            "DO UPDATE SET started = excluded.started, told = excluded.told, "
            "state = excluded.state",
            rows,
        )

    def remove(self, states: Iterable[WorkerState]) -> None:
        """Delete the rows of these states."""
        self._driver.run_many(
            f"DELETE FROM {WORKERS} WHERE worker = ? AND consumer = ? AND channel = ? "  # noqa: S608  ours
            "AND process = ?",
            [_which(one) for one in states],
        )

    def read(self) -> list[WorkerState]:
        """Return all states."""
        rows = self._driver.rows(
            "SELECT worker, consumer, channel, process, started, told, state "  # noqa: S608  ours
            f"FROM {WORKERS} ORDER BY worker, consumer, channel, process"
        )
        fields = WorkerState.__struct_fields__[:-1]
        return [
            WorkerState(
                **dict(zip(fields, row, strict=True)), load=msgspec.json.decode(state, type=Load)
            )
            for *row, state in rows
        ]

    def drop(self, before: int) -> None:
        """Delete the states that are older than this."""
        self._driver.run(f"DELETE FROM {WORKERS} WHERE told < ?", (before,))  # noqa: S608  ours


def _which(state: WorkerState) -> tuple[str, str, str, str]:
    named = (state.worker, state.consumer, state.channel, state.process)
    worker, consumer, channel, process = map(storable, named)
    return worker, consumer, channel, process
