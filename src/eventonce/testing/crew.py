"""Workers for the contract suite: threads and processes let go at once, and processes to kill."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Final
from unittest import SkipTest

import msgspec

from eventonce.core.ports import Store
from eventonce.testing.opener import Opener, opened
from eventonce.types import Claim, Settlement, SettleResult, Verdict

PATIENCE: Final = 300.0
"""Seconds until a worker that says nothing counts as hung; a spawned one first imports itself, and
eight of them at once take a minute to do so on a machine that is slow or busy."""

SWITCH: Final = 1e-5
"""Seconds between thread switches in a race: a check and its write are then often torn apart."""


BEAT: Final = 0.001
"""Seconds; longer than a call to a local store takes."""


class Shift(msgspec.Struct, frozen=True):
    """One worker's work: these keys, in an order of its own, from this instant on."""

    seed: int
    keys: tuple[bytes, ...]
    now: int


class Log(msgspec.Struct, frozen=True):
    """What a worker asked, and what it was told."""

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


def beats() -> Iterator[int]:
    """Moments a millisecond apart, the same for all workers of a machine, counted by its clock.

    Without them each worker would be done before the next one is awake.
    """
    while True:
        time.sleep(BEAT - time.monotonic() % BEAT)
        yield int(time.monotonic() / BEAT)


Job = Callable[[Store, Shift], Iterator[Log]]
"""Yields its log piece by piece: of a worker that is killed we know what it had said."""

Crew = Callable[[Opener, Job, Sequence[Shift]], Log]
"""Does each shift with a handle of its own, all at the same moment; answers with one log of all."""


def threads(opener: Opener, job: Job, shifts: Sequence[Shift]) -> Log:
    """A crew of threads in this process."""
    with ExitStack() as handles:
        stores = [handles.enter_context(opened(opener)) for _ in shifts]
        return _in_threads(job, stores, shifts)


def threads_on_one_handle(opener: Opener, job: Job, shifts: Sequence[Shift]) -> Log:
    """A crew of threads that share a handle."""
    with opened(opener) as store:
        return _in_threads(job, [store] * len(shifts), shifts)


def processes(opener: Opener, job: Job, shifts: Sequence[Shift]) -> Log:
    """A crew of processes."""
    crew: list[Worker] = []
    try:
        crew.extend(start(opener, job, shift) for shift in shifts)
        for worker in crew:
            worker.ready()
        for worker in crew:
            worker.go()
        return one_log([one_log(worker.said()) for worker in crew])
    finally:
        for worker in crew:
            worker.kill()


def one_log(logs: Iterable[Log]) -> Log:
    """All of these as one."""
    logs = list(logs)
    return Log(
        tuple(line for log in logs for line in log.asked),
        tuple(line for log in logs for line in log.settled),
    )


def _in_threads(job: Job, stores: Sequence[Store], shifts: Sequence[Shift]) -> Log:
    gate = threading.Barrier(len(shifts), timeout=PATIENCE)

    def work(store: Store, shift: Shift) -> Log:
        gate.wait()
        return one_log(job(store, shift))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH)
    try:
        with ThreadPoolExecutor(len(shifts)) as pool:
            return one_log(list(pool.map(work, stores, shifts)))
    finally:
        sys.setswitchinterval(interval)


class Worker(msgspec.Struct, frozen=True):
    """A process with a handle of its own and one shift to do."""

    process: BaseProcess
    pipe: Connection

    def ready(self) -> None:
        """Wait until it has opened the store."""
        self._hear()

    def go(self) -> None:
        """Let it begin."""
        self.pipe.send(None)

    def said(self) -> Iterator[Log]:
        """What it says, piece by piece, until it has done its shift."""
        while (piece := self._hear()) is not None:
            yield piece

    def kill(self) -> None:
        """End it as a power cut would: no cleaning up, no goodbye."""
        self.process.kill()
        self.process.join(PATIENCE)

    def last_words(self) -> Iterator[Log]:
        """Of a worker that was killed: what it had said and nobody had heard."""
        try:
            while self.pipe.poll():
                piece = self.pipe.recv()
                if isinstance(piece, Log):
                    yield piece
        except (EOFError, OSError):
            return

    def _hear(self) -> Log | None:
        assert self.pipe.poll(PATIENCE), "a worker hangs"
        try:
            said = self.pipe.recv()
        except EOFError:
            raise AssertionError("a worker died") from None
        assert not isinstance(said, str), f"a worker failed:\n{said}"
        return said if isinstance(said, Log) else None


def start(opener: Opener, job: Job, shift: Shift) -> Worker:
    """Start a worker in a new process; it opens its handle and waits to be let go."""
    return spawn(opener, _work, job, shift)


def spawn(opener: Opener, target: Callable[..., None], *args: object) -> Worker:
    """Start this function in a new process; its end of a pipe and the opener come first."""
    if not opener.processes:
        raise SkipTest("the store lives and dies with this process")
    # Spawned, not forked: a fork would hand the worker a copy of handles that are open here.
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(there, opener, *args), daemon=True)
    process.start()
    there.close()
    return Worker(process, here)


@contextmanager
def doomed(opener: Opener, job: Job, shift: Shift) -> Iterator[Worker]:
    """A worker that has begun, and will not survive this block."""
    worker = start(opener, job, shift)
    try:
        worker.ready()
        worker.go()
        yield worker
    finally:
        worker.kill()


def _work(pipe: Connection, opener: Opener, job: Job, shift: Shift) -> None:
    """In the new process."""
    try:
        with opened(opener) as store:
            pipe.send(None)
            pipe.recv()
            for piece in job(store, shift):
                pipe.send(piece)
        pipe.send(None)
    except Exception:  # noqa: BLE001  whatever went wrong is told to the one who waits
        pipe.send(traceback.format_exc())
