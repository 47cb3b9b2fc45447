"""Workers for the contract suite: threads and processes that start at once, and can be killed."""

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
"""Seconds until a silent worker counts as hung; a new one first imports its modules, and eight of
them at once take a minute on a slow or busy machine."""

SWITCH_INTERVAL: Final = 1e-5
"""Seconds between thread switches in a race: a switch then often falls between check and write."""


THREADS_FOLDER: Final = Path("/proc/self/task")
"""Where Linux lists the threads of a process, and their states."""


TICK: Final = 0.001
"""Seconds of a tick; longer than a call to a local store."""


class Task(msgspec.Struct, frozen=True):
    """The task of one worker: these keys, in its own order, from this instant on."""

    seed: int
    keys: tuple[bytes, ...]
    now: int


class Log(msgspec.Struct, frozen=True):
    """The calls of a worker, and their answers."""

    asked: tuple[tuple[Claim, Verdict], ...] = ()
    settled: tuple[tuple[Settlement, SettleResult], ...] = ()

    @property
    def runs(self) -> list[tuple[Claim, Verdict]]:
        """The claims that were granted."""
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
    """Yield moments a millisecond apart, the same for all workers of a machine, by its clock.

    Without them each worker would finish before the next one starts.
    """
    while True:
        time.sleep(TICK - time.monotonic() % TICK)
        yield int(time.monotonic() / TICK)


Work = Callable[[Store, Task], Iterator[Log]]
"""A function that yields its log piece by piece: after a kill, the pieces so far are known."""

Runner = Callable[[StoreFactory, Work, Sequence[Task]], Log]
"""A function that does each task with its own handle, all at once, and returns one log of all."""


def threads(factory: StoreFactory, work: Work, tasks: Sequence[Task]) -> Log:
    """Run the tasks in threads of this process."""
    with ExitStack() as handles:
        stores = [handles.enter_context(opened(factory)) for _ in tasks]
        return _in_threads(work, stores, tasks)


def threads_on_one_handle(factory: StoreFactory, work: Work, tasks: Sequence[Task]) -> Log:
    """Run the tasks in threads that share a handle."""
    with opened(factory) as store:
        return _in_threads(work, [store] * len(tasks), tasks)


def processes(factory: StoreFactory, work: Work, tasks: Sequence[Task]) -> Log:
    """Run the tasks in processes."""
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
    """Return these logs as one."""
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
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        with ThreadPoolExecutor(len(tasks)) as pool:
            return one_log(list(pool.map(begun, stores, tasks)))
    finally:
        sys.setswitchinterval(interval)


class Worker(msgspec.Struct, frozen=True):
    """A process with its own handle and one task."""

    process: BaseProcess
    pipe: Connection

    def ready(self) -> None:
        """Wait until the worker has opened the store."""
        self.hear()

    def go(self) -> None:
        """Let the worker begin."""
        self.pipe.send(None)

    def said(self) -> Iterator[Log]:
        """Yield the logs of the worker until its task is done."""
        while (piece := self.hear()) is not None:
            yield piece

    def kill(self) -> None:
        """End the worker like a power cut, without any cleanup."""
        self.process.kill()
        self.process.join(HANG_TIMEOUT)

    def pause(self) -> None:
        """Pause the worker, and wait until it has stopped."""
        pid = self._signal(signal.SIGSTOP)
        if not THREADS_FOLDER.exists():
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
        """Yield the logs of a killed worker that were not read yet."""
        try:
            while self.pipe.poll():
                piece = self.pipe.recv()
                if isinstance(piece, Log):
                    yield piece
        except (EOFError, OSError):
            return

    def hear(self) -> Any:
        """Return the next message of the worker: None when it is ready, and when it is done;
        EOFError if it died."""
        assert self.pipe.poll(HANG_TIMEOUT), "a worker hangs"
        said = self.pipe.recv()
        assert not isinstance(said, str), f"a worker failed:\n{said}"
        return said


def _states(pid: int) -> Iterator[str]:
    """Yield the state of each thread of this process, as one letter."""
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            yield thread.read_text().rpartition(")")[2].split()[0]


def start(factory: StoreFactory, work: Work, task: Task) -> Worker:
    """Start a worker in a new process; it opens its handle and waits for `go`."""
    return spawn(factory, _work, work, task)


def spawn(factory: StoreFactory, target: Callable[..., None], *args: object) -> Worker:
    """Start this function in a new process; its arguments begin with a pipe and the factory."""
    if not factory.processes:
        raise SkipTest("the store exists only in this process")
    # Never forked from this process: a fork would copy the handles that are open here. On Linux it
    # is forked from a server that opens nothing and has already imported the same modules of
    # eventonce and its drivers, because a new process spends most of its time on imports.
    context: ForkServerContext | SpawnContext = (
        get_context("forkserver") if THREADS_FOLDER.exists() else get_context("spawn")
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
    """Run the target in the new process; the environment of its fork server may be outdated."""
    os.environ.clear()
    os.environ.update(environment)
    try:
        target(pipe, *args)
    except EOFError:
        return
    except Exception:  # noqa: BLE001  every error is sent to the waiting process
        pipe.send(traceback.format_exc())


@contextmanager
def worker_to_kill(factory: StoreFactory, work: Work, task: Task) -> Iterator[Worker]:
    """Start a worker, and kill it at the end of the block."""
    worker = start(factory, work, task)
    try:
        worker.ready()
        worker.go()
        yield worker
    finally:
        worker.kill()


def _work(pipe: Connection, factory: StoreFactory, work: Work, task: Task) -> None:
    """Do the task in the new process."""
    with opened(factory) as store:
        pipe.send(None)
        pipe.recv()
        for piece in work(store, task):
            pipe.send(piece)
    pipe.send(None)
