"""Observers: one log line for each outcome, and no text of a sender that forges a line."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from eventonce import Consumer, Job, Reject, Retry, Rule
from eventonce.cli.logs import JSONFormatter, TextFormatter
from eventonce.core.reasons import GIVEN_UP
from eventonce.errors import SourceUnavailable
from eventonce.log import Outage
from eventonce.runtime import invoke, observers, on_asyncio
from eventonce.runtime.observers import Tally, to_log
from eventonce.testing.harness import ManualClock
from eventonce.types import Outcome
from tests.helpers import call, ruled

LOG = logging.getLogger("tests.observe")


def test_outcomes_are_counted_and_logged_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally()
    consumer = Consumer("memory:", handler=lambda _: None, observers=[tally, to_log(LOG)])
    event = {"id": "1", "source": "s", "detail-type": "call.end", "detail": {}}
    caplog.set_level("INFO")
    consumer.process([event, event])
    assert tally.counts == {"done": 1, "duplicate": 1}
    first, second = caplog.messages
    assert {record.name for record in caplog.records} == {LOG.name}
    assert first.startswith("done type=call.end id=1 ")
    assert second.startswith("duplicate type=call.end id=1 ")


def test_an_observer_gets_the_duration_in_seconds() -> None:
    told: list[float] = []
    began = time.perf_counter()
    consumer = Consumer("memory:", handler=print, observers=[lambda _, took: told.append(took)])
    consumer.process([b"no event"])
    assert 0 <= told[0] <= time.perf_counter() - began


def test_a_line_break_from_a_sender_is_escaped_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    consumer = Consumer("memory:", handler=lambda _: None, observers=[to_log(LOG)])
    caplog.set_level("INFO")
    forged = "1\ndone type=call.end id=2"
    consumer.process([{"id": forged, "source": "s", "detail-type": "t\r", "detail": {}}])
    (line,) = caplog.messages
    assert "\n" not in line
    assert "\r" not in line
    assert r"id=1\ndone type=call.end id=2" in line


def test_an_outage_is_reported_at_its_start_then_less_and_less_often_and_at_its_end() -> None:
    now = 100.0
    outage = Outage(lambda: now)
    assert outage.ended() is None
    told = []
    for second in range(200):
        now = 100.0 + second
        if outage.tells():
            told.append(second)
    assert told == [0, 10, 20, 40, 80, 160]
    assert outage.ended() == 199
    assert outage.ended() is None
    assert outage.tells(), "the next one is told at once"


def fact(type: str, number: int = 1) -> dict[str, Any]:
    return {"id": str(number), "source": "s", "detail-type": type, "detail": {}}


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_handlers_error_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture, attempts: int
) -> None:
    def close_call(job: Job) -> None:
        job.event.detail["call"]

    rule = Rule(name="any", key="id", attempts=attempts)
    consumer = Consumer("memory:", rules=[rule], handler=close_call, observers=[to_log(LOG)])
    consumer.process([fact("call.end")])
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert 'job.event.detail["call"]' in caplog.text
    assert "in close_call" in caplog.text


@pytest.mark.parametrize("error", [Retry("later"), Reject("never"), SourceUnavailable("away")])
def test_an_error_that_was_raised_on_purpose_is_logged_without_a_traceback(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def refuse(_: Job) -> None:
        raise error

    Consumer("memory:", handler=refuse, observers=[to_log(LOG)]).process([fact("call.end")])
    assert "Traceback" not in caplog.text
    assert len(caplog.records) == 1


def test_an_invalid_event_is_logged_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    Consumer("memory:", handler=print, observers=[to_log(LOG)]).process([b"no event"])
    assert "Traceback" not in caplog.text
    assert caplog.messages[0].startswith(f"{GIVEN_UP}: invalid type=- id=- rule=- key=-: ")


def test_a_replay_that_is_only_reported_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    rule = Rule(name="any", key="id", on_replay="report")
    consumer = Consumer("memory:", rules=[rule], handler=print, observers=[to_log(LOG)])
    now = datetime.now(UTC).isoformat()
    (outcome,) = consumer.process([fact("call.end") | {"replay-name": "r", "time": now}])
    assert (outcome.status, caplog.messages) == ("ignored", [])


class Batches:
    """An observer that receives whole batches, and always raises."""

    def __init__(self) -> None:
        self.told: list[list[Outcome]] = []

    def batch(self, outcomes: Sequence[Outcome], _seconds: float, /) -> None:
        self.told.append(list(outcomes))
        raise ZeroDivisionError


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock that the handlers' durations are read from; it moves only if a test moves it."""
    clock = ManualClock()
    for module in (invoke, on_asyncio):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now / 1000))
    return clock


