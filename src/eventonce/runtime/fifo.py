"""The records of a batch in the order of their FIFO groups: one of each group at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Groups(Generic[T]):
    """The groups of a batch: the first record of each is given out, then the second, and so on.

    The next record of a group is given out after `settled` was called for the record before it.
    A record without a group does not wait.
    """

    def __init__(self, records: Iterable[T], group_of: Callable[[T], str]) -> None:
        """`group_of` returns the empty string for a record without a group."""
        queues: dict[object, deque[T]] = {}
        for record in records:
            queues.setdefault(group_of(record) or object(), deque()).append(record)
        self._ready = deque(queues.values())
        self._given: dict[int, list[deque[T]]] = {}

    def take(self, most: int) -> list[T]:
        """Return records that may run now; an empty list if all that are left must wait."""
        queues = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
        for queue in queues:
            # A list, because one object may be in a batch twice.
            self._given.setdefault(id(queue[0]), []).append(queue)
        return [queue[0] for queue in queues]

    def settled(self, record: T) -> None:
        """Mark this record as settled: the next record of its group may run."""
        queue = self._given[id(record)].pop()
        queue.popleft()
        if queue:
            self._ready.append(queue)

    def waiting(self) -> list[T]:
        """Return the records that have not been taken."""
        given = [queue for queues in self._given.values() for queue in queues]
        behind = [record for queue in given for record in list(queue)[1:]]
        return behind + [record for queue in self._ready for record in queue]

    def __bool__(self) -> bool:
        """Whether a record may run now."""
        return bool(self._ready)
