"""A letter as a message of a queue, and the letter that a dead-letter queue's message is: ours,
EventBridge's, Lambda's, or one that SQS moved there itself."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from eventonce import envelope
from eventonce.aws.sqs import Entry
from eventonce.core.engine import LETTERED
from eventonce.errors import EnvelopeError
from eventonce.letterbox.invocations import discarded
from eventonce.rules.instants import LATEST
from eventonce.types import Letter, Status

LONGEST_REASON: Final = 8_192
"""Characters of a reason that travel with the letter: a page of explanation, and no megabyte."""

_REFUSED: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What SQS takes in no message."""

_BASE64: Final = re.compile("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_DIGITS: Final = re.compile("[0-9]{1,15}")


def entry_of(letter: Letter, *, fifo: bool) -> Entry:
    """The message that carries this letter: the event as its body, all else as attributes.

    Each is a message of its own on a FIFO queue too: a letter that was run again and given up
    again must not be taken for a copy of the first and dropped.
    """
    body, encoding = _body(letter.event)
    attributes = {
        "letter": letter.id,
        "consumer": letter.consumer,
        "status": letter.status,
        "reason": letter.reason[:LONGEST_REASON],
        "rule": letter.rule,
        "key": letter.key.hex(),
        "at": str(letter.at),
        "attempt": str(letter.attempt),
        "encoding": encoding,
    }
    return Entry(
        body=body,
        attributes={name: _shown(value) for name, value in attributes.items() if value},
        group=letter.id if fifo else "",
        deduplication=f"{letter.id}-{letter.at}" if fifo else "",
    )


def letter_of(message: Mapping[str, Any], consumer: str) -> Letter:
    """The letter in this message; `consumer` is whose it is if the message does not say."""
    said = _said(message)
    if _is_ours(said):
        return _ours(message, said, consumer)
    known: Mapping[str, str] = message.get("Attributes") or {}
    moved_from = known.get("DeadLetterQueueSourceArn", "")
    attempt, rule, event = 0, "", None
    if "RULE_ARN" in said or "ERROR_CODE" in said:
        reason, rule = _undelivered(said), said.get("RULE_ARN", "").partition(":rule/")[2]
        attempt = _number(said.get("RETRY_ATTEMPTS"))
    elif not moved_from and (invocation := discarded(message["Body"], said)) is not None:
        reason, attempt, event = invocation.reason, invocation.attempt, invocation.event
    else:
        reason = _moved(message, moved_from)
    return Letter(
        id=message["MessageId"],
        consumer=consumer,
        status="dead",
        reason=reason,
        rule=rule,
        key=b"",
        event=_event(message) if event is None else event,
        at=_number(known.get("SentTimestamp")),
        attempt=attempt,
    )


def _said(message: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: str(value.get("StringValue") or "")
        for name, value in (message.get("MessageAttributes") or {}).items()
    }


def _is_ours(said: Mapping[str, str]) -> bool:
    return bool(said.get("letter")) and said.get("status") in LETTERED


def _ours(message: Mapping[str, Any], said: Mapping[str, str], consumer: str) -> Letter:
    key = said.get("key", "")
    return Letter(
        id=said["letter"],
        consumer=said.get("consumer") or consumer,
        status=cast("Status", said["status"]),
        reason=said.get("reason", ""),
        rule=said.get("rule", ""),
        key=bytes.fromhex(key) if re.fullmatch("(?:[0-9a-f]{2})*", key) else b"",
        event=_bytes(message["Body"], said.get("encoding", "")),
        at=_number(said.get("at")),
        attempt=_number(said.get("attempt")),
    )


def _undelivered(said: Mapping[str, str]) -> str:
    """What EventBridge says of an event that it could not deliver."""
    code, why = said.get("ERROR_CODE", ""), said.get("ERROR_MESSAGE", "")
    circumstances = [
        said.get("EXHAUSTED_RETRY_CONDITION", ""),
        f"{said['RETRY_ATTEMPTS']} retries" if said.get("RETRY_ATTEMPTS") else "",
        said.get("TARGET_ARN", ""),
    ]
    why = ": ".join(part for part in (code, why) if part) or "it does not say why"
    around = ", ".join(part for part in circumstances if part)
    return f"not delivered by EventBridge: {why}" + (f" ({around})" if around else "")


def is_whole(message: Mapping[str, Any]) -> bool:
    """Whether one event is in this message: a Custom Event Bus only names what it gave up, and
    Lambda may have been given several."""
    said = _said(message)
    invocation = None if _is_ours(said) else discarded(message["Body"], said)
    if invocation is not None:
        return invocation.whole
    if "MessageAttributes" in message or '"busArn"' not in message["Body"]:
        return True
    try:
        record = msgspec.json.decode(message["Body"])
    except (msgspec.MsgspecError, RecursionError):
        return True
    return not isinstance(record, dict) or "busArn" not in record or "detail" in record


def _moved(message: Mapping[str, Any], source: str) -> str:
    if not is_whole(message):
        return "named by a Custom Event Bus, which keeps the event: replay it from there"
    queue = source.rpartition(":")[2]
    if queue:
        return f"received from {queue} as often as its redrive policy allows, and never deleted"
    return "found in the queue, which does not say why"


def _event(message: Mapping[str, Any]) -> bytes:
    """The event as a consumer was given it: one without an id goes by its message's."""
    body: str = message["Body"]
    try:
        return envelope.kept(
            envelope.read(
                {"MessageId": message["MessageId"], "Body": body}, max_bytes=len(body) * 4
            )
        )
    except EnvelopeError:
        return body.encode("utf-8", "surrogatepass")


def _body(event: bytes) -> tuple[str, str]:
    try:
        text = event.decode()
    except UnicodeDecodeError:
        text = "\0"
    if not event:
        # A message without a body cannot be sent.
        return "-", "none"
    return (b64encode(event).decode(), "base64") if _REFUSED.search(text) else (text, "")


def _bytes(body: str, encoding: str) -> bytes:
    match encoding:
        case "none":
            return b""
        case "base64" if _BASE64.fullmatch(body):
            return b64decode(body)
        case _:
            return body.encode("utf-8", "surrogatepass")


def _shown(value: str) -> str:
    return _REFUSED.sub(lambda found: f"\\x{ord(found[0]):02x}", value)


def _number(text: str | None) -> int:
    """What a message says is whoever's who sent it."""
    return int(text) if text and _DIGITS.fullmatch(text) and int(text) <= LATEST else 0
