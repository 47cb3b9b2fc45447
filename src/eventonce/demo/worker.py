"""The worker of the demo: eventonce in a separate process, so that it can really be killed.

`python -m eventonce.demo.worker DATABASE < deliveries` prints one JSON outcome a line.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from eventonce.consumer import Consumer
from eventonce.core.status import ACKNOWLEDGED
from eventonce.demo import DemoDelivery
from eventonce.errors import StoreUnavailable
from eventonce.stores.sqlite import SQLiteStore
from eventonce.types import Claim, Job, Verdict

LEASE: int = 60_000


class OutcomeLine(msgspec.Struct, frozen=True):
    """The outcome of one delivery."""

    status: str
    reason: str


def effects(
    deliveries: Sequence[DemoDelivery], database: Path
) -> tuple[Counter[int], list[OutcomeLine], int]:
    """Return the number of effects of each fact, the outcome of each delivery, and the number of
    workers that died.

    A worker that dies is replaced, as behind a queue: a delivery that was not acknowledged comes
    again when its lease has ended.
    """
    told: list[OutcomeLine] = []
    waiting = list(deliveries)
    killed = 0
    while waiting:
        answers = _worked(waiting, database)
        told += answers
        again = [
            delivery._replace(arrives=delivery.arrives + LEASE, outage=False)
            for delivery, answer in zip(waiting, answers, strict=False)
            if answer.status not in ACKNOWLEDGED
        ]
        rest = waiting[len(answers) :]
        if rest:
            killed += 1
            dropped = rest[0]._replace(arrives=rest[0].arrives + LEASE, crash=False)
            rest = [*rest[1:], dropped]
        waiting = sorted([*rest, *again], key=lambda delivery: delivery.arrives)
    return _counted(deliveries, database), told, killed


def _worked(deliveries: Sequence[DemoDelivery], database: Path) -> list[OutcomeLine]:
    worker = subprocess.run(  # noqa: S603  this module, in a process that can be killed
        [sys.executable, "-m", "eventonce.demo.worker", str(database)],
        input=b"\n".join(map(msgspec.json.encode, deliveries)),
        stdout=subprocess.PIPE,
        check=False,
        # Ctrl-C reaches all processes of the terminal's group; this one is ended by its parent.
        process_group=0,
    )
    if worker.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the demo's worker ended with {worker.returncode}")
    return [msgspec.json.decode(line, type=OutcomeLine) for line in worker.stdout.splitlines()]


def _counted(deliveries: Sequence[DemoDelivery], database: Path) -> Counter[int]:
    facts = {_event(one)["id"]: one.fact for one in deliveries}
    store = SQLiteStore(database)
    with store.transaction() as transaction:
        rows = transaction.connection.execute("SELECT id FROM crm").fetchall()
    store.close()
    return Counter(facts[name] for (name,) in rows)


def _event(delivery: DemoDelivery) -> Any:
    return msgspec.json.decode(delivery.line)["event"]


class _Reached:
    """A store that is unavailable when a delivery says so."""

    def __init__(self, store: SQLiteStore) -> None:
        self._store = store
        self.away = False

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        if self.away:
            raise StoreUnavailable("no route to the store")
        return self._store.claim(claims, now)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _work(deliveries: Iterator[DemoDelivery], database: Path) -> None:
    now = 0
    dying = False
    store = _Reached(SQLiteStore(database, clock=lambda: now))
    with store.transaction() as transaction:
        transaction.connection.execute("CREATE TABLE IF NOT EXISTS crm (id TEXT)")
    consumer = Consumer(store, name="demo", rules="genesys")

    @consumer.on()
    def log_call(job: Job) -> None:
        job.connection.execute("INSERT INTO crm VALUES (?)", (job.event.id,))
        if dying:
            os.kill(os.getpid(), signal.SIGKILL)

    for delivery in deliveries:
        now, dying, store.away = delivery.arrives, delivery.crash, delivery.outage
        (outcome,) = consumer.process([delivery.line])
        sys.stdout.buffer.write(
            msgspec.json.encode(OutcomeLine(outcome.status, outcome.reason)) + b"\n"
        )
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    lines = sys.stdin.buffer.read().splitlines()
    _work((msgspec.json.decode(line, type=DemoDelivery) for line in lines), Path(sys.argv[1]))
