"""The parts of an HTTP body: one event, an array or lines, and the parts that are no event."""

from __future__ import annotations

from typing import Any

import pytest

from eventonce import EnvelopeError
from eventonce.envelope import encode, read, read_body
from eventonce.envelope.reader import read_any
from eventonce.types import Event

ONE = b'{"detail-type":"call","id":"1","detail":{"call":"a"}}'


def shown(found: list[Event | bytes]) -> list[str | bytes]:
    return [part.raw.decode() if isinstance(part, Event) else part for part in found]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (ONE, [ONE.decode()]),
        (b"\xef\xbb\xbf" + ONE, [ONE.decode()]),
        (b' {"a":\n 1}', [' {"a":\n 1}']),
        (b"[]", []),
        (b'[{"a":1}, 3 ,{"b":2}]', ['{"a":1}', b"3", '{"b":2}']),
        (b'[[{"a":1}]]', [b'[{"a":1}]']),
        (b'{"a":1}\n{"b":2}\n', ['{"a":1}', '{"b":2}']),
        (b'{"a":1}\r\n\r\nno\r\n{"b":2}', ['{"a":1}', b"no", '{"b":2}']),
        # No media type says that these are lines, and the whole is no JSON: one dead letter.
        (b'{"a":1}', ['{"a":1}']),
        (b'{"a":\n1', [b'{"a":\n1']),
        (b"no\n" + ONE, [b"no\n" + ONE]),
        (b'[{"a":1},', [b'[{"a":1},']),
        (b"", [b""]),
    ],
)
def test_a_body_without_a_media_type_is_split_by_its_content(
    body: bytes, expected: list[str | bytes]
) -> None:
    assert shown(read_body(body)) == expected


@pytest.mark.parametrize("media", ["application/x-ndjson", "Application/JSONL; charset=utf-8"])
def test_a_body_with_a_media_type_of_lines_is_always_split_into_lines(media: str) -> None:
    found = read_body(b"no\n\n" + ONE + b'\n{"a":', {"content-type": media})
    assert shown(found) == [b"no", ONE.decode(), b'{"a":']


def test_a_json_text_sequence_is_split_into_lines_too() -> None:
    found = read_body(b"\x1e" + ONE + b"\n\x1e" + ONE, {"content-type": "application/json-seq"})
    assert shown(found) == [ONE.decode()] * 2


def test_each_record_of_a_queue_is_one_event() -> None:
    record = b'{"messageId":"m","eventSource":"aws:sqs","body":"{\\"a\\":1}"}'
    bad = b'{"messageId":"n","eventSource":"aws:sqs","body":"no"}'
    assert shown(read_body(b'{"Records":[%s,%s]}' % (record, bad))) == ['{"a":1}', bad]


def test_the_limit_of_bytes_holds_for_each_event_of_a_body() -> None:
    found = read_body(b'[{"a":1},{"a":"%s"}]' % (b"x" * 100), max_bytes=50)
    assert [type(part) for part in found] == [Event, bytes]


@pytest.mark.parametrize(
    ("body", "media"),
    [
        (b"1\n" * 4, "application/x-ndjson"),
        (b"{}\n" * 4, "application/json"),
        (b"[1, 2, 3, 4]", "application/json"),
        (b'{"Records":[{}, {}, {}, {}]}', "application/json"),
    ],
)
def test_too_many_events_are_refused_before_any_of_them_is_read(
    body: bytes, media: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"content-type": media}
    assert len(read_body(body, headers, max_events=4)) == 4
    tried: list[bytes] = []

    def once(part: bytes, limits: Any) -> Event:
        tried.append(part)
        return read_any(part, limits)

    monkeypatch.setattr("eventonce.envelope.bodies.read_any", once)
    with pytest.raises(EnvelopeError, match="4 events, and the limit is 3"):
        read_body(body, headers, max_events=3)
    # Lines without a media type of lines are read as one event first.
    assert tried in ([], [body])


