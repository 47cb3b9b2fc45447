"""The path of the file and its options: from a URI, or from a caller's arguments."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta

from eventonce.errors import ConfigError
from eventonce.stores.uri import parse_uri

Synchronous = Literal["normal", "full"]

WAIT: Final = 5.0
"""Seconds to wait for other processes by default: a batch takes milliseconds, a handler's
transaction more, and a renewal that fails after this long is retried within a lease of 60 s."""

_HELP: Final = (
    "Write sqlite:///file.db for a relative path, sqlite:////var/lib/file.db for a path from the "
    "root"
)


class Options(msgspec.Struct, frozen=True):
    """The options of a URI."""

    synchronous: Synchronous = "normal"
    wait: Annotated[
        float, Meta(ge=0, le=3_600, description="a number of seconds from 0 to 3600")
    ] = WAIT


class Location(msgspec.Struct, frozen=True):
    """A file by its absolute path, because the process may change its directory."""

    path: Path
    options: Options = Options()

    @classmethod
    def of(cls, path: str | os.PathLike[str], options: Options) -> Location:
        """Return the location of a file, whether it exists or not."""
        if str(path) in {"", ":memory:"}:
            raise ConfigError(
                "SQLiteStore needs the path of a file; for a store without a file, use memory:"
            )
        if "\0" in str(path):
            raise ConfigError("SQLiteStore needs the path of a file, without a NUL character")
        return cls(Path(path).absolute(), options)

    @property
    def names(self) -> tuple[str, str, str]:
        """The file, its write-ahead log, and the index of the log that all processes share."""
        return str(self.path), f"{self.path}-wal", f"{self.path}-shm"

    @property
    def uri(self) -> str:
        """The URI of the file, as the command line takes it."""
        return f"sqlite:///{quote(self.path.as_posix())}"

    def command(self, verb: str) -> str:
        """Return the command to type."""
        return f'eventonce store {verb} "{self.uri}"'


def read(uri: str) -> Location:
    """`sqlite:///relative.db` or `sqlite:////absolute.db`, with `?synchronous=full&wait=5`."""
    parts = parse_uri(uri, _HELP)
    path = parts.path.removeprefix("/")
    if parts.hosts or parts.user or not path or not parts.path.startswith("/"):
        raise parts.refuse("the path of a file is missing")
    return Location.of(path, parts.read(Options))
