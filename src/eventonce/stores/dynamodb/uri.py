"""The URI of a DynamoDB store: which table, and the client that reaches it."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.session import Session

from eventonce.aws.models import Models
from eventonce.core.masking import masked, split
from eventonce.errors import ConfigError
from eventonce.stores.dynamodb.codec import EXPIRY, KEY, OWN_ATTRIBUTES, Layout
from eventonce.stores.dynamodb.errors import TableRef, explain
from eventonce.stores.uri import Seconds, parse_uri

TIMEOUT: Final = 3.0
"""Seconds for one answer: DynamoDB takes milliseconds, and a renewal that fails after this long is
tried again well within a lease of 60 s."""

CONNECT_TIMEOUT: Final = 2.0
"""Seconds for a connection: beyond that the network is at fault."""

ATTEMPTS: Final = 3
"""Times a request is sent, with pauses between: twenty seconds at the worst, until the caller is
told that the store is away."""

CONNECTIONS: Final = 50
"""Kept open for threads that call at the same time."""

_HELP: Final = (
    "Write dynamodb://TABLE?region=REGION. Credentials do not belong in it: they come from the "
    "role, the profile or the environment."
)
_TABLE: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_ATTRIBUTE: Final = re.compile(r"[A-Za-z0-9_-]{1,255}")


class Options(msgspec.Struct):
    """The options of the URI; docs/stores/dynamodb.md explains them."""

    region: str = ""
    endpoint: str = ""
    profile: str = ""
    key: str = KEY
    expiry: str = EXPIRY
    timeout: Seconds | None = None


class Address(msgspec.Struct, frozen=True):
    """A table, its layout, and how it is reached."""

    table: str
    layout: Layout
    options: Options

    def connect(self) -> Any:
        """A client; made anew after a fork."""
        options = self.options
        timeout = options.timeout or TIMEOUT
        config = Config(
            connect_timeout=min(CONNECT_TIMEOUT, timeout),
            read_timeout=timeout,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
            max_pool_connections=CONNECTIONS,
            # What we send is always of the same shape, and looking at it again is a fifth of the
            # time a request costs here.
            parameter_validation=False,
        )
        try:
            # A session of its own: boto3's default one must not be shared between threads. And
            # botocore's, since what boto3 adds to it is a tenth of a cold start.
            session = Session(profile=options.profile or None)
            session.register_component("data_loader", Models.of(session, "dynamodb"))
            return session.create_client(
                "dynamodb",
                region_name=options.region or None,
                endpoint_url=options.endpoint or None,
                config=config,
            )
        except ValueError as error:
            raise ConfigError(
                f"DynamoDB table {self.table}: the region or the endpoint cannot be such"
            ) from error
        except BotoCoreError as error:
            raise explain(error, TableRef(self.table)) from error


def read(uri: str) -> Address:
    """Take the URI apart; ConfigError if it is wrong. Nothing is opened."""
    parts = parse_uri(uri, _HELP)
    credentials = parts.user or parts.password is not None
    if credentials or parts.path not in ("", "/") or any(port for _, port in parts.hosts):
        raise parts.refuse("the name of a table is expected, and no user, password, port or path")
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
    """ConfigError if no table can be called so."""
    if not _TABLE.fullmatch(table):
        shown = masked(f"dynamodb://{table}").removeprefix("dynamodb://")
        raise ConfigError(
            f"{shown!r} cannot be a DynamoDB table: 3 to 255 letters, digits, "
            f"'_', '-' and '.' were expected, as TABLE in dynamodb://TABLE?region=REGION"
        )


def check_layout(table: str, key: str, expiry: str) -> Layout:
    """The layout with these attributes; ConfigError if they cannot be such."""
    for name in (key, expiry):
        if not _ATTRIBUTE.fullmatch(name):
            raise ConfigError(
                f"DynamoDB table {table}: {name!r} cannot be an attribute here; letters, "
                f"digits, - and _ were expected"
            )
        if name in OWN_ATTRIBUTES:
            raise ConfigError(
                f"DynamoDB table {table}: the attribute {name!r} is one that eventonce "
                f"writes itself; it needs a table with another key or expiry attribute"
            )
    if key == expiry:
        raise ConfigError(f"DynamoDB table {table}: key and expiry are both {key!r}")
    return Layout(key, expiry)


def check_client(client: Any, table: str) -> None:
    """ConfigError if this is no client of DynamoDB's own notation."""
    kind = f"{type(client).__module__}.{type(client).__qualname__}"
    if hasattr(client, "batch_execute_statement"):
        if not _translates(client):
            return
        kind = "the client of a boto3.resource, which takes and gives Python's values"
    raise ConfigError(
        f"DynamoDB table {table}: a client is needed, such as "
        f'boto3.client("dynamodb"), and this is {kind}'
    )


def _translates(client: Any) -> bool:
    """Whether this client sends something else than it is given."""
    item = {"key": {"S": "value"}}
    client.meta.events.emit(
        "before-parameter-build.dynamodb.PutItem",
        params={"Item": item},
        model=client.meta.service_model.operation_model("PutItem"),
        context={},
    )
    return item != {"key": {"S": "value"}}


def table_ref(client: Any, table: str, layout: Layout, profile: str = "") -> TableRef:
    """The table as errors name it."""
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
