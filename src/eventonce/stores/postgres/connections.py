"""Connections to the server: taken for one call or one transaction, and kept for the next.

`OwnPool` has no threads: it works in a Lambda that is frozen and after a fork, and a call that
cannot connect is told why at once. `ExternalPool` is a psycopg pool that the caller brings.
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
from eventonce.stores.postgres.codec import Row, rows
from eventonce.stores.postgres.errors import UNKNOWN, explain
from eventonce.stores.postgres.guarded_connection import GuardedConnection, NoAnswer, under_way
from eventonce.stores.postgres.uri import Address

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

T = TypeVar("T")
Connection = psycopg.Connection[Any]
End = Callable[[BaseException | None], object]
"""Ends a transaction: commits it, or rolls it back for this error."""

MARK: Final = "SET LOCAL eventonce_run.transaction = 'open'"
"""Lasts as long as the transaction: whoever ends it and begins another is without the mark."""

BEGIN: Final = f"BEGIN ISOLATION LEVEL READ COMMITTED; {MARK}"
"""In one round trip. A renewal changes the row while the handler's transaction is open, which any
higher level would hold against it."""

TRANSACTION_WAIT: Final = 60.0
"""Seconds a handler waits for its transaction behind others': as long as the default lease, for by
then its run is another's."""

MAX_IDLE: Final = 60.0
"""Seconds after which an unused connection is not used again: firewalls forget quiet ones, some
after a few minutes, and a call would then wait for an answer that never comes."""

RETRIES: Final = 8
"""Tries of a call that the server rolled back for another's sake: each time one of the two goes
on."""

RENEWALS: Final = 2
"""Tries of a call whose connection turned out to be dead: the next one may have died with it."""

RETRY_PAUSE: Final = 0.01
"""Seconds before the first of them, at most, and twice as many before each further one: at once it
would meet the same other again, where that one is held up."""

ROLLED_BACK: Final = frozenset(("40001", "40P01"))
"""A serialization failure, where the role's default isolation is higher than ours, and a deadlock
with somebody else's locks."""

ENDED_CODES: Final = ("08", "57P", "25006")
"""Errors after which the server has closed the connection, or is about to; or has become a replica,
and another one takes the writes now."""


class _Local(msgspec.Struct, eq=False):
    """The connections of one process."""

    free: threading.BoundedSemaphore
    closed: bool = False
    idle: deque[tuple[float, GuardedConnection]] = msgspec.field(default_factory=deque)


class OwnPool:
    """Up to so many connections to one address, in each process that uses the store."""

    def __init__(self, address: Address, limit: int, wait: float) -> None:
        self.address = address
        self._limit = limit
        self._wait = wait
        # By process: a connection or lock copied by a fork belongs to the parent, and is not
        # touched in the child, not even to close it.
        self._processes: dict[int, _Local] = {}

    def take(self) -> tuple[GuardedConnection, bool]:
        """A connection, and whether it was used before."""
        local = self._local()
        if not local.free.acquire(timeout=self._wait):
            raise StoreUnavailable(
                f"{self.address.shown}: all {self._limit} connections have been in use for longer "
                f"than {self._wait:g} s. Allow more of them (?connections=, or ?transactions= for "
                f"handlers that write through job.connection), or look for what holds them."
            )
        try:
            connection, kept = self._idle(local), True
            if connection is None:
                connection, kept = self._connect(), False
        except BaseException:
            local.free.release()
            raise
        connection.timeout = self.address.timeout
        return connection, kept

    def begin(self, connection: Connection) -> End:
        """Begin a transaction; answers how it is ended."""
        connection.execute(BEGIN)
        return lambda error: connection.execute("COMMIT" if error is None else "ROLLBACK")

    def give_back(self, connection: Connection) -> None:
        """Keep it for the next caller, unless it is of no more use."""
        assert isinstance(connection, GuardedConnection)
        local = self._local()
        unusable = connection.given_up or local.closed
        if unusable or connection.info.transaction_status != TransactionStatus.IDLE:
            connection.close()
        else:
            local.idle.append((time.monotonic(), connection))
        with suppress(IndexError):
            while time.monotonic() - local.idle[0][0] > MAX_IDLE:
                local.idle.popleft()[1].close()
        local.free.release()

    def drop_idle(self) -> None:
        """Close what is not in use."""
        idle = self._local().idle
        with suppress(IndexError):
            while True:
                idle.popleft()[1].close()

    def close(self) -> None:
        """Close what is not in use; what is in use is closed when it comes back."""
        self._local().closed = True
        self.drop_idle()

    def _idle(self, local: _Local) -> GuardedConnection | None:
        with suppress(IndexError):
            while True:
                since, connection = local.idle.pop()
                if time.monotonic() - since < MAX_IDLE and not connection.closed:
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
        # A prepared statement would outlive its transaction, and PgBouncer gives the next one
        # another server.
        return GuardedConnection.connect(autocommit=True, prepare_threshold=None, **parameters)

    def _local(self) -> _Local:
        # `setdefault` is atomic; a lock around it could be copied by a fork while it is held.
        pid = os.getpid()
        local = self._processes.get(pid)
        return local or self._processes.setdefault(
            pid, _Local(threading.BoundedSemaphore(self._limit))
        )


