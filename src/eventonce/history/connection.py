"""The connection of a process to a history: opened when it is first used, and anew after a fork or
when the file was replaced. `recorder` uses it, for one thread at a time."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from eventonce.core.masking import masked
from eventonce.errors import ConfigError, EventonceError, StoreMismatch, StoreUnavailable
from eventonce.history.digests import Digests
from eventonce.history.sqlite import SQLiteDriver, location_of
from eventonce.history.tables import Tables
from eventonce.log import log
from eventonce.stores import check_uri
from eventonce.stores.sqlite.errors import may

POSTGRES_SCHEMES: Final = ("postgresql", "postgres")

_inherited: Final[list[Tables]] = []


class Connection:
    """The tables of a history, as this process has them open."""

    def __init__(self, uri: str, digests: Digests, *, look: bool) -> None:
        """With `look` no table is created: the history must exist."""
        self._uri = uri
        self._digests = digests
        self._look = look
        self._process = 0
        self._ready = False
        self._opened: Tables
        self._module: Any
        """The database's module, which has its errors."""
        self._told_missing = False
        self.begun = False
        """Whether the address was right at the start: a fault of it may then be temporary."""

    @contextmanager
    def tables(self) -> Iterator[Tables]:
        """Yield the tables, and commit at the end; after an error nothing is kept. The first use
        in a process opens the database, and creates the tables or checks that they exist."""
        if self._process == os.getpid() and self._opened.removed():
            log().warning(
                "history %s: the file was removed or replaced; its decisions are gone, and "
                "later ones are kept in the file that is there now",
                masked(self._uri),
            )
            self.disconnect()
        elif self._process == os.getpid() and self._opened.fixed:
            self.disconnect()
        if self._process != os.getpid():
            if self._process:
                # The fork could not wait for a write of the parent. Closing the inherited
                # connection here would break the parent's.
                _inherited.append(self._opened)
            self._open()
            self._process = os.getpid()
            self._ready = False
            if self._opened.missing and not self._told_missing:
                self._told_missing = True
                log().warning("history %s: %s", masked(self._uri), self._opened.missing)
        try:
            if not self._ready:
                self._begin()
            yield self._opened
            self._opened.commit()
        except BaseException as error:
            self._opened.rollback()
            if not isinstance(error, self._module.Error):
                raise
            why = self._opened.refused(error)
            if why:
                # A connection that was opened read-only stays so, even if rights are granted.
                self.disconnect()
            # A value that the database refuses now is refused by every retry.
            refused = isinstance(error, self._module.DataError)
            kind = EventonceError if refused else StoreUnavailable
            raise kind(f"history {masked(self._uri)}: {error}{why}") from error

    def _open(self) -> None:
        try:
            self._opened, self._module = _opened(self._uri, self._digests, look=self._look)
        except ConfigError as error:
            if not self.begun:
                raise
            # The address was right at the start: the fault may be temporary.
            raise StoreUnavailable(str(error)) from error

    def _begin(self) -> None:
        """Create the tables; for a reader, check that they exist."""
        try:
            if not self._look:
                self._opened.make()
            elif not self._opened.made():
                raise ConfigError(
                    f"history {masked(self._uri)}: there is no history, or this user may not see "
                    "its tables; `run` and `serve` create it once [history] names it"
                )
        except StoreMismatch as error:
            kind = StoreUnavailable if self.begun else StoreMismatch
            raise kind(f"history {masked(self._uri)}: {error}") from None
        self._ready = True

    def disconnect(self) -> None:
        """Close the database until it is used again. Called before a fork, too: otherwise SQLite
        in the child would believe that it holds the locks of its parent, and lose its writes once
        the parent has closed the file."""
        if self._process == os.getpid():
            self._process = 0
            self._opened.close()


def exists(uri: str) -> bool:
    """Whether the file of a history exists; always true for a server, which is not asked."""
    return not uri.startswith("sqlite:") or may(location_of(uri).path, os.F_OK)


def check(uri: str) -> None:
    """Raise ConfigError for a URI that no history can have; connect to nothing."""
    scheme = uri.partition(":")[0]
    if scheme == "sqlite":
        location_of(uri)
    elif scheme in POSTGRES_SCHEMES:
        check_uri(uri)
    else:
        raise ConfigError(f"history {masked(uri)}: expected sqlite:///PATH or postgresql://…")


def _opened(uri: str, digests: Digests, *, look: bool) -> tuple[Tables, Any]:
    """Open the tables at this URI; return them and the database's module, which has its errors."""
    check(uri)
    if uri.startswith("sqlite:"):
        return Tables(SQLiteDriver(location_of(uri), look=look), digests), sqlite3
    # psycopg is an extra; `check` has found it installed.
    import psycopg  # noqa: PLC0415

    from eventonce.history.postgres import PostgresDriver  # noqa: PLC0415

    return Tables(PostgresDriver(uri), digests), psycopg
