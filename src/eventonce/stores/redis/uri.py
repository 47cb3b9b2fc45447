"""The URI of a Redis store: its servers, the driver's clients for them, their names in messages,
and tokens of AWS IAM in place of a password."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from redis import Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as ConnectionLost
from redis.retry import Retry
from redis.sentinel import Sentinel

from eventonce.aws.iam_tokens import TokenSigner
from eventonce.errors import ConfigError, EventonceError
from eventonce.stores.uri import CountOrZero, Seconds, StoreURI, parse_uri

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
PREFIX: Final = "eventonce"

TIMEOUT: Final = 5.0
"""Seconds until a call without an answer fails: a batch takes milliseconds, and a renewal that
fails after this long is retried well within a lease of 60 s."""

CONNECT_TIMEOUT: Final = 2.0
"""Seconds until an attempt to connect fails."""

_KEEPALIVE: Final = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}
"""Seconds and probes until the system closes a connection whose other end is silent: the next call
then finds it closed, instead of waiting for its time-out."""

_HELP: Final = (
    "Write redis://user:password@host:6379/0, rediss:// for TLS, "
    "redis+cluster://host:port,host:port for a cluster, "
    "redis+sentinel://host:port,host:port/name for the primary of that name, "
    "rediss+cluster:// and rediss+sentinel:// for these with TLS, unix:///path?db=0 for a socket; "
    "valkey can replace redis."
)
_SCHEME_KINDS: Final = ("", "cluster", "sentinel", "unix")
_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


Prefix = Annotated[
    str, Meta(pattern=r"^[^{}]+$", description="at least one character, and no { or }")
]
"""Braces set the slot of a key, and records are spread over several slots (`codec.Keys`)."""


class Options(msgspec.Struct, frozen=True):
    """The options of the URI; docs/stores/redis.md explains them."""

    prefix: Prefix = PREFIX
    timeout: Seconds = TIMEOUT
    connect_timeout: Seconds = CONNECT_TIMEOUT
    wait_replicas: CountOrZero = 0
    client_name: str = ""
    db: CountOrZero = 0
    ssl_ca_certs: str = ""
    ssl_certfile: str = ""
    ssl_keyfile: str = ""
    ssl_cert_reqs: Literal["", "none", "optional", "required"] = ""
    sentinel_username: str = ""
    sentinel_password: str = ""
    iam: str = ""
    region: str = ""


class Address(msgspec.Struct, frozen=True):
    """The addresses of the servers. As text it names them without user and password."""

    hosts: tuple[tuple[str, int], ...]
    """The hosts of servers, or of sentinels if there is a `service`; empty if there is a `path`."""
    cluster: bool = False
    service: str = ""
    """The name by which sentinels know the primary."""
    path: str = ""
    """The file of a Unix socket."""
    database: int = 0
    options: Options = Options()
    connection: dict[str, Any] = {}
    """The driver's options beside the host. They include passwords, and are never shown."""
    sentinel: dict[str, Any] = {}
    """The same for connections to sentinels."""

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"

    def __str__(self) -> str:
        tls = " with TLS" if "ssl" in self.connection else ""
        if self.path:
            return shown_socket(self.path, self.database)
        where = shown(self.hosts, self.database, cluster=self.cluster)
        return (f"Redis {self.service} of sentinels {where[6:]}" if self.service else where) + tls

    def check_here(self) -> None:
        """Raise ConfigError for a library or a file that is missing here: for a missing file the
        driver would say that the server cannot be reached."""
        tokens = self.connection.get("credential_provider")
        if tokens is not None:
            tokens.signer.check_installed()
        for name in _FILES:
            file = self.connection.get(name)
            if file is not None and not Path(file).is_file():
                raise ConfigError(f"{self}: {name}={file}: there is no such file here")

    def connect(self) -> Redis:
        """Return the driver's client of a single server; it connects when first used."""
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
        """Return the driver's client of a cluster; it connects at once."""
        return RedisCluster(
            startup_nodes=[_node(host, port) for host, port in self.hosts],
            # While the primary of one partition is replaced, the others continue.
            require_full_coverage=False,
            retry=_ONCE,
            **self.connection,
        )

    def wants_tls(self) -> bool:
        """Return whether a server speaks TLS although the URI does not: it closes the connection
        without an answer."""
        if "ssl" in self.connection:
            return False
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        # A server without TLS does not answer a handshake: it waits for the end of the line.
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
                    # The server speaks TLS, but requires a certificate, or another version.
                    return True
            except OSError:
                continue
        return False


_node: Final[Callable[[str, int], ClusterNode]] = ClusterNode
_sentinel: Final[Callable[..., Any]] = Sentinel

_ONCE: Final = Retry(NoBackoff(), 0)
"""The store retries where that helps; the driver's own pauses would only delay the error."""


def shown(hosts: tuple[tuple[str, int], ...], database: int = 0, *, cluster: bool) -> str:
    """Return the names of servers for messages."""
    names = ",".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts
    )
    if cluster:
        return f"Redis cluster {names}"
    return f"Redis {names}/{database}" if database else f"Redis {names}"


def shown_socket(path: str, database: int) -> str:
    """Return the name of a Unix socket for messages."""
    return f"Redis {path} ({database})" if database else f"Redis {path}"