def test_an_observer_of_batches_is_called_once_for_each_batch(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    whole, tally = Batches(), Tally()

    def slow(job: Job) -> None:
        clock.advance(2)
        if job.event.id == "id-2":
            raise Retry("later")

    consumer = Consumer("memory:", rules=ruled(), handler=slow, observers=[whole, tally])
    consumer.process([call(1), call(2)])
    consumer.process([call(1, id="again")])
    first, (copy,) = whole.told
    assert [(one.status, one.attempt, one.same_id) for one in [*first, copy]] == [
        ("done", 1, None),
        ("failed", 1, None),
        ("duplicate", 0, False),
    ]
    assert [one.took for one in [*first, copy]] == [2, 2, 0]
    # The error of one observer does not affect the others.
    assert tally.counts == {"done": 1, "failed": 1, "duplicate": 1}
    assert "ZeroDivisionError" in caplog.text


def test_an_outcome_has_the_order_of_its_version() -> None:
    rule = Rule(name="call", match="call", subject=["detail.call"], order="detail.version")
    consumer = Consumer("memory:", rules=rule, handler=lambda _: None)
    told = consumer.process([call(1, version=7), call(1, version=3), call(1, version=7)])
    assert [(one.status, one.order) for one in told] == [
        ("done", 7),
        ("stale", 3),
        ("duplicate", 7),
    ]


def test_the_duration_of_an_async_handler_is_measured(clock: ManualClock) -> None:
    async def slow(_: Job) -> None:
        await asyncio.sleep(0)
        clock.advance(2)

    with Consumer("memory:", rules=ruled(), handler=slow) as consumer:
        assert [one.took for one in consumer.process([call(1)])] == [2]


def test_many_copies_are_logged_in_one_line_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    now = 100.0
    monkeypatch.setattr(observers, "monotonic", lambda: now)
    consumer = Consumer("memory:", rules=ruled(), handler=lambda _: None)
    consumer.observers.append(to_log(LOG, every=False))
    consumer.process([call(1)])
    assert caplog.messages == [], "what ran is left out"
    consumer.process([call(1)] * 5)
    consumer.process([call(1, id="another")] * 2)
    assert [text.partition(": ")[2] for text in caplog.messages] == [
        "the same again under the same transport id",
        "the same again under another transport id",
    ]
    now += observers.COPIES_EVERY
    consumer.process([call(1)])
    assert caplog.messages[-1].endswith("transport id; 4 more like it since the last line")
    line = json.loads(JSONFormatter().format(caplog.records[-1]))
    said = "duplicate: the same again under the same transport id"
    assert (line["message"], line["more"]) == (said, 4)
    consumer.process([b"no event"])
    assert caplog.messages[-1].startswith(f"{GIVEN_UP}: invalid ")
    shadow = Consumer("memory:", rules=ruled(shadow=True), handler=lambda _: None)
    shadow.observers.append(to_log(LOG, every=False))
    told = len(caplog.messages)
    shadow.process([call(1)] * 9)
    assert len(caplog.messages) == told + 1
    assert caplog.records[-1].levelname == "INFO"
    silent = Consumer("memory:", rules=ruled(), handler=lambda _: None)
    silent.observers.append(to_log(LOG, every=False, copies=False))
    told = len(caplog.messages)
    silent.process([call(1)] * 5)
    assert len(caplog.messages) == told


def test_copies_of_an_event_that_was_given_up_are_sampled_as_all_copies_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(_: Job) -> None:
        raise Reject("no such customer")

    caplog.set_level("INFO")
    consumer = Consumer("memory:", rules=ruled(), handler=fails)
    consumer.observers.append(to_log(LOG, every=False))
    consumer.process([call(1)])
    for _ in range(5):
        consumer.process([call(1)])
    first, again = caplog.messages
    assert first.startswith(f"{GIVEN_UP}: dead ")
    assert again.startswith("dead type=call ")
    assert again.endswith(": was given up before")


def test_a_traceback_cannot_forge_a_log_line_or_control_a_terminal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(job: Job) -> None:
        raise ValueError(job.event.detail["said"])

    consumer = Consumer("memory:", rules=ruled(), handler=fails, observers=[to_log(LOG)])
    consumer.process([call(1, said="\x1b[2J\n2026-11-18 WARNING forged\u2028ERROR forged too")])
    # pytest has formatted the traceback already, and the record keeps that text.
    caplog.records[-1].exc_text = None
    first, *others = TextFormatter().format(caplog.records[-1]).splitlines()
    assert " WARNING failed type=call " in first
    assert others[-3:] == [
        r"  ValueError: \x1b[2J",
        "  2026-11-18 WARNING forged",
        "  ERROR forged too",
    ]
    assert {line[:2] for line in others} == {"  "}


def test_a_line_of_json_has_the_fields_of_the_outcome(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")

    def fails(_: Job) -> None:
        raise ValueError("no line")

    consumer = Consumer("memory:", rules=ruled(), handler=fails, observers=[to_log(LOG)])
    consumer.process([call(1, secret="+49 30 4711")])
    line = json.loads(JSONFormatter().format(caplog.records[-1]))
    assert {name: line[name] for name in ("level", "status", "type", "id", "rule", "attempt")} == {
        "level": "warning",
        "status": "failed",
        "type": "call",
        "id": "id-1",
        "rule": "call",
        "attempt": 1,
    }
    assert line["message"] == "failed: ValueError: no line", "what is a field stands there alone"
    assert "Traceback" in line["error"]
    assert line["time"].endswith("Z")
    assert "+49 30" not in str(line)


def test_a_line_of_json_is_written_for_lone_surrogates_and_for_errors_without_text() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    # Formatted here and not logged: pytest cannot report such a text.
    def written(text: str, error: Exception | None, fields: object) -> Any:
        known = (type(error), error, None) if error is not None else None
        record = LOG.makeRecord(LOG.name, logging.WARNING, "here", 1, text, (), known)
        record.fields = fields
        return json.loads(JSONFormatter().format(record))

    for odd in (ValueError("half: \ud800"), Mute()):
        line = written("half: \udcff", odd, {"half": "\ud800"})
        assert line["message"] == "half: \udcff"
        assert type(odd).__name__ in line["error"]
    assert written("of another library", None, "a, b")["message"] == "of another library"
