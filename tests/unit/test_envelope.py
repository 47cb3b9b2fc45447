"""The envelope reader: every form of an event, and every kind of invalid input."""

from __future__ import annotations

import json
from collections import UserDict
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eventonce import presets
from eventonce.envelope import carriers, forms
from eventonce.envelope.jsontext import MAX_DEPTH, top_level
from eventonce.envelope.reader import MAX_BYTES, MAX_LAYERS, elements, encode, read
from eventonce.errors import EnvelopeError
from eventonce.rules import Rule, Ruleset
from eventonce.types import FORM_NAMES, Event
from tests.unit.made import ACD_END, ORG, SOURCE, classic, raw

NOTICE = {
    "topicName": "v2.users.9ed7d9f6-0c59-4360-ac54-40dd35eb9c2f.presence",
    "version": "2",
    "eventBody": {"source": "PURECLOUD", "organizationId": "org-7"},
    "metadata": {"CorrelationId": "x"},
}
CASE = {
    "eventId": "e-1",
    "eventType": "CaseStatusChanged",
    "createdAt": "2024-05-06T20:45:53.654Z",
    "data": {"case": {"id": "9", "status": "resolved"}},
}
CLOUD = {
    "specversion": "1.0",
    "id": "ce-1",
    "source": "/orders",
    "type": "order.made",
    "time": "2024-05-06T20:45:53Z",
    "data": {"order": 7},
}


def said(event: Event) -> tuple[str, str, str, str]:
    return event.form, event.type, event.id, event.org


def each_of(payload: Any, max_bytes: int = MAX_BYTES) -> list[Event | EnvelopeError]:
    """The events of a payload in their order, an invalid event as its error."""
    events: list[Event | EnvelopeError] = []
    for part in elements(payload):
        try:
            events.append(read(part, max_bytes=max_bytes))
        except EnvelopeError as error:
            events.append(error)
    return events


def nested(levels: int) -> bytes:
    return b'{"detail-type":"t","detail":{"a":' + b"[" * levels + b"]" * levels + b"}}"


