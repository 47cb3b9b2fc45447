"""Events sent to a bus, a queue or a receiver, several times, to try an installation."""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from http.client import responses
from pathlib import Path
from typing import Any, Final

import msgspec

from eventonce.aws.eventbridge import Bus
from eventonce.aws.limits import EVENTBRIDGE_BATCH_ENTRIES, batches
from eventonce.aws.sqs import Entry, Queue
from eventonce.envelope import read
from eventonce.errors import EnvelopeError
from eventonce.sinks.http_client import (
    SECRET_CHARACTERS,
    HTTPClient,
    NoAnswer,
    excerpt,
    parse_url,
)
from eventonce.sources.files import Capture

NOT_AN_EVENT: Final = "NotAnEvent"
"""The code of input that is not sent at all, besides the codes of the services."""

REFUSALS_KEPT: Final = 100
"""The most refusals that are kept whole; the others are only counted."""

SEND_ATTEMPTS: Final = 6
"""The most times that an event is sent while the service refuses it temporarily."""

RETRY_PAUSE: Final = 0.1
"""Seconds before the second attempt, doubled each time: about three seconds in all, after which a
throttled account accepts requests again."""

RECEIVER_TIMEOUT: Final = 5.0
"""Seconds to wait for an answer, as an API destination of EventBridge does."""

FIFO_GROUP: Final = "eventonce"
"""The message group of all events on a FIFO queue."""

REFUSAL_HINTS: Final[Mapping[str, str]] = {
    "NotAuthorizedForSourceException": (
        ". Only AWS and its partners can put a source that begins with aws. on a bus. Give "
        "another source, such as --source com.example.trial, and let the rule match it too"
    )
}
"""Advice about a refusal, by its code."""


class Outgoing(msgspec.Struct, frozen=True):
    """One copy of one event."""

    number: int
    """The number of the event in the file, from 1."""
    copy: int
    raw: bytes


class RefusedCopy(msgspec.Struct, frozen=True):
    """A copy that was refused, and the reason."""

    number: int
    copy: int
    code: str
    reason: str

    @classmethod
    def of(cls, outgoing: Outgoing, code: str, reason: str) -> RefusedCopy:
        """Return the refusal of this copy."""
        return cls(outgoing.number, outgoing.copy, code, reason)


class Summary(msgspec.Struct):
    """The result so far, which is also printed after an interruption."""

    events: int = 0
    copies: int = 0
    sent: int = 0
    refused: int = 0
    answers: Counter[str] = msgspec.field(default_factory=Counter)
    """The statuses that a receiver reports for the events, or the codes of the refusals."""
    refusals: list[RefusedCopy] = []


Send = Callable[[Sequence[Outgoing], Counter[str]], list[RefusedCopy]]
"""Sends these copies, in their order, counts the answers, and returns the refusals."""


def send_all(
    send: Send, path: Path, summary: Summary, *, copies: int, every: float, fresh: bool
) -> None:
    """Send all events of the file, `copies` times, with a pause of `every` seconds between."""
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    for copy in range(1, copies + 1):
        if copy > 1:
            time.sleep(every)
        summary.copies, number = copy, 0
        events = (event for raw in Capture([path]) for event in published(raw, now))
        for batch in batches(events, EVENTBRIDGE_BATCH_ENTRIES):
            going = [
                Outgoing(number + place, copy, renewed(raw) if fresh and copy > 1 else raw)
                for place, raw in enumerate(batch, start=1)
            ]
            number += len(batch)
            summary.events = max(summary.events, number)
            refusals = send(going, summary.answers)
            summary.sent += len(going) - len(refusals)
            summary.refused += len(refusals)
            summary.refusals += refusals[: REFUSALS_KEPT - len(summary.refusals)]


class Target:
    """A queue or a bus: sends entries in batches, with retries of those refused temporarily."""

    def __init__(self, place: Queue | Bus, entry_of: Callable[[Outgoing], Any]) -> None:
        """`entry_of` raises EnvelopeError for input that is not sent at all."""
        self._place: Any = place
        self._entry_of = entry_of

    def __call__(self, going: Sequence[Outgoing], answers: Counter[str]) -> list[RefusedCopy]:
        """Send these copies; return those that were refused, each with the service's code."""
        refusals: list[RefusedCopy] = []
        left: list[tuple[Outgoing, Any]] = []
        for one in going:
            try:
                left.append((one, self._entry_of(one)))
            except EnvelopeError as error:
                refusals.append(RefusedCopy.of(one, NOT_AN_EVENT, str(error)))
        for last in _attempts():
            sent_by = {id(entry): one for one, entry in left}
            refused = self._place.send([entry for _, entry in left])
            left = []
            for it in refused:
                one = sent_by[id(it.entry)]
                if it.again and not last:
                    left.append((one, it.entry))
                else:
                    reason = it.reason.rstrip(".") + REFUSAL_HINTS.get(it.code, "")
                    refusals.append(RefusedCopy.of(one, it.code, reason))
            if not left:
                break
        answers.update(refusal.code for refusal in refusals)
        return refusals

    def close(self) -> None:
        """Close connections."""
        self._place.close()


def to_queue(queue: Queue) -> Target:
    """Return the target for a queue, with the events as EventBridge would put them there.

    On a FIFO queue each copy has a deduplication id of its own: otherwise the queue, and not the
    consumer, would drop the copy.
    """

    def entry_of(outgoing: Outgoing) -> Entry:
        read(outgoing.raw)  # raises for invalid input, which EventBridge would not deliver
        body = outgoing.raw.decode()
        if not queue.fifo:
            return Entry(body)
        return Entry(body, group=FIFO_GROUP, deduplication=str(uuid.uuid4()))

    return Target(queue, entry_of)


