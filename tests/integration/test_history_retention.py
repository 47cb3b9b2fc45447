"""The retention of a history: old decisions, and those beyond a number, are dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventonce import Consumer
from eventonce.history import History, Search, recorder
from eventonce.history import tables as tables_module
from eventonce.history.decision import (
    LONGEST_TEXT,
)
from tests.helpers import call
from tests.integration.histories import consumer


def test_decisions_beyond_the_age_or_the_number_limit_are_dropped(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_800_000_000_000
    monkeypatch.setattr(recorder, "wall_clock", lambda: now)
    monkeypatch.setattr(recorder, "TIDY_STEP", 4)
    with History(uri, keep="1d", most=5, worker="old") as old:
        consumer(old, handler=lambda _: None).process([call(n) for n in range(10)])
        old.flush()
        # A step drops at most `TIDY_STEP` decisions, and `tidy` takes as many steps as it needs.
        assert old.tidy() == 5
        assert [one.id for one in old.find(Search())] == [f"id-{n}" for n in range(5, 10)]
    now += 2 * 86_400_000
    with History(uri, keep="1d", worker="new") as new:
        consumer(new, "b", handler=lambda _: None).process([call(11)])
        new.flush()
        assert new.tidy() == 5
        assert [one.id for one in new.find(Search())] == ["id-11"]
        # The counts of dropped decisions, and the kinds that no decision has, are dropped, too.
        assert [kind[0] for _, kind, _, _ in new.counts(0, now + 120_000)] == ["b"]
        with new._tables() as tables:
            rows = tables._driver.rows("SELECT consumer FROM eventonce_history_kinds")
            tables._driver.commit()
        assert rows == [("b",)]


def test_a_decision_dated_in_the_future_does_not_keep_later_decisions_for_longer(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_900_000_000_000
    monkeypatch.setattr(recorder, "wall_clock", lambda: now)
    monkeypatch.setattr(recorder, "TIDY_STEP", 2)
    with History(uri, keep="1d") as history:
        made = consumer(history, handler=lambda _: None)
        made.process([call(0)])
        now -= 100_000_000_000
        made.process([call(n) for n in range(1, 9)])
        history.flush()
        now += 2 * 86_400_000
        made.process([call(9)])
        history.flush()
        assert history.tidy() == 8
        assert {one.id for one in history.find(Search())} == {"id-0", "id-9"}
        assert len(history.counts(now - 60_000, now + 60_000)) == 1


def test_an_idle_worker_uses_no_kind_that_was_dropped_meanwhile(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, running = 1_800_000_000_000, 1000.0
    monkeypatch.setattr(recorder, "wall_clock", lambda: now)
    monkeypatch.setattr(tables_module, "monotonic", lambda: running)
    with History(uri, keep="10m", worker="idle") as idle, History(uri, keep="10m") as busy:
        some = consumer(idle, handler=lambda _: None)
        some.process([call(1)])
        idle.flush()
        now += 2 * tables_module.UNUSED_KIND_AGE
        running += 2 * tables_module.UNUSED_KIND_AGE / 1000
        consumer(busy, handler=lambda _: None).process([call(2)])
        busy.flush()
        assert busy.tidy() == 1
        some.process([call(3)])
        idle.flush()
        assert [one.id for one in idle.find(Search())] == ["id-2", "id-3"]


def test_decisions_to_drop_are_found_without_a_scan_of_the_table(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path}/history.db") as history:
        consumer(history, handler=lambda _: None).process([call(1)])
        history.flush()
        with history._tables() as tables:
            asked: list[tuple[str, Any]] = []
            rows = tables._driver.rows
            tables._driver.rows = lambda query, values=(): (  # type: ignore[method-assign]
                asked.append((query, values)) or rows(query, values)  # type: ignore[func-returns-value]
            )
            tables.drop(0, 10, 10)
            plans = [str(rows(f"EXPLAIN QUERY PLAN {query}", values)) for query, values in asked]
    assert plans
    assert not [plan for plan in plans if "SCAN eventonce_history" in plan]


def test_decisions_written_after_a_drop_of_all_decisions_are_found(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # PostgreSQL continues its numbers, far from the segment in which an empty history begins.
    monkeypatch.setattr(tables_module, "SEGMENT_BITS", 0)
    with History(uri) as history:
        made = consumer(history, handler=lambda _: None)
        made.process([call(at) for at in range(200)])
        history.flush()
        with history._tables() as tables:
            assert tables.drop(2**60, 1, 1000) == (200, None)
        made.process([call(900, conversationId="c-1")])
        history.flush()
        assert [one.id for one in history.find(Search(id="id-900"))] == ["id-900"]
        assert history.forget("c-1") == 1


def test_ever_new_types_do_not_fill_the_disk(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_module, "MOST_KINDS", 3)
    made = Consumer("memory:", handler=lambda _: None)
    made.observers.append(history.observer(made))
    made.process([call(n, type=f"type-{n}", text="x" * 999) for n in range(6)])
    made.process([call(7, type="t" * 999)])
    history.flush()
    found = history.find(Search())
    assert [one.type for one in found[:3]] == ["type-0", "type-1", "type-2"]
    assert {one.type for one in found[3:]} == {""}
    assert all(len(one.reason) <= LONGEST_TEXT for one in found)
