"""The dashboard over a history of a million decisions: the bytes and the seconds of its first view,
and the cost of the request that is made each second while somebody watches."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from http.cookies import SimpleCookie
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import urllib3

from benchmarks import Figure
from eventonce.dashboard import Resources, dashboard, server
from eventonce.history import History
from eventonce.history.decision import NO_VERSION, Kind, Own
from eventonce.history.sqlite import SQLiteDriver, location_of
from eventonce.history.tables import Tables
from eventonce.stores.memory import MemoryStore

ROWS = 1_000_000
SPAN = 7 * 86_400
"""Seconds over which the decisions are spread."""
ROUNDS = 5
STATUSES = ["done"] * 80 + ["duplicate"] * 15 + ["failed"] * 3 + ["dead"] * 2
TYPES = 20
PATHS = {
    "of the last 7 days": "/?range=7d",
    "of a conversation": "/search?conversation=c-4711",
    "of a search for a type that is not there": "/search?type=none",
}


def _decisions(rows: int) -> Iterator[tuple[Kind, Own]]:
    """Yield decisions up to now, twenty for each conversation."""
    now = int(time.time() * 1000)
    for number in range(rows):
        status = STATUSES[number * 37 % len(STATUSES)]
        at = now - (rows - number) * SPAN * 1000 // rows
        reason = f"ConnectionError: call {number}" if status in ("failed", "dead") else ""
        type_ = f"v2.detail.events.conversation.{{id}}.{number % TYPES}"
        kind = ("crm", "w1", "sqs:calls", status, number % 2 == 0, f"rule-{number % 5}", type_, "s")
        key = number.to_bytes(16, "big")
        yield (
            kind,
            (at, reason, f"id-{number}", f"c-{number // 20}", key, NO_VERSION, 1, 4000, 1, at),
        )


class Reader:
    """A user with the link, and without any cached file of the dashboard."""

    def __init__(self, link: str) -> None:
        self._http = urllib3.PoolManager()
        welcome = self._http.request("GET", link)
        cookie = SimpleCookie(welcome.headers["set-cookie"])
        self._headers = {"cookie": "; ".join(f"{k}={v.value}" for k, v in cookie.items())}
        self._url = link.partition("/?")[0]

    def get(self, path: str) -> bytes:
        """Return one answer."""
        answer = self._http.request("GET", f"{self._url}{path}", headers=self._headers)
        assert answer.status == 200, (path, answer.data)
        return answer.data

    def view(self, path: str) -> int:
        """Return the bytes of the page and of all that it loads at once."""
        page = self.get(path).decode()
        asked = re.findall(r'(?:src|href)="(/static/[^"]+)"|data-from="([^"]+)"', page)
        found = [self.get(static or points) for static, points in asked]
        return len(page.encode()) + sum(map(len, found))


def _first_view(history: str) -> tuple[int, float]:
    """Return bytes and seconds of the overview of a new dashboard."""
    resources = Resources(MemoryStore, name="crm", history=history)
    app = dashboard(resources)
    with server.listen("0") as listening, server.serving(app, listening):
        reader = Reader(server.link_of(app, listening))
        began = time.perf_counter()
        octets = reader.view("/")
        took = time.perf_counter() - began
    resources.close()
    return octets, took


def run() -> Iterator[Figure]:
    """Yield the first view with a million decisions and with none, and other views."""
    with TemporaryDirectory() as folder:
        full, empty = f"sqlite:///{folder}/full.db", f"sqlite:///{folder}/empty.db"
        for uri in (full, empty):
            History(uri).close()
        tables = Tables(SQLiteDriver(location_of(full)))
        tables.add(_decisions(ROWS))
        tables.close()
        assert Path(folder, "full.db").stat().st_size > ROWS * 50
        views = [(_first_view(full), _first_view(empty)) for _ in range(ROUNDS)]
        took = median(seconds for (_, seconds), _ in views)
        yield Figure("first view, bytes", max(octets for (octets, _), _ in views), "", 120_000)
        yield Figure("first view with a million decisions", took, "s", at_most=1.0)
        ratio = median(million / none for (_, million), (_, none) in views)
        yield Figure("the same, in first views without a decision", ratio, "times")
        yield from _others(full)


def _others(history: str) -> Iterator[Figure]:
    resources = Resources(MemoryStore, name="crm", history=history)
    app = dashboard(resources)
    with server.listen("0") as listening, server.serving(app, listening):
        reader = Reader(server.link_of(app, listening))
        reader.view("/")
        for what, path in PATHS.items():
            began = time.perf_counter()
            reader.get(path)
            yield Figure(f"view {what}", time.perf_counter() - began, "s")
    began = time.process_time()
    for _ in range(ROUNDS):
        now = int(time.time() * 1000)
        resources.looking.counts(now - 600_000, now + 60_000, ("status",))
    yield Figure("one look, processor time", (time.process_time() - began) / ROUNDS * 1000, "ms")
    resources.close()