class ExternalPool:
    """The caller's psycopg pool, which is the caller's to close.

    How long to wait, for a connection or an answer, is what the caller's pool and connections say.
    """

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        self._pool = pool
        self._pid = os.getpid()

    def take(self) -> tuple[Connection, bool]:
        """A connection, which may have been used before."""
        if os.getpid() != self._pid:
            raise ConfigError(
                "PostgresStore: this process was forked after its psycopg pool was made, and a "
                "pool does not survive that. Make pool and store in each process, or give the "
                "store a postgresql:// URI: it then opens connections of its own after a fork."
            )
        return self._pool.getconn(), True

    def begin(self, connection: Connection) -> End:
        """Begin a transaction; answers how it is ended. In psycopg's own block, for it refuses
        `commit()` and `rollback()` inside of one."""
        with ExitStack() as opening:
            opening.enter_context(connection.transaction())
            connection.execute(MARK)
            block = opening.pop_all()
        return lambda error: block.__exit__(type(error) if error else None, error, None)

    def give_back(self, connection: Connection) -> None:
        """Give the connection back as it was; the pool replaces a closed one."""
        self._pool.putconn(connection)

    def drop_idle(self) -> None:
        """Let the pool throw out the connections that are dead."""
        self._pool.check()

    def close(self) -> None:
        """Nothing: the pool is the caller's."""


class Connections:
    """The connections of a store to its server; errors of the driver become errors of eventonce.

    Two pools: connections that handlers hold must not keep leases from being renewed.
    """

    def __init__(
        self,
        address: Address,
        work: OwnPool | ExternalPool,
        handlers: OwnPool | ExternalPool,
        diagnose: Callable[[Connection, Address], str],
    ) -> None:
        """`diagnose` tells why a function or table of ours was not found."""
        self.address = address
        self.work = work
        self.handlers = handlers
        self._diagnose = diagnose
        self.proven = False
        """Whether the server has answered: what it refuses later is an outage, and no mistake."""
        self._closed = False

    def ask(self, query: bytes, *args: object) -> list[Row]:
        """The rows this statement answers. May be sent twice, so let it be one that bears it."""
        return self.do(lambda connection: rows(connection, query, *args))

    def do(self, work: Callable[[Connection], T]) -> T:
        """Do this with a connection, in autocommit mode. It may be done again: on another one if a
        kept connection turns out to be dead, and after the server rolled it back for another."""
        self._still_open()
        try:
            _, answer = self._tried(self.work, work)
        except psycopg.Error as error:
            if error.sqlstate not in UNKNOWN:
                raise explain(error, self.address, proven=self.proven) from error
            with self.explaining():
                _, told = self._tried(self.work, lambda it: self._diagnose(it, self.address))
            raise StoreMismatch(told) from error
        self.proven = True
        return answer

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A connection for a handler, in a transaction that commits with the block, and is rolled
        back if the block raises."""
        self._still_open()
        with self.explaining():
            connection, end = self._tried(self.handlers, self.handlers.begin, hold=True)
        self.proven = True
        _lend(connection, to_handler=True)
        try:
            yield connection
        except BaseException as error:
            with suppress(StoreError), self.ours(connection):
                if under_way(connection):
                    # Nothing can be sent through it, a ROLLBACK neither: the server ends it all.
                    # Without the cancelling its locks would last as long as the statement does.
                    connection.cancel_safe(timeout=self.address.timeout)
                    connection.close()
                else:
                    end(error)
            raise
        else:
            with self.ours(connection):
                end(None)
        finally:
            _lend(connection, to_handler=False)
            self._give_back(self.handlers, connection)

    def _tried(
        self, pool: OwnPool | ExternalPool, work: Callable[[Connection], T], *, hold: bool = False
    ) -> tuple[Connection, T]:
        """Do this with a connection, again where that helps; with `hold` it is not given back."""
        conflicts = dead = 0
        while True:
            connection, kept = pool.take()
            held = False
            try:
                answer = work(connection) if hold else _committed(connection, work)
                held = hold
            except psycopg.Error as error:
                if error.sqlstate in ROLLED_BACK and conflicts < RETRIES:
                    conflicts += 1
                    # A random time, for those who met would otherwise meet again.
                    pause = random.uniform(0, RETRY_PAUSE * 2 ** (conflicts - 1))
                elif self._is_dead(connection, error) and kept and dead < RENEWALS:
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
        """Statements of the store's in a handler's transaction: these have to be answered in time,
        and their errors are explained."""
        _lend(connection, to_handler=False)
        try:
            with self.explaining():
                yield
        finally:
            _lend(connection, to_handler=True)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """The driver's errors as ours."""
        try:
            yield
        except psycopg.Error as error:
            raise explain(error, self.address, proven=self.proven) from error

    def close(self) -> None:
        """Let go of the connections; of none that the caller gave."""
        self._closed = True
        self.work.close()
        self.handlers.close()

    def _is_dead(self, connection: Connection, error: psycopg.Error) -> bool:
        """Whether the connection is dead, and not the server: a new one is then worth a try."""
        silent = isinstance(error, NoAnswer)
        lost = connection.closed or silent or (error.sqlstate or "").startswith(ENDED_CODES)
        if lost and isinstance(connection, GuardedConnection):
            connection.given_up = True
        elif lost:
            connection.close()
        return lost and not silent

    def _give_back(self, pool: OwnPool | ExternalPool, connection: Connection) -> None:
        if isinstance(connection, GuardedConnection) and (connection.given_up or connection.broken):
            # The idle ones have most likely died with it: each would cost its caller a time-out.
            self.work.drop_idle()
            self.handlers.drop_idle()
        pool.give_back(connection)

    def _still_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.address.shown}: this store was closed; open another")


def _lend(connection: Connection, *, to_handler: bool) -> None:
    if isinstance(connection, GuardedConnection):
        connection.lent = to_handler


def _committed(connection: Connection, work: Callable[[Connection], T]) -> T:
    """Make a call as a transaction of one statement: begun, done and committed in one round
    trip."""
    if connection.autocommit:
        return work(connection)
    connection.autocommit = True
    try:
        return work(connection)
    finally:
        if not connection.closed:
            connection.autocommit = False
