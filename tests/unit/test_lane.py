"""The lane: a lone caller calls at once, and whoever comes meanwhile joins the next call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from eventonce.errors import StoreError, StoreUnavailable
from eventonce.runtime import lane as lanes
from eventonce.runtime.lane import Lane
from tests.helpers import PATIENCE


class Store:
    """Answers each item with itself in capitals; the first call waits until it may go on."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.threads: list[int] = []
        self.under_way, self.go = threading.Event(), threading.Event()
        self.failing: Callable[[Sequence[str]], Exception | None] = lambda _: None

    def call(self, items: Sequence[str]) -> list[str]:
        self.calls.append(list(items))
        self.threads.append(threading.get_ident())
        if len(self.calls) == 1:
            self.under_way.set()
            assert self.go.wait(PATIENCE)
        error = self.failing(items)
        if error is not None:
            raise error
        return [item.upper() for item in items]


def key(item: str) -> bytes:
    return item[0].encode()


class Scene:
    """A lane whose first call is under way, while others ask."""

    def __init__(self, lane: Lane[str, str], store: Store, pool: ThreadPoolExecutor) -> None:
        self._lane, self._store, self._pool = lane, store, pool
        self.first = pool.submit(lane.ask, ["first"])
        assert store.under_way.wait(PATIENCE)

    def asks(self, *items: str) -> Future[list[str]]:
        """Ask in another thread; comes back when that waits."""
        before = len(self._lane._waiting)
        asked = self._pool.submit(self._lane.ask, list(items))
        end = time.monotonic() + PATIENCE
        while len(self._lane._waiting) == before:
            assert time.monotonic() < end
            time.sleep(0.001)
        return asked

    def go(self) -> None:
        self._store.go.set()


def test_a_lone_caller_makes_its_call_at_once_in_its_own_thread() -> None:
    store = Store()
    store.go.set()
    assert Lane(store.call, key).ask(["a", "b"]) == ["A", "B"]
    assert store.calls == [["a", "b"]]
    assert store.threads == [threading.get_ident()]


def test_whoever_comes_while_a_call_is_under_way_joins_the_next_one() -> None:
    store = Store()
    with ThreadPoolExecutor() as pool:
        scene = Scene(Lane(store.call, key), store, pool)
        asked = [scene.asks("a"), scene.asks("b", "c"), scene.asks("d")]
        scene.go()
        assert [one.result(PATIENCE) for one in asked] == [["A"], ["B", "C"], ["D"]]
        assert scene.first.result(PATIENCE) == ["FIRST"]
    assert store.calls == [["first"], ["a", "b", "c", "d"]]


def test_a_call_has_each_key_once() -> None:
    store = Store()
    with ThreadPoolExecutor() as pool:
        scene = Scene(Lane(store.call, key), store, pool)
        asked = [scene.asks("a1"), scene.asks("a2", "b"), scene.asks("c1"), scene.asks("c2")]
        scene.go()
        answers = [one.result(PATIENCE) for one in asked]
    assert answers == [["A1"], ["A2", "B"], ["C1"], ["C2"]]
    assert store.calls == [["first"], ["a1", "c1"], ["a2", "b", "c2"]]


def test_a_call_is_no_longer_than_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MOST_ITEMS", 2)
    store = Store()
    with ThreadPoolExecutor() as pool:
        scene = Scene(Lane(store.call, key), store, pool)
        asked = [scene.asks(item) for item in "abc"] + [scene.asks("d", "e", "f")]
        scene.go()
        assert [one.result(PATIENCE) for one in asked] == [["A"], ["B"], ["C"], ["D", "E", "F"]]
    assert sorted(map(len, store.calls)) == [1, 1, 2, 3]


def test_one_that_is_refused_does_not_spoil_the_others() -> None:
    store = Store()
    store.failing = lambda items: StoreError("too large") if "b" in items else None
    with ThreadPoolExecutor() as pool:
        scene = Scene(Lane(store.call, key), store, pool)
        a, b, c = scene.asks("a"), scene.asks("b"), scene.asks("c")
        scene.go()
        assert (a.result(PATIENCE), c.result(PATIENCE)) == (["A"], ["C"])
        with pytest.raises(StoreError, match="too large"):
            b.result(PATIENCE)
    assert store.calls == [["first"], ["a", "b", "c"], ["a"], ["b"], ["c"]]


def test_a_store_that_is_away_is_away_for_all_who_asked() -> None:
    store = Store()
    store.failing = lambda items: StoreUnavailable("away") if "a" in items else None
    with ThreadPoolExecutor() as pool:
        scene = Scene(Lane(store.call, key), store, pool)
        asked = [scene.asks("a"), scene.asks("b")]
        scene.go()
        errors = [one.exception(PATIENCE) for one in asked]
    assert all(isinstance(error, StoreUnavailable) for error in errors)
    assert errors[0] is not errors[1]
    assert store.calls == [["first"], ["a", "b"]]


class Interrupt(BaseException):
    """The exception of a signal's handler."""