SECRETS = (
    "authorization",
    "proxy-authorization",
    "cookie",
    "apikey",
    "x-api-key",
    "x-auth-token",
    "x-vault-token",
    "x-webhook-secret",
    "x-gitlab-token",
    "x-amzn-oidc-data",
    "x-telegram-bot-api-secret-token",
    "x-hub-signature-256",
    "x-shopify-hmac-sha256",
    "stripe-signature",
    "svix-signature",
    "webhook-signature",
    "webhook-timestamp",
    "x-anything-else",
)


def test_an_event_keeps_no_secret_header_and_other_headers_only_if_configured() -> None:
    (event,) = read_body(ONE, {"webhook-id": "m"} | dict.fromkeys(SECRETS, "secret"))
    assert isinstance(event, Event)
    assert dict(event.headers) == {"webhook-id": "m"}
    (event,) = read_body(ONE, dict.fromkeys(SECRETS, "secret"), keep={"x-anything-else", "cookie"})
    assert isinstance(event, Event)
    assert dict(event.headers) == {"x-anything-else": "secret"}


def test_a_dead_letter_that_is_sent_again_has_the_headers_of_its_first_request() -> None:
    (event,) = read_body(ONE, {"webhook-id": "m"})
    assert isinstance(event, Event)
    # A dead letter that is sent again has the headers of its event, not of the new request.
    (again,) = read_body(encode(event), {"webhook-id": "other"})
    assert isinstance(again, Event)
    assert dict(again.headers) == {"webhook-id": "m"}
    assert dict(read(encode(event)).headers) == {"webhook-id": "m"}


CLOUD = {"ce-specversion": "1.0", "ce-id": "A-1", "ce-source": "/calls", "ce-type": "call.ended"}


def test_the_body_of_a_cloudevent_in_binary_mode_is_the_data_of_one_event() -> None:
    (event,) = read_body(b'{"call":7}', CLOUD | {"content-type": "application/json"})
    assert isinstance(event, Event)
    assert (event.type, event.id, event.source) == ("call.ended", "A-1", "/calls")


@pytest.mark.parametrize("body", [b'[{"a":1},{"a":2}]', b'{"a":1}\n{"a":2}', b""])
def test_the_data_of_a_binary_cloudevent_that_is_no_object_is_one_event(body: bytes) -> None:
    (event,) = read_body(body, CLOUD)
    assert isinstance(event, Event)
    assert (event.form, event.type, event.id) == ("cloudevents", "call.ended", "A-1")


def test_each_structured_cloudevent_has_its_own_attributes() -> None:
    one = '{"specversion":"1.0","id":"%s","source":"/calls","type":"call.%s","data":{"call":7}}'
    whole = one % ("A-1", "ended")
    (event,) = read_body(whole.encode(), {"content-type": "application/cloudevents+json"})
    batch = f"[{whole},{one % ('A-2', 'begun')}]".encode()
    # A proxy may repeat the attributes of the first event as headers.
    headers = CLOUD | {"content-type": "application/cloudevents-batch+json; charset=utf-8"}
    several = [event, *read_body(batch, headers)]
    assert [(it.form, it.type, it.id) for it in several if isinstance(it, Event)] == [
        ("cloudevents", "call.ended", "A-1"),
        ("cloudevents", "call.ended", "A-1"),
        ("cloudevents", "call.begun", "A-2"),
    ]


def test_the_headers_of_a_cloudevent_give_an_event_the_attributes_that_its_envelope_lacks() -> None:
    one = '{"id":"%s","detail-type":"call.begun","detail":{"call":7}}'
    headers = CLOUD | {"content-type": "application/cloudevents-batch+json"}
    several = read_body(f"[{one % 'A-2'},{one % 'A-3'}]".encode(), headers)
    assert [(it.type, it.id, it.source) for it in several if isinstance(it, Event)] == [
        ("call.begun", "A-2", "/calls"),
        ("call.begun", "A-3", "/calls"),
    ]
