"""Connections to the server: taken for one call or one transaction, then kept for the next.

`OwnPool` has no threads: it works in a Lambda that is frozen and after a fork, and a call that
cannot connect raises the reason at once. `ExternalPool` is the caller's own psycopg pool.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import psycopg
from psycopg.pq import TransactionStatus

from eventonce.errors import (
    ConfigError,
    EventonceError,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)
from eventonce.stores.postgres.admin import diagnose
from eventonce.stores.postgres.codec import Row, rows
from eventonce.stores.postgres.errors import UNKNOWN_OBJECT, explain
from eventonce.stores.postgres.guarded_connection import GuardedConnection, NoAnswer, under_way
from eventonce.stores.postgres.uri import Address

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

T = TypeVar("T")
Connection = psycopg.Connection[Any]
End = Callable[[BaseException | None], object]
"""A function that ends a transaction: it commits, or rolls back if there is an error."""

RUN_MARK: Final = "SET LOCAL eventonce_run.transaction = 'open'"
"""The mark lasts as long as the transaction: after a COMMIT and a new BEGIN it is missing."""

BEGIN: Final = f"BEGIN ISOLATION LEVEL READ COMMITTED; {RUN_MARK}"
"""Begins a transaction in one round trip. A renewal changes the row while the handler's transaction
is open: with a higher isolation level the settlement would then fail."""

TRANSACTION_WAIT: Final = 60.0
"""Seconds that a handler waits for a connection: as long as the default lease, because after it
another run may have the event."""

IDLE_LIMIT: Final = 60.0
"""Seconds after which an unused connection is closed: firewalls drop idle connections, some after a
few minutes, and a call would then wait for an answer that never comes."""

CONFLICT_RETRIES: Final = 8
"""Retries of a call that the server rolled back because of another transaction: each time one of
the two continues."""

DEAD_RETRIES: Final = 2
"""Retries of a call whose connection was dead: the next idle connection may be dead too."""

RETRY_PAUSE: Final = 0.01
"""The most seconds before the first of these retries; doubled before each further one: an immediate
retry would meet the same transaction again, if that one has to wait."""

ROLLED_BACK: Final = frozenset(("40001", "40P01"))
"""A serialization failure, if the role's default isolation is higher than ours, and a deadlock with
another application's locks."""

ENDED_CODES: Final = ("08", "57P", "25006")
"""Errors after which the server has closed the connection or will close it, or has become a
replica: then another server takes the writes."""


class _Local(msgspec.Struct, eq=False):
    """The connections of one process."""

    free: threading.BoundedSemaphore
    closed: bool = False
    idle: deque[tuple[float, GuardedConnection]] = msgspec.field(default_factory=deque)


