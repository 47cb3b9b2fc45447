"""Dead letters: as messages of queues, in sinks, and after a redrive that failed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventonce import Consumer, Job, Reject, Retry, Rule
from eventonce.aws.dlq import QueueLetterSink, entry_of, read_message
from eventonce.aws.sqs import Entry
from eventonce.envelope import read
from eventonce.errors import ConfigError, EventonceError, SourceUnavailable, StoreUnavailable
from eventonce.stores.memory import MemoryStore
from eventonce.testing.harness import CLOCK_START, ManualClock
from eventonce.types import Letter
from tests.helpers import Look, WatchedStore, away, call, reject, statuses

CALL = Rule(name="call", match="call", key=["detail.call"], attempts=3)
DEAD = Letter("ab-1", "crm", "dead", "no such customer", "call", b"\x01\xff", b"{}", CLOCK_START, 5)


def letter_of(message: dict[str, Any], consumer: str) -> Letter:
    return read_message(message, consumer).letter


def is_whole(message: dict[str, Any]) -> bool:
    return read_message(message, "crm").whole


def delivered(entry: Entry, id: str = "message-1", **known: str) -> dict[str, Any]:
    """The message of an entry as SQS delivers it."""
    return {
        "MessageId": id,
        "ReceiptHandle": "receipt",
        "Body": entry.body,
        "Attributes": {"SentTimestamp": str(CLOCK_START), **known},
        "MessageAttributes": {
            name: {"DataType": "String", "StringValue": value}
            for name, value in entry.attributes.items()
        },
    }


@given(event=st.binary(), status=st.sampled_from(["dead", "conflict", "invalid"]))
def test_a_dead_letter_is_read_back_unchanged_from_its_message(event: bytes, status: Any) -> None:
    letter = msgspec.structs.replace(DEAD, event=event, status=status)
    for fifo in (False, True):
        assert letter_of(delivered(entry_of(letter, fifo=fifo)), "other") == letter


@given(event=st.text(), reason=st.text(st.characters(exclude_categories=["Cs"])))
def test_the_message_of_a_dead_letter_has_only_characters_that_sqs_accepts(
    event: str, reason: str
) -> None:
    letter = msgspec.structs.replace(
        DEAD, event=event.encode("utf-8", "surrogatepass"), reason=reason, rule="", key=b""
    )
    entry = entry_of(letter, fifo=False)
    for text in (entry.body, *entry.attributes.values()):
        assert text
        assert not any(
            (ord(c) < 32 and c not in "\t\n\r")
            or 0xD800 <= ord(c) < 0xE000
            or ord(c) in (0xFFFE, 0xFFFF)
            for c in text
        )
    assert len(entry.attributes) <= 10
    assert letter_of(delivered(entry), "crm").event == letter.event


def test_an_event_given_up_twice_has_two_deduplication_ids_on_a_fifo_queue() -> None:
    again = msgspec.structs.replace(DEAD, at=CLOCK_START + 1, reason="still not")
    first, second = (entry_of(letter, fifo=True).deduplication for letter in (DEAD, again))
    assert first != second


def test_a_very_long_reason_is_truncated() -> None:
    entry = entry_of(msgspec.structs.replace(DEAD, reason="x" * 3_000_000), fifo=False)
    assert len(entry.attributes["reason"]) < 10_000


BRIDGE = {
    "RULE_ARN": "arn:aws:events:eu-central-1:1:rule/orders/to-lambda",
    "TARGET_ARN": "arn:aws:lambda:eu-central-1:1:function:crm",
    "ERROR_CODE": "NO_PERMISSIONS",
    "ERROR_MESSAGE": "no right to invoke",
    "EXHAUSTED_RETRY_CONDITION": "MaximumRetryAttempts",
    "RETRY_ATTEMPTS": "185",
}


def test_a_dead_letter_of_eventbridge_has_its_reason() -> None:
    letter = letter_of(delivered(Entry(call(1).decode(), BRIDGE)), "crm")
    assert (letter.id, letter.consumer, letter.status) == ("message-1", "crm", "dead")
    assert (letter.rule, letter.attempt, letter.at) == ("orders/to-lambda", 185, CLOCK_START)
    assert letter.event == call(1)
    for word in ("NO_PERMISSIONS: no right", "MaximumRetryAttempts", "185 retries", "function:crm"):
        assert word in letter.reason


LAMBDA = {
    "RequestID": "86162f4e-6b2c-492f-93de-5e1b9c5f8bd3",
    "ErrorCode": "200",
    "ErrorMessage": "1 of 1 events not settled",
}


def invocation(payload: Any, **more: Any) -> str:
    """The record of a failed invocation, as the Lambda guide gives it."""
    record = {
        "version": "1.0",
        "timestamp": "2026-11-14T18:16:05.568Z",
        "requestContext": {
            "requestId": "e4b46cbf-b738-4f5e-8880-a18cdf61200e",
            "functionArn": "arn:aws:lambda:eu-central-1:1:function:crm:$LATEST",
            "condition": "RetriesExhausted",
            "approximateInvokeCount": 3,
        },
        "requestPayload": payload,
        "responseContext": {
            "statusCode": 200,
            "executedVersion": "$LATEST",
            "functionError": "Unhandled",
        },
        "responsePayload": {"errorMessage": "exited before completing", "errorType": "Runtime"},
    }
    return json.dumps(record | more)


def test_a_dead_letter_of_a_function_has_its_reason() -> None:
    message = delivered(Entry(call(1).decode(), LAMBDA))
    letter = letter_of(message, "crm")
    assert (letter.id, letter.status, letter.at) == ("message-1", "dead", CLOCK_START)
    assert letter.event == call(1)
    assert letter.reason.startswith("given up by Lambda: 1 of 1 events not settled (code 200")
    assert LAMBDA["RequestID"] in letter.reason
    assert is_whole(message)


def test_the_event_is_read_from_the_record_of_an_on_failure_destination() -> None:
    message = delivered(Entry(invocation(json.loads(call(1)))))
    letter = letter_of(message, "crm")
    assert json.loads(letter.event) == json.loads(call(1))
    assert (letter.status, letter.attempt) == ("dead", 3)
    for word in ("Runtime: exited before", "RetriesExhausted", "tried 3 times", "function:crm"):
        assert word in letter.reason
    assert is_whole(message)


@pytest.mark.parametrize("response", [None, "text", {}, []])
def test_an_invocation_without_an_error_is_reported_as_given_up_by_lambda(
    response: Any,
) -> None:
    context = {"condition": "EventAgeExceeded"}
    body = invocation({}, requestContext=context, responsePayload=response)
    reason = letter_of(delivered(Entry(body)), "crm").reason
    assert reason == "given up by Lambda: without a reason (EventAgeExceeded)"


def test_the_payload_of_a_topic_a_pipe_or_a_queue_is_unwrapped() -> None:
    notice = {"EventSource": "aws:sns", "Sns": {"MessageId": "n-1", "Message": call(1).decode()}}
    carried = {"messageId": "m-1", "eventSource": "aws:sqs", "body": call(1).decode()}
    for payload in ({"Records": [notice]}, [json.loads(call(1))], [carried]):
        for entry in (Entry(invocation(payload)), Entry(json.dumps(payload), LAMBDA)):
            letter = letter_of(delivered(entry), "crm")
            assert json.loads(letter.event) == json.loads(call(1))


def test_an_event_without_an_id_from_lambda_gets_no_id() -> None:
    """The function did not get the message's id: with that id this would be a different event."""
    nameless = {"detail-type": "call", "detail": {"call": 1}}
    for entry in (Entry(invocation(nameless)), Entry(json.dumps(nameless), LAMBDA)):
        assert read(letter_of(delivered(entry), "crm").event).id == ""


