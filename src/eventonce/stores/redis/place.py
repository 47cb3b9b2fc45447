"""Where a server is: what a URI says, and how that may be shown."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from redis import Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry

from eventonce.errors import ConfigError

PORT: Final = 6379
PREFIX: Final = "eventonce"

TIMEOUT: Final = 5.0
"""Seconds until a call that is not answered fails: a batch takes milliseconds, and a renewal that
fails after this long is still tried again well within a lease of 60 s."""

CONNECT_TIMEOUT: Final = 2.0
"""Seconds until a connection that does not come about fails."""

_KEEPALIVE: Final = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}
"""Seconds and tries until the system gives up a connection whose other end is silent: the next call
then finds it closed, and need not run into its time-out."""

_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_TLS: Final = (*_FILES, "ssl_cert_reqs")
_OPTIONS: Final = ("prefix", "timeout", "connect_timeout", "wait_replicas", *_TLS)
_OPTION: Final = re.compile(r"\w{1,40}")

_HELP: Final = (
    "this is no URI of a Redis store; its text is not shown, for it may hold a password. Write "
    "redis://user:password@host:6379/0, rediss:// for TLS, redis+cluster://host:port,host:port for "
    "a cluster, rediss+cluster:// for one with TLS; percent-encode the user and the password. "
    f"Options: {', '.join(_OPTIONS)}"
)


class Place(msgspec.Struct, frozen=True):
    """What a URI says."""

    hosts: tuple[tuple[str, int], ...]
    cluster: bool
    database: int = 0
    prefix: str = PREFIX
    timeout: float = TIMEOUT
    wait_replicas: int = 0
    connection: dict[str, Any] = {}
    """What the driver takes beside the host: passwords among it, so that it is never shown."""

    def __repr__(self) -> str:
        return f"Place({self.shown()!r})"

    def shown(self) -> str:
        """For messages: no user, no password."""
        tls = " with TLS" if "ssl" in self.connection else ""
        return shown(self.hosts, self.database, cluster=self.cluster) + tls

    def check_files(self) -> None:
        """ConfigError for a file that is not there: the driver would say so as if the server were
        away."""
        for name in _FILES:
            file = self.connection.get(name)
            if file is not None and not Path(file).is_file():
                raise ConfigError(f"{self.shown()}: {name}={file}: there is no such file here")

    def connect(self) -> Redis:
        """The driver's client of a single server; it connects when first used."""
        ((host, port),) = self.hosts
        return Redis(host=host, port=port, db=self.database, retry=_ONCE, **self.connection)

    def connect_cluster(self) -> RedisCluster:
        """The driver's client of a cluster; it connects at once."""
        return RedisCluster(
            startup_nodes=[_node(host, port) for host, port in self.hosts],
            # The partitions that are there go on while another one's primary is replaced.
            require_full_coverage=False,
            retry=_ONCE,
            **self.connection,
        )


_node: Final[Callable[[str, int], ClusterNode]] = ClusterNode

_ONCE: Final = Retry(NoBackoff(), 0)
"""The store tries again where that helps; the driver's own pauses would only delay the news."""


def shown(hosts: tuple[tuple[str, int], ...], database: int = 0, *, cluster: bool) -> str:
    """A place for messages."""
    names = ",".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts
    )
    if cluster:
        return f"Redis cluster {names}"
    return f"Redis {names}/{database}" if database else f"Redis {names}"


def shown_client(client: Redis | RedisCluster) -> str:
    """The place of a client of the user's."""
    if isinstance(client, RedisCluster):
        cluster: Any = client
        nodes = sorted({(str(node.host), int(node.port)) for node in cluster.get_primaries()})
        return shown(tuple(nodes), cluster=True)
    options = client.connection_pool.connection_kwargs
    if "path" in options:
        return f"Redis {options['path']}"
    if "host" not in options:
        # A Sentinel's pool knows a name and looks the host up.
        return f"Redis {getattr(client.connection_pool, 'service_name', 'of the given client')}"
    host = (str(options["host"]), int(options.get("port", PORT)))
    return shown((host,), int(options.get("db", 0) or 0), cluster=False)


def place_of(uri: str) -> Place:
    """What this URI says."""
    try:
        return _read(uri)
    except ValueError:
        """Not raised from here: the parser's own error would carry parts of the text with it."""
    raise ConfigError(f"RedisStore: {_HELP}")


def _read(uri: str) -> Place:
    parts = urlsplit(uri)
    scheme, _, kind = parts.scheme.partition("+")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    tls: dict[str, Any] = {name: options.pop(name) for name in _TLS if name in options}
    timeout = _seconds(options.pop("timeout", TIMEOUT))
    place = Place(
        hosts=_hosts(parts.netloc),
        cluster=kind == "cluster",
        database=int(parts.path.strip("/") or 0),
        prefix=options.pop("prefix", PREFIX),
        timeout=timeout,
        wait_replicas=int(options.pop("wait_replicas", 0)),
        connection={
            "username": unquote(parts.username) if parts.username else None,
            "password": unquote(parts.password) if parts.password else None,
            "socket_timeout": timeout,
            "socket_keepalive": True,
            "socket_keepalive_options": _KEEPALIVE,
            "socket_connect_timeout": _seconds(options.pop("connect_timeout", CONNECT_TIMEOUT)),
            **({"ssl": True, **tls} if scheme == "rediss" else {}),
        },
    )
    _must(scheme in {"redis", "rediss"} and kind in {"", "cluster"})
    _must(not parts.fragment)
    if options:
        unknown = min(options)
        # Where a password holds a question mark, what follows that may be more of the password.
        _must("@" not in parts.query and _OPTION.fullmatch(unknown))
        raise ConfigError(
            f"RedisStore: there is no option {unknown!r}; a Redis store takes {', '.join(_OPTIONS)}"
        )
    _must(scheme == "rediss" or not tls)
    _must(tls.get("ssl_cert_reqs", "none") in {"none", "optional", "required"})
    _must(place.database == 0 if place.cluster else len(place.hosts) == 1)
    _must(place.database >= 0 and place.wait_replicas >= 0)
    return place


def _hosts(netloc: str) -> tuple[tuple[str, int], ...]:
    hosts = []
    for host in netloc.rpartition("@")[2].split(","):
        parts = urlsplit(f"//{host}")
        _must(parts.hostname)
        hosts.append((parts.hostname or "", parts.port or PORT))
    return tuple(hosts)


def _seconds(text: str | float) -> float:
    seconds = float(text)
    _must(0 < seconds <= 3_600)
    return seconds


def _must(holds: object) -> None:
    if not holds:
        raise ValueError