FORMS: dict[str, tuple[Any, tuple[str, str, str, str], Any]] = {
    "EventBridge Classic": (
        classic(),
        ("eventbridge", ACD_END, classic()["id"], ORG),
        classic()["detail"],
    ),
    "a Genesys test source": (
        classic(source=f"aws.partner/genesys.com.test/cloud/{ORG}/x"),
        ("eventbridge", ACD_END, classic()["id"], ORG),
        classic()["detail"],
    ),
    "a Genesys source without its suffix": (
        classic(source="aws.partner/genesys.com/cloud/test"),
        ("eventbridge", ACD_END, classic()["id"], "test"),
        classic()["detail"],
    ),
    "another partner's source": (
        classic(source="aws.partner/stripe.com/ed_123"),
        ("eventbridge", ACD_END, classic()["id"], ""),
        classic()["detail"],
    ),
    "an id that is a number": (
        classic(id=2**70 + 1),
        ("eventbridge", ACD_END, str(2**70 + 1), ORG),
        classic()["detail"],
    ),
    "a detail in a string": (
        classic(json.dumps({"a": 1})),
        ("eventbridge", ACD_END, classic()["id"], ORG),
        {"a": 1},
    ),
    "no detail-type, but a type in the detail": (
        {"id": "1", "source": "s", "detail": {"type": "conversation:call:updated"}},
        ("eventbridge", "conversation:call:updated", "1", ""),
        {"type": "conversation:call:updated"},
    ),
    "no detail-type, but a topic in the detail": (
        {"detail": {"topicName": "v2.users.u-1.presence", "eventBody": {}}},
        ("eventbridge", "v2.users.{id}.presence", "", ""),
        {"topicName": "v2.users.u-1.presence", "eventBody": {}},
    ),
    "an envelope that lost its detail": (
        {"id": "1", "detail-type": "t", "source": "s", "x": 1},
        ("eventbridge", "t", "1", ""),
        {"id": "1", "detail-type": "t", "source": "s", "x": 1},
    ),
    "a Genesys notification": (
        NOTICE,
        ("genesys", "v2.users.{id}.presence", "", "org-7"),
        NOTICE,
    ),
    "a transformed body that kept the Genesys detail": (
        classic()["detail"],
        ("genesys", ACD_END, "", ""),
        classic()["detail"],
    ),
    "a transformed body that kept another detail": (
        {"conversationId": "c", "state": "alerting", "type": "t"},
        ("json", "t", "", ""),
        {"conversationId": "c", "state": "alerting", "type": "t"},
    ),
    "a CXone digital event": (CASE, ("cxone", "CaseStatusChanged", "e-1", ""), CASE),
    "a CXone reply": (
        {"eventId": "e-2", "postback": {"eventType": "TokenRefreshed", "data": {}}},
        ("cxone", "TokenRefreshed", "e-2", ""),
        {"eventId": "e-2", "postback": {"eventType": "TokenRefreshed", "data": {}}},
    ),
    "a CXone agent event": (
        {"Type": "CallContactEvent", "ContactID": 281474976710657000},
        ("cxone", "CallContactEvent", "", ""),
        {"Type": "CallContactEvent", "ContactID": 281474976710657000},
    ),
    "a CXone payload": (
        {"id": "1", "type": "contact.ended", "payload": {"interactionId": "i"}},
        ("cxone", "contact.ended", "", ""),
        {"interactionId": "i"},
    ),
    "CloudEvents": (CLOUD, ("cloudevents", "order.made", "ce-1", ""), {"order": 7}),
    "CloudEvents with its data in a string": (
        {**CLOUD, "data": '{"order": 7}'},
        ("cloudevents", "order.made", "ce-1", ""),
        {"order": 7},
    ),
    "CloudEvents without data": (
        {"specversion": "1.0", "id": "1", "source": "s", "type": "t"},
        ("cloudevents", "t", "1", ""),
        {"specversion": "1.0", "id": "1", "source": "s", "type": "t"},
    ),
    "anything else, whose id may be anything's": (
        {"id": "user-1", "type": "t"},
        ("json", "t", "", ""),
        {"id": "user-1", "type": "t"},
    ),
    "messages that are no queue's": (
        {"Messages": [{"MessageId": "m", "Body": "hello"}], "type": "t"},
        ("json", "t", "", ""),
        {"Messages": [{"MessageId": "m", "Body": "hello"}], "type": "t"},
    ),
    "no messages": ({"Messages": []}, ("json", "", "", ""), {"Messages": []}),
    "S3's own Records, one event together": (
        {"Records": [{"eventSource": "aws:s3", "s3": {}}, {"s3": {}}]},
        ("json", "", "", ""),
        {"Records": [{"eventSource": "aws:s3", "s3": {}}, {"s3": {}}]},
    ),
}