def test_several_events_of_one_invocation_are_kept_together_and_not_run() -> None:
    several = [json.loads(call(1)), json.loads(call(2))]
    for entry in (Entry(invocation(several)), Entry(json.dumps(several), LAMBDA)):
        message = delivered(entry)
        letter = letter_of(message, "crm")
        assert not is_whole(message)
        assert "2 events in one invocation: invoke the function with them again" in letter.reason
        assert json.loads(letter.event) == several


def test_a_dead_letter_of_eventonce_is_not_unwrapped_as_a_record_of_lambda() -> None:
    record = invocation([json.loads(call(1)), json.loads(call(2))]).encode()
    letter = msgspec.structs.replace(DEAD, event=record)
    message = delivered(entry_of(letter, fifo=False))
    assert letter_of(message, "crm") == letter
    assert is_whole(message)


@pytest.mark.parametrize(
    "body",
    [
        '{"requestPayload"',
        '{"requestPayload": {}, "requestContext": 7}',
        '{"requestPayload": {}, "requestContext": {}}',
        invocation({}, requestContext={"condition": "x", "approximateInvokeCount": 10**30}),
        '{"requestPayload": {}, "requestContext": {"condition": "\ud800"}}',
        '{"requestPayload": ' + "[" * 100_000,
        call(1, requestPayload={}, requestContext={"condition": "x"}).decode(),
        invocation({}, requestContext={"condition": "Success"}),
    ],
)
def test_a_message_that_only_resembles_a_record_of_lambda_is_an_ordinary_message(body: str) -> None:
    message = delivered(Entry(body))
    assert "without a reason" in letter_of(message, "crm").reason
    assert is_whole(message)


