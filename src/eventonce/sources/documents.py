"""JSON documents one after the other, cut out of pieces of bytes; of an array its elements."""

from __future__ import annotations

import re
from typing import Final

from eventonce.sources.brackets import Brackets, Stray

_BETWEEN: Final = re.compile(rb"[\s,]*+")


class Documents:
    """Gives what is no JSON too, each piece of it by itself: nothing is lost."""

    def __init__(self, *, one_list: bool = False) -> None:
        """`one_list` is for the elements of one array: what stands behind it is passed over."""
        self.rest = b""
        """What has begun and not ended."""
        self.follows: Brackets | Stray | None = None
        """Finds the end of that."""
        self._listed = False
        self._one_list = one_list
        self._ended = False

    def feed(self, data: bytes) -> list[bytes]:
        """The documents that end in this piece."""
        found: list[bytes] = []
        at = 0
        if self.follows is not None:
            at = self.follows.end(data)
            if at < 0:
                self.rest += data
                return found
            found.append(self.rest + data[:at])
            self.forget()
        while not self._ended and (at := _behind(data, at)) < len(data):
            first = data[at : at + 1]
            if first == (b"]" if self._listed else b"["):
                self._ended = self._one_list and self._listed
                self._listed = not self._listed
                at += 1
                continue
            follows = Brackets() if first in b"{[" else Stray()
            end = at + 1 if first == b"]" else follows.end(data, at)
            if end < 0:
                self.rest, self.follows = data[at:], follows
                break
            found.append(data[at:end])
            at = end
        return found

    def forget(self) -> None:
        """Begin anew, as behind the end of a document."""
        self.rest, self.follows = b"", None


def _behind(data: bytes, at: int) -> int:
    found = _BETWEEN.match(data, at)
    return found.end() if found else at