class OwnPool:
    """A limited number of connections to one address, in each process that uses the store."""

    def __init__(self, address: Address, limit: int, wait: float) -> None:
        self.address = address
        self._limit = limit
        self._wait = wait
        # By process: a connection or a lock copied by a fork belongs to the parent. The child does
        # not touch it, not even to close it.
        self._processes: dict[int, _Local] = {}

    def take(self) -> tuple[GuardedConnection, bool]:
        """Return a connection, and whether it was used before."""
        local = self._local()
        if not local.free.acquire(timeout=self._wait):
            raise StoreUnavailable(
                f"{self.address.shown}: all {self._limit} connections have been in use for longer "
                f"than {self._wait:g} s. Allow more (?connections=, or ?transactions= for "
                f"handlers that write through job.connection), or look for what holds them."
            )
        try:
            connection, kept = self._idle(local), True
            if connection is None:
                connection, kept = self._connect(), False
        except BaseException:
            local.free.release()
            raise
        connection.timeout = self.address.options.timeout
        return connection, kept

    def begin(self, connection: Connection) -> End:
        """Begin a transaction; return the function that ends it."""
        connection.execute(BEGIN)
        return lambda error: connection.execute("COMMIT" if error is None else "ROLLBACK")

    def give_back(self, connection: Connection) -> None:
        """Keep the connection for the next caller, unless it cannot be used again."""
        assert isinstance(connection, GuardedConnection)
        local = self._local()
        unusable = connection.given_up or local.closed
        if unusable or connection.info.transaction_status != TransactionStatus.IDLE:
            connection.close()
        else:
            local.idle.append((time.monotonic(), connection))
        with suppress(IndexError):
            while time.monotonic() - local.idle[0][0] > IDLE_LIMIT:
                local.idle.popleft()[1].close()
        local.free.release()

    def drop_idle(self) -> None:
        """Close the idle connections."""
        idle = self._local().idle
        with suppress(IndexError):
            while True:
                idle.popleft()[1].close()

    def close(self) -> None:
        """Close the idle connections; others are closed when they are given back."""
        self._local().closed = True
        self.drop_idle()

    def _idle(self, local: _Local) -> GuardedConnection | None:
        with suppress(IndexError):
            while True:
                since, connection = local.idle.pop()
                if time.monotonic() - since < IDLE_LIMIT and not connection.closed:
                    return connection
                connection.close()
        return None

    def _connect(self) -> GuardedConnection:
        parameters = dict(self.address.parameters)
        if self.address.password is not None:
            try:
                parameters["password"] = self.address.password()
            except EventonceError:
                raise
            except Exception as error:
                raise StoreUnavailable(
                    f"{self.address.shown}: there is no password for a new connection: "
                    f"{type(error).__name__}: {error}"
                ) from error
        # A prepared statement outlives its transaction, and with PgBouncer the next transaction may
        # run on another server.
        return GuardedConnection.connect(autocommit=True, prepare_threshold=None, **parameters)

    def _local(self) -> _Local:
        # `setdefault` is atomic; a lock around it could be copied by a fork while it is held.
        pid = os.getpid()
        local = self._processes.get(pid)
        return local or self._processes.setdefault(
            pid, _Local(threading.BoundedSemaphore(self._limit))
        )


class ExternalPool:
    """The caller's psycopg pool; the caller closes it.

    The time-outs for connections and answers are those of the pool and its connections.
    """

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        self._pool = pool
        self._pid = os.getpid()

    def take(self) -> tuple[Connection, bool]:
        """Return a connection, which may have been used before."""
        if os.getpid() != self._pid:
            raise ConfigError(
                "PostgresStore: this process was forked after its psycopg pool was made, and a "
                "pool does not survive a fork. Make pool and store in each process, or give the "
                "store a postgresql:// URI: it then opens its own connections after a fork."
            )
        return self._pool.getconn(), True

    def begin(self, connection: Connection) -> End:
        """Begin a transaction; return the function that ends it. psycopg's own block is used
        because psycopg refuses `commit()` and `rollback()` inside it."""
        with ExitStack() as opening:
            opening.enter_context(connection.transaction())
            connection.execute(RUN_MARK)
            block = opening.pop_all()
        return lambda error: block.__exit__(type(error) if error else None, error, None)

    def give_back(self, connection: Connection) -> None:
        """Give the connection back; the pool replaces a closed one."""
        self._pool.putconn(connection)

    def drop_idle(self) -> None:
        """Let the pool close the connections that are dead."""
        self._pool.check()

    def close(self) -> None:
        """Do nothing: the caller closes the pool."""


