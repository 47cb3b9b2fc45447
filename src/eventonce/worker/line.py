"""What a hand has taken together: worked off by itself, and by idle hands too if it takes long."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from eventonce.ports import Task


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
        self._closed = False
        self._fault: BaseException | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def work(self) -> None:
        """Run one after the other until none waits."""
        while self._waiting:
            try:
                task = self._waiting.popleft()
            except IndexError:
                return
            self._run(task)
            self._finished.append(task)

    def help(self) -> None:
        """The same in another's thread, as long as the line is open."""
        with self._left:
            if self._closed:
                return
            self._helpers += 1
        try:
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
            self._closed = True
            self._left.wait_for(lambda: not self._helpers)
        if self._fault is not None:
            raise self._fault
