"""Commands over the driver's connections to one server: sent together, answered one by one.

The driver's own `execute_command` costs as much as a round trip, and so does a connection from its
pool. So a few idle connections are kept here; the pool opens and closes them.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from time import monotonic
from typing import Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

from redis import Redis
from redis.connection import ConnectionPool
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import (
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as TimedOut

from eventonce.stores.redis.codec import MAX_KEYS

Words = tuple[bytes, ...]


def _pack_slowly(words: Words) -> bytes:
    """Return a command as Redis reads it."""
    packed = b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])
    return b"*%d\r\n%b" % (len(words), packed)


_pack: Callable[[Words], bytes] = _pack_slowly
with suppress(ModuleNotFoundError):
    _pack = cast("Callable[[Words], bytes]", import_module("hiredis").pack_command)

IDLE_CONNECTIONS: Final = 8
"""The most idle connections kept outside the pool: more threads seldom call at the same moment, and
further ones use the pool."""

IDLE_LIMIT: Final = 60.0
"""Seconds after which an unused connection is opened again: NAT gateways and load balancers drop an
idle connection after some minutes, and inform neither end."""

_OF_A_SCRIPT: Final = re.compile(r"^Error running script .*: -([A-Z]+)( .*)", re.DOTALL)
_WRAPPED: Final = {
    "READONLY": ReadOnlyError,
    "OOM": OutOfMemoryError,
    "NOPERM": NoPermissionError,
}
"""Redis 6.2 wraps the error of a script's command in another error; newer versions do not."""

Reply = Any
"""A server's value, or the driver's error."""

Connection = Any
"""A connection of the driver, whose own types are too general."""


class Command(NamedTuple):
    """A command, the slot of its keys, and the source of the script that it names, if any."""

    words: Words
    slot: int = 0
    script: bytes = b""
    asking: bool = False
    """Whether ASKING is sent before the command: the server that a slot moves to then serves its
    keys."""

    def with_source(self) -> Command:
        """Return the command with the script's source; after it the server knows the script."""
        return self._replace(words=(b"EVAL", self.script, *self.words[2:]), script=b"")


Answer = tuple[Sequence[int] | None, Reply]
"""The indexes of some keys of a batch (None: of all), and the reply for them."""

Build = Callable[[Sequence[int] | None], Command]
"""A function that builds the command for the keys of these indexes (None: for all)."""


class Wait(NamedTuple):
    """The number of replicas that must have received a write, and the milliseconds they may
    take."""

    replicas: int = 0
    ms: int = 0


NO_WAIT: Final = Wait()
_ASKING: Final = _pack_slowly((b"ASKING",))


class NotReplicated(Exception):
    """Too few replicas have confirmed a write."""