class Connections:
    """The connections of a store to its server; errors of the driver become errors of eventonce.

    Two pools, so that connections held by handlers do not delay the renewal of leases.
    """

    def __init__(
        self,
        address: Address,
        work: OwnPool | ExternalPool,
        handlers: OwnPool | ExternalPool,
    ) -> None:
        self.address = address
        self.work = work
        self.handlers = handlers
        self.has_answered = False
        """Whether the server has answered: a later refusal is an outage, not a wrong setting."""
        self._closed = False

    def ask(self, query: bytes, *args: object) -> list[Row]:
        """Return the rows of this statement. It may be sent twice, so it must be idempotent."""
        return self.do(lambda connection: rows(connection, query, *args))

    def do(self, work: Callable[[Connection], T]) -> T:
        """Call `work` with a connection in autocommit mode. It may be called again: on another
        connection if a kept one is dead, and after a rollback because of another transaction."""
        self._still_open()
        try:
            _, answer = self._tried(self.work, work)
        except psycopg.Error as error:
            if error.sqlstate not in UNKNOWN_OBJECT:
                raise explain(error, self.address, has_answered=self.has_answered) from error
            with self.explaining():
                _, told = self._tried(self.work, lambda it: diagnose(it, self.address))
            raise StoreMismatch(told) from error
        self.has_answered = True
        return answer

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a transaction on a connection for a handler; it commits at the end of the block, and
        rolls back if the block raises."""
        self._still_open()
        with self.explaining():
            connection, end = self._tried(self.handlers, self.handlers.begin, hold=True)
        self.has_answered = True
        _mark(connection, in_handler=True)
        try:
            yield connection
        except BaseException as error:
            with suppress(StoreError), self.ours(connection):
                if under_way(connection):
                    # The connection cannot send a ROLLBACK now, so it is closed. Without the
                    # cancel, the server would hold the locks until the statement ends.
                    connection.cancel_safe(timeout=self.address.options.timeout)
                    connection.close()
                else:
                    end(error)
            raise
        else:
            with self.ours(connection):
                end(None)
        finally:
            _mark(connection, in_handler=False)
            self._give_back(self.handlers, connection)

    def _tried(
        self, pool: OwnPool | ExternalPool, work: Callable[[Connection], T], *, hold: bool = False
    ) -> tuple[Connection, T]:
        """Call `work` with a connection, with retries; with `hold`, do not give it back."""
        conflicts = dead = 0
        while True:
            connection, kept = pool.take()
            held = False
            try:
                answer = work(connection) if hold else _committed(connection, work)
                held = hold
            except psycopg.Error as error:
                if error.sqlstate in ROLLED_BACK and conflicts < CONFLICT_RETRIES:
                    conflicts += 1
                    # A random time, so that the same two transactions do not collide again.
                    pause = random.uniform(0, RETRY_PAUSE * 2 ** (conflicts - 1))
                elif self._is_dead(connection, error) and kept and dead < DEAD_RETRIES:
                    dead += 1
                    pause = 0.0
                else:
                    raise
            else:
                return connection, answer
            finally:
                if not held:
                    self._give_back(pool, connection)
            if dead:
                pool.drop_idle()
            time.sleep(pause)

    @contextmanager
    def ours(self, connection: Connection) -> Iterator[None]:
        """Run statements of the store in a handler's transaction: with the store's time-out, and
        with explained errors."""
        _mark(connection, in_handler=False)
        try:
            with self.explaining():
                yield
        finally:
            _mark(connection, in_handler=True)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Raise errors of the driver as ours."""
        try:
            yield
        except psycopg.Error as error:
            raise explain(error, self.address, has_answered=self.has_answered) from error

    def close(self) -> None:
        """Close the store's own connections; an external pool stays open."""
        self._closed = True
        self.work.close()
        self.handlers.close()

    def _is_dead(self, connection: Connection, error: psycopg.Error) -> bool:
        """Return whether only the connection is dead, not the server: then a retry helps."""
        silent = isinstance(error, NoAnswer)
        lost = connection.closed or silent or (error.sqlstate or "").startswith(ENDED_CODES)
        if lost and isinstance(connection, GuardedConnection):
            connection.given_up = True
        elif lost:
            connection.close()
        return lost and not silent

    def _give_back(self, pool: OwnPool | ExternalPool, connection: Connection) -> None:
        if isinstance(connection, GuardedConnection) and (connection.given_up or connection.broken):
            # The idle connections are probably dead too: each would cost a time-out.
            self.work.drop_idle()
            self.handlers.drop_idle()
        pool.give_back(connection)

    def _still_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.address.shown}: this store is closed; open another")


def _mark(connection: Connection, *, in_handler: bool) -> None:
    if isinstance(connection, GuardedConnection):
        connection.in_handler = in_handler


def _committed(connection: Connection, work: Callable[[Connection], T]) -> T:
    """Call `work` in autocommit mode: one statement is begun, done and committed in one round
    trip."""
    if connection.autocommit:
        return work(connection)
    connection.autocommit = True
    try:
        return work(connection)
    finally:
        if not connection.closed:
            connection.autocommit = False
