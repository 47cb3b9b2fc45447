"""Commands to a cluster: one for each partition that a batch touches, all under way together.

A slot that moves between servers is normal operation. MOVED: the slots are looked up again. ASK:
the key is already where the slot moves to, or is new and belongs there. TRYAGAIN: some keys of the
command are here and some there. The servers see to it that a key is served in one place only, and
every command of the store may be sent twice, so that no event is lost or doubled by a retry.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
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

from eventonce.stores.redis.codec import MAX_KEYS, partition
from eventonce.stores.redis.connections import (
    Answer,
    Build,
    Command,
    Connection,
    Connections,
    Reply,
    Wait,
    receive,
    send,
)

PAUSE: Final = 0.1
"""Seconds between attempts while slots move: a failover takes some seconds."""

MIGRATION: Final = 1.0
"""Seconds for which a command on several keys waits until all of them have moved."""

REDIRECTIONS: Final = 5
"""Times that MOVED and ASK are followed even if time is up: servers that answer cost little."""

_MOVED: Final = (
    MovedError,
    ClusterDownError,
    ReadOnlyError,
    ConnectionLost,
    RedisClusterException,
)
"""Errors while slots move: another server may know better, now or soon."""
_FINAL: Final = (AuthenticationError, MaxConnectionsError)
_BROKEN: Final = (RedisError, OSError, AttributeError)
"""Errors of a connection; drivers before 8 stumble over one that another thread disconnected
because it was looking up the slots."""
_node: Final[Callable[[str, int], ClusterNode]] = ClusterNode


class Cluster:
    """Commands to a cluster, each to the primary that has its slot."""

    def __init__(
        self, connect: Callable[[], RedisCluster], hosts: Sequence[tuple[str, int]] = ()
    ) -> None:
        """`hosts` lead to the cluster whatever becomes of its nodes."""
        self._connect = connect
        self._hosts = hosts
        self._client: RedisCluster | None = None
        self._connections: dict[str, Connections] = {}
        self._newcomers: dict[str, ClusterNode] = {}
        """Servers that have no slot yet, but are about to."""
        self._connecting = threading.Lock()
        self._refreshing = threading.Lock()
        self._refreshes = 0

    def execute_batch(
        self, keys: Sequence[bytes], build: Build, wait: Wait, retry_for: float = 0.0
    ) -> list[Answer]:
        """The replies about all of these keys, one for each partition; one for each key of a slot
        whose keys lie on two servers."""
        by_partition: defaultdict[int, list[int]] = defaultdict(list)
        for index, key in enumerate(keys):
            by_partition[partition(key)].append(index)
        parts = [
            part[start : start + MAX_KEYS]
            for part in by_partition.values()
            for start in range(0, len(part), MAX_KEYS)
        ]
        commands = [build(part) for part in parts]
        replies = self._retried(commands, wait, retry_for, follow=False)
        answers: list[Answer] = []
        for part, reply in zip(parts, replies, strict=True):
            if _migrating(reply):
                alone = self.execute([build([index]) for index in part], wait, retry_for)
                answers += [([index], reply) for index, reply in zip(part, alone, strict=True)]
            else:
                answers.append((part, reply))
        return answers

    def execute(
        self, commands: Sequence[Command], wait: Wait, retry_for: float = 0.0
    ) -> list[Reply]:
        """The replies to these. Where a slot has moved, it is looked up once, and then for as many
        seconds as `retry_for` says, so that other events are not held up for nothing."""
        return self._retried(commands, wait, retry_for, follow=True)

    def _retried(
        self, commands: Sequence[Command], wait: Wait, retry_for: float, *, follow: bool
    ) -> list[Reply]:
        """`follow` says whether commands on a slot that is being moved are sent after it."""
        try:
            replies = self._round(commands, wait)
            began = time.monotonic()
            for attempt in count():
                moved = [n for n, reply in enumerate(replies) if _moved(reply)]
                torn = [n for n, it in enumerate(replies) if follow and _migrating(it)]
                retried = moved + torn
                redirected = any(isinstance(replies[n], AskError) for n in retried)
                limit = max(retry_for, MIGRATION) if torn else retry_for
                late = time.monotonic() - began >= limit
                if not retried or (late and attempt >= (REDIRECTIONS if redirected else 1)):
                    break
                asked = {
                    place: self._target(commands[n], replies[n])
                    for place, n in enumerate(retried)
                    if _asks(replies[n])
                }
                if len(asked) < len(retried):
                    time.sleep(PAUSE if attempt else 0.0)
                if moved:
                    self._refresh()
                again = self._round([commands[n] for n in retried], wait, asked)
                for n, reply in zip(retried, again, strict=True):
                    replies[n] = reply
        except (RedisError, RedisClusterException) as error:
            return [error] * len(commands)
        # A redirection that leads nowhere yet is no wrong address: the slot is on its way.
        return [TryAgainError(str(it)) if isinstance(it, AskError) else it for it in replies]

    def _target(self, command: Command, reply: AskError) -> ClusterNode:
        """The server that a slot moves to; it may be new, and have no other slot yet."""
        manager: Any = self._cluster().nodes_manager
        # A server that does not know its own name leaves it out: it is the one that was asked.
        host = str(reply.host) or manager.get_node_from_slot(command.slot).host
        host, port = manager.remap_host_port(host, int(reply.port))
        known: ClusterNode | None = manager.get_node(host, port)
        return known or self._newcomers.setdefault(f"{host}:{port}", _node(host, port))

    def _round(
        self,
        commands: Sequence[Command],
        wait: Wait,
        targets: Mapping[int, ClusterNode] | None = None,
    ) -> list[Reply]:
        """Send each command once, then read all replies; those with a target go there."""
        replies: list[Reply] = [None] * len(commands)
        under_way: list[tuple[Connections, Connection, list[int]]] = []
        targets = targets or {}
        sent = [
            command._replace(asking=True) if n in targets else command
            for n, command in enumerate(commands)
        ]
        try:
            for connections, share in self._by_server(commands, replies, targets):
                try:
                    connection = connections.acquire()
                except _BROKEN as error:
                    _fill(replies, share, error)
                    continue
                under_way.append((connections, connection, share))
                try:
                    send(connection, [sent[n] for n in share], wait)
                except _BROKEN as error:
                    _fill(replies, share, error)
                    _abandon(under_way.pop())
            while under_way:
                connections, connection, share = under_way[-1]
                try:
                    received = receive(connection, [sent[n] for n in share], wait)
                except _BROKEN as error:
                    _fill(replies, share, error)
                    _abandon(under_way.pop())
                    continue
                for n, reply in zip(share, received, strict=True):
                    replies[n] = reply
                under_way.pop()
                connections.release(connection)
        finally:
            # These connections were interrupted: their replies are still to come.
            while under_way:
                _abandon(under_way.pop())
        return replies

    def _by_server(
        self,
        commands: Sequence[Command],
        replies: list[Reply],
        targets: Mapping[int, ClusterNode],
    ) -> list[tuple[Connections, list[int]]]:
        manager: Any = self._cluster().nodes_manager
        shares: dict[str, list[int]] = {}
        nodes: dict[str, Any] = {}
        for n, command in enumerate(commands):
            try:
                node: Any = targets.get(n) or manager.get_node_from_slot(command.slot)
            except RedisClusterException as error:
                replies[n] = error
                continue
            nodes[node.name] = node
            shares.setdefault(node.name, []).append(n)
        return [(self._connections_to(nodes[name]), share) for name, share in shares.items()]

    def _connections_to(self, node: Any) -> Connections:
        pool = self._cluster().get_redis_connection(node).connection_pool
        connections = self._connections.get(node.name)
        if connections is None or connections.pool is not pool:
            connections = self._connections[node.name] = Connections(pool)
        return connections

    def _refresh(self) -> None:
        """Look up where the slots are now; if nobody knows, what was known stays.

        The hosts of the URI are asked beside the nodes that are known: all of those may have been
        replaced.
        """
        refreshes = self._refreshes
        with self._refreshing:
            if refreshes != self._refreshes:
                # Another thread has begun after this one wanted to, and is done.
                return
            self._refreshes += 1
            with suppress(*_BROKEN, RedisClusterException):
                manager: Any = self._cluster().nodes_manager
                for host, port in self._hosts:
                    # A node of its own each time: no connection, and the name is resolved anew.
                    node = _node(host, port)
                    manager.startup_nodes.setdefault(node.name, node)
                manager.initialize()
                for gone in set(self._connections) - set(manager.nodes_cache):
                    self._connections.pop(gone).disconnect()

    def nodes(self) -> list[Connections]:
        """The connections to each server that holds records."""
        cluster: Any = self._cluster()
        return [self._connections_to(node) for node in cluster.get_primaries()]

    def close(self, *, client: bool) -> None:
        """Close the connections, and those of the client too if asked to."""
        for connections in self._connections.values():
            connections.disconnect()
        if client and self._client is not None:
            self._client.close()

    def _cluster(self) -> RedisCluster:
        """The driver's client, made when first asked for: it wants to talk to the cluster."""
        if self._client is None:
            with self._connecting:
                if self._client is None:
                    self._client = self._connect()
        return self._client


def _moved(reply: Reply) -> bool:
    return isinstance(reply, _MOVED) and not isinstance(reply, _FINAL)


def _asks(reply: Reply) -> bool:
    # The driver's MOVED is a kind of ASK.
    return isinstance(reply, AskError) and not isinstance(reply, MovedError)


def _migrating(reply: Reply) -> bool:
    return _asks(reply) or isinstance(reply, TryAgainError)


def _abandon(under_way: tuple[Connections, Connection, list[int]]) -> None:
    connections, connection, _ = under_way
    connections.release(connection, sound=False)
    connections.disconnect()


def _fill(replies: list[Reply], share: Sequence[int], error: Exception) -> None:
    if not isinstance(error, RedisError):
        error = ConnectionLost(str(error))
    for n in share:
        replies[n] = error
