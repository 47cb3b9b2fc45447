"""The events of a file in rounds, each round a copy of all of them, and what became of them."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

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
    for copy in range(1, copies + 1):
        if copy > 1:
            time.sleep(every)
        summary.copies, number = copy, 0
        for batch in _batched(Capture([path]), MOST):
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
