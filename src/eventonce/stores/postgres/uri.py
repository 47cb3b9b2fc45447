"""The address of the database: the parts of a URI, what of it may be shown, and its password."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

import msgspec
import psycopg
from msgspec import Meta
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from eventonce.aws.iam_tokens import TokenSigner
from eventonce.errors import ConfigError
from eventonce.stores.uri import Count, Seconds, StoreURI, parse_uri

SCHEMA: Final = "eventonce"
"""The default schema: one command creates it, one drops it, and its names conflict with none."""

CONNECTIONS: Final = 5
"""Connections for claims, settlements and dead letters: at most four threads use them, and one
renews leases."""

TRANSACTIONS: Final = 20
"""Connections for handlers that write through `job.connection`: a fifth of a server's default
limit."""

TIMEOUT: Final = 10.0
"""Seconds until a call without an answer fails: a renewal that fails after this long is retried
well within a lease of 60 s."""

CONNECT_TIMEOUT: Final = 5
"""Seconds; libpq would otherwise wait as long as the operating system does, which is minutes."""

KEEPALIVE: Final = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""The settings by which the operating system finds a dead host within a minute, the default lease:
later another run may have the event. The first three, in seconds, are for a connection that waits
for an answer; the last, in milliseconds, for data that was sent and not acknowledged. Linux by
default takes two hours, and a quarter of an hour."""

PORT: Final = 5432
"""The port if the URI names none; libpq adds it later, but the signature of an IAM token covers
it."""

_HELP: Final = "Write postgresql://user:password@host:5432/database"

_OPTION: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SCHEMA_NAME: Final = re.compile(rf"\b{SCHEMA}(?=\.|;)")
Schema = Annotated[
    str,
    Meta(
        pattern=r"^(?!pg_)[A-Za-z_][A-Za-z0-9_-]{0,62}$",
        description="letters, digits, _ and -, 63 of them at most, and not pg_ before them",
    ),
]


class Options(msgspec.Struct, frozen=True):
    """The options of this store; all others are libpq's."""

    schema: Schema = SCHEMA
    connections: Count = CONNECTIONS
    transactions: Count = TRANSACTIONS
    timeout: Seconds = TIMEOUT
    iam: str | None = None
    region: str | None = None


class Address(msgspec.Struct, frozen=True):
    """The address of a database, and its name in messages."""

    shown: str
    """The URI without password and options."""
    typed: str = ""
    """The URI that can be typed again, without secrets; empty if a pool was given."""
    parameters: Mapping[str, Any] = {}
    """The parameters of libpq; empty if the caller's own pool has them."""
    password: Callable[[], str] | None = None
    """The function that returns the password of each new connection, if it changes."""
    options: Options = Options()

    @property
    def schema(self) -> str:
        """The schema's name."""
        return self.options.schema

    @property
    def quoted(self) -> str:
        """The schema's name in a statement, quoted: it may be a reserved word."""
        return self.schema if self.schema == SCHEMA else f'"{self.schema}"'

    def in_schema(self, script: str) -> str:
        """Return a script for this schema: with its name in place of the default one."""
        return _SCHEMA_NAME.sub(self.quoted, script)

    def command(self, verb: str) -> str:
        """Return the command to type; the password of the URI is left out, for PGPASSWORD. For the
        caller's own pool, whose address is unknown here, it is a call in Python."""
        if not self.typed:
            return f"PostgresStore(pool, schema={self.schema!r}).{verb}()"
        return f'eventonce store {verb} "{self.typed}"'

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"


def read(uri: str) -> Address:
    """Return the address in the URI. No message shows a part that may be a password."""
    parts = parse_uri(uri, _HELP)
    hosts = ",".join(
        name.join("[]" if ":" in name else ("", "")) + (f":{port}" if port else "")
        for name, port in ((quote(name, safe=":"), port) for name, port in parts.hosts)
    )
    user = f"{quote(parts.user)}@" if parts.user else ""
    shown = f"postgresql://{user}{hosts}{quote(parts.path)}"
    options = parts.read(Options, others=True)
    parameters = {
        "connect_timeout": CONNECT_TIMEOUT,
        **KEEPALIVE,
        "application_name": "eventonce",
        # Otherwise a handler on an SQL_ASCII database would get text as bytes.
        "client_encoding": "UTF8",
        # TLS, because anybody who reads a token on the network could use it like a password.
        **({} if options.iam is None else {"sslmode": "require"}),
        **_server(parts),
        **_libpq(parts, options),
    }
    return Address(
        shown=shown,
        typed=shown + _query(parts.options),
        parameters=parameters,
        password=None if options.iam is None else _iam_tokens(options, parameters, shown),
        options=options,
    )


def named(schema: str) -> Options:
    """Return the options of a store over the caller's pool."""
    try:
        return msgspec.convert({"schema": schema}, Options)
    except msgspec.ValidationError:
        allowed = Schema.__metadata__[0].description  # type: ignore[attr-defined]
        raise ConfigError(f"schema {schema!r}: its name must have only {allowed}") from None


def _server(parts: StoreURI) -> dict[str, str]:
    """Return the parts as parameters of libpq; several hosts are separated by commas."""
    with_ports = any(port for _, port in parts.hosts)
    found = {
        "user": parts.user,
        "password": parts.password,
        "host": ",".join(name for name, _ in parts.hosts),
        # If no port is named, PGPORT is used.
        "port": ",".join(str(port or PORT) for _, port in parts.hosts) if with_ports else "",
        "dbname": parts.path.removeprefix("/"),
    }
    return {name: value for name, value in found.items() if value}


def _libpq(parts: StoreURI, options: Options) -> Mapping[str, str]:
    """Return the options of libpq; a region without IAM counts as one of them."""
    ours = set(Options.__struct_fields__) - ({"region"} if options.iam is None else set())
    others = {name: value for name, value in parts.options.items() if name not in ours}
    try:
        make_conninfo("", **others)
    except psycopg.Error:
        # A word that cannot be the name of an option may be a part of a password.
        names = [name for name in others if _OPTION.fullmatch(name)]
        raise ConfigError(
            f"store {parts.shown}: one of {', '.join(names) or 'its options'} is neither an option "
            f"of libpq nor of this store ({', '.join(Options.__struct_fields__)})"
        ) from None
    return others


def _query(options: Mapping[str, str]) -> str:
    """Return the options that may be shown: ours, and libpq's that it does not mark as secret."""
    plain = {it.keyword.decode() for it in Conninfo.get_defaults() if not it.dispchar}
    plain.update(Options.__struct_fields__)
    told = {name: value for name, value in options.items() if name in plain}
    return "?" + urlencode(told, safe="/:,", quote_via=quote) if told else ""


def _iam_tokens(options: Options, parameters: Mapping[str, Any], shown: str) -> Callable[[], str]:
    """Return a function that makes IAM tokens, the passwords for RDS, Aurora and RDS Proxy."""
    host, user = str(parameters.get("host", "")), parameters.get("user")
    if options.iam != "rds" or not user or not host or "," in host or "password" in parameters:
        raise ConfigError(
            f"store {shown}: iam=rds is for postgresql://user@host/database: with the user's name, "
            f"one host, the instance's or cluster's own name, and no password"
        )
    place = f"{host}:{parameters.get('port', PORT)}"
    return TokenSigner(f"store {shown}", "rds-db", place, {"DBUser": user}, options.region).sign
