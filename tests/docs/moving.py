"""Shared parts of the tests of docs/migrate.md: its events, its tables, and a handler's work."""

from __future__ import annotations

from typing import Any

from eventonce import Consumer
from tests.docs.arrivals import agent_leaves, published_again
from tests.docs.pages import sections

PAGE = sections("migrate.md")
A, B = agent_leaves("a"), published_again("b")
C, D = (agent_leaves(name, sessionId=f"session-{name}") for name in "cd")


def expected_rows(section: str, table: int = 0) -> list[list[str]]:
    """The rows of a table without the column of arrivals."""
    return [row[1:] for row in PAGE[section].tables()[table]]


class Work:
    """The handler's work, and the events that it was done for."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.down = False

    def __call__(self, event: Any) -> dict[str, str]:
        name = event["id"] if isinstance(event, dict) else event.id
        if self.down:
            raise ConnectionError(name)
        self.done.append(name)
        return {"ticket": name}


class Row:
    """One delivery, in the columns of a table: its outcome, and whether the work was done."""

    def __init__(self, consumer: Consumer, work: Work) -> None:
        self._consumer = consumer
        self._work = work

    def __call__(self, event: dict[str, Any], *, down: bool = False) -> list[str]:
        before, self._work.down = len(self._work.done), down
        (outcome,) = self._consumer.process([event])
        ran = "fails" if down else "yes" if len(self._work.done) > before else "no"
        return [outcome.status, ran]
