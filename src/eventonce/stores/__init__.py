"""Which store a URI opens; each adapter stands in a file of its own beside this one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from eventonce.core.masking import masked, scheme_of
from eventonce.errors import ConfigError


class Adapter(NamedTuple):
    """Where a scheme's store is, what must be installed for it, and who reads its URIs."""

    module: str
    name: str
    extra: str | None = None
    """None for a store that is embedded."""
    address: str = ""
    """The module and function that take a URI apart and open nothing; the store itself if empty."""
    transactional: bool = False
    """Whether a handler may write in the store's own transaction."""
    upkeep: str = ""
    """The module and class that make and check it, for one that is made by being opened."""


_POSTGRES: Final = Adapter("postgres", "PostgresStore", "postgres", "uri:read", True)
_REDIS: Final = Adapter("redis", "RedisStore", "redis", "uri:place_of")

ADAPTERS: Final[Mapping[str, Adapter]] = {
    "memory": Adapter("memory", "MemoryStore"),
    "sqlite": Adapter("sqlite", "SQLiteStore", None, "uri:read", True, "admin:SQLiteSchema"),
    "dynamodb": Adapter("dynamodb", "DynamoDBStore", "dynamodb", "uri:read"),
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
    **{
        f"{name}{kind}": _REDIS
        for kind in ("", "+cluster", "+sentinel")
        for name in ("redis", "rediss", "valkey", "valkeys")
    },
    **dict.fromkeys(("unix", "redis+unix", "valkey+unix"), _REDIS),
}
"""Adding a store is one file, one line here, one extra, one opener in the contract tests."""


def open_store(uri: str) -> Any:
    """Open the store this URI names: both a `Store` and a `StoreAdmin`."""
    adapter = adapter_of(uri)
    try:
        module = importlib.import_module(f"eventonce.stores.{adapter.module}")
    except ModuleNotFoundError as error:
        if adapter.extra is None:
            raise
        raise ConfigError(
            f'{adapter.name} needs: pip install "eventonce[{adapter.extra}]"'
        ) from error
    return getattr(module, adapter.name).from_uri(uri)


def open_upkeep(uri: str) -> Any:
    """What makes, upgrades and checks the store of this URI: a `StoreSchema`, unless it needs none.
    Nothing is made by this."""
    adapter = adapter_of(uri)
    if not adapter.upkeep:
        return open_store(uri)
    file, _, name = adapter.upkeep.partition(":")
    module = importlib.import_module(f"eventonce.stores.{adapter.module}.{file}")
    return getattr(module, name).from_uri(uri)


def check_uri(uri: str) -> None:
    """ConfigError for a URI that names no store; nothing is opened, and of a store whose extra is
    not installed here nothing but the scheme is looked at."""
    adapter = adapter_of(uri)
    file, _, function = adapter.address.partition(":")
    try:
        if not file:
            open_store(uri)
            return
        module = importlib.import_module(f"eventonce.stores.{adapter.module}.{file}")
    except ModuleNotFoundError:
        if adapter.extra is None:
            raise
        return
    getattr(module, function)(uri)


def adapter_of(uri: str) -> Adapter:
    """What stands behind this URI's scheme."""
    scheme, colon, rest = uri.partition(":")
    if not colon:
        raise ConfigError(_no_uri(uri))
    adapter = ADAPTERS.get(scheme)
    if adapter is None:
        known = ", ".join(f"{name}:" for name in ADAPTERS)
        raise ConfigError(
            f"store {masked(uri)!r}: no store is called {scheme_of(uri) + ':'!r}; "
            f"one of {known} was expected, such as sqlite:///eventonce.db"
        )
    if adapter.module != "memory" and not rest.startswith("//"):
        # Taken apart all the same, what was meant as a host would be a path.
        raise ConfigError(f"store {masked(uri)!r}: {scheme}:// was expected")
    return adapter


def _no_uri(text: str) -> str:
    if not text.strip():
        return "store: it is empty, and a URI was expected, such as sqlite:///eventonce.db"
    if text == "memory":
        return "store 'memory': write memory: with its colon"
    shown = masked(text)
    meant = f"{text}://…" if text in ADAPTERS else f"sqlite:///{shown}, if a file is meant"
    return f"store {shown!r}: a URI was expected; write {meant}"
