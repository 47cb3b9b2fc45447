"""What is sent to a queue: entries, and the batches that one request may carry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

MOST: Final = 10
"""Messages of one request, of whatever kind: SQS takes no more."""

LARGEST: Final = 1 << 20
"""Bytes of all messages in one request, and of one message: SQS takes no more."""

UNFIT: Final = frozenset(
    ("BatchRequestTooLong", "InvalidMessageContents", "InvalidParameterValue", "TooLarge")
)
"""The refusals that are about the message itself, as they end: some come with a prefix."""

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class Entry(msgspec.Struct, frozen=True):
    """One message to send."""

    body: str
    attributes: Mapping[str, str] = _NONE
    """Text attributes; an empty value is left out, for SQS refuses it."""
    group: str = ""
    """The message group: needed on a FIFO queue, for fairness on others."""
    deduplication: str = ""
    """On a FIFO queue: the same again within five minutes is accepted and not delivered."""
    delay: int = 0
    """Seconds until it can be received, 900 at the most; not on a FIFO queue."""


class Refused(msgspec.Struct, frozen=True):
    """An entry that was not sent, and why."""

    entry: Entry
    code: str
    reason: str
    again: bool = False
    """Whether it was the service's fault, so that sending it again may help."""

    @property
    def unfit(self) -> bool:
        """Whether no queue will ever take it, however often it is sent."""
        return not self.again and self.code.rpartition(".")[2] in UNFIT


def size(entry: Entry) -> int:
    """Bytes as SQS counts them: the body, and each attribute's name, type and value."""
    attributes = sum(
        len(name.encode()) + len("String") + len(value.encode())
        for name, value in entry.attributes.items()
    )
    return len(entry.body.encode("utf-8", "surrogatepass")) + attributes


def batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """The entries in their order, as many together as one request may carry."""
    batch: list[Entry] = []
    total = 0
    for entry in entries:
        added = size(entry)
        if batch and (len(batch) == MOST or total + added > LARGEST):
            yield batch
            batch, total = [], 0
        batch.append(entry)
        total += added
    if batch:
        yield batch


def packed(number: int, entry: Entry) -> dict[str, Any]:
    """The entry as the request says it."""
    said: dict[str, Any] = {"Id": str(number), "MessageBody": entry.body}
    if entry.attributes:
        said["MessageAttributes"] = {
            name: {"DataType": "String", "StringValue": value}
            for name, value in entry.attributes.items()
            if value
        }
    if entry.group:
        said["MessageGroupId"] = entry.group
    if entry.deduplication:
        said["MessageDeduplicationId"] = entry.deduplication
    if entry.delay:
        said["DelaySeconds"] = entry.delay
    return said