class Connections:
    """Connections to one server, a few idle ones outside the driver's pool."""

    def __init__(self, pool: ConnectionPool) -> None:
        self.pool = pool
        # The pool may be the user's, and small: leave connections for other users of the pool.
        self._most = min(IDLE_CONNECTIONS, pool.max_connections // 2)
        self._idle: list[tuple[float, Connection]] = []
        """Idle connections, each with the instant of its last use."""
        self._pooled: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()
        """The last use of connections that are or were in the pool, and may be open."""
        self._suspected = 0.0
        """Connections in the pool that were last used before this instant are opened again."""

    def acquire(self) -> Connection:
        """Return a connection; an idle one may be dead."""
        while True:
            try:
                used, connection = self._idle.pop()
            except IndexError:
                break
            if connection.pid != os.getpid():
                # This process is the child of a fork: the connections belong to the parent.
                self._idle.clear()
                break
            if monotonic() - used < IDLE_LIMIT:
                return connection
            self.release(connection, sound=False)
        made: Connection = self.pool.get_connection()
        used = self._pooled.pop(made, math.inf)
        if used < max(monotonic() - IDLE_LIMIT, self._suspected):
            # The driver connects again at the first write.
            made.disconnect()
        return made

    def release(self, connection: Connection, *, sound: bool = True) -> None:
        """Give the connection back; disconnect it if it is not `sound`: a late reply may arrive."""
        if not sound:
            connection.disconnect()
        elif len(self._idle) < self._most:
            self._idle.append((monotonic(), connection))
            return
        else:
            self._pooled[connection] = monotonic()
        self.pool.release(connection)

    def disconnect(self) -> None:
        """Close the idle connections, and reopen those in the pool: if one died, all may have."""
        self._suspected = monotonic()
        while self._idle:
            self.release(self._idle.pop()[1], sound=False)


def send(connection: Connection, commands: Sequence[Command], wait: Wait) -> None:
    """Send these commands in one write."""
    packed = []
    for command in commands:
        if command.asking:
            packed.append(_ASKING)
        packed.append(_pack(command.words))
    if wait.replicas:
        packed.append(_pack((b"WAIT", b"%d" % wait.replicas, b"%d" % wait.ms)))
    connection.send_packed_command(packed if len(packed) == 1 else [b"".join(packed)])


def receive(connection: Connection, commands: Sequence[Command], wait: Wait) -> list[Reply]:
    """Return the replies to these commands; send the source of scripts the server does not know."""
    replies = []
    for command in commands:
        if command.asking:
            _reply(connection)
        replies.append(_reply(connection))
    if wait.replicas:
        confirmed = _reply(connection)
        if not isinstance(confirmed, int) or confirmed < wait.replicas:
            lost = NotReplicated(f"{confirmed} of {wait.replicas} replicas confirmed")
            replies = [it if isinstance(it, Exception) else lost for it in replies]
    unknown = [
        n for n, it in enumerate(replies) if isinstance(it, NoScriptError) and commands[n].script
    ]
    if unknown:
        again = [commands[n].with_source() for n in unknown]
        send(connection, again, wait)
        for n, reply in zip(unknown, receive(connection, again, wait), strict=True):
            replies[n] = reply
    return replies


def _reply(connection: Connection) -> Reply:
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        wrapped = _OF_A_SCRIPT.search(str(error))
        return (
            _WRAPPED.get(wrapped[1], ResponseError)(wrapped[1] + wrapped[2]) if wrapped else error
        )


def execute(connections: Connections, commands: Sequence[Command], wait: Wait) -> list[Reply]:
    """Send these commands over one connection and return the replies; raise if it breaks."""
    connection = connections.acquire()
    sound = False
    try:
        send(connection, commands, wait)
        replies = receive(connection, commands, wait)
        # After a failover the address may lead to another server; this connection does not.
        sound = not any(isinstance(reply, ReadOnlyError) for reply in replies)
    except TimedOut:
        # Otherwise each of the idle connections would cost a time-out too.
        connections.disconnect()
        raise
    finally:
        connections.release(connection, sound=sound)
    return replies


class Server:
    """Commands to one server, or to the server that a Sentinel or a DNS name leads to."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._connections = Connections(client.connection_pool)

    def execute_batch(
        self, keys: Sequence[bytes], build: Build, wait: Wait, retry_for: float = 0.0
    ) -> list[Answer]:
        """Return the replies for all of these keys: one, or one for each MAX_KEYS keys."""
        count = len(keys)
        if count <= MAX_KEYS:
            return [(None, self._reply(build(None), wait))]
        parts = [range(start, min(start + MAX_KEYS, count)) for start in range(0, count, MAX_KEYS)]
        replies = self.execute([build(part) for part in parts], wait, retry_for)
        return list(zip(parts, replies, strict=True))

    def _reply(self, command: Command, wait: Wait) -> Reply:
        """Return the reply to one command, with as little work as possible."""
        if not wait.replicas:
            connections = self._connections
            try:
                connection = connections.acquire()
                try:
                    connection.send_packed_command((_pack(command.words),))
                    reply = connection.read_response(disable_decoding=True)
                except ResponseError:
                    connections.release(connection)
                    raise
                except BaseException as error:
                    connections.release(connection, sound=False)
                    if isinstance(error, TimedOut):
                        connections.disconnect()
                    raise
            except TimedOut as error:
                return error
            except RedisError:
                """Sent again below, with retries."""
            else:
                connections.release(connection)
                return reply
        return self.execute([command], wait)[0]

    def execute(
        self,
        commands: Sequence[Command],
        wait: Wait,
        retry_for: float = 0.0,  # noqa: ARG002  for a cluster
    ) -> list[Reply]:
        """Return the replies to these commands. After a lost connection they are sent once more:
        every command of the store may be sent twice."""
        try:
            replies = self._once(commands, wait)
            if any(isinstance(reply, ReadOnlyError) for reply in replies):
                self._connections.disconnect()
                replies = self._once(commands, wait)
        except RedisError as error:
            return [error] * len(commands)
        return replies

    def _once(self, commands: Sequence[Command], wait: Wait) -> list[Reply]:
        try:
            return execute(self._connections, commands, wait)
        except ConnectionLost as error:
            # Its subclasses are refusals (password, loading, too many connections): no retry.
            if type(error) is not ConnectionLost:
                raise
        self._connections.disconnect()
        return execute(self._connections, commands, wait)

    def nodes(self) -> list[Connections]:
        """Return the connections to each server that holds records."""
        return [self._connections]

    def close(self, *, client: bool) -> None:
        """Close the connections; with `client`, those of the client too."""
        self._connections.disconnect()
        if client:
            self._client.close()
