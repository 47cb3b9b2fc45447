"""Connections: lent to one caller at a time, kept for the next, never shared by two processes.

A pool without threads of its own: it works in a Lambda that is frozen and after a fork, and who
asks for a connection is told at once why there is none. `given` does the same for callers who bring
a pool.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final, TypeVar

import msgspec
import psycopg
from psycopg import IsolationLevel
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import tuple_row

from eventonce.errors import EventonceError, StoreUnavailable
from eventonce.stores.postgres.uri import Address

T = TypeVar("T")
Scope = AbstractContextManager[psycopg.Transaction]
"""A transaction of psycopg's, which commits when it is left."""

IDLE: Final = 60.0
"""Seconds after which an unused connection is not used again: firewalls forget quiet ones, some
after a few minutes, and a call would then wait for an answer that never comes."""

RETRIES: Final = 8
"""Of what the server rolled back for another's sake: each time one of the two goes on."""

PAUSE: Final = 0.01
"""Seconds before the first of them, at most, and twice as many before each further one: at once it
would meet the same other again, where that one is held up."""

ROLLED_BACK: Final = frozenset(("40001", "40P01"))
"""A serialization failure, where the role's default isolation is higher than ours, and a deadlock
with somebody else's locks."""

ENDED: Final = ("08", "57P", "25006")
"""Errors after which the server has closed the connection, or is about to; or has become a replica,
and another one takes the writes now."""


class Late(psycopg.OperationalError):
    """The server did not answer in time."""


class Line(psycopg.Connection[Any]):
    """A connection that gives up a server which does not answer, even one that is frozen."""

    patience: float | None = None
    """Seconds for a statement; None while the caller's own statements run."""

    given_up = False
    """Whether its server did not answer in time, or can do no more for us."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Wait for the server; psycopg calls this for everything it does."""
        if self.patience is not None:
            gen = _within(gen, self.patience)
        try:
            return super().wait(gen, *args, **options)
        except Late:
            self.given_up = True
            raise


