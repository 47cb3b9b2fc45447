"""The handler of the worker: it writes a call into the database of the store."""

from __future__ import annotations

from eventonce import Job


def close_call(job: Job) -> None:
    """Exactly once: the line and the event's completion commit together, or neither does."""
    job.connection.execute("CREATE TABLE IF NOT EXISTS closed (call TEXT, agent TEXT)")
    body = job.event.body
    job.connection.execute(
        "INSERT INTO closed VALUES (?, ?)", (body["conversationId"], body["userId"])
    )
