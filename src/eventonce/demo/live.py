"""The demo to watch: a real worker plays the day slowly, and the system behind its handler breaks
for a while, so that dead letters arise; then it is mended, and a redrive succeeds."""

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

DAY: Final = SCENARIO._replace(events=6_000)
"""About as many deliveries as five minutes have at the usual rate."""

RATE: Final = 20.0
"""Deliveries a second."""

BREAKS_AFTER: Final = 150
"""Effects after which the CRM breaks."""

MENDED_AFTER: Final = 120
"""Dead letters after which it is mended: more than the hundred that are to be redriven."""

SLOW: Final = 60
"""One call of so many takes two seconds, so that its lease is seen."""

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
"""The file of settings by which commands find what the dashboard shows."""

BROKEN: Final = "v2.detail.events."
"""The beginning of the types whose part of the CRM breaks."""


class CRM:
    """The system that the handler of the demo writes to; a part of it breaks for a while."""

    def __init__(self) -> None:
        self.written = 0
        self.given_up = 0
        self._calls = 0
        self._lock = Lock()

    @property
    def broken(self) -> bool:
        """Whether it refuses calls now."""
        return self.written >= BREAKS_AFTER and self.given_up < MENDED_AFTER

    def write(self, job: Job) -> None:
        """The handler: takes as long as a quick HTTP request, and sometimes as a slow one."""
        with self._lock:
            self._calls += 1
            slow = self._calls % SLOW == 0
        time.sleep(2.0 if slow else 0.004)
        if self.broken and job.event.type.startswith(BROKEN):
            raise ConnectionError("the CRM answered 503 Service Unavailable to POST /calls")
        self.written += 1

    def batch(self, outcomes: Sequence[Outcome], _seconds: float, /) -> None:
        """Told of the outcomes."""
        self.given_up += sum(one.status == "dead" for one in outcomes)


def write(job: Job) -> None:
    """The handler for a command in a shell. The CRM breaks in the process of the demo alone: this
    one takes every call."""
    CRM().write(job)


class Played(NamedTuple):
    """What the demo runs."""

    worker: Worker
    resources: Resources
    crm: CRM


@contextmanager
def playing(folder: Path, *, rate: float = RATE, scenario: Scenario = DAY) -> Iterator[Played]:
    """A worker over files in this folder, which is to be run, and what a dashboard watches."""
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
            config_options=["--config", quoted(str(settings))],
        )
        try:
            yield Played(worker, resources, crm)
        finally:
            resources.close()
            source.close()
