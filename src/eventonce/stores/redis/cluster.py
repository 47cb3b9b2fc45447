"""A cluster: a call for each partition that a batch touches, all under way at the same time."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from redis import RedisCluster
from redis.cluster import ClusterNode
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
    exchange,
    receive,
    send,
)
from eventonce.stores.redis.codec import MOST
from eventonce.stores.redis.names import partition

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
_ASKING: Final = Call((b"ASKING",))
"""Said before each call to a server that a slot is moving to: it serves the keys it has got."""
_node: Final[Callable[[str, int], ClusterNode]] = ClusterNode
_SAID_NO: Final = (AuthenticationError, MaxConnectionsError)


class Cluster:
    """Calls to a cluster, each to the primary that has its slot."""

    def __init__(
        self, connect: Callable[[], RedisCluster], hosts: Sequence[tuple[str, int]] = ()
    ) -> None:
        """`hosts` lead to the cluster whatever becomes of its nodes."""
        self._connect = connect
        self._hosts = hosts
        self._client: RedisCluster | None = None
        self._lines: dict[str, Lines] = {}
        self._newcomers: dict[str, ClusterNode] = {}
        """Servers that have no slot yet, but are about to."""
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._looks = 0

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
                alone = self._replies_alone([make([n]) for n in share], wait, patience)
                answers += [([n], reply) for n, reply in zip(share, alone, strict=True)]
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

    def _replies_alone(self, calls: Sequence[Call], wait: Wait, patience: float) -> list[Reply]:
        """The replies to calls on one key each of a slot that is half moved: a key that is not here
        any more is asked for where it moves to."""
        replies = self.replies(calls, wait, patience)
        moved: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for n, reply in enumerate(replies):
            if isinstance(reply, AskError) and not isinstance(reply, MovedError):
                moved[str(reply.host), int(reply.port)].append(n)
        for (host, port), share in moved.items():
            # The first brings the script; the others then know it by its name.
            asked = [calls[n] if n != share[0] else calls[n].spelled_out() for n in share]
            try:
                lines = self._lines_to(self._target(host, port, calls[share[0]].slot))
                said = exchange(lines, [it for call in asked for it in (_ASKING, call)], wait)
            except _BROKEN as error:
                _fill(replies, share, error)
            else:
                for n, reply in zip(share, said[1::2], strict=True):
                    replies[n] = reply
        return replies

    def _target(self, host: str, port: int, slot: int) -> ClusterNode:
        """The server that a slot moves to; it may be new, and have no other slot yet."""
        manager: Any = self._cluster().nodes_manager
        # A server that does not know its own name leaves it out: it is the one that was asked.
        host, port = manager.remap_host_port(host or manager.get_node_from_slot(slot).host, port)
        known: ClusterNode | None = manager.get_node(host, port)
        return known or self._newcomers.setdefault(f"{host}:{port}", _node(host, port))

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
        """Ask the cluster where its slots are now; if nobody knows, what was known stays.

        The hosts that were given are asked beside the nodes that are known: all of those may have
        been replaced.
        """
        looks = self._looks
        with self._looking:
            if looks != self._looks:
                # Another thread has begun after this one wanted to, and is done.
                return
            self._looks += 1
            with suppress(*_BROKEN, RedisClusterException):
                manager: Any = self._cluster().nodes_manager
                for host, port in self._hosts:
                    # A node of its own each time: no connection, and the name is resolved anew.
                    node = _node(host, port)
                    manager.startup_nodes.setdefault(node.name, node)
                manager.initialize()
                for gone in set(self._lines) - set(manager.nodes_cache):
                    self._lines.pop(gone).hang_up()

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