def test_a_record_of_lambda_that_sqs_moved_to_a_dead_letter_queue_is_not_unwrapped() -> None:
    body = invocation(json.loads(call(1)))
    message = delivered(Entry(body), DeadLetterQueueSourceArn="arn:aws:sqs:eu-central-1:1:failed")
    letter = letter_of(message, "crm")
    assert "given up by Lambda" not in letter.reason
    assert json.loads(letter.event)["event"] == json.loads(body)


def test_a_message_that_sqs_moved_has_its_source_queue_in_the_reason() -> None:
    arn = "arn:aws:sqs:eu-central-1:1:orders"
    message = delivered(Entry(call(1).decode()), DeadLetterQueueSourceArn=arn)
    assert "received from orders" in letter_of(message, "crm").reason
    assert "without a reason" in letter_of(delivered(Entry("{}")), "crm").reason


def test_an_event_without_an_id_gets_the_id_of_its_message() -> None:
    """A worker gave the event that id; with another id it would be a different event."""
    nameless = json.dumps({"detail-type": "call", "detail": {"call": 1}})
    letter = letter_of(delivered(Entry(nameless), id="m-7"), "crm")
    assert read(letter.event).id == "m-7"


def test_a_body_that_is_no_event_is_kept_as_it_is() -> None:
    assert letter_of(delivered(Entry("no json \ud800")), "crm").event == b"no json \xed\xa0\x80"


@pytest.mark.parametrize(
    ("said", "body"),
    [
        ({"letter": "x", "status": "dead", "encoding": "base64"}, "no base64 é"),
        ({"letter": "x", "status": "dead", "encoding": "base64"}, "abc"),
        ({"letter": "x", "status": "dead", "at": "9" * 5000, "attempt": "²"}, "abc"),
        ({"letter": "x", "status": "dead", "at": "9" * 15, "key": "zz"}, "abc"),
        ({"letter": "x", "status": "perhaps"}, "abc"),
        ({"RULE_ARN": "x", "RETRY_ATTEMPTS": "-1"}, "abc"),
    ],
)
def test_a_message_with_wrong_attributes_is_read_as_a_dead_letter(
    said: dict[str, str], body: str
) -> None:
    letter = letter_of(delivered(Entry(body, said)), "crm")
    assert (letter.event, letter.consumer, letter.key) == (body.encode(), "crm", b"")
    assert letter.at in (0, CLOCK_START)


def test_binary_attributes_are_ignored() -> None:
    message = delivered(Entry("abc", {"status": "dead"}))
    for name in ("letter", "consumer"):
        message["MessageAttributes"][name] = {"DataType": "Binary", "BinaryValue": b"x"}
    letter = letter_of(message, "crm")
    assert (letter.id, letter.consumer) == ("message-1", "crm")


def test_a_record_that_only_names_an_event_is_not_whole() -> None:
    """A Custom Event Bus keeps the event and writes a record of it."""
    record = delivered(Entry('{"version": "1.0", "busArn": "arn:…", "events": []}'))
    record.pop("MessageAttributes")
    assert not is_whole(record)
    assert "replay it" in letter_of(record, "crm").reason
    mentioned = delivered(Entry(call(1, busArn="arn:…").decode()))
    mentioned.pop("MessageAttributes")
    assert is_whole(mentioned)


class Sink:
    """A `LetterSink` that a user has written."""

    def __init__(self, error: EventonceError | None = None) -> None:
        self.error = error
        self.letters: list[Letter] = []

    def put_letters(self, letters: Sequence[Letter]) -> None:
        if self.error is not None:
            raise self.error
        self.letters += letters

    def close(self) -> None: ...


def test_dead_letters_go_to_the_sink_of_the_consumer() -> None:
    sink = Sink()
    with Consumer("memory:", rules=CALL, handler=reject, letters=sink) as consumer:
        assert statuses(consumer.process([call(1), b"no event"])) == ["dead", "invalid"]
        assert list(consumer.letters()) == []
    assert [letter.status for letter in sink.letters] == ["invalid", "dead"]


@pytest.mark.parametrize(
    "error", [SourceUnavailable(), StoreUnavailable(), ConfigError("no right to send")]
)
def test_an_event_whose_dead_letter_is_refused_is_not_acknowledged(error: EventonceError) -> None:
    sink = Sink(error)
    with Consumer("memory:", rules=CALL, handler=reject, letters=sink) as consumer:
        outcomes = consumer.process([call(1), b"no event"])
        assert statuses(outcomes) == ["failed", "failed"]
        assert not any(outcome.ack for outcome in outcomes)
        sink.error = None
        assert statuses(consumer.process([call(1), b"no event"])) == ["dead", "invalid"]
    assert len(sink.letters) == 2


