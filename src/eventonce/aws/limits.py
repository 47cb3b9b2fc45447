"""Limits of SQS, EventBridge and Lambda, as AWS documents them, and batches within the limits.

Each name says the service, the limited thing and the unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Final, Generic, TypeVar

import msgspec

SQS_BATCH_ENTRIES: Final = 10
"""Messages in one request that sends, receives, deletes or delays."""

SQS_BATCH_BYTES: Final = 1 << 20
"""Bytes of all messages in one request, and of one message."""

SQS_WAIT_SECONDS: Final = 20
"""Seconds that a request for messages may wait for the first message."""

SQS_VISIBILITY_SECONDS: Final = 43_200
"""Seconds that a message can be invisible after it was received: twelve hours."""

SQS_GROUP_CHARACTERS: Final = 128
"""Characters of a message group's name, and of a deduplication id."""

EVENTBRIDGE_BATCH_ENTRIES: Final = 10
"""Entries of one PutEvents request."""

EVENTBRIDGE_BATCH_BYTES: Final = 1_000_000
"""Bytes of all entries in one request: the limit is "1 MB", of whose two meanings this is the
smaller. Until 2026 the limit was 256 KB."""

EVENTBRIDGE_ENTRY_BYTES: Final = 1 << 20
"""Bytes of one entry that is put alone."""

LAMBDA_ATTEMPTS: Final = 3
"""Attempts of Lambda at an asynchronous invocation: one, and two retries unless configured
otherwise. After that Lambda drops the event, or sends it to the on-failure destination."""

LAMBDA_INVOCATIONS: Final = 1_000
"""Attempts that a record of a failed invocation may report: a higher number was not written by
Lambda."""


T = TypeVar("T")


class Refused(msgspec.Struct, Generic[T], frozen=True):
    """An entry that the service refused, and the reason."""

    entry: T
    code: str
    reason: str
    again: bool = False
    """Whether the service is at fault, so that sending the entry again may help."""
    unfit: bool = False
    """Whether the entry itself is at fault: the service will never take it."""


def batches(
    entries: Iterable[T],
    most: int,
    *,
    size: Callable[[T], int] = lambda _: 0,
    most_bytes: float = inf,
) -> Iterator[list[T]]:
    """Yield the entries in order, in batches; an entry over the limit of bytes is a batch alone."""
    batch: list[T] = []
    total = 0
    for entry in entries:
        added = size(entry)
        if batch and (len(batch) == most or total + added > most_bytes):
            yield batch
            batch, total = [], 0
        batch.append(entry)
        total += added
    if batch:
        yield batch