def test_a_leader_that_is_interrupted_leaves_nobody_hanging() -> None:
    store = Store()
    interrupts = [Interrupt()]

    def call(items: Sequence[str]) -> list[str]:
        answers = store.call(items)
        if items != ["first"] and interrupts:
            raise interrupts.pop()
        return answers

    with ThreadPoolExecutor() as pool:
        scene = Scene(Lane(call, key), store, pool)
        a, b, c = scene.asks("a"), scene.asks("b"), scene.asks("c")
        scene.go()
        with pytest.raises(Interrupt):
            a.result(PATIENCE)
        assert (b.result(PATIENCE), c.result(PATIENCE)) == (["B"], ["C"])


def test_a_leader_that_asks_again_was_interrupted_before_it_passed_the_lead_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "LONGEST_CALL", 10 * PATIENCE)
    store = Store()
    store.go.set()
    lane = Lane(store.call, key)

    def ask() -> list[str]:
        lane._leader = threading.get_ident()
        return lane.ask(["a"])

    with ThreadPoolExecutor() as pool:
        assert pool.submit(ask).result(PATIENCE) == ["A"]


class Mute:
    """In the place of the lock that a follower waits for: nobody wakes him."""

    def release(self) -> None:
        pass


def waits_by(woken: Mute, patch: pytest.MonkeyPatch) -> None:
    """Let him who asks for `b` wait by this."""
    made = lanes._Entry.__init__

    def making(entry: lanes._Entry[str, str], items: Sequence[str]) -> None:
        made(entry, items)
        if items == ["b"]:
            entry.woken = woken  # type: ignore[assignment]

    patch.setattr(lanes._Entry, "__init__", making)


MOMENTS = ["before the call", "in the call", "in the call, and its leader, too", "after the call"]


@pytest.mark.parametrize("told", [True, False], ids=["told", "nobody to tell"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_the_answers_of_one_who_is_interrupted_are_given_back(moment: str, *, told: bool) -> None:
    """The signal comes while a follower waits for its answers."""
    store, returned = Store(), list[tuple[list[str], list[str]]]()
    tell = (lambda items, answers: returned.append((list(items), answers))) if told else None
    lane = Lane(store.call, key, tell)
    waits, go_on = threading.Event(), threading.Event()
    late: list[Future[list[str]]] = []

    def called(items: Sequence[str]) -> None:
        if moment.startswith("in the call") and "b" in items:
            go_on.set()
            assert isinstance(b.exception(PATIENCE), Interrupt)
            # It waits, for this call is still under way.
            late.append(scene.asks("d"))
            if moment.endswith("too"):
                raise Interrupt

    store.failing = called

    class Woken(Mute):
        """The lock a follower waits for, and the signal that comes there."""

        def acquire(self, timeout: float = 0) -> bool:
            waits.set()
            assert go_on.wait(PATIENCE)
            raise Interrupt

    with ThreadPoolExecutor() as pool, pytest.MonkeyPatch.context() as patch:
        scene = Scene(lane, store, pool)
        waits_by(Woken(), patch)
        a, b, c = scene.asks("a"), scene.asks("b"), scene.asks("c")
        assert waits.wait(PATIENCE)
        if moment != "before the call":
            scene.go()
            assert c.result(PATIENCE) == ["C"]
        go_on.set()
        with pytest.raises(Interrupt):
            b.result(PATIENCE)
        scene.go()
        if moment.endswith("too"):
            assert isinstance(a.exception(PATIENCE), Interrupt)
        else:
            assert a.result(PATIENCE) == ["A"]
        assert [one.result(PATIENCE) for one in (c, *late)] == [["C"], ["D"]][: 1 + len(late)]
    if moment == "in the call":
        assert store.calls[1:] == [["a", "b", "c"], ["d"]]
    answered = moment in ("in the call", "after the call")
    assert returned == ([(["b"], ["B"])] if told and answered else [])
    assert lane.ask(["z"]) == ["Z"]


def test_a_call_that_never_ends_is_made_by_one_of_those_who_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "LONGEST_CALL", 0.05)
    store = Store()
    with ThreadPoolExecutor() as pool:
        scene = Scene(Lane(store.call, key), store, pool)
        assert scene.asks("a").result(PATIENCE) == ["A"]
        scene.go()
        assert scene.first.result(PATIENCE) == ["FIRST"]


def test_who_is_part_of_a_call_that_never_ends_makes_one_of_his_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, under_way, go_on = Store(), threading.Event(), threading.Event()

    def called(items: Sequence[str]) -> None:
        if len(items) > 1:
            under_way.set()
            assert go_on.wait(PATIENCE)

    class Woken(Mute):
        """Waits too long."""

        def acquire(self, timeout: float = 0) -> bool:
            assert under_way.wait(PATIENCE)
            return False

    store.failing = called
    waits_by(Woken(), monkeypatch)
    with ThreadPoolExecutor() as pool:
        scene = Scene(Lane(store.call, key), store, pool)
        a, b = scene.asks("a"), scene.asks("b")
        scene.go()
        assert b.result(PATIENCE) == ["B"]
        go_on.set()
        assert a.result(PATIENCE) == ["A"]
