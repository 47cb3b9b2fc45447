"""The exception of a signal's handler, at each instant at which Python can run the handler.

CPython runs a signal's handler when a function is entered, a generator is resumed or a call
returns, and at the backward jump of a loop. A call into C is finished then, or has not begun.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FrameType
from typing import Any, Final

LIMIT: Final = 10_000
"""The largest number of instants in a function that is interrupted."""

CODE_UNIT: Final = 2
"""Bytes of an instruction without its argument's extension and caches."""


class Interrupt(BaseException):
    """The exception of a signal's handler."""


def interrupted_everywhere(act: Callable[[], object]) -> Iterator[BaseException | None]:
    """Call `act` again and again, interrupted one instant later each time. Yields the exception
    that `act` raised, or None if `act` caught it, and ends with a call without interruption."""
    for instant in range(LIMIT):
        raised, came = _interrupted(act, instant)
        if not raised:
            assert not came, came
            return
        # No name here refers to the exception any more: the caller may drop it with its frames.
        yield came.pop() if came else None
    raise AssertionError(f"still going on after {LIMIT:,} instants")


def _interrupted(act: Callable[[], object], instant: int) -> tuple[bool, list[BaseException]]:
    """Whether the instant was reached, and the exception that was raised."""
    count = _Count(instant)
    before = sys.gettrace()
    sys.settrace(count.entered)
    try:
        act()
    except BaseException as error:  # noqa: BLE001  the caller judges the exception
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
        """The instant at which a function is called, or a generator is resumed."""
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
            # A signal's exception comes at the call, or before the target of a jump; ours comes at
            # the next instruction: both must have the same handler.
            before = dis.opname[code.co_code[last]]
            place = at - CODE_UNIT if "JUMP_BACKWARD" in before else last
            checks = before.startswith("CALL") or "JUMP_BACKWARD" in before
            if checks and _handler(code, place) == _handler(code, at):
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
    """The offset of the handler for an exception at this instruction, None without a handler."""
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return next((entry.target for entry in table if entry.start <= at < entry.end), None)
