"""Workers for the contract suite: threads and processes let go at once, and processes to kill."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final
from unittest import SkipTest

import msgspec

from eventonce.core.ports import Store
from eventonce.testing.factory import StoreFactory, opened
from eventonce.types import Claim, Settlement, SettleResult, Verdict

HANG_TIMEOUT: Final = 300.0
"""Seconds until a worker that says nothing counts as hung; a new one first imports itself, and
eight of them at once take a minute to do so on a machine that is slow or busy."""

SWITCH: Final = 1e-5
"""Seconds between thread switches in a race: a check and its write are then often torn apart."""


THREADS_OF: Final = Path("/proc/self/task")
"""Where Linux lists the threads of a process, and says which of them stand still."""


TICK: Final = 0.001
"""Seconds; longer than a call to a local store takes."""


class Task(msgspec.Struct, frozen=True):
    """One worker's work: these keys, in an order of its own, from this instant on."""

    seed: int
    keys: tuple[bytes, ...]
    now: int


class Log(msgspec.Struct, frozen=True):
    """The calls of a worker, and their answers."""

    asked: tuple[tuple[Claim, Verdict], ...] = ()
    settled: tuple[tuple[Settlement, SettleResult], ...] = ()

    @property
    def runs(self) -> list[tuple[Claim, Verdict]]:
        """The asks that were granted."""
        return [(claim, verdict) for claim, verdict in self.asked if verdict.kind == "run"]

    @property
    def completions(self) -> list[Settlement]:
        """The completions that were kept."""
        return [
            settlement
            for settlement, kept in self.settled
            if settlement.action == "complete" and kept == "kept"
        ]


def ticks() -> Iterator[int]:
    """Moments a millisecond apart, the same for all workers of a machine, counted by its clock.

    Without them each worker would be done before the next one is awake.
    """
    while True:
        time.sleep(TICK - time.monotonic() % TICK)
        yield int(time.monotonic() / TICK)


Work = Callable[[Store, Task], Iterator[Log]]
"""Yields its log piece by piece: of a worker that is killed we know what it had said."""

Runner = Callable[[StoreFactory, Work, Sequence[Task]], Log]
"""Does each task with a handle of its own, all at the same moment; answers with one log of all."""


def threads(factory: StoreFactory, work: Work, tasks: Sequence[Task]) -> Log:
    """Runs the tasks in threads in this process."""
    with ExitStack() as handles:
        stores = [handles.enter_context(opened(factory)) for _ in tasks]
        return _in_threads(work, stores, tasks)


def threads_on_one_handle(factory: StoreFactory, work: Work, tasks: Sequence[Task]) -> Log:
    """Runs the tasks in threads that share a handle."""
    with opened(factory) as store:
        return _in_threads(work, [store] * len(tasks), tasks)


def processes(factory: StoreFactory, work: Work, tasks: Sequence[Task]) -> Log:
    """Runs the tasks in processes."""
    workers: list[Worker] = []
    try:
        workers.extend(start(factory, work, task) for task in tasks)
        for worker in workers:
            worker.ready()
        for worker in workers:
            worker.go()
        return one_log([one_log(worker.said()) for worker in workers])
    finally:
        for worker in workers:
            worker.kill()


def one_log(logs: Iterable[Log]) -> Log:
    """All of these as one."""
    logs = list(logs)
    return Log(
        tuple(line for log in logs for line in log.asked),
        tuple(line for log in logs for line in log.settled),
    )


def _in_threads(work: Work, stores: Sequence[Store], tasks: Sequence[Task]) -> Log:
    gate = threading.Barrier(len(tasks), timeout=HANG_TIMEOUT)

    def begun(store: Store, task: Task) -> Log:
        gate.wait()
        return one_log(work(store, task))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH)
    try:
        with ThreadPoolExecutor(len(tasks)) as pool:
            return one_log(list(pool.map(begun, stores, tasks)))
    finally:
        sys.setswitchinterval(interval)


