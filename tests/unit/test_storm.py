"""Many signals: `process` is interrupted at every instant, and afterwards no run, no lease and no
leader is left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventonce import Consumer, Job, Rule
from eventonce.runtime.shared_process import INSIDE_HANDLER, SharedProcess
from eventonce.stores.memory import MemoryStore
from eventonce.stores.sqlite import SQLiteStore
from eventonce.types import Outcome
from tests.helpers import PATIENCE, call
from tests.unit.interrupts import Interrupt, interrupted_everywhere

RULE = Rule(name="call", match="call", key=["detail.call"])


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> SharedProcess:
    own = SharedProcess()
    monkeypatch.setattr("eventonce.runtime.running_batch.THIS_PROCESS", own)
    return own


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    opened = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "a.db")
    yield opened
    opened.close()


def elsewhere(consumer: Consumer, number: int) -> list[Outcome]:
    """The outcomes from another thread, which must not wait for the interrupted thread."""
    outcomes: list[Outcome] = []
    thread = threading.Thread(
        target=lambda: outcomes.extend(consumer.process([call(number)])), daemon=True
    )
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it waits for a lead that nobody has"
    return outcomes


def is_idle(consumer: Consumer, here: SharedProcess) -> bool:
    """Whether no lease is held, no call has a leader or waits, and no handler runs."""
    gate = consumer.runtime.gate
    lanes = [(lane._leader, list(lane._waiting)) for lane in (gate._claims, gate._settlements)]
    return (gate.held(), gate._running, lanes) == ([], {}, [(None, [])] * 2) and not here._entered


@pytest.mark.parametrize("way", ["process", "process alone", "once"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_caller_interrupted_at_any_instant_leaves_no_run_no_lease_kept_and_no_lead(
    store: Any, here: SharedProcess, way: str
) -> None:
    numbers = iter(range(1_000_000))
    ran: list[str] = []

    def handler(job: Job) -> None:
        ran.append(job.event.id)

    with Consumer(store, name="crm", rules=RULE, handler=handler) as consumer:
        # Objects that are made only once, such as connections, are made before.
        consumer.process([call(next(numbers)), call(next(numbers))])
        current = [0]

        def act() -> None:
            if way == "process":
                consumer.process([call(current[0]), call(current[0] + 1)])
            elif way == "process alone":
                consumer.process([call(current[0])])
            else:
                with consumer.once(call(current[0])) as job:
                    handler(job)

        current = [next(numbers), next(numbers)]
        interruptions = 0
        for came in interrupted_everywhere(act):
            interruptions += isinstance(came, Interrupt)
            del came
            assert is_idle(consumer, here), interruptions
            assert not INSIDE_HANDLER.get(), "this thread counts as a handler's"
            # In this thread and in another, at once.
            outcomes = [
                *consumer.process([call(next(numbers))]),
                *elsewhere(consumer, next(numbers)),
            ]
            assert [outcome.status for outcome in outcomes] == ["done", "done"], interruptions
            current = [next(numbers), next(numbers)]
        assert interruptions > 50
    # An interrupt alone never repeats an effect.
    assert len(ran) == len(set(ran))
