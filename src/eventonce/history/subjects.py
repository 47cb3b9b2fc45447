"""The subjects of states: a table from the key of a state to its subject as one text.

A key is made from its subject and never has another one. So the text is stored once for all
decisions, and written again only to record that the key is still in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Final

from eventonce.history.decision import id_kept
from eventonce.history.digests import Digests, plain
from eventonce.history.driver import Driver, places
from eventonce.rules import Ruleset
from eventonce.types import Outcome

SUBJECTS: Final = "eventonce_history_subjects"

SUBJECT_KNOWN: Final = 60.0
"""Seconds for which a process remembers that the subject of a key is stored."""

MOST_KEYS: Final = 20_000
"""The most keys that a process remembers."""

KEYS_OF_A_SUBJECT: Final = 100
"""The most keys of one subject that are found, the latest: each consumer has several, by the types
of its events."""

PAGE_SIZE: Final = 10_000
"""Subjects that one query reads."""

Row = tuple[bytes, str, int]
"""A key, its subject, and the time of its last use in milliseconds."""


class Subjects:
    """The subjects in a database; for one thread at a time."""

    def __init__(self, driver: Driver, digests: Digests) -> None:
        self._driver = driver
        self._digests = digests
        self._known: set[bytes] = set()
        self._until = -inf

    def unknown(self, told: Iterable[tuple[Sequence[Outcome], Ruleset]], now: int) -> list[Row]:
        """Return the subjects of these outcomes that must be written, in the order of their keys:
        one order for all writers prevents deadlocks."""
        if monotonic() > self._until or len(self._known) > MOST_KEYS:
            self._known.clear()
            self._until = monotonic() + SUBJECT_KNOWN
        found: dict[bytes, Row] = {}
        for outcomes, rules in told:
            for one in [it for it in outcomes if it.order is not None]:
                key, event = one.key, one.event
                if event is None or key in self._known or key in found:
                    continue
                # The rule may have changed or gone since: the decision is kept without a subject.
                with suppress(Exception):
                    text = rules.subject(event, key)
                    if text:
                        found[key] = (key, self._kept(text), now)
        return sorted(found.values())

    def write(self, rows: Sequence[Row]) -> None:
        """Write these subjects, in the transaction of their decisions."""
        self._driver.run_many(
            f"INSERT INTO {SUBJECTS} (key, subject, seen) VALUES (?, ?, ?) "  # noqa: S608  ours
            "ON CONFLICT (key) DO UPDATE SET subject = excluded.subject, seen = excluded.seen",
            rows,
        )

    def written(self, rows: Sequence[Row]) -> None:
        """Remember these subjects as stored; called after the commit."""
        self._known.update(key for key, _, _ in rows)

    def keys(self, text: str) -> list[bytes]:
        """Return the keys of this subject."""
        names = self._digests.names("subject", text)
        rows = self._driver.rows(
            f"SELECT key FROM {SUBJECTS} WHERE subject IN ({places(len(names))}) "  # noqa: S608  ours
            f"ORDER BY seen DESC LIMIT {KEYS_OF_A_SUBJECT}",
            names,
        )
        return [bytes(key) for (key,) in rows]

    def all(self) -> Iterator[tuple[bytes, str]]:
        """Yield all keys with their subjects."""
        query = f"SELECT key, subject FROM {SUBJECTS} WHERE key > ? ORDER BY key LIMIT {PAGE_SIZE}"  # noqa: S608  ours
        last: bytes | None = b""
        while last is not None:
            rows = self._driver.rows(query, (last,))
            yield from ((bytes(key), subject) for key, subject in rows)
            last = bytes(rows[-1][0]) if rows else None

    def drop(self, keys: Iterable[bytes]) -> None:
        """Delete the subjects of these keys."""
        dropping = f"DELETE FROM {SUBJECTS} WHERE key = ?"  # noqa: S608  ours
        self._driver.run_many(dropping, [(key,) for key in sorted(keys)])

    def drop_unused(self, before: int) -> None:
        """Delete the subjects that no decision since this time has."""
        # `seen` may be older than the last use, because a process remembers the key.
        since = before - int(2 * SUBJECT_KNOWN * 1000)
        self._driver.run(f"DELETE FROM {SUBJECTS} WHERE seen < ?", (since,))  # noqa: S608  ours

    def _kept(self, text: str) -> str:
        return self._digests.of("subject", text) if self._digests else plain(id_kept(text))
