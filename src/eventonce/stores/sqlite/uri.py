"""Which file, from a URI, and how it is to be opened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple, get_args
from urllib.parse import parse_qsl, quote, unquote

from eventonce.core.masking import masked, split
from eventonce.errors import ConfigError
from eventonce.stores.sqlite.file import Synchronous

WAIT: Final = 5.0
"""Seconds to wait for others by default: a batch takes milliseconds, a handler's transaction more,
and a renewal that fails after this long is still tried again well within a lease of 60 s."""


class Address(NamedTuple):
    """Everything a URI can say."""

    path: str
    synchronous: Synchronous = "normal"
    wait: float = WAIT


def read(uri: str) -> Address:
    """`sqlite:///relative.db` or `sqlite:////absolute.db`, with `?synchronous=full&wait=5`."""
    if "#" in uri:
        raise ConfigError(
            f"store {masked(uri)!r}: write %23 for a # in the path, which would end it"
        )
    parts = split(uri)
    path = unquote(parts.path.removeprefix("/"))
    if parts.netloc or not path or not parts.path.startswith("/"):
        raise ConfigError(
            f"store {masked(uri)!r}: write sqlite:///file.db for a path from here, "
            f"sqlite:////var/lib/file.db for a path from the root"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    synchronous = options.pop("synchronous", "normal")
    wait = options.pop("wait", str(WAIT))
    if options or synchronous not in get_args(Synchronous) or not _is_duration(wait):
        raise ConfigError(
            f"store {masked(uri)!r}: an SQLite store takes synchronous=normal or full, "
            f"and wait=SECONDS"
        )
    absolute(path)
    return Address(path, "full" if synchronous == "full" else "normal", float(wait))


def absolute(path: str | os.PathLike[str]) -> Path:
    """The path of a file, wherever the process goes before it is opened, perhaps again."""
    if str(path) in {"", ":memory:"}:
        raise ConfigError("SQLiteStore needs the path of a file; the store without one is memory:")
    return Path(path).absolute()


def written(path: Path) -> str:
    """The URI of a file, as the command line takes it."""
    return f"sqlite:///{quote(path.absolute().as_posix())}"


def _is_duration(text: str) -> bool:
    try:
        return 0 <= float(text) <= 3_600
    except ValueError:
        return False