def to_bus(bus: Bus, *, source: str | None = None, type: str | None = None) -> Target:
    """Return the target for a bus, with the events' own source, type, time, resources and detail,
    unless `source` or `type` is given. ConfigError if there is no such bus."""

    def entry_of(outgoing: Outgoing) -> dict[str, Any]:
        event = read(outgoing.raw)
        entry = bus.entry(event)
        if not entry["Detail"].lstrip().startswith("{"):
            raise EnvelopeError("the detail must be a JSON object for EventBridge")
        # A reserved source is not replaced: the user wants to see the refusal.
        entry["Source"] = source or event.source or entry["Source"]
        entry["DetailType"] = type or entry["DetailType"]
        return entry

    _ = bus.client
    return Target(bus, entry_of)


class _EventReport(msgspec.Struct):
    status: str = ""
    reason: str = ""


class _Report(msgspec.Struct):
    events: list[_EventReport] = []
    reason: str = ""
    """Why the whole request was refused."""


class ReceiverClient:
    """The client of a receiver: posts events to a URL, one a request, as EventBridge's API
    destinations do. An event is refused if the answer is anything but 2xx."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._headers = {"content-type": "application/json", "user-agent": "eventonce", **headers}
        words = (word for said in headers.values() for word in said.split())
        self._secrets = [word for word in words if len(word) >= SECRET_CHARACTERS]
        parts = parse_url(
            url,
            "--url: write https://host/path in ASCII, with no user, password or # in it; an "
            "authorisation goes into --header",
        )
        self._client = HTTPClient(parts, RECEIVER_TIMEOUT)

    def __call__(self, going: Sequence[Outgoing], answers: Counter[str]) -> list[RefusedCopy]:
        """Post these copies; return those that were refused, each with its status."""
        refusals = []
        for outgoing in going:
            try:
                answer = self._client.post(outgoing.raw, self._headers)
            except NoAnswer as error:
                answers["no answer"] += 1
                refusals.append(RefusedCopy.of(outgoing, "no answer", str(error)))
                continue
            report = _report(answer.body)
            statuses = [one.status for one in report.events if one.status]
            answers.update(statuses)
            if not 200 <= answer.status < 300:
                code = f"HTTP {answer.status}"
                if not statuses:
                    answers[code] += 1
                reasons = [one.reason for one in report.events if one.reason]
                text = "; ".join(reasons) or report.reason or answer.body.decode(errors="replace")
                reason = excerpt(text, self._secrets) or responses.get(answer.status, "")
                refusals.append(RefusedCopy.of(outgoing, code, reason))
        return refusals

    def close(self) -> None:
        """Close connections."""
        self._client.close()


def _report(body: bytes) -> _Report:
    """Return the report of the receiver; an empty one if another server answered."""
    try:
        return msgspec.json.decode(body, type=_Report)
    except msgspec.MsgspecError:
        return _Report()


def _attempts() -> Iterator[bool]:
    """Yield for each attempt whether it is the last, with a pause before all but the first."""
    for attempt in range(SEND_ATTEMPTS):
        if attempt:
            time.sleep(random.uniform(0.5, 1) * RETRY_PAUSE * 2 ** (attempt - 1))
        yield attempt == SEND_ATTEMPTS - 1


class _PutEventsEntry(msgspec.Struct):
    """An entry of a PutEvents request, as `aws events put-events` takes it."""

    source: str = msgspec.field(name="Source")
    type: str = msgspec.field(name="DetailType")
    detail: str | dict[str, Any] = msgspec.field(name="Detail")
    time: Any = msgspec.field(name="Time", default=None)
    resources: list[str] = msgspec.field(name="Resources", default=[])


class _PutEventsRequest(msgspec.Struct):
    entries: list[msgspec.Raw] = msgspec.field(name="Entries")


def published(raw: bytes, now: str) -> list[bytes]:
    """Return the event itself; for a PutEvents request, or an entry of one, the events that
    EventBridge makes of it. Their ids are derived from their text, so a copy has the same id."""
    try:
        request = msgspec.json.decode(raw, type=_PutEventsRequest)
        return [event for one in request.entries for event in published(bytes(one), now)]
    except msgspec.MsgspecError:
        pass
    try:
        entry = msgspec.json.decode(raw, type=_PutEventsEntry)
        detail = (
            msgspec.json.decode(entry.detail) if isinstance(entry.detail, str) else entry.detail
        )
    except msgspec.MsgspecError:
        return [raw]
    event = {
        "version": "0",
        # A field that is not decoded may hold bytes that are not UTF-8.
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, raw.decode(errors="backslashreplace"))),
        "detail-type": entry.type,
        "source": entry.source,
        "time": entry.time or now,
        "resources": entry.resources,
        "detail": detail,
    }
    return [msgspec.json.encode(event)]


def renewed(raw: bytes) -> bytes:
    """Return the event with a new transport id, as a second publish has it. An event without an id
    stays as it is. All other values keep their bytes."""
    try:
        if read(raw).form != "eventbridge":
            return raw
        said = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (EnvelopeError, msgspec.MsgspecError):
        return raw
    if "id" not in said:
        return raw
    return msgspec.json.encode({**said, "id": str(uuid.uuid4())})
