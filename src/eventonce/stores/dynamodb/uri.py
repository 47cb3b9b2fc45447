"""Which table, and the client that reaches it: from a URI, from options, or the user's own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.session import Session

from eventonce.core.masking import masked, split
from eventonce.errors import ConfigError
from eventonce.stores.dynamodb.codec import EXPIRY, KEY, OURS, Layout
from eventonce.stores.dynamodb.errors import Place, explain
from eventonce.stores.dynamodb.models import Models

TIMEOUT: Final = 3.0
"""Seconds for one answer: DynamoDB takes milliseconds, and a renewal that fails after this long is
tried again well within a lease of 60 s."""

CONNECT: Final = 2.0
"""Seconds for a connection: beyond that the network is at fault."""

SENT: Final = 3
"""Times a request is sent, with pauses between: twenty seconds at the worst, until the caller is
told that the store is away."""

CONNECTIONS: Final = 50
"""Kept open for threads that call at the same time."""

OPTIONS: Final = ("region", "endpoint", "profile", "key", "expiry", "timeout")
_TABLE: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_ATTRIBUTE: Final = re.compile(r"[A-Za-z0-9_-]{1,255}")


class Address(msgspec.Struct, frozen=True):
    """Everything a URI can say."""

    table: str
    region: str | None = None
    endpoint: str | None = None
    profile: str | None = None
    key: str = KEY
    expiry: str = EXPIRY
    timeout: float = TIMEOUT

    @property
    def layout(self) -> Layout:
        """The attribute names; refused if they cannot be such."""
        for name in (self.key, self.expiry):
            if not _ATTRIBUTE.fullmatch(name):
                raise ConfigError(
                    f"DynamoDB table {self.table}: {name!r} cannot be an attribute here; letters, "
                    f"digits, - and _ were expected"
                )
            if name in OURS:
                raise ConfigError(
                    f"DynamoDB table {self.table}: the attribute {name!r} is one that eventonce "
                    f"writes itself; it needs a table with another key or expiry attribute"
                )
        if self.key == self.expiry:
            raise ConfigError(f"DynamoDB table {self.table}: key and expiry are both {self.key!r}")
        return Layout(self.key, self.expiry)

    def check_name(self) -> None:
        """ConfigError if no table can be called so."""
        if not _TABLE.fullmatch(self.table):
            shown = masked(f"dynamodb://{self.table}").removeprefix("dynamodb://")
            raise ConfigError(
                f"{shown!r} cannot be a DynamoDB table: 3 to 255 letters, digits, "
                f"'_', '-' and '.' were expected, as TABLE in dynamodb://TABLE?region=REGION"
            )

    def place(self, client: Any) -> Place:
        """The table as errors name it."""
        endpoint = urlsplit(str(client.meta.endpoint_url))
        host = endpoint.netloc.rpartition("@")[2]
        amazons = host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))
        region = str(client.meta.region_name or "")
        shown = "" if amazons else f"{endpoint.scheme}://{host}"
        options = {
            "region": region,
            "endpoint": shown,
            "profile": self.profile,
            "key": self.key if self.key != KEY else "",
            "expiry": self.expiry if self.expiry != EXPIRY else "",
        }
        said = "&".join(f"{name}={value}" for name, value in options.items() if value)
        return Place(self.table, shown or region, f"dynamodb://{self.table}?{said}")

    def given(self, client: Any) -> Any:
        """The caller's own client, if it can be one."""
        kind = f"{type(client).__module__}.{type(client).__qualname__}"
        if hasattr(client, "batch_execute_statement"):
            if not _translates(client):
                return client
            kind = "the client of a boto3.resource, which takes and gives Python's values"
        raise ConfigError(
            f"DynamoDB table {self.table}: a client is needed, such as "
            f'boto3.client("dynamodb"), and this is {kind}'
        )

    def connector(self) -> Callable[[], Any]:
        """What makes a client, again after a fork."""
        if not 0 < self.timeout < 3600:
            raise ConfigError(
                f"DynamoDB table {self.table}: timeout={self.timeout:g} is not a number of seconds"
            )
        if self.endpoint is not None:
            parts = split(self.endpoint)
            if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
                raise ConfigError(
                    f"DynamoDB table {self.table}: the endpoint must be like "
                    f"http://127.0.0.1:8000, with no user or password in it"
                )
        config = Config(
            connect_timeout=min(CONNECT, self.timeout),
            read_timeout=self.timeout,
            retries={"mode": "standard", "total_max_attempts": SENT},
            max_pool_connections=CONNECTIONS,
            # What we send is always of the same shape, and looking at it again is a fifth of the
            # time a request costs here.
            parameter_validation=False,
        )

        def connect() -> Any:
            try:
                # A session of its own: boto3's default one must not be shared between threads.
                # And botocore's, since what boto3 adds to it is a tenth of a cold start.
                session = Session(profile=self.profile)
                session.register_component("data_loader", Models.of(session))
                return session.create_client(
                    "dynamodb", region_name=self.region, endpoint_url=self.endpoint, config=config
                )
            except ValueError as error:
                raise ConfigError(
                    f"DynamoDB table {self.table}: the region or the endpoint cannot be such"
                ) from error
            except BotoCoreError as error:
                raise explain(error, Place(self.table)) from error

        return connect


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


def parse(uri: str) -> Address:
    """`dynamodb://table?region=…&endpoint=…`, with the other options of `OPTIONS`."""
    parts = split(uri)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if "@" in parts.netloc or parts.path not in ("", "/"):
        # Not repeated: what stands before an @ is a secret.
        raise ConfigError(
            "store dynamodb: write dynamodb://TABLE?region=REGION. Credentials do not belong in "
            "it: they come from the role, the profile or the environment."
        )
    unknown = sorted(options.keys() - set(OPTIONS))
    if unknown:
        raise ConfigError(
            f"store {masked(uri)}: there is no option {masked(unknown[0])!r}; a DynamoDB "
            f"store takes {', '.join(OPTIONS)}"
        )
    try:
        timeout = float(options.pop("timeout", TIMEOUT))
    except ValueError:
        raise ConfigError(
            f"store {masked(uri)}: timeout is a number of seconds, such as timeout=3"
        ) from None
    return Address(unquote(parts.netloc), timeout=timeout, **options)


def read(uri: str) -> Address:
    """The same, with every part of it checked as far as it can be without a client."""
    address = parse(uri)
    address.check_name()
    _ = address.layout, address.connector()
    return address
