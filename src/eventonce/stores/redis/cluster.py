"""A cluster: a call for each partition that a batch touches, all under way at the same time."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from redis import RedisCluster
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    MaxConnectionsError,
    MovedError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as ConnectionLost

from eventonce.stores.redis.calls import (
    Answered,
    Call,
    Connection,
    Lines,
    Make,
    Reply,
    Wait,
    receive,
    send,
)
from eventonce.stores.redis.names import partition
from eventonce.stores.redis.packing import MOST

PAUSE: Final = 0.1
"""Seconds between looks at where the slots are: a failover takes some seconds."""

_MOVING: Final = (
    MovedError,
    ClusterDownError,
    ReadOnlyError,
    ConnectionLost,
    RedisClusterException,
)
"""What is said while slots change hands: another server may know better, now or soon."""
_BROKEN: Final = (RedisError, OSError, AttributeError)
"""What a connection says when it fails; drivers before 8 stumble over one that another thread hung
up because it was looking for the slots."""
_TORN: Final = (AskError, TryAgainError)
"""Some of a slot's keys are here, some already there: no call on several of them can be served."""
_SAID_NO: Final = (AuthenticationError, MaxConnectionsError)


class Cluster:
    """Calls to a cluster, each to the primary that has its slot."""

    def __init__(self, connect: Callable[[], RedisCluster]) -> None:
        self._connect = connect
        self._client: RedisCluster | None = None
        self._lines: dict[str, Lines] = {}
        self._lock = threading.Lock()

    def ask(
        self, keys: Sequence[bytes], make: Make, wait: Wait, patience: float = 0.0
    ) -> list[Answered]:
        """The replies about all of these, one for each partition."""
        parts: defaultdict[int, list[int]] = defaultdict(list)
        for place, key in enumerate(keys):
            parts[partition(key)].append(place)
        shares = [
            part[start : start + MOST]
            for part in parts.values()
            for start in range(0, len(part), MOST)
        ]
        answers: list[Answered] = []
        replies = self.replies([make(share) for share in shares], wait, patience)
        for share, reply in zip(shares, replies, strict=True):
            if isinstance(reply, _TORN) and not isinstance(reply, MovedError):
                answers += [([n], self._reply_alone(make([n]))) for n in share]
            else:
                answers.append((share, reply))
        return answers

    def replies(self, calls: Sequence[Call], wait: Wait, patience: float = 0.0) -> list[Reply]:
        """Where a slot has moved, it is looked for once, and then for as many seconds as there is
        patience: asking again is safe, and the others are not held up for nothing."""
        try:
            replies = self._round(calls, wait)
            deadline = time.monotonic() + patience
            pause = 0.0
            while moving := [n for n, it in enumerate(replies) if _moving(it)]:
                time.sleep(pause)
                self._look_again()
                again = self._round([calls[n] for n in moving], wait)
                for n, reply in zip(moving, again, strict=True):
                    replies[n] = reply
                if time.monotonic() >= deadline:
                    break
                pause = PAUSE
        except (RedisError, RedisClusterException) as error:
            return [error] * len(calls)
        return replies

    def _reply_alone(self, call: Call) -> Reply:
        """The reply to a call on one key of a slot that is half moved: the driver knows whom to
        ask, and how."""
        cluster: Any = self._cluster()
        command, *words = call.spelled_out().words
        try:
            return cluster.execute_command(command.decode(), *words, NEVER_DECODE=True)
        except (RedisError, RedisClusterException) as error:
            return error

    def _round(self, calls: Sequence[Call], wait: Wait) -> list[Reply]:
        """Ask each call once: first all are sent, then all replies are read."""
        replies: list[Reply] = [None] * len(calls)
        under_way: list[tuple[Lines, Connection, list[int]]] = []
        try:
            for lines, share in self._by_server(calls, replies):
                try:
                    connection = lines.take()
                except _BROKEN as error:
                    _fill(replies, share, error)
                    continue
                under_way.append((lines, connection, share))
                try:
                    send(connection, [calls[n] for n in share], wait)
                except _BROKEN as error:
                    _fill(replies, share, error)
                    _give_up(under_way.pop())
            while under_way:
                lines, connection, share = under_way[-1]
                try:
                    told = receive(connection, [calls[n] for n in share], wait)
                except _BROKEN as error:
                    _fill(replies, share, error)
                    _give_up(under_way.pop())
                    continue
                for n, reply in zip(share, told, strict=True):
                    replies[n] = reply
                under_way.pop()
                lines.give(connection)
        finally:
            # What is left here was interrupted: its replies are still to come.
            while under_way:
                _give_up(under_way.pop())
        return replies

    def _by_server(
        self, calls: Sequence[Call], replies: list[Reply]
    ) -> list[tuple[Lines, list[int]]]:
        manager: Any = self._cluster().nodes_manager
        servers: dict[str, list[int]] = {}
        nodes: dict[str, Any] = {}
        for n, call in enumerate(calls):
            try:
                node = manager.get_node_from_slot(call.slot)
            except RedisClusterException as error:
                replies[n] = error
                continue
            nodes[node.name] = node
            servers.setdefault(node.name, []).append(n)
        return [(self._lines_to(nodes[name]), share) for name, share in servers.items()]

    def _lines_to(self, node: Any) -> Lines:
        pool = self._cluster().get_redis_connection(node).connection_pool
        lines = self._lines.get(node.name)
        if lines is None or lines.pool is not pool:
            lines = self._lines[node.name] = Lines(pool)
        return lines

    def _look_again(self) -> None:
        """Ask the cluster where its slots are now; if nobody knows, what was known stays."""
        with suppress(*_BROKEN, RedisClusterException):
            self._cluster().nodes_manager.initialize()

    def lines(self) -> list[Lines]:
        """To each server that holds records."""
        cluster: Any = self._cluster()
        return [self._lines_to(node) for node in cluster.get_primaries()]

    def close(self, *, client: bool) -> None:
        """Let go of the connections, and of the client's own if that is to be closed too."""
        for lines in self._lines.values():
            lines.hang_up()
        if client and self._client is not None:
            self._client.close()

    def _cluster(self) -> RedisCluster:
        """The driver's client, made when first asked for: it wants to talk to the cluster."""
        if self._client is None:
            with self._lock:
                if self._client is None:
                    self._client = self._connect()
        return self._client


def _moving(reply: Reply) -> bool:
    return isinstance(reply, _MOVING) and not isinstance(reply, _SAID_NO)


def _give_up(on: tuple[Lines, Connection, list[int]]) -> None:
    lines, connection, _ = on
    lines.give(connection, sound=False)
    lines.hang_up()


def _fill(replies: list[Reply], share: Sequence[int], error: Exception) -> None:
    if not isinstance(error, RedisError):
        error = ConnectionLost(str(error))
    for n in share:
        replies[n] = error
