"""The taps: arriving events are written, and no event waits or fails because of a tap."""

from __future__ import annotations

import json
import logging
import sys
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eventonce.envelope.captured import Arrived, Line, line_of, own_line
from eventonce.errors import EventonceError
from eventonce.runtime import background
from eventonce.sources.files import Capture
from eventonce.study.arrivals import arrival
from eventonce.study.capture import tap
from eventonce.study.capture.recorder import Recorder
from eventonce.study.capture.tap import BackgroundLines, FileTap
from eventonce.types import Event
from eventonce.web import Serve, receiver
from tests.helpers import call, until
from tests.unit.asking import JSON, ask
from tests.unit.endpoint import Endpoint
from tests.unit.invoked import Crm, event, record

CONTEXT = SimpleNamespace(function_name="calls", aws_request_id="request-1")


def lines(path: Path) -> list[Line]:
    return [line for raw in Capture([path]) if (line := own_line(raw)) is not None]


def arrived(number: int, size: int = 0) -> Arrived:
    return Arrived(call(number, text="x" * size), "sqs:calls", f"m{number}", 5, 1)


def test_events_that_the_disk_does_not_take_in_time_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = threading.Event()
    commit = Recorder.commit

    def slow(*given: Any) -> None:
        free.wait()
        commit(*given)

    monkeypatch.setattr(Recorder, "commit", slow)
    monkeypatch.setattr(tap, "BUFFER_BYTES", 10_000)
    file_tap = FileTap(tmp_path / "calls.jsonl")
    for number in range(100):
        # The disk is not free before the end: a tap that waited would wait for ever.
        file_tap([arrived(number, size=1_000)])
    free.set()
    with caplog.at_level(logging.INFO, "eventonce.capture"):
        file_tap.close()
    written = lines(tmp_path / "calls.jsonl")
    assert (len(written), file_tap.dropped) == (file_tap.written, 100 - file_tap.written)
    assert 5 < file_tap.written < 100
    assert f"{file_tap.dropped} left out" in caplog.text


def has_written(file_tap: BackgroundLines[Arrived], count: int) -> bool:
    return file_tap.written >= count or file_tap.dropped > 0


def test_a_tap_takes_events_again_when_the_disk_has_taken_the_earlier_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tap, "BUFFER_BYTES", 3_000)
    monkeypatch.setattr(background, "WRITE_INTERVAL", 0.001)
    file_tap = FileTap(tmp_path / "calls.jsonl")
    for number in range(20):
        file_tap([arrived(number, size=1_000)])
        until(partial(has_written, file_tap, number + 1))
    assert not file_tap.dropped
    file_tap.close()
    assert len(lines(tmp_path / "calls.jsonl")) == 20


def test_a_tap_without_events_leaves_no_file(tmp_path: Path) -> None:
    file_tap = FileTap(tmp_path / "calls.jsonl")
    file_tap([])
    file_tap.close()
    assert [*tmp_path.iterdir()] == []


def test_a_list_that_the_caller_uses_again_loses_no_line(tmp_path: Path) -> None:
    file_tap = FileTap(tmp_path / "calls.jsonl")
    some: list[Arrived] = []
    for number in range(3):
        some[:] = [arrived(number)]
        file_tap(some)
    some.clear()
    file_tap.close()
    assert len(lines(tmp_path / "calls.jsonl")) == 3


def test_a_full_disk_leaves_events_out_and_raises_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise EventonceError("No space left on device")

    monkeypatch.setattr(Recorder, "commit", full)
    file_tap = FileTap(tmp_path / "calls.jsonl")
    file_tap([arrived(1)])
    file_tap.close()
    assert (file_tap.written, file_tap.dropped) == (0, 1)
    assert "No space left" in caplog.text


