"""Screenshots for docs/operate.md: the dashboard at each symptom, by a real browser, for some
made-up minutes: `make screens` writes `docs/pictures/symptom-*.png`. Like those of `screens`, no
test compares them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from eventonce.core.reasons import REFUSED
from eventonce.dashboard import Resources, dashboard, server
from eventonce.errors import StoreUnavailable
from eventonce.history.decision import NO_VERSION, Kind, Own
from eventonce.history.sqlite import SQLiteDriver, location_of
from eventonce.history.tables import Tables
from eventonce.stores import open_store
from pictures.__main__ import FOLDER
from pictures.screens import TYPES, WORKERS
from tests.servers.chromium import browser

MINUTES = 9
A_MINUTE = 700
TWICE = "4c0f1f5e-8f0d-4f57-9b1a-f2f0a8f6c1d9"


class Symptom(NamedTuple):
    """The decisions by status, and the view that shows the symptom."""

    decided: Mapping[str, int]
    path: str
    high: int
    ended: int = 0
    """Minutes since the last decision."""
    late: int = 0
    """Minutes from an event's own time to its decision."""


CRM = "ConnectionError: POST https://crm.example.com/calls answered 503"
REASONS = {
    "failed": CRM,
    "busy": "another run holds it",
    "ignored": "no handler takes this type",
    "fenced": REFUSED["fenced"],
}
SYMPTOMS = {
    "failed": Symptom({"done": 40, "duplicate": 10, "failed": 50}, "/search?status=failed", 520),
    "busy": Symptom({"done": 10, "duplicate": 5, "busy": 85}, "/", 600),
    "ignored": Symptom({"ignored": 100}, "/search?status=ignored", 520),
    "fenced": Symptom({"done": 90, "duplicate": 9, "fenced": 1}, "/search?status=fenced", 520),
    "copies": Symptom({"done": 40, "duplicate": 55, "stale": 5}, "/", 900),
    "quiet": Symptom({"done": 90, "duplicate": 10}, "/?range=1h", 620, ended=12),
    "late": Symptom({"done": 90, "duplicate": 10}, "/search?status=done&limit=20", 620, late=190),
    "twice": Symptom({}, f"/search?conversation={TWICE}", 620),
    "store": Symptom({"done": 90, "duplicate": 10}, "/store", 330),
}


def _decisions(symptom: Symptom) -> Iterator[tuple[Kind, Own]]:
    chance = random.Random(11)
    now = int(time.time() * 1000) - symptom.ended * 60_000
    decided = symptom.decided
    if not decided:
        yield from _twice(now)
        return
    late = symptom.late * 60_000
    for number in range(MINUTES * A_MINUTE):
        at = now - MINUTES * 60_000 + number * 60_000 // A_MINUTE
        status = chance.choices([*decided], [*decided.values()])[0]
        name = chance.choice(TYPES)
        same = chance.random() < 0.8 if status == "duplicate" else None
        rule = "genesys.wrapup" if name in ("wrapup", "acw") else "genesys.session"
        type_ = f"v2.detail.events.conversation.{{id}}.{name}"
        worker = chance.choice(WORKERS)
        kind: Any = ("crm-sync", worker, "sqs:calls", status, same, rule, type_, "genesys")
        call = f"{chance.getrandbits(32):08x}-5f0d-4f57-9b1a-{chance.getrandbits(48):012x}"
        took = 0 if status in ("duplicate", "busy", "ignored", "stale") else 12_000
        own = (
            at,
            REASONS.get(status, ""),
            call,
            call,
            chance.randbytes(16),
            NO_VERSION,
            1,
            took,
            1,
            at - late,
        )
        yield kind, own


def _twice(now: int) -> Iterator[tuple[Kind, Own]]:
    """Yield a call whose end ran twice: the first run stopped for longer than its lease."""
    for name, status, ago, attempt in (
        ("acd.start", "done", 400_000, 1),
        ("acd.end", "done", 200_000, 2),
        ("acd.end", "fenced", 120_000, 1),
    ):
        at = now - ago
        type_ = f"v2.detail.events.conversation.{{id}}.{name}"
        worker = WORKERS[attempt - 1]
        kind: Any = ("crm-sync", worker, "sqs:calls", status, None, "genesys.session", type_, "")
        reason = REASONS.get(status, "")
        key = name.encode().ljust(16)
        yield kind, (at, reason, f"{name}-1", TWICE, key, NO_VERSION, attempt, 12_000, 1, at)


def _away() -> Any:
    raise StoreUnavailable("redis://redis.example.com:6379: connection refused")


def main() -> None:
    """Take the pictures."""
    with TemporaryDirectory() as folder, browser() as opened:
        for name, symptom in SYMPTOMS.items():
            path = Path(folder, name)
            history, store = f"sqlite:///{path}-history.db", f"sqlite:///{path}.db"
            opens = _away if name == "store" else partial(open_store, store)
            resources = Resources(opens, name="crm-sync", history=history)
            tables = Tables(SQLiteDriver(location_of(history)))
            tables.make()
            tables.add(_decisions(symptom))
            tables.close()
            app = dashboard(resources)
            with server.listen("0") as listening, server.serving(app, listening):
                url = server.url_of(listening).rstrip("/")
                page = opened.new_page(viewport={"width": 1100, "height": symptom.high})
                page.goto(server.link_of(app, listening))
                page.wait_for_url(f"{url}/")
                page.goto(f"{url}{symptom.path}")
                # The current rate is known from the second request on.
                page.wait_for_timeout(2_000)
                page.screenshot(path=FOLDER / f"symptom-{name}.png")
                page.close()
            resources.close()


if __name__ == "__main__":
    main()