@pytest.mark.parametrize(("given_", "expected", "detail"), FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("as_", [raw, json.dumps, dict, lambda value: bytearray(raw(value))])
def test_each_form_is_read_alike_from_bytes_text_and_dict(
    given_: Any, expected: tuple[str, str, str, str], detail: Any, as_: Any
) -> None:
    event = read(as_(given_))
    assert said(event) == expected
    assert event.detail == detail


def forms_given() -> dict[str, set[str]]:
    """The forms that each envelope of `forms.FORMS` gives to the events of the table above."""
    given_: dict[str, set[str]] = {envelope.__name__: set() for envelope in forms.FORMS}
    for sample, _, _ in FORMS.values():
        for envelope in forms.FORMS:
            event = envelope(raw(sample), top_level(raw(sample)))
            if event is not None:
                given_[envelope.__name__].add(event.form)
                break
    return given_


def test_the_name_of_every_form_is_known_to_rules() -> None:
    for envelope, names in forms_given().items():
        assert names, f"no event of the table FORMS in this file is in the envelope {envelope}"
        unknown = names - set(FORM_NAMES)
        assert not unknown, f"{envelope} gives a form that FORM_NAMES in types.py lacks: {unknown}"


def test_a_rule_may_name_each_form() -> None:
    unseen = set(FORM_NAMES) - {form for _, (form, *_), _ in FORMS.values()}
    assert not unseen, f"no event of the table FORMS in this file has the form {unseen}"
    for form in (*FORM_NAMES, "cloud*", "*"):
        assert Rule(name="r", match={"form": form}, key="id").match.form == (form,)


@pytest.mark.parametrize("given_", [form[0] for form in FORMS.values()], ids=FORMS)
def test_the_raw_bytes_of_an_event_are_read_again_as_the_same_event(given_: Any) -> None:
    event = read(given_)
    again = read(event.raw)
    assert said(again) == said(event)
    assert again.detail == event.detail


def carried(inner: Any) -> dict[str, Any]:
    """The same event in every carrier."""
    text = json.dumps(inner)
    notice = {"Type": "Notification", "MessageId": "sns-1", "TopicArn": "a", "Message": text}
    return {
        "a queue record": {"messageId": "m-1", "receiptHandle": "r", "body": text},
        "a received message": {"MessageId": "m-1", "ReceiptHandle": "r", "Body": text},
        "a record whose body is parsed": {"messageId": "m-1", "body": inner},
        "a topic's notice": notice,
        "a topic's record": {"EventSource": "aws:sns", "Sns": {"Message": text}},
        "a topic in a queue": {"messageId": "m-1", "body": json.dumps(notice)},
        "a batch of one": {"Records": [{"messageId": "m-1", "body": text}]},
        "what was received": {
            "Messages": [{"MessageId": "m-1", "ReceiptHandle": "r", "Body": text}]
        },
        "a bus": {"Data": inner, "Metadata": {}, "SystemMetadata": {"aws:EventId": "b-1"}},
        "a bus with its data in a string": {"Data": text, "SystemMetadata": {}},
        "a bus in a queue": {
            "messageId": "m-1",
            "body": json.dumps({"Data": inner, "SystemMetadata": {}}),
        },
    }


@pytest.mark.parametrize("carrier", carried(classic()))
@pytest.mark.parametrize("as_", [raw, dict])
def test_an_event_is_the_same_in_every_carrier(carrier: str, as_: Any) -> None:
    event = read(as_(carried(classic())[carrier]))
    assert said(event) == said(read(classic()))
    assert event.detail == classic()["detail"]
    again = read(event.raw)
    assert said(again) == said(event)


@pytest.mark.parametrize(
    ("carrier", "expected"),
    [("a queue record", "m-1"), ("a received message", "m-1"), ("a topic's notice", "sns-1")],
)
def test_an_event_without_an_id_has_the_id_of_its_message(carrier: str, expected: str) -> None:
    assert read(carried({"state": "x"})[carrier]).id == expected


def test_the_metadata_of_a_bus_fill_in_the_missing_fields_of_a_payload() -> None:
    event = read(
        {
            "Data": {"order": 7},
            "Metadata": {"tenant": "a"},
            "SystemMetadata": {
                "aws:EventId": "b-1",
                "aws:Source": SOURCE,
                "aws:DetailType": "order",
                "aws:IngestionTime": "2026-09-23T18:00:00Z",
                "aws:DeliveryType": "LIVE",
            },
        }
    )
    assert said(event) == ("json", "order", "b-1", ORG)
    assert (event.time, event.replay) == ("2026-09-23T18:00:00Z", "")
    assert event.detail == {"order": 7}


def test_the_data_of_a_bus_may_be_no_object() -> None:
    event = read({"Data": "CgRhYmNk", "SystemMetadata": {"aws:EventId": "b-1"}})
    assert event.id == "b-1"
    assert event.detail["Data"] == "CgRhYmNk"


@pytest.mark.parametrize(
    ("given_", "replay"),
    [
        (classic(), ""),
        (classic(replay_name="friday"), "friday"),
        ({"Data": classic(), "SystemMetadata": {"aws:DeliveryType": "REPLAY"}}, "REPLAY"),
        ({"Data": classic(), "SystemMetadata": {"aws:DeliveryType": "LIVE"}}, ""),
    ],
)
def test_a_replay_is_recognised_and_stays_a_replay_when_read_again(
    given_: Any, replay: str
) -> None:
    assert read(given_).replay == replay
    assert read(read(given_).raw).replay == replay


def test_an_event_is_returned_as_it_is() -> None:
    event = read(classic())
    assert read(event) is event


def test_integers_beyond_doubles_are_exact() -> None:
    assert read(classic({"id": 2**53 + 1})).detail == {"id": 2**53 + 1}
    assert read(raw(classic({"id": 2**80 + 1}))).detail == {"id": 2**80 + 1}


def test_a_dict_may_hold_common_python_types() -> None:
    detail = {
        "amount": Decimal("12.50"),
        "big": Decimal(2**60 + 1),
        "at": datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC),
        "id": UUID(int=7),
        "blob": b"\x00\xff",
        "more": MappingProxyType({"a": UserDict(b=1)}),
    }
    assert read(classic(detail)).detail == {
        "amount": 12.5,
        "big": 2**60 + 1,
        "at": "2025-01-02T03:04:05Z",
        "id": str(UUID(int=7)),
        "blob": "AP8=",
        "more": {"a": {"b": 1}},
    }


