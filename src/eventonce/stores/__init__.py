"""Which store a URI opens; each adapter stands in a file of its own beside this one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from eventonce.errors import ConfigError


class Adapter(NamedTuple):
    """Where a scheme's store is, and what must be installed for it."""

    module: str
    name: str
    extra: str | None = None


ADAPTERS: Final[Mapping[str, Adapter]] = {
    "memory": Adapter("memory", "MemoryStore"),
    "sqlite": Adapter("sqlite", "SQLiteStore"),
    "dynamodb": Adapter("dynamodb", "DynamoDBStore", "dynamodb"),
    "postgresql": Adapter("postgres", "PostgresStore", "postgres"),
    "postgres": Adapter("postgres", "PostgresStore", "postgres"),
    "redis": Adapter("redis", "RedisStore", "redis"),
    "rediss": Adapter("redis", "RedisStore", "redis"),
    "redis+cluster": Adapter("redis", "RedisStore", "redis"),
    "rediss+cluster": Adapter("redis", "RedisStore", "redis"),
}
"""Adding a store is one file, one line here, one extra, one opener in the contract tests."""


def open_store(uri: str) -> Any:
    """Open the store this URI names: both a `Store` and a `Shelf`."""
    scheme = uri.partition(":")[0]
    adapter = ADAPTERS.get(scheme)
    if adapter is None:
        known = ", ".join(f"{name}:" for name in ADAPTERS)
        raise ConfigError(
            f"store {_without_secrets(uri)!r}: no store is called {scheme + ':'!r}; "
            f"one of {known} was expected, such as sqlite:///eventonce.db"
        )
    try:
        module = importlib.import_module(f"eventonce.stores.{adapter.module}")
    except ModuleNotFoundError as error:
        if adapter.extra is None:
            raise
        raise ConfigError(
            f'{adapter.name} needs: pip install "eventonce[{adapter.extra}]"'
        ) from error
    return getattr(module, adapter.name).from_uri(uri)


def _without_secrets(uri: str) -> str:
    """The URI as it may be shown, however it is written: the scheme, and what follows the @."""
    scheme, _, rest = uri.partition(":")
    return f"{scheme}:{rest.rpartition('@')[2].partition('?')[0]}"
