"""The stages: what comes to them is done, whoever else comes at the same moment."""

from __future__ import annotations

from collections import deque
from typing import Any

from eventonce.runtime.slots import Slots
from eventonce.runtime.stages import _Stage


class Raced(deque[Any]):
    """Another thread takes one between the look and the first taking."""

    def __len__(self) -> int:
        return super().__len__() + 1

    def __bool__(self) -> bool:
        return super().__len__() > 0


def test_two_threads_that_empty_a_stage_at_once_lose_nothing() -> None:
    done: list[Any] = []
    slots: Slots[Any] = Slots(1, lambda _: None)
    stage = _Stage(slots, done.extend)
    tickets: list[Any] = ["a", "b"]
    stage._waiting = Raced(tickets)
    stage._run()
    slots.close()
    assert done == tickets
