"""Files, folders and S3 prefixes, written by Firehose, an archive or another tool."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final

from eventonce.envelope.captured import Arrived, written_line
from eventonce.errors import SourceUnavailable
from eventonce.sources.compression import Unreadable
from eventonce.sources.files import EVENT_BYTES, events_of
from eventonce.sources.inputs import Input, NoInput, Place, inputs
from eventonce.sources.json_stream import Long
from eventonce.study.arrivals import arrival
from eventonce.study.capture import EMPTY_INTERVAL, Brought

SEARCH_INTERVAL: Final = 30.0
"""Seconds between two searches for new files or objects."""

log = logging.getLogger("eventonce.capture")

Position = dict[str, Any]


class FileFeed:
    """Reads files or objects by name; each is read once, whenever it appears."""

    def __init__(self, places: Sequence[Place], *, follow: bool = False) -> None:
        self.notes: list[str] = []
        self.broken = False
        self._places = places
        self._follow = follow
        self._done: dict[str, int] = {}
        """Digests of the names of files that were read to their end, with their sizes."""
        self._begun: dict[str, int] = {}
        """Digests of the names of the others, with the number of their events so far."""
        self._untold = 0

    def __str__(self) -> str:
        return ", ".join(map(str, self._places))

    def resume(self, position: Position | None) -> None:
        if position is not None:
            self._done = dict(position["done"])
            self._begun = dict(position["begun"])

    def __iter__(self) -> Iterator[Sequence[Brought]]:
        while True:
            for one in self._found():
                digest = blake2b(one.name.encode(), digest_size=8).hexdigest()
                # A pipe has no size, and may have new content each time.
                if not self._done.get(digest):
                    yield from self._read(one, digest)
                elif self._done[digest] != one.size:
                    self.broken = True
                    self._note(
                        f"{one.name} was changed since it was read, and is not read again: write "
                        f"all of it to another file, with -o"
                    )
            if not self._follow:
                return
            for _ in range(int(SEARCH_INTERVAL / EMPTY_INTERVAL)):
                time.sleep(EMPTY_INTERVAL)
                yield ()

    def position(self) -> Position:
        return {"done": self._done, "begun": self._begun}

    def committed(self) -> None:
        """Do nothing: files and objects stay where they are."""

    def close(self) -> None:
        if self._untold:
            self.notes.append(
                f"{self._untold} events do not say when and how they arrived: the cause of their "
                f"copies may stay unknown"
            )

    def _found(self) -> list[Input]:
        try:
            found, passed_over = inputs(self._places)
        except NoInput:
            if not self._follow:
                raise
            return []
        except SourceUnavailable as error:
            if not self._follow or not self._done:
                raise
            log.warning("%s; trying again in %g s", error, SEARCH_INTERVAL)
            return []
        if passed_over:
            self._note(passed_over)
        return found

    def _read(self, one: Input, digest: str) -> Iterator[Sequence[Brought]]:
        before, number = self._begun.get(digest, 0), 0
        try:
            for chunk in one.chunks(EVENT_BYTES):
                if isinstance(chunk, Long):
                    self.broken = True
                    self._note(
                        f"{one.name}{chunk.place} was not read: an event of more than "
                        f"{EVENT_BYTES} bytes"
                    )
                    continue
                some = list(events_of(chunk))
                left = some[max(0, before - number) :]
                number += len(some)
                self._begun[digest] = max(before, number)
                yield [self._brought(raw) for raw in left]
        except (OSError, Unreadable) as error:
            # Not done: the next search may find the network back, or the file complete.
            self.broken = True
            self._note(f"{one.name} cannot be read to its end: {error}")
            return
        self._begun.pop(digest, None)
        self._done[digest] = one.size

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _brought(self, raw: bytes) -> Brought:
        line = written_line(raw)
        if line is not None:
            return line
        told = arrival(raw)
        self._untold += told.arrived is None
        channel = told.channel or f"file:{_name(self._places[0])}"
        return Arrived(raw, channel, told.message, told.arrived, told.receives)


def _name(place: Place) -> str:
    """Return the name without the folders, which may contain the name of a user."""
    return place if isinstance(place, str) else place.name
