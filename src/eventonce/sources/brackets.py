"""Where a JSON value ends, found by its brackets and quotes alone: it may come in pieces, and need
not be right.
"""

from __future__ import annotations

import re
from typing import Final

_OUTSIDE: Final = re.compile(rb'(?:[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_INSIDE: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)

_STRAY_OUTSIDE: Final = re.compile(rb'(?:[^"{\[\],\n]++|"(?:[^"\\\n]++|\\[^\n])*+")*+')
_STRAY_INSIDE: Final = re.compile(rb'(?:[^"\\\n]++|\\[^\n])*+')


class Brackets:
    """Follows one object or array from its opening bracket on."""

    __slots__ = ("_depth", "_escaped", "_quoted")

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def end(self, data: bytes, start: int = 0) -> int:
        """The place behind the closing bracket; -1 if the value goes on in the next piece."""
        at, size = start, len(data)
        if self._escaped and at < size:
            at, self._escaped = at + 1, False
        while (at := _skipped(_INSIDE if self._quoted else _OUTSIDE, data, at)) < size:
            byte = data[at : at + 1]
            at += 1
            if byte == b'"':
                self._quoted = not self._quoted
            elif byte == b"\\":
                self._escaped = True
            elif byte in b"{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth <= 0:
                    return at
        return -1


class Stray:
    """Follows what is neither: a string, a number, or nothing that JSON has. No line goes on."""

    __slots__ = ("_escaped", "_quoted")

    def __init__(self) -> None:
        self._quoted = False
        self._escaped = False

    def end(self, data: bytes, start: int = 0) -> int:
        """The place before a comma, a bracket or a newline; -1 if there is none in this piece."""
        at, size = start, len(data)
        if self._escaped and at < size:
            at, self._escaped = at + 1, False
        while (at := _skipped(_STRAY_INSIDE if self._quoted else _STRAY_OUTSIDE, data, at)) < size:
            byte = data[at : at + 1]
            if byte == b'"':
                self._quoted = not self._quoted
            elif byte == b"\\" and at + 1 == size:
                self._escaped = True
            elif byte != b"\\":
                return at
            at += 1
        return -1


def _skipped(what: re.Pattern[bytes], data: bytes, at: int) -> int:
    found = what.match(data, at)
    return found.end() if found else at
