"""Sinks that write down each run, each line in one piece, because workers are killed here."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from eventonce import Job

HERE = Path(__file__).parent


def note(line: str) -> None:
    descriptor = os.open(HERE / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def plain(job: Job) -> None:
    note(f"ran {job.event.detail['n']}")


def waiting(job: Job) -> None:
    """Wait until the file `go` exists."""
    note(f"begun {job.event.detail['n']}")
    while not (HERE / "go").exists():
        time.sleep(0.02)
    note(f"ran {job.event.detail['n']}")


async def awaiting(job: Job) -> None:
    """Wait likewise, in a way that can be cancelled."""
    note(f"begun {job.event.detail['n']}")
    try:
        while not (HERE / "go").exists():  # noqa: ASYNC110  another process makes the file
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        note(f"cancelled {job.event.detail['n']}")
        raise
    note(f"ran {job.event.detail['n']}")


async def stuck(job: Job) -> None:
    """After the effect of the seventh event, wait until the file `go` exists."""
    note(f"ran {job.event.detail['n']}")
    while job.event.detail["n"] == 6 and not (HERE / "go").exists():  # noqa: ASYNC110  likewise
        await asyncio.sleep(0.02)


def deadly(job: Job) -> None:
    """One event kills its process, every time."""
    if job.event.detail["n"] == "deadly":
        note("begun deadly")
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    note(f"ran {job.event.detail['n']}")


def failing(job: Job) -> None:
    """Fail for two attempts, if the event is called `bad…`."""
    number = str(job.event.detail["n"])
    if number.startswith("bad"):
        note(f"failed {number}")
        if job.attempt < 3:
            raise ValueError(number)
    note(f"ran {number}")


def hopeless(job: Job) -> None:
    """Fail always, if the event is called `bad…`."""
    if str(job.event.detail["n"]).startswith("bad"):
        raise ValueError("told so")
    note(f"ran {job.event.detail['n']}")
