"""The client, and the threads that call it side by side: both belong to one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

AT_ONCE: Final = 8
"""Requests of one call under way together: beyond that this process is busy packing them."""

A = TypeVar("A")
B = TypeVar("B")


class Link:
    """A client that is made anew, or lets its connections go, in a forked process.

    There is no lock in here: one that another thread holds during a fork stays locked in the child.
    """

    def __init__(self, client: Any, make: Callable[[], Any] | None = None) -> None:
        self._client = client
        self._make = make
        self._process = os.getpid()
        self._pool: ThreadPoolExecutor | None = None

    @property
    def client(self) -> Any:
        """The client to call now."""
        self._move_in()
        return self._client

    def each(self, do: Callable[[A], B], things: Sequence[A]) -> Iterable[B]:
        """Do this to all of them, side by side if there are several; the answers in order."""
        if len(things) < 2:
            return map(do, things)
        self._move_in()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="eventonce-dynamodb")
        return self._pool.map(do, things)

    def close(self) -> None:
        """Let go of threads, and of connections where the client is our own."""
        self._move_in()
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None
        if self._make is not None:
            self._client.close()

    def _move_in(self) -> None:
        """A connection used by two processes would give one the other's answers."""
        if self._process == os.getpid():
            return
        self._pool = None
        if self._make is not None:
            self._client = self._make()
        else:
            # It stays usable: what is closed are the connections it had open.
            self._client.close()
        self._process = os.getpid()
