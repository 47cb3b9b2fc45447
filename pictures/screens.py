"""Screenshots of the dashboard, by a real browser beside the worker of the demo, after a made-up
hour: `make screens` writes `docs/pictures/dashboard-*.png`.

`make pictures` does not draw them, and no test compares them: each time it is another hour.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page

from eventonce.dashboard import dashboard, server
from eventonce.demo.live import playing
from eventonce.history.decision import NO_VERSION, Kind, Own
from eventonce.history.leases import Lease, Load, WorkerState
from eventonce.history.sqlite import SQLiteDriver, location_of
from eventonce.history.tables import Tables
from pictures.__main__ import FOLDER
from tests.servers.chromium import browser

TYPES = (
    "acd.start",
    "acd.end",
    "user.start",
    "user.end",
    "customer.end",
    "wrapup",
    "acw",
    "flow.end",
)
BROKE = range(22, 31)
"""Minutes of the hour in which the CRM did not answer."""
WORKERS = ("crm-7d9:1", "crm-7d9:2", "crm-b41:1")
PLAYED = 45.0
"""Seconds for which the worker of the demo runs."""


def _hour() -> Iterator[tuple[Kind, Own]]:
    """Yield an hour of decisions, with an outage in it."""
    chance = random.Random(7)
    now = int(time.time() * 1000)
    for minute in range(60):
        begin = now - (61 - minute) * 60_000
        for number in range(int(900 + 260 * math.sin(minute / 9) + chance.randrange(120))):
            status = chance.choices(("done", "duplicate", "stale"), (80, 17, 3))[0]
            if minute in BROKE and status == "done":
                status = chance.choices(("failed", "dead", "done"), (40, 10, 50))[0]
            type_ = f"v2.detail.events.conversation.{{id}}.{chance.choice(TYPES)}"
            same = chance.random() < 0.6 if status == "duplicate" else None
            rule = "genesys.wrapup" if type_.endswith(("wrapup", "acw")) else "genesys.session"
            worker, at = chance.choice(WORKERS), begin + number * 40
            reason = "ConnectionError: the CRM answered 503" if status in ("failed", "dead") else ""
            kind = ("demo", worker, "sqs:calls", status, same, rule, type_, "genesys")
            key = chance.randbytes(16)
            yield (
                kind,
                (at, reason, "", "", key, NO_VERSION, 1, chance.randrange(2000, 9000), 1, at),
            )


def _states() -> Iterator[WorkerState]:
    """Yield the workers of that hour; one of them was killed two minutes ago."""
    now = int(time.time() * 1000)
    type_ = f"v2.detail.events.conversation.{{id}}.{TYPES[5]}"
    for number, worker in enumerate(WORKERS):
        # Later than now, so that they stay current while the pictures are taken.
        told = now - 120_000 if number == 2 else now + int(PLAYED * 1000)
        key = random.Random(number).randbytes(16).hex()
        lease = Lease(type_, "genesys.wrapup", 1, key, told - 8_000, told, 60_000)
        leases = (lease,) if number else ()
        load = Load(len(leases), len(leases), 3, leases)
        yield WorkerState(worker, "demo", "sqs:calls", worker, now - 3_600_000, told, load)


def _shoot(page: Page, name: str, path: str, high: int, wide: int = 1100) -> None:
    page.set_viewport_size({"width": wide, "height": high})
    page.goto(path)
    page.wait_for_timeout(2_500)
    page.screenshot(path=FOLDER / f"dashboard-{name}.png")


def main() -> None:
    """Run the demo, and take the pictures."""
    with TemporaryDirectory() as folder, chdir(folder), playing(Path(), rate=20.0) as played:
        tables = Tables(SQLiteDriver(location_of(played.resources.history)))
        tables.add(_hour())
        tables.states.tell(_states())
        tables.commit()
        tables.close()
        app = dashboard(played.resources)
        with server.listen("0") as listening, server.serving(app, listening):
            worker = threading.Thread(target=played.worker.run, daemon=True)
            worker.start()
            link, url = server.link_of(app, listening), server.url_of(listening).rstrip("/")
            with browser() as opened:
                wide = opened.new_page(viewport={"width": 1100, "height": 800})
                wide.goto(link)
                wide.wait_for_url(f"{url}/")
                wide.wait_for_timeout(PLAYED * 1000)
                _shoot(wide, "overview", f"{url}/?range=1h", 900)
                _shoot(wide, "letters", f"{url}/letters", 640)
                _shoot(wide, "workers", f"{url}/workers", 1000)
                wide.goto(f"{url}/search?status=dead&reason=503&until=1s&limit=20")
                story = wide.locator("tbody tr a[href*=conversation]").first.get_attribute("href")
                _shoot(wide, "story", f"{url}{story}", 900)
                narrow = opened.new_page(
                    viewport={"width": 390, "height": 780}, color_scheme="dark"
                )
                narrow.goto(link)
                narrow.wait_for_url(f"{url}/")
                _shoot(narrow, "phone", f"{url}/?range=1h", 780, 390)
            played.worker.stop()
            worker.join(10)


if __name__ == "__main__":
    main()