def test_a_number_too_large_for_a_float_is_read_as_a_decimal() -> None:
    assert read(b'{"detail-type":"t","detail":{"a":1e400}}').detail == {"a": Decimal("1E+400")}


def test_headers_are_found_by_their_names_in_lower_case() -> None:
    event = read(raw(classic()), headers={"Webhook-ID": "w-1"})
    assert event.headers == {"webhook-id": "w-1"}
    assert read({"a": 1}, headers={"Webhook-ID": "w-1"}).headers == {"webhook-id": "w-1"}


BINARY = {
    "CE-SpecVersion": "1.0",
    "CE-Id": "A-1",
    "CE-Source": "/calls%20of/41",
    "CE-Type": "call.ended",
    "CE-Time": "2026-11-15T09:00:00Z",
}


@pytest.mark.parametrize(
    "data", [{"call": 7}, {"call": 7, "type": "voice", "id": "7", "time": "noon", "source": "pbx"}]
)
def test_a_cloudevent_in_binary_mode_has_the_attributes_of_its_headers(
    data: dict[str, Any],
) -> None:
    event = read(data, headers=BINARY)
    assert (event.form, event.type, event.id) == ("cloudevents", "call.ended", "A-1")
    assert (event.source, event.time) == ("/calls of/41", "2026-11-15T09:00:00Z")
    assert event.detail == data


@pytest.mark.parametrize(
    "data",
    [{"Type": "AgentState"}, {"payload": {"call": 7}}, {"detail": {"call": 7}, "id": "other"}],
)
def test_data_that_only_looks_like_another_envelope_has_the_type_of_its_headers(
    data: dict[str, Any],
) -> None:
    event = read(data, headers=BINARY)
    assert (event.type, event.id) == ("call.ended", "A-1")


@pytest.mark.parametrize("data", [classic(), CLOUD, {"topicName": "v2.users.1.presence"}])
def test_an_envelope_around_the_data_takes_precedence_over_the_headers(
    data: dict[str, Any],
) -> None:
    form, type_, id_, org = said(read(data))
    assert said(read(data, headers=BINARY)) == (form, type_, id_ or "A-1", org)


def test_a_byte_order_mark_is_no_part_of_the_event() -> None:
    assert said(read(b"\xef\xbb\xbf" + raw(classic()))) == said(read(classic()))


def test_json_written_as_a_json_string_is_read() -> None:
    assert said(read(json.dumps(json.dumps(classic())))) == said(read(classic()))


CARRIED = json.dumps({"messageId": "1", "body": "Test message."})
TOO_DEEP = f"byte {len(nested(0)) - len(b'}}') + MAX_DEPTH - 2}"

cyclic: dict[str, Any] = {}
cyclic["again"] = cyclic

