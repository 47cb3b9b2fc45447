"""Dead-letter queues: dead letters sent to an SQS queue, and those in the messages of any queue.

A message of such a queue comes from eventonce, from EventBridge or Lambda, which gave an event up,
or from SQS, which moved the message there.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple, cast

import msgspec

from eventonce import envelope
from eventonce.aws.limits import LAMBDA_INVOCATIONS
from eventonce.aws.sqs import Entry, Queue
from eventonce.core.ports import LetterSink
from eventonce.core.status import DEAD_LETTERS
from eventonce.errors import EnvelopeError, SourceUnavailable
from eventonce.rules.instants import LATEST
from eventonce.types import Letter, Status

REASON_CHARACTERS: Final = 8_192
"""The most characters of a reason in a message."""

GIVEN_UP_AFTER: Final = ("RetriesExhausted", "EventAgeExceeded")
"""The conditions under which Lambda gives an event up."""

_REFUSED: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""The characters that SQS refuses in a message."""

_BASE64: Final = re.compile("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_DIGITS: Final = re.compile("[0-9]{1,15}")
_HEX: Final = re.compile("(?:[0-9a-f]{2})*")


class QueueLetterSink:
    """Sends dead letters to a queue, each at least once.

    A dead letter that no message can hold is kept in the store, and its reason says so. Any other
    refusal is raised: the event is not acknowledged, and comes again.
    """

    def __init__(self, uri: str, store: LetterSink, *, client: Any = None) -> None:
        self._queue = Queue.from_uri(uri, client)
        self._store = store

    def put_letters(self, letters: Sequence[Letter]) -> None:
        """Send these dead letters; SourceUnavailable if the queue refused one of them."""
        entries = [entry_of(letter, fifo=self._queue.fifo) for letter in letters]
        sent = {id(entry): letter for entry, letter in zip(entries, letters, strict=True)}
        refusal = ""
        for refused in self._queue.send(entries):
            said = f"{refused.code}: {refused.reason}"
            if refused.unfit:
                self._keep(sent[id(refused.entry)], said)
            else:
                refusal = said
        if refusal:
            raise SourceUnavailable(f"{self._queue} did not take all dead letters: {refusal}")

    def close(self) -> None:
        """Close the connections."""
        self._queue.close()

    def _keep(self, letter: Letter, why: str) -> None:
        reason = f"{letter.reason}; kept in the store, not in {self._queue}: {why}"
        self._store.put_letters([msgspec.structs.replace(letter, reason=reason)])


class FoundLetter(NamedTuple):
    """A dead letter of a queue or a store, with the id of its message in a queue."""

    letter: Letter
    message: str = ""
    whole: bool = True
    """Whether the dead letter holds one complete event; otherwise it cannot be run again."""


def entry_of(letter: Letter, *, fifo: bool) -> Entry:
    """Return the message of this dead letter: the event is the body, the other fields are
    attributes.

    On a FIFO queue the deduplication id has the time: a dead letter that was run and given up again
    must not be dropped as a copy of the first.
    """
    body, encoding = _encoded(letter.event)
    attributes = {
        "letter": letter.id,
        "consumer": letter.consumer,
        "status": letter.status,
        "reason": letter.reason[:REASON_CHARACTERS],
        "rule": letter.rule,
        "key": letter.key.hex(),
        "at": str(letter.at),
        "attempt": str(letter.attempt),
        "encoding": encoding,
    }
    return Entry(
        body=body,
        attributes={
            name: _REFUSED.sub(lambda found: f"\\x{ord(found[0]):02x}", value)
            for name, value in attributes.items()
            if value
        },
        group=letter.id if fifo else "",
        deduplication=f"{letter.id}-{letter.at}" if fifo else "",
    )


class _Content(NamedTuple):
    """The content of a message that eventonce did not write: its event, and the reason."""

    reason: str
    event: bytes
    attempt: int = 0
    rule: str = ""
    whole: bool = True


def read_message(message: Mapping[str, Any], consumer: str) -> FoundLetter:
    """Return the dead letter of this message; `consumer` is used if the message names none."""
    said = {
        name: str(value.get("StringValue") or "")
        for name, value in (message.get("MessageAttributes") or {}).items()
    }
    if said.get("letter") and said.get("status") in DEAD_LETTERS:
        return FoundLetter(_ours(message["Body"], said, consumer), message["MessageId"])
    known: Mapping[str, str] = message.get("Attributes") or {}
    moved_from = known.get("DeadLetterQueueSourceArn", "")
    invocation = _invocation(message["Body"], said)
    if "RULE_ARN" in said or "ERROR_CODE" in said:
        found = _undelivered(message, said)
    elif invocation is not None and not moved_from:
        found = invocation
    else:
        found = _moved(message, moved_from)
    letter = Letter(
        id=message["MessageId"],
        consumer=consumer,
        status="dead",
        reason=found.reason,
        rule=found.rule,
        key=b"",
        event=found.event,
        at=_number(known.get("SentTimestamp")),
        attempt=found.attempt,
    )
    return FoundLetter(letter, message["MessageId"], (invocation or found).whole)


def _ours(body: str, said: Mapping[str, str], consumer: str) -> Letter:
    key = said.get("key", "")
    return Letter(
        id=said["letter"],
        consumer=said.get("consumer") or consumer,
        status=cast("Status", said["status"]),
        reason=said.get("reason", ""),
        rule=said.get("rule", ""),
        key=bytes.fromhex(key) if _HEX.fullmatch(key) else b"",
        event=_decoded(body, said.get("encoding", "")),
        at=_number(said.get("at")),
        attempt=_number(said.get("attempt")),
    )


def _undelivered(message: Mapping[str, Any], said: Mapping[str, str]) -> _Content:
    """Return an event that EventBridge could not deliver."""
    why = ": ".join(part for part in (said.get("ERROR_CODE"), said.get("ERROR_MESSAGE")) if part)
    retries = said.get("RETRY_ATTEMPTS", "")
    around = (
        said.get("EXHAUSTED_RETRY_CONDITION", ""),
        f"{retries} retries" if retries else "",
        said.get("TARGET_ARN", ""),
    )
    return _Content(
        _reason("not delivered by EventBridge", why, around),
        _event(message),
        _number(retries),
        said.get("RULE_ARN", "").partition(":rule/")[2],
    )


def _moved(message: Mapping[str, Any], source: str) -> _Content:
    """Return a message that SQS moved here, or that somebody sent here."""
    if _names_event(message):
        reason = "only named by a Custom Event Bus, which keeps the event: replay it from there"
        return _Content(reason, _event(message), whole=False)
    queue = source.rpartition(":")[2]
    if queue:
        reason = f"received from {queue} as often as its redrive policy allows, and never deleted"
    else:
        reason = "found in the queue, without a reason"
    return _Content(reason, _event(message))


def _names_event(message: Mapping[str, Any]) -> bool:
    """Whether this message only names an event that a Custom Event Bus gave up."""
    if "MessageAttributes" in message or '"busArn"' not in message["Body"]:
        return False
    try:
        record = msgspec.json.decode(message["Body"])
    except (msgspec.MsgspecError, RecursionError):
        return False
    return isinstance(record, dict) and "busArn" in record and "detail" not in record


class _Context(msgspec.Struct, frozen=True, rename="camel"):
    condition: str
    function_arn: str = ""
    approximate_invoke_count: Annotated[int, msgspec.Meta(ge=0, le=LAMBDA_INVOCATIONS)] = 0


class _Record(msgspec.Struct, frozen=True, rename="camel"):
    """The record of a failed invocation in a destination: the fields that are needed here."""

    request_context: _Context
    request_payload: msgspec.Raw
    response_payload: Any = None


def _invocation(body: str, said: Mapping[str, str]) -> _Content | None:
    """Return an asynchronous invocation that Lambda gave up, from the function's dead-letter queue
    or its on-failure destination; None if the message is not from Lambda."""
    if "RequestID" in said and "ErrorCode" in said:
        around = (f"code {said['ErrorCode']}", f"request {said['RequestID']}")
        reason = _reason("given up by Lambda", said.get("ErrorMessage", ""), around)
        return _payload(body.encode("utf-8", "surrogatepass"), reason)
    if '"requestPayload"' not in body:
        return None
    try:
        record = msgspec.json.decode(body, type=_Record)
    except (ValueError, RecursionError):
        return None
    context, raised = record.request_context, record.response_payload
    if context.condition not in GIVEN_UP_AFTER:
        return None
    times = context.approximate_invoke_count
    tried = f"tried {times} times" if times else ""
    # Without a response, the function was never invoked.
    named = (
        (raised.get("errorType"), raised.get("errorMessage")) if isinstance(raised, dict) else ()
    )
    why = ": ".join(str(part) for part in named if part)
    return _payload(
        bytes(record.request_payload),
        _reason("given up by Lambda", why, (context.condition, tried, context.function_arn)),
        times,
    )


def _payload(payload: bytes, reason: str, attempt: int = 0) -> _Content:
    """Return the event of an invocation with its own id: the function never saw an id of a message.
    Several events of one invocation cannot be run apart."""
    found = envelope.elements(payload)
    if len(found) != 1:
        reason += f"; {len(found)} events in one invocation: invoke the function with them again"
        return _Content(reason, payload, attempt, whole=False)
    try:
        event = envelope.encode(envelope.read(found[0], max_bytes=len(payload) * 4))
    except EnvelopeError:
        event = payload
    return _Content(reason, event, attempt)


def _reason(what: str, why: str, around: Sequence[str]) -> str:
    circumstances = ", ".join(part for part in around if part)
    said = f"{what}: {why or 'without a reason'}"
    return f"{said} ({circumstances})" if circumstances else said


def _event(message: Mapping[str, Any]) -> bytes:
    """Return the event as a consumer received it; without an id, it has the id of its message."""
    body: str = message["Body"]
    carried = {"MessageId": message["MessageId"], "Body": body}
    try:
        return envelope.encode(envelope.read(carried, max_bytes=len(body) * 4))
    except EnvelopeError:
        return body.encode("utf-8", "surrogatepass")


def _encoded(event: bytes) -> tuple[str, str]:
    """Return the event as the body of a message, and the name of its encoding."""
    try:
        text = event.decode()
    except UnicodeDecodeError:
        text = "\0"
    if not event:
        # SQS refuses a message without a body.
        return "-", "none"
    return (b64encode(event).decode(), "base64") if _REFUSED.search(text) else (text, "")


def _decoded(body: str, encoding: str) -> bytes:
    match encoding:
        case "none":
            return b""
        case "base64" if _BASE64.fullmatch(body):
            return b64decode(body)
        case _:
            return body.encode("utf-8", "surrogatepass")


def _number(text: str | None) -> int:
    """Return the number in this text; 0 if it is none: anybody may have written the message."""
    return int(text) if text and _DIGITS.fullmatch(text) and int(text) <= LATEST else 0
