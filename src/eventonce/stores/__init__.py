"""The stores by the scheme of their URI; each store has a file or a package beside this one."""

from __future__ import annotations

import importlib
from typing import Any, Final, NamedTuple

from eventonce.core.masking import masked, scheme_of
from eventonce.errors import ConfigError, install_hint


class Adapter(NamedTuple):
    """The import paths of a scheme's store, written `module:name`, and what the store needs."""

    store: str
    """The class, whose `from_uri` opens the store."""
    extra: str | None = None
    """The extra that must be installed; None for an embedded store."""
    uri: str = ""
    """The function that reads a URI and opens nothing; if empty, the store is opened instead."""
    schema: str = ""
    """The class that creates and checks the store, if that is not the store's own class."""
    transactional: bool = False
    """Whether a handler may write in the store's own transaction."""


_HERE: Final = "eventonce.stores."
_SQLITE: Final = _HERE + "sqlite"
_POSTGRES: Final = Adapter(
    _HERE + "postgres:PostgresStore",
    "postgres",
    _HERE + "postgres.uri:read",
    transactional=True,
)
_REDIS: Final = Adapter(_HERE + "redis:RedisStore", "redis", _HERE + "redis.uri:read")

ADAPTERS: Final[dict[str, Adapter]] = {
    "memory": Adapter(_HERE + "memory:MemoryStore"),
    "sqlite": Adapter(
        _SQLITE + ":SQLiteStore", None, _SQLITE + ".uri:read", _SQLITE + ".admin:SQLiteSchema", True
    ),
    "dynamodb": Adapter(_HERE + "dynamodb:DynamoDBStore", "dynamodb", _HERE + "dynamodb.uri:read"),
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
    **{
        f"{name}{kind}": _REDIS
        for kind in ("", "+cluster", "+sentinel")
        for name in ("redis", "rediss", "valkey", "valkeys")
    },
    **dict.fromkeys(("unix", "redis+unix", "valkey+unix"), _REDIS),
}
"""The stores by the schemes of their URIs. A store of another package is added here by one line:
`ADAPTERS["mine"] = Adapter("my_package:MyStore")`."""


def open_store(uri: str) -> Any:
    """Open the store of this URI: both a `Store` and a `StoreAdmin`."""
    adapter = adapter_of(uri)
    return _found(adapter, adapter.store).from_uri(uri)


def open_schema(uri: str) -> Any:
    """Return the `StoreSchema` that creates, migrates and checks the store of this URI; it may be
    the store itself. Creates nothing yet."""
    adapter = adapter_of(uri)
    return _found(adapter, adapter.schema or adapter.store).from_uri(uri)


def check_uri(uri: str) -> None:
    """Raise ConfigError for a URI that names no store. A store is opened only if its adapter has no
    `uri`; if its extra is not installed, only the scheme is checked."""
    adapter = adapter_of(uri)
    if not adapter.uri:
        open_store(uri)
        return
    try:
        read = _named(adapter.uri)
    except ModuleNotFoundError:
        if adapter.extra is None:
            raise
    else:
        read(uri)


def _found(adapter: Adapter, place: str) -> Any:
    try:
        return _named(place)
    except ModuleNotFoundError as error:
        if adapter.extra is None:
            raise
        name = place.partition(":")[2]
        raise ConfigError(f"{name} needs: {install_hint(adapter.extra)}") from error


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def adapter_of(uri: str) -> Adapter:
    """Return the adapter of this URI's scheme."""
    if not isinstance(uri, str):
        raise ConfigError(
            f"store: must be a URI, such as 'sqlite:///eventonce.db', not {type(uri).__name__}"
        )
    scheme, colon, rest = uri.partition(":")
    if not colon:
        raise ConfigError(_no_uri(uri))
    adapter = ADAPTERS.get(scheme)
    if adapter is None:
        known = ", ".join(f"{name}:" for name in ADAPTERS)
        raise ConfigError(
            f"store {masked(uri)!r}: no store is called {scheme_of(uri) + ':'!r}; "
            f"it must be one of {known}, such as sqlite:///eventonce.db"
        )
    if scheme != "memory" and not rest.startswith("//"):
        # Otherwise a host would be read as a path.
        shown = masked(uri)
        path = shown.partition(":")[2] or "eventonce.db"
        said = f"write sqlite:///{path}" if scheme == "sqlite" else f"must begin with {scheme}://"
        raise ConfigError(f"store {shown!r}: {said}")
    return adapter


def _no_uri(text: str) -> str:
    if not text.strip():
        return "store: must not be empty; give a URI, such as sqlite:///eventonce.db"
    if text == "memory":
        return "store 'memory': write memory: with a colon"
    shown = masked(text)
    meant = f"{text}://…" if text in ADAPTERS else f"sqlite:///{shown}, if a file is meant"
    return f"store {shown!r}: must be a URI; write {meant}"
