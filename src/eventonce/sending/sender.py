"""The events of a file in rounds, each round a copy of all of them, and what became of them."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from eventonce.envelope import read
from eventonce.errors import EnvelopeError
from eventonce.sources.capture import Capture

MOST: Final = 10
"""Events given together: what one request to EventBridge or SQS carries."""

NOT_AN_EVENT: Final = "NotAnEvent"
"""The code of what is not sent at all, beside those of the services."""

SHOWN: Final = 100
"""Refusals that are kept whole; the others are counted."""


class Outgoing(msgspec.Struct, frozen=True):
    """One copy of one event."""

    number: int
    """Which event of the file, from 1."""
    copy: int
    raw: bytes


class Refusal(msgspec.Struct, frozen=True):
    """A copy that was not taken, and why."""

    number: int
    copy: int
    code: str
    reason: str

    @classmethod
    def of(cls, outgoing: Outgoing, code: str, reason: str) -> Refusal:
        """The refusal of this copy."""
        return cls(outgoing.number, outgoing.copy, code, reason)


class Summary(msgspec.Struct):
    """What became of all of them so far: it is told too when the sending is broken off."""

    events: int = 0
    copies: int = 0
    sent: int = 0
    refused: int = 0
    answers: Counter[str] = msgspec.field(default_factory=Counter)
    """What a receiver says became of the events, or the codes of those refused."""
    refusals: list[Refusal] = []


Send = Callable[[Sequence[Outgoing], Counter[str]], list[Refusal]]
"""Sends these, in their order; counts what is answered, and gives back what was refused."""


def send_all(
    send: Send, path: Path, summary: Summary, *, copies: int, every: float, fresh: bool
) -> None:
    """Send all events of the file, and all of them again after a pause, as often as is said."""
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    for copy in range(1, copies + 1):
        if copy > 1:
            time.sleep(every)
        summary.copies, number = copy, 0
        events = (event for raw in Capture([path]) for event in published(raw, now))
        for batch in _batched(events, MOST):
            going = [
                Outgoing(number + place, copy, renewed(raw) if fresh and copy > 1 else raw)
                for place, raw in enumerate(batch, start=1)
            ]
            number += len(batch)
            summary.events = max(summary.events, number)
            refusals = send(going, summary.answers)
            summary.sent += len(going) - len(refusals)
            summary.refused += len(refusals)
            summary.refusals += refusals[: SHOWN - len(summary.refusals)]


class _PutEvents(msgspec.Struct):
    """An entry of a PutEvents request, as `aws events put-events` takes it."""

    source: str = msgspec.field(name="Source")
    type: str = msgspec.field(name="DetailType")
    detail: str | dict[str, Any] = msgspec.field(name="Detail")
    time: Any = msgspec.field(name="Time", default=None)
    resources: list[str] = msgspec.field(name="Resources", default=[])


class _Request(msgspec.Struct):
    entries: list[msgspec.Raw] = msgspec.field(name="Entries")


def published(raw: bytes, now: str) -> list[bytes]:
    """The event itself; or, of a PutEvents request or an entry of one, the events that EventBridge
    makes of it. Their ids go by what they say: a copy has its first one's."""
    try:
        return [
            it
            for one in msgspec.json.decode(raw, type=_Request).entries
            for it in published(bytes(one), now)
        ]
    except msgspec.MsgspecError:
        pass
    try:
        entry = msgspec.json.decode(raw, type=_PutEvents)
        detail = (
            msgspec.json.decode(entry.detail) if isinstance(entry.detail, str) else entry.detail
        )
    except msgspec.MsgspecError:
        return [raw]
    event = {
        "version": "0",
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, raw.decode())),
        "detail-type": entry.type,
        "source": entry.source,
        "time": entry.time or now,
        "resources": entry.resources,
        "detail": detail,
    }
    return [msgspec.json.encode(event)]


def renewed(raw: bytes) -> bytes:
    """The event under a new transport id, as one that is published again has; if it has none it
    stays as it is. Everything else of it is kept to the byte."""
    try:
        if read(raw).form != "eventbridge":
            return raw
        said = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (EnvelopeError, msgspec.MsgspecError):
        return raw
    if "id" not in said:
        return raw
    return msgspec.json.encode({**said, "id": str(uuid.uuid4())})


def _batched(things: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    for thing in things:
        batch.append(thing)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