class Refusing:
    """A client that refuses the first entry of a batch, which no emulator does by itself."""

    def __init__(self, code: str, *, fault: bool) -> None:
        self.failed = {"Id": "0", "Code": code, "Message": "as documented", "SenderFault": fault}

    def send_message_batch(self, **_: Any) -> dict[str, Any]:
        return {"Successful": [{"Id": "1", "MessageId": "m"}], "Failed": [self.failed]}


@pytest.mark.parametrize(
    ("code", "fault", "kept"),
    [
        ("InternalError", False, False),
        ("KmsThrottled", True, False),
        ("InvalidMessageContents", True, True),
        ("AWS.SimpleQueueService.BatchRequestTooLong", True, True),
    ],
)
def test_a_refused_dead_letter_raises_an_error_or_is_kept_in_the_store(
    code: str, fault: bool, kept: bool
) -> None:
    store = MemoryStore()
    client = Refusing(code, fault=fault)
    sink = QueueLetterSink("https://sqs.eu-central-1.amazonaws.com/1/letters", store, client=client)
    letters = [DEAD, msgspec.structs.replace(DEAD, id="ab-2")]
    if kept:
        sink.put_letters(letters)
    else:
        with pytest.raises(SourceUnavailable, match=code):
            sink.put_letters(letters)
    found = [letter.reason for letter in store.letters()]
    assert [code in reason and "kept in the store" in reason for reason in found] == [True] * kept


def test_a_dead_letter_that_fails_again_has_the_newest_reason() -> None:
    clock = ManualClock()
    said: list[Exception] = [Reject("no such customer")]

    def handler(_: Job) -> None:
        raise said[-1]

    consumer = Consumer("memory:", rules=CALL, handler=handler, clock=clock)
    consumer.process([call(1)])
    (first,) = consumer.letters()
    seen = [(first.reason, first.attempt)]
    for error in (
        Reject("customer is locked"),
        ValueError("no answer"),
        Retry("busy"),
        SourceUnavailable("the next queue is away"),
    ):
        said.append(error)
        clock.advance(60)
        consumer.redrive()
        (letter,) = consumer.letters()
        assert (letter.id, letter.event, letter.status) == (first.id, first.event, "dead")
        assert letter.at == clock.now, f"the dead letter was not rewritten after {error!r}"
        seen.append((letter.reason, letter.attempt))
    assert seen == [
        ("rejected by the handler: no such customer", 1),
        ("rejected by the handler: customer is locked", 2),
        ("ValueError: no answer", 3),
        ("Retry: busy", 4),
        ("SourceUnavailable: the next queue is away", 5),
    ]


def test_a_dead_letter_keeps_its_reason_when_no_handler_takes_it() -> None:
    store = MemoryStore()
    Consumer(store, rules=CALL, handler=reject).process([call(1)])
    other = Consumer(store, rules=CALL)
    other.on("other")(lambda _: None)
    before = list(other.letters())
    assert statuses(other.redrive()) == ["ignored"]
    assert list(other.letters()) == before


def test_a_dead_letter_keeps_its_reason_when_the_store_does_not_answer_its_claim() -> None:
    store = WatchedStore(away())
    consumer = Consumer(store, rules=CALL, handler=reject)
    consumer.process([call(1)])
    before = list(consumer.letters())
    store.look = away("claim")
    assert statuses(consumer.redrive()) == ["failed"]
    assert list(consumer.letters()) == before


def after(operations: int, look: Look) -> Look:
    """A look that begins after so many operations on dead letters."""
    left = iter(range(operations))
    return lambda verb, asked: (
        None if verb.endswith("_letters") and next(left, None) is not None else look(verb, asked)
    )


@pytest.mark.parametrize("operations", range(1, 7))
def test_a_crash_while_a_dead_letter_is_rewritten_does_not_lose_the_event(operations: int) -> None:
    store = WatchedStore(away())
    consumer = Consumer(store, rules=CALL, handler=reject)
    consumer.process([call(1)])
    store.look = after(operations, away("put_letters", "drop_letters"))
    try:
        consumer.redrive()
    except StoreUnavailable:
        assert operations < 6
    else:
        assert operations >= 6
    store.look = away()
    assert {letter.event for letter in consumer.letters()} == {call(1)}
    consumer.redrive()
    (letter,) = consumer.letters()
    assert letter.attempt >= 2
    ran: list[str] = []
    better = Consumer(store, rules=CALL, handler=lambda job: ran.append(job.event.id))
    better.redrive()
    assert (ran, list(better.letters())) == (["id-1"], [])
