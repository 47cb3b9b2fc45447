"""The lane: a lone caller makes its call at once, and later callers join the next call."""

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
    """A store that answers each item in capitals; its first call waits until `go` is set."""

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
        """Ask in another thread, and return when that thread waits."""
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


def test_callers_that_ask_during_a_call_join_the_next_call() -> None:
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


def test_callers_share_a_call_only_up_to_the_limit_of_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "MOST_ITEMS", 2)
    store = Store()
    with ThreadPoolExecutor() as pool:
        scene = Scene(Lane(store.call, key), store, pool)
        asked = [scene.asks(item) for item in "abc"] + [scene.asks("d", "e", "f")]
        scene.go()
        assert [one.result(PATIENCE) for one in asked] == [["A"], ["B"], ["C"], ["D", "E", "F"]]
    assert sorted(map(len, store.calls)) == [1, 1, 2, 3]


def test_a_refused_item_does_not_affect_the_other_callers() -> None:
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


def test_an_unavailable_store_raises_its_error_for_every_caller_of_the_call() -> None:
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


def test_followers_get_their_answers_when_their_leader_is_interrupted() -> None:
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


def test_a_thread_that_is_still_the_leader_after_an_interruption_can_ask_again(
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


class LockThatWakesNoThread:
    """A replacement for the lock that a follower waits for; its release wakes no thread."""

    def release(self) -> None:
        pass


def replace_the_lock_of_b(woken: LockThatWakesNoThread, patch: pytest.MonkeyPatch) -> None:
    """Let the caller that asks for `b` wait for this lock."""
    made = lanes._Entry.__init__

    def making(entry: lanes._Entry[str, str], items: Sequence[str]) -> None:
        made(entry, items)
        if items == ["b"]:
            entry.woken = woken  # type: ignore[assignment]

    patch.setattr(lanes._Entry, "__init__", making)


MOMENTS = ["before the call", "in the call", "in the call, and its leader, too", "after the call"]


@pytest.mark.parametrize("told", [True, False], ids=["with a callback", "without a callback"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_the_answers_of_an_interrupted_caller_are_given_to_the_callback(
    moment: str, *, told: bool
) -> None:
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
            # The caller of `d` waits, because this call is still under way.
            late.append(scene.asks("d"))
            if moment.endswith("too"):
                raise Interrupt

    store.failing = called

    class Woken(LockThatWakesNoThread):
        """The lock that a follower waits for, and the signal that interrupts the wait."""

        def acquire(self, timeout: float = 0) -> bool:
            waits.set()
            assert go_on.wait(PATIENCE)
            raise Interrupt

    with ThreadPoolExecutor() as pool, pytest.MonkeyPatch.context() as patch:
        scene = Scene(lane, store, pool)
        replace_the_lock_of_b(Woken(), patch)
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


def test_a_waiting_caller_makes_its_own_call_when_the_call_under_way_never_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "LONGEST_CALL", 0.05)
    store = Store()
    with ThreadPoolExecutor() as pool:
        scene = Scene(Lane(store.call, key), store, pool)
        assert scene.asks("a").result(PATIENCE) == ["A"]
        scene.go()
        assert scene.first.result(PATIENCE) == ["FIRST"]


def test_a_caller_within_a_call_that_never_ends_makes_a_call_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, under_way, go_on = Store(), threading.Event(), threading.Event()

    def called(items: Sequence[str]) -> None:
        if len(items) > 1:
            under_way.set()
            assert go_on.wait(PATIENCE)

    class Woken(LockThatWakesNoThread):
        """A lock whose wait ends without a wake-up."""

        def acquire(self, timeout: float = 0) -> bool:
            assert under_way.wait(PATIENCE)
            return False

    store.failing = called
    replace_the_lock_of_b(Woken(), monkeypatch)
    with ThreadPoolExecutor() as pool:
        scene = Scene(Lane(store.call, key), store, pool)
        a, b = scene.asks("a"), scene.asks("b")
        scene.go()
        assert b.result(PATIENCE) == ["B"]
        go_on.set()
        assert a.result(PATIENCE) == ["A"]