def shown_client(client: Redis | RedisCluster) -> str:
    """Return the names of the servers of a user's client, for messages."""
    if isinstance(client, RedisCluster):
        cluster: Any = client
        nodes = sorted({(str(node.host), int(node.port)) for node in cluster.get_primaries()})
        return shown(tuple(nodes), cluster=True)
    options = client.connection_pool.connection_kwargs
    database = int(options.get("db", 0) or 0)
    if "path" in options:
        return shown_socket(str(options["path"]), database)
    if "host" not in options:
        # The pool of a Sentinel has a service name, and looks the host up.
        return f"Redis {getattr(client.connection_pool, 'service_name', 'of the client')}"
    host = (str(options["host"]), int(options.get("port", PORT)))
    return shown((host,), database, cluster=False)


def read(uri: str) -> Address:
    """Return the address in the URI; ConfigError if it is wrong. Opens nothing."""
    parts = parse_uri(uri, _HELP)
    scheme, _, kind = ("redis+unix" if parts.scheme == "unix" else parts.scheme).partition("+")
    secure = scheme in {"rediss", "valkeys"}
    if not (secure or scheme in {"redis", "valkey"}) or kind not in _SCHEME_KINDS:
        raise parts.refuse("this is not the URI of a Redis store")
    options = parts.read(Options)
    service, path, database = _path(parts, kind, options)
    _check(parts, kind, secure=secure)
    socket_options: dict[str, Any] = {
        "socket_timeout": options.timeout,
        "socket_connect_timeout": options.connect_timeout,
        "socket_keepalive": True,
        "socket_keepalive_options": _KEEPALIVE,
    }
    if secure:
        tls = {name: getattr(options, name) for name in (*_FILES, "ssl_cert_reqs")}
        socket_options |= {"ssl": True, **{name: it for name, it in tls.items() if it}}
    login: dict[str, Any] = {"username": parts.user, "password": parts.password}
    if "iam" in parts.options:
        login = {"credential_provider": Tokens(options.iam, parts.user or "", options.region)}
    port = SENTINEL_PORT if service else PORT
    return Address(
        hosts=tuple((host, own or port) for host, own in parts.hosts),
        cluster=kind == "cluster",
        service=service,
        path=path,
        database=database,
        options=options,
        connection={**login, "client_name": options.client_name or None, **socket_options},
        sentinel={
            "username": options.sentinel_username or None,
            "password": options.sentinel_password or None,
            "retry": _ONCE,
            **socket_options,
        },
    )


def _path(parts: StoreURI, kind: str, options: Options) -> tuple[str, str, int]:
    """Return the name of the primary (sentinels), the path of a socket, and the database."""
    if kind == "unix":
        if len(parts.path) < 2 or parts.hosts:
            raise parts.refuse("it must have the path of a socket, and no host")
        return "", parts.path, options.db
    service, database = "", parts.path.strip("/")
    if kind == "sentinel":
        service, _, database = database.partition("/")
        if not service:
            raise parts.refuse("the name of the primary must follow the sentinels")
    if database and not (database.isascii() and database.isdecimal()):
        raise parts.refuse("the database must be a number")
    return service, "", int(database or 0)


def _check(parts: StoreURI, kind: str, *, secure: bool) -> None:
    """Raise ConfigError for parts that cannot be combined."""
    named = set(parts.options)
    problems = {
        "it must have a host": not parts.hosts and kind != "unix",
        "several hosts are for redis+cluster:// and redis+sentinel://": kind == ""
        and len(parts.hosts) > 1,
        "a cluster has no databases": kind == "cluster" and parts.path.strip("/") not in ("", "0"),
        "there is no TLS over a Unix socket": kind == "unix" and secure,
        "ssl_… is for rediss://": not secure and any(name.startswith("ssl_") for name in named),
        "sentinel_… is for redis+sentinel://": kind != "sentinel"
        and any(name.startswith("sentinel_") for name in named),
        "db is for unix://; elsewhere it is the path, as in redis://host/0": kind != "unix"
        and "db" in named,
        "region is for iam": "region" in named and "iam" not in named,
        "iam is for rediss://user@host, rediss+cluster:// and rediss+sentinel://: with TLS, the "
        "user's name, and no password": "iam" in named
        and not (secure and parts.user and parts.password is None),
    }
    for problem, found in problems.items():
        if found:
            raise parts.refuse(problem)


_CACHES: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "elasticache": ("elasticache", {}),
    "serverless": ("elasticache", {"ResourceType": "ServerlessCache"}),
    "memorydb": ("memorydb", {}),
}
"""The service of each kind of cache, and the further parameters of a request to connect."""


def _cache(iam: str) -> tuple[str, str, Mapping[str, str]]:
    """Return name, service and parameters of `name`, `serverless/name` or `memorydb/name`."""
    kind, _, name = iam.rpartition("/")
    known = _CACHES.get(kind or "elasticache")
    if known is None or not name:
        raise ConfigError(
            "RedisStore: iam= takes the name of the cache or replication group, serverless/name, "
            "or memorydb/name"
        )
    return name, *known


class Tokens(CredentialProvider):
    """The user and a new token of AWS IAM for each connection to ElastiCache or MemoryDB."""

    def __init__(self, iam: str, user: str, region: str) -> None:
        name, service, query = _cache(iam)
        self._user = user
        self.signer = TokenSigner("RedisStore", service, name, {"User": user, **query}, region)

    def get_credentials(self) -> tuple[str, str]:
        try:
            return self._user, self.signer.sign()
        except EventonceError:
            raise
        except Exception as error:
            raise ConnectionLost(f"no AWS credentials for a token: {error}") from error
