"""Where a server is: what a URI says, and how that may be shown."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from redis import Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry
from redis.sentinel import Sentinel

from eventonce.errors import ConfigError
from eventonce.stores.redis import iam

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
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
_SENTINELS: Final = ("sentinel_username", "sentinel_password")
_IAM: Final = ("iam", "region")
_OPTIONS: Final = (
    *("prefix", "timeout", "connect_timeout", "wait_replicas", "client_name", "db"),
    *(*_TLS, *_SENTINELS, *_IAM),
)
_OPTION: Final = re.compile(r"\w{1,40}")

_HELP: Final = (
    "this is no URI of a Redis store; its text is not shown, for it may hold a password. Write "
    "redis://user:password@host:6379/0, rediss:// for TLS, redis+cluster://host:port,host:port for "
    "a cluster, redis+sentinel://host:port,host:port/name for the primary of that name, "
    "rediss+cluster:// and rediss+sentinel:// for these with TLS, unix:///path?db=0 for a socket; "
    "valkey may stand for redis. Percent-encode the user and the password. "
    f"Options: {', '.join(_OPTIONS)}"
)


class Place(msgspec.Struct, frozen=True):
    """What a URI says."""

    hosts: tuple[tuple[str, int], ...]
    """Of servers, or of sentinels if there is a `service`; none if there is a `path`."""
    cluster: bool
    service: str = ""
    """The name by which sentinels know the primary."""
    path: str = ""
    """The file of a Unix socket."""
    database: int = 0
    prefix: str = PREFIX
    timeout: float = TIMEOUT
    wait_replicas: int = 0
    connection: dict[str, Any] = {}
    """What the driver takes beside the host: passwords among it, so that it is never shown."""
    sentinel: dict[str, Any] = {}
    """The same for connections to sentinels."""

    def __repr__(self) -> str:
        return f"Place({self.shown()!r})"

    def shown(self) -> str:
        """For messages: no user, no password."""
        tls = " with TLS" if "ssl" in self.connection else ""
        if self.path:
            return shown_socket(self.path, self.database)
        where = shown(self.hosts, self.database, cluster=self.cluster)
        return (f"Redis {self.service} of sentinels {where[6:]}" if self.service else where) + tls

    def check_here(self) -> None:
        """ConfigError for what is missing on this machine: of a file that is not there the driver
        would say that the server is away."""
        if "credential_provider" in self.connection and find_spec("botocore") is None:
            raise ConfigError(f'{self.shown()}: iam= needs: pip install "boto3>=1.34"')
        for name in _FILES:
            file = self.connection.get(name)
            if file is not None and not Path(file).is_file():
                raise ConfigError(f"{self.shown()}: {name}={file}: there is no such file here")

    def connect(self) -> Redis:
        """The driver's client of a single server; it connects when first used."""
        options = {"db": self.database, "retry": _ONCE, **self.connection}
        if self.path:
            return Redis(unix_socket_path=self.path, **options)
        if self.service:
            sentinel = _sentinel(self.hosts, sentinel_kwargs=self.sentinel)
            client: Redis = sentinel.master_for(self.service, **options)
            return client
        ((host, port),) = self.hosts
        return Redis(host=host, port=port, **options)

    def connect_cluster(self) -> RedisCluster:
        """The driver's client of a cluster; it connects at once."""
        return RedisCluster(
            startup_nodes=[_node(host, port) for host, port in self.hosts],
            # The partitions that are there go on while another one's primary is replaced.
            require_full_coverage=False,
            retry=_ONCE,
            **self.connection,
        )

    def wants_tls(self) -> bool:
        """Whether somebody there speaks TLS, although this says nothing of it: such a server hangs
        up without a word."""
        if "ssl" in self.connection:
            return False
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        # A server without TLS says nothing to a handshake: it waits for the end of the line.
        wait = min(self.connection["socket_connect_timeout"], 1.0)
        for host, port in self.hosts:
            try:
                with (
                    socket.create_connection((host, port), wait) as plain,
                    context.wrap_socket(plain, server_hostname=host),
                ):
                    return True
            except ssl.SSLError as error:
                if "ALERT" in (error.reason or ""):
                    # It does, and wants a certificate too, or another version.
                    return True
            except OSError:
                continue
        return False


_node: Final[Callable[[str, int], ClusterNode]] = ClusterNode
_sentinel: Final[Callable[..., Any]] = Sentinel

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


