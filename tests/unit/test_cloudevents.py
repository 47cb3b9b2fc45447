"""CloudEvents as the SDK of CloudEvents sends them: binary, structured, batched, with any data."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_structured, to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from eventonce import Consumer, Job, Reject
from eventonce.envelope import encode, read, read_body
from eventonce.types import Event
from eventonce.web import receiver
from tests.unit.asking import JSON, ask
from tests.unit.endpoint import OPEN

DATA: list[tuple[Any, str | None]] = [
    (None, None),
    (None, "application/json"),
    ({"call": 7}, None),
    ({"call": 7}, "application/json"),
    ('[1, {"a": 2}]', "application/json"),
    ("[]", "application/json"),
    ("5", "application/json"),
    ("true", "application/json"),
    ("a text", None),
    ("a text", "application/json"),
    ("a text", "text/plain; charset=utf-8"),
    ("<a/>", "application/xml"),
    (b"\x00\xff", None),
    (b"\x00\xff", "application/octet-stream"),
    ("grüße".encode("latin-1"), "text/plain; charset=latin-1"),
]


def cloudevent(number: int, data: Any, media: str | None) -> CloudEvent:
    attributes = {
        "id": f"id-{number}",
        "source": "/calls",
        "type": "call.ended",
        "specversion": "1.0",
        "tenant": "grüße",
    }
    return CloudEvent(attributes | ({"datacontenttype": media} if media else {}), data)


def meant(data: str | None) -> Any:
    """The data that the SDK sends as JSON; the SDK accepts any text as JSON."""
    try:
        return None if data is None else json.loads(data)
    except ValueError:
        return data


def lowered(message: HTTPMessage) -> dict[str, str]:
    return {name.lower(): value for name, value in message.headers.items()}


class Calls:
    def __init__(self) -> None:
        self.seen: list[Event] = []
        self.consumer = Consumer("memory:", handler=self._handle)
        self.app = receiver(self.consumer, OPEN)

    def _handle(self, job: Job) -> None:
        self.seen.append(job.event)

    def send(self, message: HTTPMessage) -> list[str]:
        return ask(self.app, message.body, headers=lowered(message)).statuses


def test_every_event_of_the_sdk_runs_once_in_either_mode() -> None:
    calls = Calls()
    for number, (data, media) in enumerate(DATA):
        event = cloudevent(number, data, media)
        binary, whole = to_binary(event, JSONFormat()), to_structured(event, JSONFormat())
        assert calls.send(binary) == ["done"], (data, media)
        assert calls.send(binary) == ["duplicate"], (data, media)
        assert calls.send(whole) == ["duplicate"], (data, media)
    assert [event.id for event in calls.seen] == [f"id-{number}" for number in range(len(DATA))]
    assert {(event.type, event.source) for event in calls.seen} == {("call.ended", "/calls")}
    assert list(calls.consumer.letters()) == []


@pytest.mark.parametrize(("data", "media"), DATA)
def test_data_that_is_no_object_is_read_back_unchanged_by_the_sdk(
    data: Any, media: str | None
) -> None:
    message = to_binary(cloudevent(1, data, media), JSONFormat())
    (event,) = read_body(message.body, lowered(message))
    assert isinstance(event, Event)
    if isinstance(data, dict):
        assert event.detail == data
        return
    back = from_structured(HTTPMessage({}, event.raw), JSONFormat(), CloudEvent)
    assert back.get_extension("tenant") == "grüße"
    if isinstance(data, bytes):
        found = back.get_data()
        assert (found.encode() if isinstance(found, str) else found) == data
    else:
        assert event.detail.get("data") == meant(data)


@pytest.mark.parametrize("data", [[1, 2], True, 5, "text", None])
def test_json_without_a_content_type_is_json(data: Any) -> None:
    headers = lowered(to_binary(cloudevent(1, None, None), JSONFormat()))
    (event,) = read_body(json.dumps(data).encode(), headers)
    assert isinstance(event, Event)
    assert event.detail["data"] == data


def test_each_element_of_a_batch_of_structured_events_is_one_event() -> None:
    calls = Calls()
    whole = [
        json.loads(to_structured(cloudevent(number, data, media), JSONFormat()).body)
        for number, (data, media) in enumerate(DATA)
    ]
    headers = {"content-type": "application/cloudevents-batch+json"}
    answer = ask(calls.app, whole, headers=headers)
    assert answer.statuses == ["done"] * len(DATA)


def test_a_redriven_event_in_binary_mode_has_the_same_key_id_type_and_source() -> None:
    for data, media in DATA:
        message = to_binary(cloudevent(1, data, media), JSONFormat())
        (event,) = read_body(message.body, lowered(message))
        assert isinstance(event, Event)
        again = read(encode(event))
        rules = Consumer("memory:").rules
        assert rules.plan(again, 1)[1].key == rules.plan(event, 1)[1].key
        assert (again.id, again.type, again.source) == (event.id, event.type, event.source)


def test_a_request_without_a_content_type_that_is_no_cloudevent_is_answered_with_415() -> None:
    answer = ask(Calls().app, b"x", headers={"webhook-id": "m"})
    assert answer.status == 415


@pytest.mark.parametrize("body", [b"no event", b"\xff\xfe", b"[1", b"", b"3"])
def test_an_invalid_body_keeps_its_headers_and_each_request_is_one_dead_letter(body: bytes) -> None:
    calls = Calls()
    for id_ in ("m-1", "m-1", "m-2"):
        headers = JSON | {"webhook-id": id_, "webhook-signature": "secret"}
        assert ask(calls.app, body, headers=headers).statuses == ["invalid"]
    kept_ = [letter.event for letter in calls.consumer.letters()]
    assert len(kept_) == 2
    assert [json.loads(event)["headers"]["webhook-id"] for event in kept_] == ["m-1", "m-2"]
    assert not [event for event in kept_ if b"secret" in event]
    assert [it.status for it in calls.consumer.redrive()] == ["invalid", "invalid"]
    assert len(list(calls.consumer.letters())) == 2


def test_a_corrected_dead_letter_runs_under_the_key_of_its_request() -> None:
    calls = Calls()
    ask(calls.app, b"{broken", headers=JSON | {"webhook-id": "m-1"})
    (letter,) = calls.consumer.letters()
    mended = json.loads(letter.event) | {"event": '{"order": 1}'}
    assert [it.status for it in calls.consumer.process(mended)] == ["done"]
    answer = ask(calls.app, b'{"order": 1}', headers=JSON | {"webhook-id": "m-1"})
    assert answer.statuses == ["duplicate"]


def test_the_largest_event_is_redriven_with_its_headers() -> None:
    body = b'{"order": "%s"}' % (b"x" * 1000)
    failing = True

    def handle(_: Job) -> None:
        if failing:
            raise Reject

    consumer = Consumer("memory:", handler=handle, max_bytes=len(body))
    ask(receiver(consumer, OPEN), body, headers=JSON | {"webhook-id": "m-1"})
    failing = False
    assert [it.status for it in consumer.redrive()] == ["done"]


@pytest.mark.parametrize("headers", [JSON, JSON | {"webhook-id": "m"}])
def test_two_equal_invalid_elements_of_a_body_are_two_dead_letters(headers: dict[str, str]) -> None:
    calls = Calls()
    for _ in range(2):
        assert ask(calls.app, b"[3, 4, 3]", headers=headers).statuses == ["invalid"] * 3
    assert len(list(calls.consumer.letters())) == 3
