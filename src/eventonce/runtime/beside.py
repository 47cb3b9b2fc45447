"""The work of a consumer beside its batches, in a thread that no batch waits for."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Final

from eventonce.log import log

PATIENCE: Final = 2.0
"""Seconds that the end of a process, or of an invocation, waits for work under way: what is left is
done later."""


class Beside:
    """Work in a thread of its own; the batch that begins it does not wait for it."""

    def __init__(self, name: str, work: Callable[[], object], *, daemon: bool) -> None:
        """The end of the program waits for the work unless it is a `daemon`."""
        self._name = name
        self._work = work
        self._daemon = daemon
        self._thread: Thread | None = None

    def begin(self) -> None:
        """Begin the work now."""
        thread = Thread(target=self._work, name=f"eventonce-{self._name}", daemon=self._daemon)
        try:
            thread.start()
        except RuntimeError as error:
            log().warning("%s: not now, for no thread could be started: %s", self._name, error)
        else:
            self._thread = thread

    def wait(self) -> None:
        """Wait for the work under way, once: the process may stop after this. Work that takes
        longer goes on while there is a process."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(PATIENCE)