def shown_socket(path: str, database: int) -> str:
    """The place of a Unix socket."""
    return f"Redis {path} ({database})" if database else f"Redis {path}"


def shown_client(client: Redis | RedisCluster) -> str:
    """The place of a client of the user's."""
    if isinstance(client, RedisCluster):
        cluster: Any = client
        nodes = sorted({(str(node.host), int(node.port)) for node in cluster.get_primaries()})
        return shown(tuple(nodes), cluster=True)
    options = client.connection_pool.connection_kwargs
    if "path" in options:
        return shown_socket(str(options["path"]), int(options.get("db", 0) or 0))
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
    scheme, _, kind = ("redis+unix" if parts.scheme == "unix" else parts.scheme).partition("+")
    _must(scheme in {"redis", "rediss", "valkey", "valkeys"})
    _must(kind in {"", "cluster", "sentinel", "unix"})
    _must(not parts.fragment)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    secure = scheme in {"rediss", "valkeys"}
    tls: dict[str, Any] = {name: options.pop(name) for name in _TLS if name in options}
    _must(secure or not tls)
    _must(tls.get("ssl_cert_reqs", "none") in {"none", "optional", "required"})
    service, path, database = _where(kind, parts.path, options)
    _must(not path or not (secure or parts.netloc.rpartition("@")[2]))
    timeout = _seconds(options.pop("timeout", TIMEOUT))
    line: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": _seconds(options.pop("connect_timeout", CONNECT_TIMEOUT)),
        "socket_keepalive": True,
        "socket_keepalive_options": _KEEPALIVE,
    }
    if secure:
        line |= {"ssl": True, **tls}
    user, password = (unquote(it) if it else None for it in (parts.username, parts.password))
    place = Place(
        hosts=() if path else _hosts(parts.netloc, SENTINEL_PORT if service else PORT),
        cluster=kind == "cluster",
        service=service,
        path=path,
        database=database,
        prefix=options.pop("prefix", PREFIX),
        timeout=timeout,
        wait_replicas=int(options.pop("wait_replicas", 0)),
        connection={
            **_login(user, password, options, secure=secure),
            "client_name": options.pop("client_name", None),
            **line,
        },
        sentinel={
            "username": options.pop("sentinel_username", None) if service else None,
            "password": options.pop("sentinel_password", None) if service else None,
            "retry": _ONCE,
            **line,
        },
    )
    if options:
        unknown = min(options)
        # Where a password holds a question mark, what follows that may be more of the password.
        _must("@" not in parts.query and _OPTION.fullmatch(unknown))
        raise ConfigError(
            f"RedisStore: there is no option {unknown!r} here; a Redis store takes "
            f"{', '.join(_OPTIONS)}: sentinel_… with redis+sentinel://, db with unix://, region "
            f"with iam"
        )
    _must(place.database == 0 if place.cluster else place.service or len(place.hosts) <= 1)
    _must(place.database >= 0 and place.wait_replicas >= 0)
    return place


def _where(kind: str, path: str, options: dict[str, str]) -> tuple[str, str, int]:
    """The sentinels' name of the primary, the path of a socket, the number of the database."""
    if kind == "unix":
        _must(len(path) > 1)
        return "", unquote(path), int(options.pop("db", 0))
    service = ""
    if kind == "sentinel":
        service, _, path = path.strip("/").partition("/")
        _must(service)
    return unquote(service), "", int(path.strip("/") or 0)


def _login(
    user: str | None, password: str | None, options: dict[str, str], *, secure: bool
) -> dict[str, Any]:
    """What the driver logs in with."""
    if "iam" not in options:
        return {"username": user, "password": password}
    if not user or password is not None or not secure:
        raise ConfigError(
            "RedisStore: iam= is for rediss://user@host, rediss+cluster:// and rediss+sentinel://: "
            "with TLS, the user's name, and no password"
        )
    return {"credential_provider": iam.tokens(options.pop("iam"), user, options.pop("region", ""))}


def _hosts(netloc: str, port: int) -> tuple[tuple[str, int], ...]:
    hosts = []
    for host in netloc.rpartition("@")[2].split(","):
        parts = urlsplit(f"//{host}")
        _must(parts.hostname)
        hosts.append((parts.hostname or "", parts.port or port))
    return tuple(hosts)


def _seconds(text: str | float) -> float:
    seconds = float(text)
    _must(0 < seconds <= 3_600)
    return seconds


def _must(holds: object) -> None:
    if not holds:
        raise ValueError