def test_a_line_that_cannot_be_written_does_not_end_the_tap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "WRITE_INTERVAL", 0.01)
    file_tap = FileTap(tmp_path / "calls.jsonl")
    file_tap([Arrived(call(1), "sqs:calls", "\ud800")])
    until(lambda: file_tap.dropped == 1)
    file_tap([arrived(2)])
    file_tap.close()
    assert (file_tap.written, file_tap.dropped) == (1, 1)


def test_a_tap_appends_to_the_file_of_an_earlier_tap(tmp_path: Path) -> None:
    for number in range(3):
        file_tap = FileTap(tmp_path / "calls.jsonl.gz")
        file_tap([arrived(number)])
        file_tap.close()
    assert [line.id for line in lines(tmp_path / "calls.jsonl.gz")] == ["m0", "m1", "m2"]


def printed(capsys: pytest.CaptureFixture[str]) -> list[Line]:
    found = [own_line(line.encode()) for line in capsys.readouterr().out.splitlines()]
    assert None not in found
    return [line for line in found if line is not None]


def test_a_function_prints_the_messages_of_a_batch(capsys: pytest.CaptureFixture[str]) -> None:
    second = record("b", body="no json")
    second["attributes"]["ApproximateReceiveCount"] = "3"
    Crm(tap=True).handler({"Records": [record("a"), second]}, CONTEXT)
    found = printed(capsys)
    told = [(one.channel, one.id, one.receives) for one in found]
    assert told == [("sqs:calls", "message-a", 1), ("sqs:calls", "message-b", 3)]
    assert json.loads(bytes(found[0].event)) == event("a")
    assert json.loads(bytes(found[1].event)) == "no json"


def test_a_retry_by_lambda_has_the_same_request_id(capsys: pytest.CaptureFixture[str]) -> None:
    crm = Crm(tap=True)
    for _ in range(2):
        crm.handler(event("a"), CONTEXT)
    told = {(one.channel, one.id, one.receives) for one in printed(capsys)}
    assert told == {("lambda:calls", "request-1", 0)}


def test_a_request_to_a_function_is_printed_only_if_admitted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    crm = Crm(tap=True, admits=lambda headers, _: headers.get("x-key") == "right")
    for key in ("wrong", "right"):
        asked = {
            "version": "2.0",
            "requestContext": {"http": {"method": "POST", "path": "/"}},
            "headers": {"content-type": "application/json", "x-key": key},
            "body": json.dumps(event("a")),
        }
        crm.handler(asked, CONTEXT)
    (found,) = printed(capsys)
    assert b'"call":"a"' in bytes(found.event).replace(b" ", b"")


@pytest.mark.parametrize(("value", "count"), [("log", 1), ("", 0), ("no", 0)])
def test_the_environment_turns_a_tap_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str, count: int
) -> None:
    monkeypatch.setenv("EVENTONCE_TAP", value)
    Crm().handler(event("a"), CONTEXT)
    assert len(printed(capsys)) == count


def test_an_event_that_cannot_be_printed_is_left_out_and_the_function_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    crm = Crm(tap=True)
    crm.handler(event("a") | {"long": "x" * 300_000}, CONTEXT)
    monkeypatch.setattr(sys, "stdout", None)
    crm.handler(event("b"), CONTEXT)
    assert crm.ran == ["a", "b"]
    assert caplog.text.count("tap: 1 of 1 events are left out of the log") == 2


def test_a_receiver_taps_the_events_of_admitted_requests_with_their_headers() -> None:
    endpoint = Endpoint()
    told: list[Arrived] = []
    with endpoint.consumer:
        app = receiver(endpoint.consumer, Serve(api_keys=["right"]), tap=told.extend)
        for key in ("wrong", "right"):
            ask(app, json.loads(call(1)), headers={**JSON, "x-api-key": key, "webhook-id": "w1"})
    (one,) = told
    assert one.channel == "http:/events"
    read = arrival(line_of(one)).event
    assert isinstance(read, Event)
    assert (read.detail["call"], read.headers["webhook-id"]) == (1, "w1")
    assert "right" not in line_of(one).decode()