class Worker(msgspec.Struct, frozen=True):
    """A process with a handle of its own and one task to do."""

    process: BaseProcess
    pipe: Connection

    def ready(self) -> None:
        """Wait until it has opened the store."""
        self.hear()

    def go(self) -> None:
        """Let it begin."""
        self.pipe.send(None)

    def said(self) -> Iterator[Log]:
        """The logs of the worker, one by one, until it has done its task."""
        while (piece := self.hear()) is not None:
            yield piece

    def kill(self) -> None:
        """End it as a power cut would: no cleaning up, no goodbye."""
        self.process.kill()
        self.process.join(HANG_TIMEOUT)

    def pause(self) -> None:
        """Pause it, wherever it is, and wait until it stands still."""
        pid = self._signal(signal.SIGSTOP)
        if not THREADS_OF.exists():
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            return
        while not all(state in "TZX" for state in _states(pid)):
            time.sleep(0.001)

    def go_on(self) -> None:
        """End the pause."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> int:
        pid = self.process.pid
        assert pid is not None
        os.kill(pid, number)
        return pid

    def unread(self) -> Iterator[Log]:
        """Of a worker that was killed: what it had said and nobody had heard."""
        try:
            while self.pipe.poll():
                piece = self.pipe.recv()
                if isinstance(piece, Log):
                    yield piece
        except (EOFError, OSError):
            return

    def hear(self) -> Any:
        """The next message of the worker: None when it is ready, and when it has done; EOFError if
        it died."""
        assert self.pipe.poll(HANG_TIMEOUT), "a worker hangs"
        said = self.pipe.recv()
        assert not isinstance(said, str), f"a worker failed:\n{said}"
        return said


def _states(pid: int) -> Iterator[str]:
    """The state of each thread of this process, as one letter."""
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            yield thread.read_text().rpartition(")")[2].split()[0]


def start(factory: StoreFactory, work: Work, task: Task) -> Worker:
    """Start a worker in a new process; it opens its handle and waits to be let go."""
    return spawn(factory, _work, work, task)


def spawn(factory: StoreFactory, target: Callable[..., None], *args: object) -> Worker:
    """Start this function in a new process; its end of a pipe and the factory come first."""
    if not factory.processes:
        raise SkipTest("the store lives and dies with this process")
    # Never forked from this process: a fork would hand the worker a copy of handles that are open
    # here. On Linux it is forked from a server that opens nothing and has imported what this
    # process has of eventonce and its drivers, since most of a new process' time is imports.
    context: ForkServerContext | SpawnContext = (
        get_context("forkserver") if THREADS_OF.exists() else get_context("spawn")
    )
    context.set_forkserver_preload([name for name in sys.modules if name.startswith("eventonce.")])
    here, there = context.Pipe()
    begun = (dict(os.environ), target, there, factory, *args)
    process = context.Process(target=_begin, args=begun, daemon=True)
    process.start()
    there.close()
    return Worker(process, here)


def _begin(
    environment: dict[str, str], target: Callable[..., None], pipe: Connection, *args: object
) -> None:
    """In the new process, whose server began with the environment of an earlier time."""
    os.environ.clear()
    os.environ.update(environment)
    try:
        target(pipe, *args)
    except EOFError:
        return
    except Exception:  # noqa: BLE001  whatever went wrong is told to the one who waits
        pipe.send(traceback.format_exc())


@contextmanager
def worker_to_kill(factory: StoreFactory, work: Work, task: Task) -> Iterator[Worker]:
    """A worker that has begun, and will not survive this block."""
    worker = start(factory, work, task)
    try:
        worker.ready()
        worker.go()
        yield worker
    finally:
        worker.kill()


def _work(pipe: Connection, factory: StoreFactory, work: Work, task: Task) -> None:
    """In the new process."""
    with opened(factory) as store:
        pipe.send(None)
        pipe.recv()
        for piece in work(store, task):
            pipe.send(piece)
    pipe.send(None)
