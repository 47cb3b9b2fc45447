"""The timeline of a table in docs/recipes.md, where events arrive: a clock, the work, the faults.

The cache and the table of the recipes are played here, because minutes and days must pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from eventonce import StoreUnavailable
from eventonce.rules.instants import duration
from eventonce.stores.memory import MemoryStore
from eventonce.testing.harness import ManualClock
from eventonce.types import Claim, Settlement, SettleResult, Verdict
from tests.docs.arrivals import Arrival, Case


class Down(Exception):
    """The CRM does not answer."""


class Killed(BaseException):
    """The worker's process was killed."""


class Timeline:
    """The timeline of one table, where its events arrive: a clock, the work, and the faults."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.meanwhile: Callable[[], None] | None = None
        self.at_hand: list[Arrival] = []
        self.ran: set[int] = set()
        self.failed: set[int] = set()

    def work(self, _: object) -> None:
        self.deliver_concurrent_events()
        now = self.at_hand[-1]
        if now.killed:
            raise Killed
        if now.crm_down:
            self.failed.add(len(self.at_hand))
            raise Down
        self.ran.add(len(self.at_hand))

    def deliver_concurrent_events(self) -> None:
        """Deliver now, and once, the events that come at the same moment."""
        others, self.meanwhile = self.meanwhile, None
        if others is not None:
            others()

    def away(self) -> bool:
        return self.at_hand[-1].store_away

    def deliver_all(
        self, case: Case, rows: Sequence[Sequence[str]], deliver: Callable[[Arrival], str]
    ) -> list[str]:
        """The result of each arrival; its row has the time of the arrival."""
        said = [""] * len(case.arrivals)

        def one(place: int) -> None:
            arrival = case.arrivals[place]
            self.clock.now = ManualClock().now + duration(rows[place][0])
            following = place + 1
            if following < len(said) and case.arrivals[following].meanwhile:
                self.meanwhile = lambda: one(following)
            self.at_hand.append(arrival)
            depth = len(self.at_hand)
            self.ran.discard(depth)
            self.failed.discard(depth)
            said[place] = deliver(arrival)
            self.at_hand.pop()

        for place, arrival in enumerate(case.arrivals):
            if not arrival.meanwhile:
                one(place)
        return said


class Cache:
    """As much of a Redis client as the recipes use; every call by itself is atomic."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._until: dict[str, float] = {}

    def _has(self, key: str) -> bool:
        return self._timeline.clock() < self._until.get(key, 0)

    def get(self, key: str) -> str | None:
        known = self._has(key)
        self._timeline.deliver_concurrent_events()
        return "1" if known else None

    def exists(self, key: str) -> int:
        return int(self.get(key) is not None)

    def set(self, key: str, _: str, *, nx: bool = False, ex: int | None = None) -> bool | None:
        if nx and self._has(key):
            return None
        self._until[key] = float("inf") if ex is None else self._timeline.clock() + ex * 1000
        return True

    def setex(self, key: str, seconds: int, value: str) -> None:
        self.set(key, value, ex=seconds)


class Table:
    """As much of a DynamoDB table as the recipes use; expired items stay, as they do there."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._items: dict[str, dict[str, Any]] = {}

    def get_item(self, *, Key: dict[str, str]) -> dict[str, Any]:  # noqa: N803  boto3's name
        if self._timeline.away():
            raise ConnectionError
        item = self._items.get(Key["eventHash"])
        self._timeline.deliver_concurrent_events()
        return {} if item is None else {"Item": item}

    def put_item(self, *, Item: dict[str, Any]) -> None:  # noqa: N803  boto3's name
        self._items[Item["eventHash"]] = Item


class Observed:
    """A memory store that can be away, refuses a killed worker, and delivers concurrent events."""

    embedded = True

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._store = MemoryStore(clock=timeline.clock)

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        if self._timeline.away():
            raise StoreUnavailable("throttled")
        verdicts = self._store.claim(claims, now)
        self._timeline.deliver_concurrent_events()
        return verdicts

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        if self._timeline.at_hand[-1].killed:
            raise StoreUnavailable("its worker is dead")
        return self._store.settle(settlements, now)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