BAD: dict[str, tuple[Any, str, str]] = {
    "nothing": (b"", "byte 0", "is empty"),
    "white space": (b" \n", "byte 0", "is empty"),
    "no JSON": (b"hello", "byte 0", "not JSON"),
    "JSON cut off": (b'{"a": [1, 2', "byte 11", "not JSON"),
    "something after it": (b'{"a": 1} x', "byte 9", "Extra data"),
    "a literal that is none": (b'{"a": nil}', "byte 6", "not JSON"),
    "NaN": (b'{"a": NaN}', "byte 6", "NaN"),
    "Infinity": (b'{"a": -Infinity}', "byte 7", "Infinity"),
    "a control character": (b'{"a": "\x01"}', "byte 7", "not JSON"),
    "no UTF-8": (b'{"a": "\xff"}', "byte 7", "not UTF-8"),
    "no UTF-8 where no rule looks": (
        b'{"detail-type": "t", "detail": {"a": "\xff"}}',
        "byte 38",
        "not UTF-8",
    ),
    "no UTF-8 in a name": (b'{"\xff": 1}', "byte 2", "not UTF-8"),
    "half a surrogate pair": (b'{"a": "\\ud800"}', "byte 7", "surrogate"),
    "half a surrogate pair in text": ('{"a": "\ud800"}', "character 7", "surrogate"),
    "half a surrogate pair in a dict": ({"a": "\ud800"}, "a", "JSON"),
    "a malformed detail": (b'{"detail-type": "t", "detail": {"a": 01}}', "byte 38", "not JSON"),
    "a number": (b"7", "byte 0", "JSON object"),
    "a string": (b'"hello"', "byte 0", "JSON object"),
    "null": (b" null", "byte 1", "JSON object"),
    "a list": (b"\n[{}]", "byte 1", "a list of events"),
    "a detail that is a number": (classic(7), "detail", "not an object"),
    "a detail that is text": (classic("hello"), "detail", "not an object"),
    "a detail that is broken JSON in a string": (classic('{"a": '), "detail byte 5", "not JSON"),
    "a detail that is null": ({"detail-type": "t", "detail": None}, "detail", "not an object"),
    "a body that is text": (CARRIED, "body byte 0", "not JSON"),
    "a batch": ({"Records": [{"body": "{}"}, {"body": "{}"}]}, "Records", "batch of 2"),
    "NaN in a dict": ({"a": [{"b": float("nan")}]}, "a[0].b", "nan"),
    "a NaN of decimals": ({"a": Decimal("NaN")}, "byte 5", "NaN"),
    "infinity in a dict": (classic({"a": float("inf")}), "detail.a", "inf"),
    "what has no JSON": ({"a": 1, "b": object()}, "b", "no JSON for object"),
    "a dict with odd keys": ({(1, 2): 3}, "", "JSON"),
    "a dict that holds itself": (cyclic, "again", "nested deeper"),
    "neither bytes nor text nor dict": (7, "", "not int"),
    "None": (None, "", "not NoneType"),
    "too deep for the limit": (nested(MAX_DEPTH), TOO_DEEP, "nested deeper"),
    "too deep for any stack": (nested(100_000), TOO_DEEP, "nested deeper"),
    "too deep in another form": (b"[" * 5000 + b"]" * 5000, "byte 768", "nested deeper"),
}


@pytest.mark.parametrize(("given_", "place", "reason"), BAD.values(), ids=BAD)
def test_invalid_input_is_refused_with_its_place_and_reason(
    given_: Any, place: str, reason: str
) -> None:
    with pytest.raises(EnvelopeError, match=reason) as caught:
        read(given_)
    assert caught.value.place == place


def test_the_depth_limit_is_exact() -> None:
    assert read(nested(MAX_DEPTH - 2)).detail
    with pytest.raises(EnvelopeError, match="nested deeper"):
        read(nested(MAX_DEPTH - 1))


def test_brackets_in_strings_are_no_levels() -> None:
    text = '[{"' * MAX_DEPTH
    assert read(classic({"a": text})).detail == {"a": text}


def test_the_size_limit_counts_each_event() -> None:
    small = raw(classic())
    assert read(small, max_bytes=len(small))
    with pytest.raises(EnvelopeError, match=f"{len(small)} bytes, and the limit is 100") as caught:
        read(small, max_bytes=100)
    assert caught.value.place == "byte 100"
    with pytest.raises(EnvelopeError, match="too large"):
        read(classic(), max_bytes=100)
    with pytest.raises(EnvelopeError, match="too large"):
        read(bytearray(MAX_BYTES + 1))
    batch = {"Records": [{"messageId": "1", "body": small.decode()}] * 5}
    assert len(each_of(raw(batch), max_bytes=len(small))) == 5
    long = {"messageId": "1", "body": "x" * 101}
    [error] = each_of({"Records": [long]}, max_bytes=100)
    assert isinstance(error, EnvelopeError)
    assert "too large" in str(error)
    assert error.place == "body byte 100"


