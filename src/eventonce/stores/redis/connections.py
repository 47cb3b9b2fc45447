"""Commands over the driver's connections to one server: sent together, answered one by one.

The driver's own `execute_command` costs as much as a round trip, and so does taking a connection
from its pool; here a few idle ones are kept, and the pool makes and ends them.
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
    """A command as Redis reads it."""
    packed = b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])
    return b"*%d\r\n%b" % (len(words), packed)


_pack: Callable[[Words], bytes] = _pack_slowly
with suppress(ModuleNotFoundError):
    _pack = cast("Callable[[Words], bytes]", import_module("hiredis").pack_command)

MAX_IDLE: Final = 8
"""Idle connections kept out of the pool: more threads than these seldom call at the same moment,
and those that do take theirs from the pool."""

IDLE_LIMIT: Final = 60.0
"""Seconds after which an unused connection is made anew: address translators and load balancers
forget one after some minutes, and tell neither end."""

_OF_A_SCRIPT: Final = re.compile(r"^Error running script .*: -([A-Z]+)( .*)", re.DOTALL)
_WRAPPED: Final = {
    "READONLY": ReadOnlyError,
    "OOM": OutOfMemoryError,
    "NOPERM": NoPermissionError,
}
"""Redis 6.2 wraps what it says to a script's command in another error; newer ones do not."""

Reply = Any
"""A server's value, or the driver's error."""

Connection = Any
"""The driver's; its own types say little."""


class Command(NamedTuple):
    """A command, the slot of its keys, and the source of the script that it names, if any."""

    words: Words
    slot: int = 0
    script: bytes = b""
    asking: bool = False
    """Whether ASKING is sent before the command: the server that a slot moves to then serves its
    keys."""

    def with_source(self) -> Command:
        """The same for a server that does not have the script; it has it from then on."""
        return self._replace(words=(b"EVAL", self.script, *self.words[2:]), script=b"")


Answer = tuple[Sequence[int] | None, Reply]
"""The indexes of some keys of a batch (None: of all), and the reply about them."""

Build = Callable[[Sequence[int] | None], Command]
"""Builds the command on the keys of these indexes, or on all."""


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
        # The pool may be the user's, and small: others must find a connection in it too.
        self._most = min(MAX_IDLE, pool.max_connections // 2)
        self._idle: list[tuple[float, Connection]] = []
        """Each with the instant of its last use."""
        self._pooled: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()
        """The same of connections that are in the pool, or were, and may be open."""
        self._suspected = 0.0
        """Connections in the pool that were used last before this instant are not used again."""

    def acquire(self) -> Connection:
        """A connection; an idle one may have died meanwhile."""
        while True:
            try:
                used, connection = self._idle.pop()
            except IndexError:
                break
            if connection.pid != os.getpid():
                # Ours is the child of a fork, and these are its parent's.
                self._idle.clear()
                break
            if monotonic() - used < IDLE_LIMIT:
                return connection
            self.release(connection, sound=False)
        made: Connection = self.pool.get_connection()
        used = self._pooled.pop(made, math.inf)
        if used < max(monotonic() - IDLE_LIMIT, self._suspected):
            # The connection is made again at its first write.
            made.disconnect()
        return made

    def release(self, connection: Connection, *, sound: bool = True) -> None:
        """Give it back; disconnected if a reply that is nobody's may still come on it."""
        if not sound:
            connection.disconnect()
        elif len(self._idle) < self._most:
            self._idle.append((monotonic(), connection))
            return
        else:
            self._pooled[connection] = monotonic()
        self.pool.release(connection)

    def disconnect(self) -> None:
        """End the idle ones, and use none in the pool again: if one has died, so have they all."""
        self._suspected = monotonic()
        while self._idle:
            self.release(self._idle.pop()[1], sound=False)


def send(connection: Connection, commands: Sequence[Command], wait: Wait) -> None:
    """Send these in one piece."""
    packed = []
    for command in commands:
        if command.asking:
            packed.append(_ASKING)
        packed.append(_pack(command.words))
    if wait.replicas:
        packed.append(_pack((b"WAIT", b"%d" % wait.replicas, b"%d" % wait.ms)))
    connection.send_packed_command(packed if len(packed) == 1 else [b"".join(packed)])


def receive(connection: Connection, commands: Sequence[Command], wait: Wait) -> list[Reply]:
    """The replies to these; a script that the server does not have is sent to it."""
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
    """Send these over one connection and read their replies; raises where it breaks."""
    connection = connections.acquire()
    sound = False
    try:
        send(connection, commands, wait)
        replies = receive(connection, commands, wait)
        # The address may lead to another server by now; a connection to a replica never will.
        sound = not any(isinstance(reply, ReadOnlyError) for reply in replies)
    except TimedOut:
        # Else each of the others would cost a time-out too.
        connections.disconnect()
        raise
    finally:
        connections.release(connection, sound=sound)
    return replies


class Server:
    """Commands to one server, or to the one that a Sentinel or a DNS name leads to."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._connections = Connections(client.connection_pool)

    def execute_batch(
        self, keys: Sequence[bytes], build: Build, wait: Wait, retry_for: float = 0.0
    ) -> list[Answer]:
        """The replies about all of these keys; more than one only if they are thousands."""
        count = len(keys)
        if count <= MAX_KEYS:
            return [(None, self._reply(build(None), wait))]
        parts = [range(start, min(start + MAX_KEYS, count)) for start in range(0, count, MAX_KEYS)]
        replies = self.execute([build(part) for part in parts], wait, retry_for)
        return list(zip(parts, replies, strict=True))

    def _reply(self, command: Command, wait: Wait) -> Reply:
        """The reply to one command, on the shortest way there is."""
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
                """Sent again below, with all that may help."""
            else:
                connections.release(connection)
                return reply
        return self.execute([command], wait)[0]

    def execute(
        self,
        commands: Sequence[Command],
        wait: Wait,
        retry_for: float = 0.0,  # noqa: ARG002  a cluster has use for it
    ) -> list[Reply]:
        """The replies to these. A connection that was lost is made anew once: every command of the
        store may be sent twice."""
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
            # Its subclasses say no (a password, loading, too many connections), and say so again.
            if type(error) is not ConnectionLost:
                raise
        self._connections.disconnect()
        return execute(self._connections, commands, wait)

    def nodes(self) -> list[Connections]:
        """The connections to each server that holds records."""
        return [self._connections]

    def close(self, *, client: bool) -> None:
        """Close the connections, and those of the client too if asked to."""
        self._connections.disconnect()
        if client:
            self._client.close()
