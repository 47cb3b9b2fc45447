"""Clients of a store whose calls are recorded: threads, and processes that are paused and killed.

A client gets the calls to make and the moment, so that several clients call the store at once; it
returns the times of each call and the answers of the store.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Final, Literal

import msgspec

from eventonce.clock import wall_clock
from eventonce.core.ports import Store, Transactional, offers
from eventonce.errors import StoreUnavailable
from eventonce.testing.factory import StoreFactory, opened
from eventonce.testing.workers import HANG_TIMEOUT, Worker, spawn
from eventonce.types import Claim, Settlement, SettleResult, Verdict

SPIN_TIME: Final = 0.0003
"""Seconds before the moment of a turn in which a client no longer sleeps: a sleep may be late."""


class Call(msgspec.Struct, frozen=True):
    """One call of the store."""

    verb: Literal["claim", "settle", "commit"]
    """`commit` settles in a transaction of the caller."""
    asks: tuple[Claim | Settlement, ...]
    now: int | None = None
    """The instant of the call; None for the store's clock."""
    hold: float = 0.0
    """The most seconds between the settlement in a transaction and the commit."""
    lost: bool = False
    """Whether the client dies before it reports the answer."""


class Turn(msgspec.Struct, frozen=True):
    """The calls of one client, in order, from this moment of `time.monotonic` on."""

    calls: tuple[Call, ...]
    moment: float


class Reply(msgspec.Struct, frozen=True):
    """A call that returned: its times, the wall clock before and after it, and the answers."""

    called: int
    returned: int
    earliest: int
    latest: int
    answers: tuple[Verdict | SettleResult, ...] | None
    """None if the store could not be reached: then the effect is unknown."""


class Held(msgspec.Struct, frozen=True):
    """The message of a client that has settled in a transaction and not yet committed."""


Hold = Callable[[float], object]
"""A function that reports this, and waits until the client is released, or for so many seconds."""


class ThreadClient:
    """A client in this process. A lost reply does not end it: a thread cannot be killed."""

    def __init__(self, name: str, store: Store) -> None:
        self.name = name
        self.store = store
        self.pool = ThreadPoolExecutor(1)
        self.running: Future[list[Reply]] | None = None
        self.holding = threading.Event()
        self.released = threading.Event()

    def begin(self, turn: Turn) -> None:
        """Start the calls of this turn."""
        self.holding.clear()
        self.released.clear()
        self.running = self.pool.submit(self._play, turn)

    def held(self) -> None:
        """Wait until the client has settled in its transaction."""
        assert self.holding.wait(HANG_TIMEOUT), f"{self.name} hangs"

    def release(self) -> None:
        """Let the client commit."""
        self.released.set()

    def replies(self) -> list[Reply]:
        """Wait until the client has finished or died; return the replies to its calls so far."""
        assert self.running is not None
        return self.running.result(HANG_TIMEOUT)

    def kill(self) -> None:
        """End the client; its current call may or may not take effect."""
        self.pool.shutdown()

    def _hold(self, seconds: float) -> None:
        self.holding.set()
        self.released.wait(seconds)

    def _play(self, turn: Turn) -> list[Reply]:
        replies = []
        for call, reply in played(self.store, turn, self._hold):
            if call.lost:
                break
            replies.append(reply)
        return replies


class ProcessClient:
    """A client in a process of its own."""

    def __init__(self, name: str, factory: StoreFactory) -> None:
        self.name = name
        self.worker: Worker = spawn(factory, _serve)

    def begin(self, turn: Turn) -> None:
        self.worker.pipe.send(turn)

    def held(self) -> None:
        said = self._hear()
        assert isinstance(said, Held), f"{self.name} said {said}"

    def release(self) -> None:
        self.worker.pipe.send(None)

    def replies(self) -> list[Reply]:
        replies: list[Reply] = []
        while (said := self._hear()) is not None:
            if isinstance(said, Reply):
                replies.append(said)
        return replies

    def _hear(self) -> Reply | Held | None:
        """Return the next message of the client; None at the end of its turn, or of its life."""
        try:
            said: Reply | Held | None = self.worker.hear()
        except (EOFError, OSError):
            self.kill()
            return None
        return said

    def kill(self) -> None:
        self.worker.kill()


Client = ThreadClient | ProcessClient
"""A client that makes calls on request."""


def played(store: Store, turn: Turn, hold: Hold) -> Iterator[tuple[Call, Reply]]:
    """Make the calls of a turn, and yield each with its reply."""
    while (left := turn.moment - time.monotonic()) > 0:
        if left > SPIN_TIME:
            time.sleep(left - SPIN_TIME)
    for call in turn.calls:
        earliest, called = wall_clock(), time.monotonic_ns()
        try:
            answers = tuple(_answers(store, call, hold))
        except StoreUnavailable:
            answers = None
        returned, latest = time.monotonic_ns(), wall_clock()
        yield call, Reply(called, returned, earliest, latest, answers)


def _answers(store: Store, call: Call, hold: Hold) -> Sequence[Verdict | SettleResult]:
    claims = [ask for ask in call.asks if isinstance(ask, Claim)]
    settlements = [ask for ask in call.asks if isinstance(ask, Settlement)]
    if call.verb == "claim":
        return store.claim(claims, now=call.now)
    if call.verb == "settle":
        return store.settle(settlements, now=call.now)
    assert offers(store, Transactional)
    with store.transaction() as transaction:
        answers = [transaction.settle(settlement) for settlement in settlements]
        hold(call.hold)
    return answers


def _serve(pipe: Connection, factory: StoreFactory) -> None:
    """Run the client in the new process."""

    def hold(seconds: float) -> None:
        pipe.send(Held())
        if pipe.poll(seconds):
            pipe.recv()

    with opened(factory) as store:
        pipe.send(None)
        while True:
            turn = pipe.recv()
            if turn is None:
                continue  # the release came after the commit
            for call, reply in played(store, turn, hold):
                if call.lost:
                    os.kill(os.getpid(), signal.SIGKILL)
                pipe.send(reply)
            pipe.send(None)
