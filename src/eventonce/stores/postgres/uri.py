"""Where the database is: a URI taken apart, and what of it may be shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from eventonce.core.masking import masked
from eventonce.errors import ConfigError
from eventonce.stores.postgres.iam import tokens

SCHEMA: Final = "eventonce"
"""A schema of its own: one command makes it, one removes it, and names meet nobody else's."""

CONNECTIONS: Final = 5
"""For claims, settlements and letters: four threads work on them at most, and one renews leases."""

TRANSACTIONS: Final = 20
"""For handlers that write through `job.connection`: a fifth of what a server allows by default."""

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

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SCHEMA: Final = re.compile(r"(?!pg_)[A-Za-z_][A-Za-z0-9_-]{0,62}")
_SCHEMAS: Final = "letters, digits, _ and -, 63 of them at most, and not pg_ before them"
_OWN: Final = ("schema", "connections", "transactions", "timeout", "iam", "region")


class Address(msgspec.Struct, frozen=True):
    """How to reach the database, and what it may be called in a message."""

    shown: str
    """The URI without password and options."""
    typed: str = ""
    """The URI as it can be typed again, without secrets; empty where a pool was given."""
    parameters: Mapping[str, Any] = {}
    """What libpq is told; empty where the caller's own pool knows."""
    password: Callable[[], str] | None = None
    """Gives the password of each new connection, where it is not always the same."""
    schema: str = SCHEMA
    connections: int = CONNECTIONS
    transactions: int = TRANSACTIONS
    timeout: float = TIMEOUT

    @property
    def quoted(self) -> str:
        """The schema's name as it stands in a statement: it may be a reserved word."""
        return self.schema if self.schema == SCHEMA else f'"{self.schema}"'

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"


def read(uri: str) -> Address:
    """Take the URI apart. No message holds a part of it that may be a password."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        raise ConfigError(f"store postgresql: the URI cannot be read. {_FORM}") from None
    credentials, _, host = parts.netloc.rpartition("@")
    misplaced = parts.fragment or ("@" in parts.query and not credentials)
    if "@" in credentials or "@" in parts.path or misplaced:
        # libpq would end the password at the first of these signs and look up the rest as a host.
        raise ConfigError(
            "store postgresql: a user or password holds one of @ / ? # as it is; write %40, %2F, "
            "%3F or %23 instead, or leave it out and set PGPASSWORD or a ~/.pgpass file"
        )
    user = credentials.partition(":")[0]
    shown = (
        f"postgresql://{user}@{host}{parts.path}" if user else f"postgresql://{host}{parts.path}"
    )
    told = masked(uri)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    typed = shown + _query(options)
    schema = options.pop("schema", SCHEMA)
    connections = _whole(options.pop("connections", str(CONNECTIONS)))
    transactions = _whole(options.pop("transactions", str(TRANSACTIONS)))
    timeout = _seconds(options.pop("timeout", str(TIMEOUT)))
    if None in (connections, transactions, timeout) or not _SCHEMA.fullmatch(schema):
        raise ConfigError(
            f"store {told}: its own options are schema=NAME ({_SCHEMAS}), "
            f"connections=COUNT, transactions=COUNT, timeout=SECONDS, and iam=rds with region=NAME"
        )
    service = options.pop("iam", None)
    region = None if service is None else options.pop("region", None)
    parameters = {
        "connect_timeout": CONNECT_TIMEOUT,
        **KEEPALIVE,
        "application_name": "eventonce",
        # In an SQL_ASCII database a handler would otherwise be given its text as bytes.
        "client_encoding": "UTF8",
        # A token is as good as a password to whoever reads it on its way.
        **({} if service is None else {"sslmode": "require"}),
        **_parameters(f"{credentials}@{host}" if credentials else host, parts.path, told),
        **_checked(options, told),
    }
    return Address(
        shown=shown,
        typed=typed,
        parameters=parameters,
        password=None if service is None else tokens(service, region, parameters, shown),
        schema=schema,
        connections=connections or CONNECTIONS,
        transactions=transactions or TRANSACTIONS,
        timeout=timeout or TIMEOUT,
    )


def named(schema: str) -> str:
    """The schema's name if there can be such a schema."""
    if not _SCHEMA.fullmatch(schema):
        raise ConfigError(f"schema {schema!r}: its name may be made of {_SCHEMAS}")
    return schema


_FORM: Final = "Write postgresql://user:password@host:5432/database"


def _parameters(netloc: str, path: str, shown: str) -> dict[str, Any]:
    """As libpq itself reads them; several hosts are separated by commas."""
    try:
        parameters: dict[str, Any] = conninfo_to_dict(f"postgresql://{netloc}{path}")
        for port in str(parameters.get("port", "")).split(","):
            if port and not 0 < int(port) < 65_536:
                raise ValueError(port)
    except (psycopg.Error, ValueError):
        # The driver's own words would quote what it could not read.
        raise ConfigError(
            f"store {shown}: the user, password, host or port cannot be read. {_FORM}, other signs "
            f"than letters and digits in a password as %XX"
        ) from None
    return parameters


def _checked(options: Mapping[str, str], shown: str) -> Mapping[str, str]:
    try:
        make_conninfo("", **options)
    except psycopg.Error:
        # What could be no option's name may be the rest of a password.
        names = [name for name in options if _NAME.fullmatch(name)]
        raise ConfigError(
            f"store {shown}: one of {', '.join(names) or 'its options'} is neither an option of "
            f"libpq's nor of this store's ({', '.join(_OWN)})"
        ) from None
    return options


def _query(options: Mapping[str, str]) -> str:
    """The options that may be shown: ours, and those libpq does not mark as secret."""
    plain = {it.keyword.decode() for it in Conninfo.get_defaults() if not it.dispchar}.union(_OWN)
    told = {name: value for name, value in options.items() if name in plain}
    return "?" + urlencode(told, safe="/:,", quote_via=quote) if told else ""


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and int(text) > 0 else None


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < 86_400 else None
