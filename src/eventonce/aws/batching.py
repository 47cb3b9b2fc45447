"""Batches for one request each, within its limits of count and bytes; and what a service refuses of
a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Refused(msgspec.Struct, Generic[T], frozen=True):
    """An entry that the service did not take, and why."""

    entry: T
    code: str
    reason: str
    again: bool = False
    """Whether it was the service's fault, so that sending it again may help."""
    unfit: bool = False
    """Whether the entry itself is at fault: it is never taken, however often it is sent."""


def batches(
    entries: Iterable[T],
    most: int,
    *,
    size: Callable[[T], int] = lambda _: 0,
    most_bytes: float = inf,
) -> Iterator[list[T]]:
    """The entries in their order, in batches; an entry over the limit of bytes is a batch alone."""
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
