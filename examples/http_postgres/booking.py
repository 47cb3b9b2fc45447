"""The handler of the receiver: it books the minutes of a call in the database of the store."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from eventonce import Job


def book(job: Job) -> None:
    """Exactly once: the line and the event's completion commit together, or neither does."""
    call = job.event.detail
    job.connection.execute(
        "INSERT INTO eventonce_example (run, call, minutes) VALUES (%s, %s, %s)",
        (call["run"], call["call"], call["minutes"]),
    )
    # `run.py` asks for this once: the worst moment to die, after the write and before the commit.
    if Path("die").exists():
        Path("die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
