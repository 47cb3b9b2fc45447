"""The live demo: a real worker plays the day slowly. The system behind its handler fails for a
while, so that there are dead letters; then it works again, and a redrive succeeds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from eventonce.config import load
from eventonce.dashboard import Resources
from eventonce.demo import SCENARIO, deliveries
from eventonce.history import History
from eventonce.letters.selection import quoted
from eventonce.sources import FileSource
from eventonce.study.simulate import Scenario
from eventonce.types import Job, Outcome
from eventonce.worker import Worker, WorkerSettings

DEMO_DAY: Final = SCENARIO._replace(events=6_000)
"""About as many deliveries as five minutes have at the usual rate."""

RATE: Final = 20.0
"""Deliveries a second."""

BREAKS_AFTER: Final = 150
"""The number of effects after which the CRM fails."""

MENDED_AFTER: Final = 120
"""The number of dead letters after which the CRM works again; more than the hundred for the
redrive."""

SLOW_EVERY: Final = 60
"""One of this many calls takes two seconds, so that its lease can be seen."""

SETTINGS: Final = """\
store = "sqlite:///{folder}/demo.db"
name = "demo"
presets = ["genesys"]
audit = "{folder}/audit.jsonl"

[override]
attempts = 2

[history]
store = "sqlite:///{folder}/history.db"

[[sink]]
to = "eventonce.demo.live:write"
"""
"""The configuration file of the demo, for commands on the data that the dashboard shows."""

BROKEN_TYPES: Final = "v2.detail.events."
"""The prefix of the types that the CRM refuses while it fails."""


class CRM:
    """The system that the handler of the demo writes to; a part of it fails for a while."""

    def __init__(self) -> None:
        self.written = 0
        self.given_up = 0
        self._calls = 0
        self._lock = Lock()

    @property
    def broken(self) -> bool:
        """Whether the CRM refuses calls now."""
        return self.written >= BREAKS_AFTER and self.given_up < MENDED_AFTER

    def write(self, job: Job) -> None:
        """Handle a job: as long as a quick HTTP request, and sometimes as a slow one."""
        with self._lock:
            self._calls += 1
            slow = self._calls % SLOW_EVERY == 0
        time.sleep(2.0 if slow else 0.004)
        if self.broken and job.event.type.startswith(BROKEN_TYPES):
            raise ConnectionError("the CRM answered 503 Service Unavailable to POST /calls")
        self.written += 1

    def batch(self, outcomes: Sequence[Outcome], _seconds: float, /) -> None:
        """Count the dead letters; called as an observer."""
        self.given_up += sum(one.status == "dead" for one in outcomes)


def write(job: Job) -> None:
    """Handle a job of a command in a shell. The CRM fails only in the process of the demo; here it
    accepts every call."""
    CRM().write(job)


class Played(NamedTuple):
    """The parts of a live demo."""

    worker: Worker
    resources: Resources
    crm: CRM


@contextmanager
def playing(folder: Path, *, rate: float = RATE, scenario: Scenario = DEMO_DAY) -> Iterator[Played]:
    """Prepare a worker with its files in this folder, and the resources of a dashboard; the caller
    runs the worker."""
    capture = folder / "day.jsonl"
    with capture.open("wb") as file:
        file.writelines(one.line + b"\n" for one in deliveries(scenario))
    settings = folder / "eventonce.toml"
    settings.write_text(SETTINGS.format(folder=msgspec.json.encode(str(folder)).decode()[1:-1]))
    config = load(settings)
    crm = CRM()
    with (
        replace(config, sink=[]).consumer() as consumer,
        History(config.history.store, worker="demo-worker") as kept,
    ):
        consumer.on()(crm.write)
        source = FileSource([capture], rate=rate)
        worker = Worker(consumer, source, WorkerSettings(8, 1, 5.0))
        observer = kept.observer(consumer, "file", in_flight=worker.in_flight)
        consumer.observers += [crm, observer]
        resources = Resources(
            lambda: consumer.store,
            name=consumer.name,
            history=config.history.store,
            consumer=consumer,
            state=worker.state,
            audit=config.audit,
            options={"config": ["--config", quoted(str(settings))]},
        )
        try:
            yield Played(worker, resources, crm)
        finally:
            resources.close()
            source.close()