def test_carriers_in_carriers_are_not_followed_for_ever() -> None:
    wrapped: Any = classic()
    for _ in range(MAX_LAYERS):
        wrapped = {"messageId": "1", "body": wrapped}
    assert read(wrapped)
    assert read(raw(wrapped))
    for too_many in ({"messageId": "1", "body": wrapped}, raw({"messageId": "1", "body": wrapped})):
        with pytest.raises(EnvelopeError, match="wrapped too many times"):
            read(too_many)


BATCH = [
    {"messageId": "1", "body": json.dumps(classic())},
    {"messageId": "2", "body": "Test message."},
    {"messageId": "3", "body": json.dumps({**classic(), "detail": 7})},
    {"messageId": "4", "body": json.dumps(NOTICE)},
    {"messageId": "5"},
]
PLACES = ["", "body byte 0", "body.detail", "", ""]


@pytest.mark.parametrize("as_", [lambda batch: batch, raw, json.dumps])
def test_an_invalid_record_does_not_invalidate_the_other_records_of_its_batch(as_: Any) -> None:
    events = each_of(as_({"Records": BATCH}))
    assert [getattr(event, "place", "") for event in events] == PLACES
    assert [isinstance(event, Event) for event in events] == [True, False, False, True, True]


@pytest.mark.parametrize("as_", [lambda batch: batch, raw, json.dumps])
def test_a_list_of_messages_is_read_as_a_batch(as_: Any) -> None:
    received = [
        {"ReceiptHandle": "r", "Body": json.dumps(classic())},
        {"MessageId": "2", "ReceiptHandle": "r", "Body": 7},
    ]
    first, second = each_of(as_({"Messages": received}))
    assert isinstance(first, Event)
    assert isinstance(second, EnvelopeError)
    assert second.place.startswith("Body")
    with pytest.raises(EnvelopeError, match="a batch of 2 messages, not one event"):
        read(as_({"Messages": received}))


@pytest.mark.parametrize("as_", [lambda batch: batch, raw, json.dumps, tuple])
def test_a_list_is_read_element_by_element(as_: Any) -> None:
    first, second, third = each_of(as_([classic(), 7, CASE]))
    assert isinstance(first, Event)
    assert first.form == "eventbridge"
    assert isinstance(second, EnvelopeError)
    assert isinstance(third, Event)
    assert third.form == "cxone"


@pytest.mark.parametrize("payload", [b"[1, 2", b'{"Records": [', b'{"Records": NaN}', None, b""])
def test_a_payload_that_cannot_be_split_is_one_error(payload: Any) -> None:
    [error] = each_of(payload)
    assert isinstance(error, EnvelopeError)


@pytest.mark.parametrize("payload", [[], b"[]", {"Records": []}, b'{"Records": []}'])
def test_an_empty_batch_has_no_events(payload: Any) -> None:
    assert each_of(payload) == []


def test_one_event_is_a_list_of_one() -> None:
    [event] = each_of(raw(classic()))
    assert isinstance(event, Event)


@pytest.mark.parametrize(
    ("source", "headers"),
    [
        (classic(), {}),
        (classic(), {"Webhook-Id": "w-1"}),
        ({"a": 1}, {"Webhook-Id": "w-1"}),
        ({"a": 1}, BINARY),
        ({"messageId": "m-1", "body": '{"a": 1}'}, {}),
        ({"Data": classic(), "SystemMetadata": {"aws:DeliveryType": "REPLAY"}}, {}),
    ],
)
def test_an_encoded_event_is_read_with_the_same_fields_and_headers(
    source: Any, headers: Mapping[str, str]
) -> None:
    event = read(source, headers=headers)
    again = read(encode(event))
    assert said(again) == said(event)
    assert (again.headers, again.replay) == (event.headers, event.replay)
    assert (again.raw, again.detail) == (event.raw, event.detail)


def test_an_event_that_its_bytes_describe_completely_is_encoded_as_these_bytes() -> None:
    assert encode(read(raw(classic()))) == raw(classic())


