"""A consumer with a history, for the tests of histories."""

from __future__ import annotations

import os
import signal
from typing import Any

from eventonce import Consumer
from eventonce.history import History
from tests.helpers import ruled, until


def consumer(history: History, name: str = "crm", handler: Any = print, **rule: Any) -> Consumer:
    made = Consumer("memory:", name=name, rules=ruled(**rule), handler=handler)
    made.observers.append(history.observer(made, "sqs:calls"))
    return made


def exit_of(child: int) -> int:
    """The exit status of a child process; a child that does not end in time is killed."""
    ended: list[int] = []

    def has_ended() -> bool:
        process, status = os.waitpid(child, os.WNOHANG)
        ended.extend([status] if process else [])
        return bool(process)

    try:
        until(has_ended)
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    return ended[0]