def _within(gen: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
    end = time.monotonic() + seconds
    try:
        state = next(gen)
        while True:
            # Falsy where nothing is ready: psycopg looks in several times a second.
            ready = yield state
            if not ready and time.monotonic() >= end:
                raise Late(f"no answer within {seconds:g} s")
            state = gen.send(ready)
    except StopIteration as stop:
        value: T = stop.value
        return value


class _Text(Loader):
    """Text of ours, which is ASCII, or a name in the catalogues, which is compared with ours."""

    format = Format.BINARY

    def load(self, data: Buffer) -> str:
        return bytes(data).decode(errors="replace")


def rows(connection: psycopg.Connection[Any], query: bytes, *args: object) -> list[tuple[Any, ...]]:
    """The rows of one statement, in binary, for numbers and bytes then need no parsing."""
    cursor = connection.cursor(binary=True, row_factory=tuple_row)
    if connection.info.encoding == "ascii":
        # SQL_ASCII: psycopg then hands text over as bytes, and a pool's encoding is its owner's.
        cursor.adapters.register_loader("text", _Text)
    # Never prepared: behind PgBouncer the next statement may meet another server.
    return cursor.execute(query, args, prepare=False).fetchall()


@contextmanager
def hurried(connection: psycopg.Connection[Any], seconds: float) -> Iterator[None]:
    """Our own statements have to be answered in time; the caller's between them take what they
    take."""
    if isinstance(connection, Line):
        connection.patience = seconds
    try:
        yield
    finally:
        if isinstance(connection, Line):
            connection.patience = None


def lost(connection: psycopg.Connection[Any], error: psycopg.Error) -> bool:
    """Whether nothing more can be done through this connection."""
    state = error.sqlstate or ""
    return connection.closed or isinstance(error, Late) or state.startswith(ENDED)


def pause(retries: int) -> None:
    """Let the other go on: a random time, for those who met would otherwise meet again."""
    time.sleep(random.uniform(0, PAUSE * 2 ** (retries - 1)))


class _Here(msgspec.Struct, eq=False):
    """One process's connections."""

    gate: threading.BoundedSemaphore
    closed: bool = False
    idle: deque[tuple[float, Line]] = msgspec.field(default_factory=deque)


class OwnConnections:
    """Up to so many connections to one address, in each process that uses the store."""

    def __init__(self, address: Address, limit: int, wait: float) -> None:
        self.siblings: tuple[OwnConnections, ...] = (self,)
        """All that lead to the same server, this one included."""
        self._address = address
        self._limit = limit
        self._wait = wait
        # By process: a connection or lock copied by a fork belongs to the parent, and is not
        # touched in the child, not even to close it.
        self._processes: dict[int, _Here] = {}

    def do(self, work: Callable[[Line], T]) -> T:
        """Do this with a connection. It may be done again: on another one if a kept connection
        turns out to be dead, and after the server rolled it back for another's sake."""
        retries = 0
        while True:
            if retries:
                pause(retries)
            connection, kept = self._take()
            try:
                return work(connection)
            except psycopg.Error as error:
                if error.sqlstate in ROLLED_BACK and retries < RETRIES:
                    retries += 1
                elif not self._stale(connection, error, kept=kept):
                    raise
            finally:
                self._give_back(connection)

    @contextmanager
    def begun(self) -> Iterator[tuple[Line, Scope]]:
        """A connection in a new transaction, which the caller ends."""
        while True:
            connection, kept = self._take()
            scope = connection.transaction()
            try:
                scope.__enter__()
            except psycopg.Error as error:
                stale = self._stale(connection, error, kept=kept)
                self._give_back(connection)
                if not stale:
                    raise
            else:
                break
        # The caller's statements, from here on, take what they take.
        connection.patience = None
        try:
            yield connection, scope
        finally:
            self._give_back(connection)

    def close(self) -> None:
        """Close what is not lent; what is lent is closed when it comes back."""
        self._own().closed = True
        self.drop_idle()

    def drop_idle(self) -> None:
        """Close what is not lent."""
        idle = self._own().idle
        with suppress(IndexError):
            while True:
                idle.popleft()[1].close()

    def _take(self) -> tuple[Line, bool]:
        """A connection, and whether it was used before."""
        here = self._own()
        if not here.gate.acquire(timeout=self._wait):
            raise StoreUnavailable(
                f"{self._address.shown}: all {self._limit} connections have been in use for longer "
                f"than {self._wait:g} s. Allow more of them (?connections=, or ?transactions= for "
                f"handlers that write through job.connection), or look for what holds them."
            )
        try:
            while here.idle:
                since, connection = here.idle.pop()
                if time.monotonic() - since < IDLE and not connection.closed:
                    connection.patience = self._address.timeout
                    return connection, True
                connection.close()
            return self._connect(), False
        except BaseException:
            here.gate.release()
            raise

    def _connect(self) -> Line:
        parameters = dict(self._address.parameters)
        if self._address.password is not None:
            parameters["password"] = self._fresh(self._address.password)
        connection = Line.connect(
            autocommit=True,
            # A prepared statement would outlive its transaction, and PgBouncer gives the next one
            # another server.
            prepare_threshold=None,
            **parameters,
        )
        connection.patience = self._address.timeout
        # A renewal changes the row while the handler's transaction is open, which any higher level
        # would hold against it.
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        return connection

    def _fresh(self, password: Callable[[], str]) -> str:
        try:
            return password()
        except EventonceError:
            raise
        except Exception as error:
            raise StoreUnavailable(
                f"{self._address.shown}: there is no password for a new connection: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _give_back(self, connection: Line) -> None:
        here = self._own()
        now = time.monotonic()
        if connection.given_up or connection.broken:
            # The idle ones have most likely died with it: each would cost its caller a time-out.
            for sibling in self.siblings:
                sibling.drop_idle()
        unfit = connection.given_up or here.closed
        if unfit or connection.info.transaction_status != TransactionStatus.IDLE:
            connection.close()
        else:
            here.idle.append((now, connection))
        with suppress(IndexError):
            while now - here.idle[0][0] > IDLE:
                here.idle.popleft()[1].close()
        here.gate.release()

    def _stale(self, connection: Line, error: psycopg.Error, *, kept: bool) -> bool:
        """Whether the connection only died of old age, so that a new one is worth a try."""
        if not lost(connection, error):
            return False
        connection.given_up = True
        return kept and not isinstance(error, Late)

    def _own(self) -> _Here:
        # `setdefault` is atomic; a lock around it could be copied by a fork while it is held.
        pid = os.getpid()
        here = self._processes.get(pid)
        if here is None:
            gate = threading.BoundedSemaphore(self._limit)
            here = self._processes.setdefault(pid, _Here(gate))
        return here
