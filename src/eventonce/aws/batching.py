"""Batches for one request each: as many entries as its limits of count and bytes allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import TypeVar

T = TypeVar("T")


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
