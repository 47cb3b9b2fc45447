"""A task in a thread of its own; every consumer has one such task, which keeps its name in the
store."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from threading import Thread
from typing import Final

from eventonce.core.ports import StoreNames
from eventonce.log import log

EXIT_WAIT: Final = 2.0
"""Seconds that the end of a process, or of an invocation, waits for this work; the rest is done
later."""

MOST_NAMES: Final = 256
"""The most names that a store keeps, so that a program with ever new names cannot fill it. `show`
tries all of them, and one item of DynamoDB has room for this many of the longest."""

LONGEST_NAME: Final = 256
"""The most characters of a name that is kept."""


class BackgroundTask:
    """Work in a thread of its own; the batch that starts it does not wait for it."""

    def __init__(self, name: str, work: Callable[[], object], *, at_exit: bool) -> None:
        """`at_exit`: whether the end of the program waits for the work, for `EXIT_WAIT` at most."""
        self._name = name
        self._work = work
        self._at_exit = at_exit
        self._thread: Thread | None = None

    def begin(self) -> None:
        """Start the work now."""
        # A daemon: work that never ends must not keep the program from ending.
        self._thread = Thread(target=self._run, name=f"eventonce-{self._name}", daemon=True)
        if self._at_exit:
            atexit.register(self.wait)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._thread = None
            atexit.unregister(self.wait)
            log().warning("%s: not done, because no thread could start: %s", self._name, error)

    def wait(self) -> None:
        """Wait for the work in progress, once: the process may stop after this. Work that takes
        longer goes on while the process lives."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(EXIT_WAIT)

    def _run(self) -> None:
        try:
            self._work()
        finally:
            atexit.unregister(self.wait)


def keep_name(store: StoreNames, name: str) -> None:
    """Write the consumer's name to the store, unless the store has it; to check is one request. No
    event depends on it: after an error, the next process tries again."""
    try:
        known = store.names()
        if name not in known:
            if len(known) >= MOST_NAMES or len(name) > LONGEST_NAME:
                log().debug("the name %.80r is not kept: too long, or too many names", name)
            else:
                store.add_name(name)
    except Exception as error:  # noqa: BLE001  a user's own store may raise anything
        log().debug("the name %.80r is not kept in the store: %s", name, error)
