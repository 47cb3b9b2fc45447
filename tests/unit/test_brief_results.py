"""`keep_result`: results that are deleted before the records of their events."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from eventonce import Consumer, Job, Rule
from eventonce.clock import wall_clock
from eventonce.config import load
from eventonce.core.ports import Store
from eventonce.envelope import read
from eventonce.history import History
from eventonce.runtime.brief_results import result_key
from eventonce.stores.memory import MemoryStore
from eventonce.stores.sqlite import SQLiteStore
from eventonce.testing.harness import ManualClock
from eventonce.types import Outcome
from tests.helpers import Run, WatchedStore, away, call, ruled, statuses

HOUR = 3_600_000
SAID = {"said": "+49 30 901820"}


def said(_: Job) -> dict[str, str]:
    return SAID


def consumer(store: Store, rule: Rule | None = None, **given: Any) -> Consumer:
    rules = rule or ruled(keep_result="1h")
    return Consumer(store, name="crm", rules=rules, handler=said, **given)


def results(outcomes: list[Outcome]) -> list[Any]:
    return [outcome.result for outcome in outcomes]


def test_copies_get_the_result_for_the_time_of_keep_result_and_stay_copies_afterwards() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=lambda: clock.now)
    with consumer(store) as one:
        calls = [call(1), call(2)]
        assert results(one.process(calls)) == [SAID, SAID]
        copies = one.process(calls)
        assert (statuses(copies), results(copies)) == (["duplicate"] * 2, [SAID] * 2)
        clock.now += HOUR
        late = one.process(calls)
        assert (statuses(late), results(late)) == (["duplicate"] * 2, [None] * 2)


def test_a_sweep_deletes_the_bytes_of_an_expired_result(tmp_path: Path) -> None:
    clock = ManualClock()
    path = tmp_path / "e.db"
    with closing(SQLiteStore(path, clock=lambda: clock.now)) as store, consumer(store) as one:
        one.process([call(1)])
        clock.now += HOUR
        assert store.sweep() == 1
        store.clear_results([])
        held = b"".join(it.read_bytes() for it in tmp_path.iterdir())
        assert b"901820" not in held
        assert statuses(one.process([call(1)])) == ["duplicate"]


def test_no_result_is_kept_if_keep_result_is_0() -> None:
    store = MemoryStore()
    with consumer(store, ruled(keep_result=0)) as one:
        one.process([call(1)])
        (copy,) = one.process([call(1)])
    assert (copy.status, copy.result) == ("duplicate", None)
    assert store.stats().records == 1
    assert not any(record.result for record in store._records.values())


def test_a_result_is_never_kept_for_longer_than_its_record() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=lambda: clock.now)
    with consumer(store, ruled(keep_result="1d", remember="1h")) as one:
        one.process([call(1)])
        assert {record.expires for record in store._records.values()} == {clock.now + HOUR}


def test_each_version_of_a_state_has_its_own_result() -> None:
    rule = Rule(
        name="call", match="call", subject=["detail.call"], order="detail.at", keep_result="1h"
    )
    with Consumer("memory:", rules=rule, handler=lambda job: job.event.detail["at"]) as one:
        first, second = call(1, at=1), call(1, at=2, id="b")
        assert results([*one.process([first]), *one.process([first])]) == [1, 1]
        assert results([*one.process([second]), *one.process([second])]) == [2, 2]
        (stale,) = one.process([first])
        assert (stale.status, stale.result) == ("stale", None)


@pytest.mark.parametrize("error", [None, ZeroDivisionError("of a store from elsewhere")])
@pytest.mark.parametrize("verb", ["claim", "settle"])
def test_a_result_that_cannot_be_kept_harms_no_event(verb: str, error: Exception | None) -> None:
    """The store fails at the claim or at the settlement, with its own or another exception."""
    store = WatchedStore(lambda *_: None)
    with consumer(store) as one:
        gone = away(verb, error=error)
        brief = result_key(one.rules.plan(read(call(1)), 1)[1].key)

        def look(asked: str, batch: Any) -> None:
            if any(getattr(it, "claim", it).key == brief for it in batch):
                gone(asked, batch)

        store.look = look
        assert statuses(one.process([call(1)])) == ["done"]
        (copy,) = one.process([call(1)])
        assert (copy.status, copy.result) == ("duplicate", None)


def test_a_result_is_not_kept_if_the_handler_uses_the_transaction(tmp_path: Path) -> None:
    def booked(job: Job) -> dict[str, str]:
        job.connection.execute("CREATE TABLE IF NOT EXISTS calls (n)")
        return SAID

    with closing(SQLiteStore(tmp_path / "e.db")) as store:
        rule = ruled(keep_result="1h")
        with Consumer(store, name="crm", rules=rule, handler=booked) as one:
            assert results(one.process([call(1)])) == [SAID]
            (copy,) = one.process([call(1)])
            assert (copy.status, copy.result) == ("duplicate", None)
            assert store.stats().records == 1


def test_results_are_kept_as_the_new_rules_say_after_a_change_of_rules() -> None:
    with consumer(MemoryStore(), ruled()) as one, consumer(MemoryStore()) as other:
        one.use(other.rules)
        one.process([call(1)])
        (copy,) = one.process([call(1)])
        assert copy.result == SAID
        (record,) = (it for it in one.admin._records.values() if it.result)  # type: ignore[attr-defined]
        assert record.expires <= wall_clock() + HOUR


def test_a_sealed_result_is_opened(tmp_path: Path) -> None:
    with consumer(SQLiteStore(tmp_path / "e.db"), sealing_keys=["11" * 32]) as one:
        one.process([call(1)])
        assert results(one.process([call(1)])) == [SAID]
        assert b"901820" not in (tmp_path / "e.db-wal").read_bytes()


def test_a_conversation_is_forgotten_with_its_kept_results(run: Run) -> None:
    Path("eventonce.toml").write_text(
        'store = "sqlite:///e.db"\nname = "crm"\n[history]\nstore = "sqlite:///h.db"\n'
        '[[rule]]\nname = "call"\nkey = ["detail.call"]\nkeep_result = "1h"\n'
    )
    with load().consumer() as one, History("sqlite:///h.db") as history:
        one.on()(said)
        one.observers.append(history.observer(one))
        event = call(1, contactId="c-1")
        one.process([event])
        history.flush()
        found = run("forget", "--conversation", "c-1", "--yes", "--json").documents[0]
        assert {"what": "results", "found": 1, "left": 0} in found["parts"]
        (copy,) = one.process([event])
        assert (copy.status, copy.result) == ("duplicate", None)


def test_an_event_that_is_forgotten_and_runs_again_has_its_new_result(run: Run) -> None:
    Path("eventonce.toml").write_text(
        'store = "sqlite:///e.db"\nname = "crm"\n'
        '[[rule]]\nname = "call"\nkey = ["detail.call"]\nkeep_result = "1h"\n'
    )
    runs: list[Job] = []
    with load().consumer() as one:

        @one.on()
        def counted(job: Job) -> int:
            runs.append(job)
            return len(runs)

        (first,) = one.process([call(1)])
        assert first.key is not None
        assert run("forget", first.key.hex(), "--yes").code == 0
        assert results([*one.process([call(1)]), *one.process([call(1)])]) == [2, 2]
