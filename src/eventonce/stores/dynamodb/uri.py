"""The URI of a DynamoDB store: its table, and the client for it."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from eventonce.aws.direct import ServiceClient, endpoint_of
from eventonce.aws.sessions import Access, connect
from eventonce.core.masking import masked, split
from eventonce.errors import ConfigError
from eventonce.stores.dynamodb.client import DYNAMODB
from eventonce.stores.dynamodb.codec import EXPIRY, KEY, OWN_ATTRIBUTES, Layout
from eventonce.stores.dynamodb.errors import TableRef
from eventonce.stores.uri import Seconds, parse_uri

TIMEOUT: Final = 3.0
"""Seconds for one answer: DynamoDB takes milliseconds, and a renewal that fails after this long is
retried well within a lease of 60 s."""

CONNECT_TIMEOUT: Final = 2.0
"""Seconds for a connection."""

ATTEMPTS: Final = 3
"""How often a request is sent, with pauses: at most twenty seconds until the caller gets the
error."""

_HELP: Final = (
    "Write dynamodb://TABLE?region=REGION. Credentials do not belong in it: they come from the "
    "role, the profile or the environment."
)
_TABLE: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_ATTRIBUTE: Final = re.compile(r"[A-Za-z0-9_-]{1,255}")


class Options(msgspec.Struct, frozen=True):
    """The options of the URI; docs/stores/dynamodb.md explains them."""

    region: str = ""
    endpoint: str = ""
    profile: str = ""
    key: str = KEY
    expiry: str = EXPIRY
    timeout: Seconds = TIMEOUT


class Address(msgspec.Struct, frozen=True):
    """A table, its layout, and the options of its client."""

    table: str
    layout: Layout
    options: Options

    def connect(self) -> Any:
        """Return a client: our own if the environment gives all it needs, otherwise botocore's."""
        options = self.options
        access = Access(options.region or None, options.endpoint or None, options.profile or None)
        limits: dict[str, Any] = {
            "connect_timeout": min(CONNECT_TIMEOUT, options.timeout),
            "read_timeout": options.timeout,
            "attempts": ATTEMPTS,
        }
        endpoint = endpoint_of("dynamodb", access)
        if endpoint is not None:
            return ServiceClient(DYNAMODB, endpoint, **limits)
        return connect("dynamodb", access, **limits)


def read(uri: str) -> Address:
    """Return the address in the URI; ConfigError if it is wrong. Opens nothing."""
    parts = parse_uri(uri, _HELP)
    credentials = parts.user or parts.password is not None
    if credentials or parts.path not in ("", "/") or any(port for _, port in parts.hosts):
        raise parts.refuse("it must be the name of a table, without user, password, port or path")
    options = parts.read(Options)
    table = ",".join(name for name, _ in parts.hosts)
    check_table(table)
    if options.endpoint:
        endpoint = split(options.endpoint)
        if endpoint.scheme not in ("http", "https") or not endpoint.hostname:
            raise parts.refuse("endpoint must be like http://127.0.0.1:8000")
        if "@" in endpoint.netloc:
            raise parts.refuse("endpoint must have no user or password in it")
    return Address(table, check_layout(table, options.key, options.expiry), options)


def check_table(table: str) -> None:
    """Raise ConfigError for a name that no table can have."""
    if not _TABLE.fullmatch(table):
        shown = masked(f"dynamodb://{table}").removeprefix("dynamodb://")
        raise ConfigError(
            f"{shown!r} cannot be a DynamoDB table: its name must have 3 to 255 letters, digits, "
            f"'_', '-' and '.', as TABLE in dynamodb://TABLE?region=REGION"
        )


def check_layout(table: str, key: str, expiry: str) -> Layout:
    """Return the layout with these attributes; ConfigError if one of them is not allowed."""
    for name in (key, expiry):
        if not _ATTRIBUTE.fullmatch(name):
            raise ConfigError(
                f"DynamoDB table {table}: {name!r} cannot be an attribute here; its name must "
                f"have only letters, digits, - and _"
            )
        if name in OWN_ATTRIBUTES:
            raise ConfigError(
                f"DynamoDB table {table}: eventonce itself writes an attribute {name!r}; use a "
                f"table with another key or expiry attribute"
            )
    if key == expiry:
        raise ConfigError(f"DynamoDB table {table}: key and expiry must differ, both are {key!r}")
    return Layout(key, expiry)


def check_client(client: Any, table: str) -> None:
    """Raise ConfigError for a client without DynamoDB's own notation of values."""
    kind = f"{type(client).__module__}.{type(client).__qualname__}"
    if hasattr(client, "batch_execute_statement"):
        if not _translates(client):
            return
        kind = "the client of a boto3.resource, which converts values to Python's"
    raise ConfigError(
        f"DynamoDB table {table}: the client must be like "
        f'boto3.client("dynamodb"), and this is {kind}'
    )


def _translates(client: Any) -> bool:
    """Return whether this client changes requests before it sends them."""
    item = {"key": {"S": "value"}}
    client.meta.events.emit(
        "before-parameter-build.dynamodb.PutItem",
        params={"Item": item},
        model=client.meta.service_model.operation_model("PutItem"),
        context={},
    )
    return item != {"key": {"S": "value"}}


def table_ref(client: Any, table: str, layout: Layout, profile: str = "") -> TableRef:
    """Return the name of the table in errors."""
    endpoint = urlsplit(str(client.meta.endpoint_url))
    host = endpoint.netloc.rpartition("@")[2]
    amazons = host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))
    region = str(client.meta.region_name or "")
    shown = "" if amazons else f"{endpoint.scheme}://{host}"
    options = {
        "region": region,
        "endpoint": shown,
        "profile": profile,
        "key": layout.key if layout.key != KEY else "",
        "expiry": layout.expiry if layout.expiry != EXPIRY else "",
    }
    query = "&".join(f"{name}={value}" for name, value in options.items() if value)
    return TableRef(table, shown or region, f"dynamodb://{table}?{query}")
