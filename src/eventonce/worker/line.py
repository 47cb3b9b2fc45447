"""What a hand has taken together: worked off by itself, and by idle hands too if it takes long."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf

from eventonce.core.ports import Task
from eventonce.runtime.occupancy import inside_handler


class Line:
    """Tasks that wait their turn, for whoever comes."""

    def __init__(
        self, tasks: Sequence[Task], finished: list[Task], run: Callable[[Task], None]
    ) -> None:
        self._waiting = deque(tasks)
        self._finished = finished
        self._run = run
        self._left = threading.Condition()
        self._helpers = 0
        self._fault: BaseException | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def work(self, until: float = inf) -> None:
        """Run one after the other until none waits, or until that moment if nobody helps."""
        while self._waiting:
            try:
                task = self._waiting.popleft()
            except IndexError:
                return
            self._run(task)
            self._finished.append(task)
            if not self._helpers and time.monotonic() > until:
                return

    def help(self) -> None:
        """The same in another's thread; there is nothing to do where the line was closed."""
        with self._left:
            self._helpers += 1
        try:
            with inside_handler():
                self.work()
        except BaseException as fault:  # noqa: BLE001  it is raised where the line was taken
            self._waiting.clear()
            self._fault = fault
        finally:
            with self._left:
                self._helpers -= 1
                self._left.notify()

    def close(self) -> None:
        """Let nobody begin anything more, and wait for those who help; raises what stopped one."""
        self._waiting.clear()
        with self._left:
            self._left.wait_for(lambda: not self._helpers)
        if self._fault is not None:
            raise self._fault