words = st.text(st.sampled_from('ab{}[]":\\,0 é😀\u2028\ud800'), max_size=6)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)
NAMES = [
    "id detail detail-type source time replay-name body messageId Records Sns Message Type Data",
    "SystemMetadata Metadata topicName eventBody specversion type data payload eventId eventType",
    "postback eventonce event headers",
]
envelopes = st.dictionaries(
    st.sampled_from(" ".join(NAMES).split()), json_values | json_values.map(json.dumps), max_size=8
)


def outcome(source: Any) -> None:
    """Read the source in both ways; any exception but an EnvelopeError fails the test."""
    for event in each_of(source):
        if isinstance(event, Event):
            assert isinstance(event.detail, dict)
            assert said(read(event.raw, max_bytes=2 * MAX_BYTES))[0]
    with suppress(EnvelopeError):
        read(source)


@given(st.binary(max_size=200))
@example(b'{"a":"\\ud800')
@example(b"\xef\xbb\xbf")
@example(b'{"Records":[{"body":{}}]}')
def test_no_bytes_raise_anything_but_an_envelope_error(source: bytes) -> None:
    outcome(source)


@given(envelopes)
def test_no_envelope_raises_anything_but_an_envelope_error(source: dict[str, Any]) -> None:
    outcome(source)
    outcome(json.dumps(source))


@given(envelopes, st.data())
def test_no_damaged_envelope_raises_anything_but_an_envelope_error(
    source: dict[str, Any], data: st.DataObject
) -> None:
    damaged = bytearray(json.dumps(source).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.sampled_from(b'{}[]":,\\u019eE-+. \xff\x00x'))
    outcome(bytes(damaged))


def test_a_detail_that_no_rule_reads_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    def unpacked(*_: Any) -> Any:
        raise AssertionError("unpacked")

    monkeypatch.setattr("eventonce.types._unpacked", unpacked)
    monkeypatch.setattr("eventonce.rules.parts.decode_exact", unpacked)
    event = read(raw(classic()))
    rule, claim = Ruleset(presets.resolve("genesys"), name="n").plan(event, 1)
    assert (rule.name, bool(claim.key)) == ("genesys.session", True)
    assert repr(event).startswith("Event(type=")
    with pytest.raises(AssertionError, match="unpacked"):
        assert event.detail
    with pytest.raises(AssertionError, match="unpacked"):
        Ruleset([Rule(name="r", key="hash(detail)")], name="n").explain(event)


def _form(raw: bytes, fields: forms.Fields) -> Event | None:
    return Event(raw, raw, form="ours") if "our-event" in fields else None


def _carrier(fields: carriers.Fields) -> carriers.Wrapped | None:
    return carriers.Wrapped(fields["our-box"], "our-box") if "our-box" in fields else None


def test_a_new_envelope_and_a_new_carrier_are_one_function_and_one_line_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forms, "FORMS", (*forms.FORMS, _form))
    monkeypatch.setattr(carriers, "CARRIERS", (*carriers.CARRIERS, _carrier))
    assert read(b'{"our-box":{"our-event":7}}').form == "ours"
    assert read(b'{"their-box":{"our-event":7}}').form == "json"


@pytest.mark.parametrize("known", [True, False])
def test_an_event_of_a_queue_has_the_channel_and_the_receive_count_of_its_message(
    *, known: bool
) -> None:
    event = {"detail-type": "call", "detail": {}, **({"id": "e-1"} if known else {})}
    record = {
        "messageId": "m-1",
        "body": json.dumps(event),
        "attributes": {"ApproximateReceiveCount": "3"},
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:eu-central-1:123456789012:calls.fifo",
    }
    for form in (record, json.dumps(record), {"Records": [record]}):
        found = read(form)
        assert (found.channel, found.receives) == ("sqs:calls.fifo", 3)
        assert found.id == ("e-1" if known else "m-1")
    line = {"eventonce": 1, "channel": "sqs:calls", "receives": 2, "event": event}
    assert (read(line).channel, read(line).receives) == ("sqs:calls", 2)
    del record["eventSourceARN"], record["attributes"]
    assert (read(record).channel, read(record).receives) == ("", 0)
    record["attributes"] = {"ApproximateReceiveCount": "9" * 5000}
    assert read(record).receives == 0
