"""The address of the database: a URI taken apart, what of it may be shown, and its password."""

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
"""A schema of its own: one command makes it, one removes it, and names meet nobody else's."""

CONNECTIONS: Final = 5
"""For claims, settlements and letters: four threads work on them at most, and one renews leases."""

TRANSACTIONS: Final = 20
"""Connections for handlers that write through `job.connection`: a fifth of what a server allows by
default."""

TIMEOUT: Final = 10.0
"""Seconds until a server that does not answer counts as away: a renewal that fails after this long
is still tried again well within a lease of 60 s."""

CONNECT_TIMEOUT: Final = 5
"""Seconds; libpq would otherwise wait as long as the operating system does, which is minutes."""

KEEPALIVE: Final = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""How the operating system finds out that a host is gone without a word: within a minute, which is
the default lease, for by then the run of whoever waits is another's. The first three watch a
connection on which an answer is waited for, in seconds; the last one what was sent and never
arrived, in milliseconds. Linux by itself takes two hours and a quarter of an hour."""

PORT: Final = 5432
"""The user where the URI names none; libpq adds it later, and an IAM token's signature covers
it."""

HELP: Final = "Write postgresql://user:password@host:5432/database"

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
Schema = Annotated[
    str,
    Meta(
        pattern=r"^(?!pg_)[A-Za-z_][A-Za-z0-9_-]{0,62}$",
        description="letters, digits, _ and -, 63 of them at most, and not pg_ before them",
    ),
]


class Options(msgspec.Struct, frozen=True):
    """The options that are this store's; all others are libpq's."""

    schema: Schema = SCHEMA
    connections: Count = CONNECTIONS
    transactions: Count = TRANSACTIONS
    timeout: Seconds | None = None
    iam: str | None = None
    region: str | None = None


class Address(msgspec.Struct, frozen=True):
    """The address of a database, and its name in messages."""

    shown: str
    """The URI without password and options."""
    typed: str = ""
    """The URI as it can be typed again, without secrets; empty where a pool was given."""
    parameters: Mapping[str, Any] = {}
    """The parameters of libpq; empty where the caller's own pool has them."""
    password: Callable[[], str] | None = None
    """Gives the password of each new connection, where it is not always the same."""
    options: Options = Options()
    timeout: float = TIMEOUT

    @property
    def schema(self) -> str:
        """The schema's name."""
        return self.options.schema

    @property
    def quoted(self) -> str:
        """The schema's name as it stands in a statement: it may be a reserved word."""
        return self.schema if self.schema == SCHEMA else f'"{self.schema}"'

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"


def read(uri: str) -> Address:
    """Take the URI apart. No message holds a part of it that may be a password."""
    parts = parse_uri(uri, HELP)
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
        # In an SQL_ASCII database a handler would otherwise be given its text as bytes.
        "client_encoding": "UTF8",
        # A token is as good as a password to whoever reads it on its way.
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
        timeout=options.timeout or TIMEOUT,
    )


def named(schema: str) -> Options:
    """The options of a store over the caller's pool."""
    try:
        return msgspec.convert({"schema": schema}, Options)
    except msgspec.ValidationError:
        allowed = Schema.__metadata__[0].description  # type: ignore[attr-defined]
        raise ConfigError(f"schema {schema!r}: its name may be made of {allowed}") from None


def _server(parts: StoreURI) -> dict[str, str]:
    """As libpq takes them; several hosts are separated by commas."""
    with_ports = any(port for _, port in parts.hosts)
    found = {
        "user": parts.user,
        "password": parts.password,
        "host": ",".join(name for name, _ in parts.hosts),
        # Where none is named, PGPORT has a say.
        "port": ",".join(str(port or PORT) for _, port in parts.hosts) if with_ports else "",
        "dbname": parts.path.removeprefix("/"),
    }
    return {name: value for name, value in found.items() if value}


def _libpq(parts: StoreURI, options: Options) -> Mapping[str, str]:
    """The options of libpq's; a region without IAM is none of ours."""
    ours = {"schema", "connections", "transactions", "timeout", "iam"}
    ours |= {"region"} if options.iam is not None else set()
    others = {name: value for name, value in parts.options.items() if name not in ours}
    try:
        make_conninfo("", **others)
    except psycopg.Error:
        # A word that can be no option's name may be the rest of a password.
        names = [name for name in others if _NAME.fullmatch(name)]
        raise ConfigError(
            f"store {parts.shown}: one of {', '.join(names) or 'its options'} is neither an option "
            f"of libpq's nor of this store's ({', '.join(Options.__struct_fields__)})"
        ) from None
    return others


def _query(options: Mapping[str, str]) -> str:
    """The options that may be shown: ours, and those libpq does not mark as secret."""
    plain = {it.keyword.decode() for it in Conninfo.get_defaults() if not it.dispchar}
    plain.update(Options.__struct_fields__)
    told = {name: value for name, value in options.items() if name in plain}
    return "?" + urlencode(told, safe="/:,", quote_via=quote) if told else ""


def _iam_tokens(options: Options, parameters: Mapping[str, Any], shown: str) -> Callable[[], str]:
    """Tokens of AWS IAM in place of a password, for RDS, Aurora and RDS Proxy."""
    host, user = str(parameters.get("host", "")), parameters.get("user")
    if options.iam != "rds" or not user or not host or "," in host or "password" in parameters:
        raise ConfigError(
            f"store {shown}: iam=rds is for postgresql://user@host/database: with the user's name, "
            f"one host, the instance's or cluster's own name, and no password"
        )
    place = f"{host}:{parameters.get('port', PORT)}"
    return TokenSigner(f"store {shown}", "rds-db", place, {"DBUser": user}, options.region).sign
