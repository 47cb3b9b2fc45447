"""The file itself: made, brought up to date, and looked at, for the command line.

The store makes its file by being opened; here one that is only looked at is not made.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from eventonce.core.ports import Finding
from eventonce.errors import ConfigError, StoreMismatch
from eventonce.stores.sqlite.file import (
    FORMAT,
    Place,
    barred,
    damaged,
    explained,
    format_of,
    script_from,
)
from eventonce.stores.sqlite.uri import absolute, read, written


class State(NamedTuple):
    """What there is in a file."""

    format: int | None
    """Of our tables; None where there are none."""
    write_ahead: bool


class SQLiteFile:
    """A store's file, whether it is there or not; nothing of it is held open."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._path = place.path
        self._uri = written(place.path)

    @classmethod
    def from_uri(cls, uri: str) -> SQLiteFile:
        """As the store's own."""
        path, synchronous, wait = read(uri)
        return cls(Place(absolute(path), wait, synchronous))

    def create(self, *, dry_run: bool = False) -> list[str]:
        """Make the file, or our tables in it; answers what was done, or would be."""
        found = self._found()
        if found is None:
            step = f"make {self._path}, with tables of format {FORMAT} and a write-ahead log"
        elif found.format is None:
            step = f"make tables of format {FORMAT} in {self._path}, and a write-ahead log"
        else:
            return self.migrate(dry_run=dry_run)
        return self._take([step], dry_run=dry_run)

    def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Bring our tables up to date; answers what was done, or would be."""
        found = self._found()
        if found is None or found.format is None:
            lacking = "there is no such file" if found is None else "it has no tables of ours"
            raise StoreMismatch(
                f'{self._path}: {lacking}. Make it: eventonce store create "{self._uri}"'
            )
        steps = []
        if script_from(found.format, self._path):
            steps.append(f"bring the tables in {self._path} from format {found.format} to {FORMAT}")
        if not found.write_ahead:
            steps.append(f"let {self._path} keep a write-ahead log")
        return self._take(steps, dry_run=dry_run)

    def check(self) -> list[Finding]:
        """Look at the file, its tables, its log, permissions, and for damage."""
        there = f"{self._path} is there"
        if not os.access(self._path, os.F_OK):
            fix = f'make it: eventonce store create "{self._uri}"; whatever opens it does so too'
            return [Finding(there, fine=False, fix=self._unwritable() or fix)]
        findings = [Finding(there, fine=True)]
        try:
            for finding in self._findings():
                findings.append(finding)  # noqa: PERF402  those before an error count too
        except StoreMismatch as error:
            findings.append(Finding("it can be read", fine=False, fix=str(error)))
        return findings

    def close(self) -> None:
        """Nothing is held open."""

    def _findings(self) -> Iterator[Finding]:
        with explained(self._place, opening=True), closing(self._place.open_for_reading()) as file:
            found = self._state(file)
            yield self._tables(found)
            if found.format is None:
                return
            fix = "" if found.write_ahead else f'eventonce store migrate "{self._uri}"'
            yield Finding("it keeps a write-ahead log", fine=not fix, fix=fix)
            fix = self._unwritable()
            yield Finding("this user may write it", fine=not fix, fix=fix)
            fix = self._readable_by_others()
            yield Finding("others may not read it", fine=not fix, fix=fix)
            fix = self._apart()
            yield Finding("all who use it share its log", fine=not fix, fix=fix)
            # One fault suffices: there is nothing to be done about the second alone.
            (said,) = file.execute("PRAGMA quick_check(1)").fetchone()
            fix = "" if said == "ok" else damaged(self._path, " ".join(said.split()))
            yield Finding("SQLite finds no damage in it", fine=not fix, fix=fix)

    def _tables(self, found: State) -> Finding:
        if found.format is None:
            fix = f'make them: eventonce store create "{self._uri}"'
            return Finding("our tables are there", fine=False, fix=fix)
        older = bool(script_from(found.format, self._path))
        return Finding(
            f"its tables have format {found.format}",
            fine=not older,
            fix=f'eventonce store migrate "{self._uri}"' if older else "",
        )

    def _found(self) -> State | None:
        if not os.access(self._path, os.F_OK):
            return None
        with explained(self._place, opening=True), closing(self._place.open_for_reading()) as file:
            return self._state(file)

    def _state(self, connection: sqlite3.Connection) -> State:
        found = format_of(connection, self._path)
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        return State(found, mode == "wal")

    def _take(self, steps: list[str], *, dry_run: bool) -> list[str]:
        """Take these steps, which is what opening the file does."""
        if steps and (why := self._unwritable()):
            raise ConfigError(f"{self._path}: {why}")
        if steps and not dry_run:
            with explained(self._place, opening=True):
                self._place.open_for_writing().close()
        return [f"would {step}" if dry_run else step for step in steps]

    def _readable_by_others(self) -> str:
        """What to do where everybody on this machine may read the letters, which are events."""
        reachable = all(folder.stat().st_mode & stat.S_IXOTH for folder in self._path.parents)
        if os.name != "posix" or not reachable or not self._path.stat().st_mode & 0o006:
            return ""
        return f"everybody on this machine may: chmod o-rwx {' '.join(self._place.names)}"

    def _apart(self) -> str:
        """What to do where a process works on a log that was removed under it: it sees nothing of
        what others write, nor they of its own. Linux tells it, of processes of this user."""
        path = os.path.realpath(self._path)
        removed = {f"{path}{end} (deleted)" for end in ("", "-wal", "-shm")}
        apart = set()
        for link in Path("/proc").glob("[0-9]*/fd/*"):
            with suppress(OSError):
                if os.readlink(link) in removed:  # noqa: PTH115  a Path would lose the mark
                    apart.add(link.parts[2])
        if not apart:
            return ""
        return (
            f"the file, its -wal or its -shm was removed while it was open in process "
            f"{', '.join(sorted(apart))}, which may run what others have run. Stop all that use "
            f"the file, and start them again"
        )

    def _unwritable(self) -> str:
        """Why this user cannot write here, as far as one can see without doing it."""
        path = self._path
        may = os.access(path.parent, os.W_OK | os.X_OK) and (
            not os.access(path, os.F_OK) or os.access(path, os.R_OK | os.W_OK)
        )
        return "" if may else barred(path)
