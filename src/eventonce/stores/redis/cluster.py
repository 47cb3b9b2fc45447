"""Commands to a cluster: one for each partition of a batch, all in flight together.

Slots move between servers in normal operation. MOVED: the slots are looked up again. ASK: the key
is already on the server that the slot moves to, or is new and belongs there. TRYAGAIN: the keys of
the command are on two servers. The servers serve each key in one place only, and every command of
the store may be sent twice, so that a retry neither loses nor doubles an event.
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

MOVED_PAUSE: Final = 0.1
"""Seconds between attempts while slots move: a failover takes some seconds."""

MIGRATION_WAIT: Final = 1.0
"""Seconds for which a command on several keys waits until all of them have moved."""

MOST_REDIRECTIONS: Final = 5
"""How often MOVED and ASK are followed even after the deadline: such answers come fast."""

_MOVED: Final = (
    MovedError,
    ClusterDownError,
    ReadOnlyError,
    ConnectionLost,
    RedisClusterException,
)
"""Errors while slots move: another server may answer, now or soon."""
_FINAL: Final = (AuthenticationError, MaxConnectionsError)
_BROKEN: Final = (RedisError, OSError, AttributeError)
"""Errors of a connection. Drivers before 8 raise AttributeError on a connection that another thread
disconnected while it looked up the slots."""
_node: Final[Callable[[str, int], ClusterNode]] = ClusterNode


class Cluster:
    """Commands to a cluster, each to the primary that has its slot."""

    def __init__(
        self, connect: Callable[[], RedisCluster], hosts: Sequence[tuple[str, int]] = ()
    ) -> None:
        """`hosts` lead to the cluster even if all its nodes are replaced."""
        self._connect = connect
        self._hosts = hosts
        self._client: RedisCluster | None = None
        self._connections: dict[str, Connections] = {}
        self._newcomers: dict[str, ClusterNode] = {}
        """Servers that have no slot yet, but will get one."""
        self._connecting = threading.Lock()
        self._refreshing = threading.Lock()
        self._refreshes = 0

    def execute_batch(
        self, keys: Sequence[bytes], build: Build, wait: Wait, retry_for: float = 0.0
    ) -> list[Answer]:
        """Return the replies for all of these keys, one for each partition; if the keys of a slot
        are on two servers, one for each key."""
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
        """Return the replies to these commands. A slot that has moved is looked up once, and again
        for `retry_for` seconds, so that other events do not wait in vain."""
        return self._retried(commands, wait, retry_for, follow=True)

    def _retried(
        self, commands: Sequence[Command], wait: Wait, retry_for: float, *, follow: bool
    ) -> list[Reply]:
        """With `follow`, commands on a slot that is being moved are sent to the new server."""
        try:
            replies = self._round(commands, wait)
            began = time.monotonic()
            for attempt in count():
                moved = [n for n, reply in enumerate(replies) if _moved(reply)]
                torn = [n for n, it in enumerate(replies) if follow and _migrating(it)]
                retried = moved + torn
                redirected = any(isinstance(replies[n], AskError) for n in retried)
                limit = max(retry_for, MIGRATION_WAIT) if torn else retry_for
                late = time.monotonic() - began >= limit
                if not retried or (late and attempt >= (MOST_REDIRECTIONS if redirected else 1)):
                    break
                asked = {
                    place: self._target(commands[n], replies[n])
                    for place, n in enumerate(retried)
                    if _asks(replies[n])
                }
                if len(asked) < len(retried):
                    time.sleep(MOVED_PAUSE if attempt else 0.0)
                if moved:
                    self._refresh()
                again = self._round([commands[n] for n in retried], wait, asked)
                for n, reply in zip(retried, again, strict=True):
                    replies[n] = reply
        except (RedisError, RedisClusterException) as error:
            return [error] * len(commands)
        # A redirection that has not led to an answer is no wrong address: the slot is being moved.
        return [TryAgainError(str(it)) if isinstance(it, AskError) else it for it in replies]

    def _target(self, command: Command, reply: AskError) -> ClusterNode:
        """Return the server that a slot moves to; a new server may have no other slot yet."""
        manager: Any = self._cluster().nodes_manager
        # A server that does not know its own name leaves it out: then the host is its own.
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
        """Send each command once, to its target if it has one; then read all replies."""
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
            # An interruption: the replies of these connections are still to come.
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
        """Look up where the slots are now; if no server answers, the last known places stay.

        The hosts of the URI are asked beside the known nodes, because all of those may have been
        replaced.
        """
        refreshes = self._refreshes
        with self._refreshing:
            if refreshes != self._refreshes:
                # Another thread began a lookup after this call, and has finished it.
                return
            self._refreshes += 1
            with suppress(*_BROKEN, RedisClusterException):
                manager: Any = self._cluster().nodes_manager
                for host, port in self._hosts:
                    # A new node each time: it has no connection, and its name is resolved again.
                    node = _node(host, port)
                    manager.startup_nodes.setdefault(node.name, node)
                manager.initialize()
                for gone in set(self._connections) - set(manager.nodes_cache):
                    self._connections.pop(gone).disconnect()

    def nodes(self) -> list[Connections]:
        """Return the connections to each server that holds records."""
        cluster: Any = self._cluster()
        return [self._connections_to(node) for node in cluster.get_primaries()]

    def close(self, *, client: bool) -> None:
        """Close the connections; with `client`, those of the client too."""
        for connections in self._connections.values():
            connections.disconnect()
        if client and self._client is not None:
            self._client.close()

    def _cluster(self) -> RedisCluster:
        """Return the driver's client. It is made at first use, because it connects at once."""
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
