"""Calls over the driver's connections: sent together, answered one by one.

The driver's own `execute_command` costs as much as a round trip, and so does taking a connection
from its pool; here some are kept at hand, and the pool makes and ends them.
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

from redis.connection import ConnectionPool
from redis.exceptions import (
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import TimeoutError as TimedOut

from eventonce.stores.redis.scripts import Script


def _spelled(words: tuple[bytes, ...]) -> bytes:
    """A command as Redis reads it."""
    said = b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])
    return b"*%d\r\n%b" % (len(words), said)


_packed: Callable[[tuple[bytes, ...]], bytes] = _spelled
with suppress(ModuleNotFoundError):
    _packed = cast("Callable[[tuple[bytes, ...]], bytes]", import_module("hiredis").pack_command)

AT_HAND: Final = 8
"""Connections kept out of the pool: more threads than these seldom call at the same moment, and
those that do take theirs from the pool."""

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
"""What a server said: a value, or the driver's error."""

Connection = Any
"""The driver's; its own types say little."""


class Call(NamedTuple):
    """A command, the slot of its keys, and the script it names if it names one."""

    words: tuple[bytes, ...]
    slot: int = 0
    script: bytes = b""

    def spelled_out(self) -> Call:
        """With the script itself, for a server that does not have it; it has it from then on."""
        if not self.script:
            return self
        return Call((b"EVAL", self.script, *self.words[2:]), self.slot)


Answered = tuple[Sequence[int] | None, Reply]
"""The places of some among all that were asked for (None: of all), and the reply about them."""

Make = Callable[[Sequence[int] | None], Call]
"""Makes the call that asks for those at these places, or for all."""


class Wait(NamedTuple):
    """How many replicas must have got what was written, and the milliseconds they may take."""

    replicas: int = 0
    ms: int = 0


NO_WAIT: Final = Wait()


class NotReplicated(Exception):
    """Too few replicas have confirmed what was written."""


def script_call(
    script: Script, keys: Sequence[bytes], args: Sequence[bytes], slot: int = 0
) -> Call:
    """The call of a script by its name."""
    return Call((b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *args), slot, script.text)


class Lines:
    """Connections to one server, a few of them kept at hand."""

    def __init__(self, pool: ConnectionPool) -> None:
        self.pool = pool
        # The pool may be the user's, and small: others must find a connection in it too.
        self._most = min(AT_HAND, pool.max_connections // 2)
        self._idle: list[tuple[float, Connection]] = []
        """Those at hand, each with the instant of its last use."""
        self._pooled: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()
        """The same of connections that are in the pool, or were, and may be open."""
        self._suspected = 0.0
        """Connections in the pool that were used last before this instant are not used again."""

    def take(self) -> Connection:
        """A connection; one that was at hand may have died meanwhile."""
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
            self.give(connection, sound=False)
        made: Connection = self.pool.get_connection()
        used = self._pooled.pop(made, math.inf)
        if used < max(monotonic() - IDLE_LIMIT, self._suspected):
            # It is connected again when it is first written to.
            made.disconnect()
        return made

    def give(self, connection: Connection, *, sound: bool = True) -> None:
        """Give it back; hung up if what may still come on it is nobody's reply."""
        if not sound:
            connection.disconnect()
        elif len(self._idle) < self._most:
            self._idle.append((monotonic(), connection))
            return
        else:
            self._pooled[connection] = monotonic()
        self.pool.release(connection)

    def hang_up(self) -> None:
        """End those at hand, and use none in the pool again: if one has died, so have they all."""
        self._suspected = monotonic()
        while self._idle:
            self.give(self._idle.pop()[1], sound=False)


def send(connection: Connection, calls: Sequence[Call], wait: Wait) -> None:
    """Send these in one piece."""
    packed = [_packed(call.words) for call in calls]
    if wait.replicas:
        packed.append(_packed((b"WAIT", b"%d" % wait.replicas, b"%d" % wait.ms)))
    connection.send_packed_command(packed if len(packed) == 1 else [b"".join(packed)])


def receive(connection: Connection, calls: Sequence[Call], wait: Wait) -> list[Reply]:
    """The replies to what was sent; a script the server does not have is sent to it."""
    replies = [_reply(connection) for _ in calls]
    if wait.replicas:
        confirmed = _reply(connection)
        if not isinstance(confirmed, int) or confirmed < wait.replicas:
            lost = NotReplicated(f"{confirmed} of {wait.replicas} replicas confirmed")
            replies = [it if isinstance(it, Exception) else lost for it in replies]
    unknown = [
        n for n, it in enumerate(replies) if isinstance(it, NoScriptError) and calls[n].script
    ]
    if unknown:
        spelled_out = [calls[n].spelled_out() for n in unknown]
        send(connection, spelled_out, wait)
        for n, reply in zip(unknown, receive(connection, spelled_out, wait), strict=True):
            replies[n] = reply
    return replies


def ask(lines: Lines, call: Call) -> Reply:
    """The reply to one call, on the shortest way there is; raises whatever goes wrong."""
    connection = lines.take()
    try:
        connection.send_packed_command([_packed(call.words)])
        reply = connection.read_response(disable_decoding=True)
    except ResponseError:
        lines.give(connection)
        raise
    except BaseException as error:
        lines.give(connection, sound=False)
        if isinstance(error, TimedOut):
            lines.hang_up()
        raise
    lines.give(connection)
    return reply


def _reply(connection: Connection) -> Reply:
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        wrapped = _OF_A_SCRIPT.search(str(error))
        return (
            _WRAPPED.get(wrapped[1], ResponseError)(wrapped[1] + wrapped[2]) if wrapped else error
        )


def exchange(lines: Lines, calls: Sequence[Call], wait: Wait) -> list[Reply]:
    """Send these calls over one connection and read their replies; raises where it breaks."""
    connection = lines.take()
    sound = False
    try:
        send(connection, calls, wait)
        replies = receive(connection, calls, wait)
        # The address may lead to another server by now; a connection to a replica never will.
        sound = not any(isinstance(reply, ReadOnlyError) for reply in replies)
    except TimedOut:
        # Else each of the others would cost a time-out too.
        lines.hang_up()
        raise
    finally:
        lines.give(connection, sound=sound)
    return replies
