"""An exception out of a signal, at every instant at which Python lets one out in turn.

CPython runs a signal's handler as a function is entered or a generator goes on, as a call returns,
and at the jump back of a loop. A call that C carries out is done by then, or was never begun.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FrameType
from typing import Any, Final

LIMIT: Final = 10_000
"""Instants, at most, in what is interrupted."""


class Interrupt(BaseException):
    """The exception of a signal's handler."""


def interrupted_everywhere(act: Callable[[], object]) -> Iterator[BaseException | None]:
    """Do this again and again, and interrupt it one instant later each time; gives what came out
    of it, None where the exception was swallowed, and ends when it was not interrupted."""
    for instant in range(LIMIT):
        raised, came = _interrupted(act, instant)
        if not raised:
            assert not came, came
            return
        # Nothing here refers to it any more: whoever gets it may drop it, with its frames.
        yield came.pop() if came else None
    raise AssertionError(f"still going on after {LIMIT:,} instants")


def _interrupted(act: Callable[[], object], instant: int) -> tuple[bool, list[BaseException]]:
    """Whether the instant came, and what came out."""
    count = _Count(instant)
    before = sys.gettrace()
    sys.settrace(count.entered)
    try:
        act()
    except BaseException as error:  # noqa: BLE001  whatever becomes of it
        return count.raised, [error]
    finally:
        sys.settrace(before)
    return count.raised, []


class _Count:
    """Counts the instants, and raises at one of them."""

    def __init__(self, instant: int) -> None:
        self._left = instant
        self._last: dict[FrameType, int] = {}
        self.raised = False

    def entered(self, frame: FrameType, event: str, _: Any) -> Any:
        """As a function is called, or a generator goes on."""
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if frame.f_code.co_filename != __file__:
            self._pass()
        return self._within

    def _within(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            code, at = frame.f_code, frame.f_lasti
            last = self._last.get(frame, at)
            self._last[frame] = at
            # It would fall on the call, and here it falls on what follows: that must be the same.
            called = dis.opname[code.co_code[last]].startswith("CALL")
            same = _handler(code, last) == _handler(code, at)
            if (called and same) or "JUMP_BACKWARD" in dis.opname[code.co_code[at]]:
                self._pass()
        elif event == "return":
            self._last.pop(frame, None)
        return self._within

    def _pass(self) -> None:
        if self._left == 0 and not self.raised:
            self.raised = True
            self._last.clear()
            raise Interrupt
        self._left -= 1


@cache
def _handler(code: CodeType, at: int) -> int | None:
    """Where an exception goes that falls on this instruction."""
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return next((entry.target for entry in table if entry.start <= at < entry.end), None)
