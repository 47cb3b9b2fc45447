"""A temporary database for a study. A killed study's folder is removed by the next study."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, Self

from eventonce.errors import EventonceError
from eventonce.sources.parquet import duckdb

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

MEMORY_LIMIT: Final = "576MB"
"""The memory limit of DuckDB; larger data go to the temporary folder."""
DISK_FULL: Final = "max_temp_directory_size"
"""The setting that DuckDB names if its temporary folder is full."""
FOLDER_PREFIX: Final = "eventonce-study-"
OWNER_FILE: Final = "owner"
"""A file in the folder, locked by its process: the lock ends with the process."""


class Scratch:
    """Tables in DuckDB, deleted at the end; data that do not fit into memory go to disk."""

    def __init__(self) -> None:
        _remove_abandoned()
        self._folder = tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX)
        self._owned = _own(Path(self._folder.name))
        _open.add(Path(self._folder.name))
        with self._told():
            self._database = duckdb().connect(f"{self._folder.name}/index.duckdb")
        self.run(f"SET memory_limit = '{MEMORY_LIMIT}'; SET preserve_insertion_order = false")
        # DuckDB would draw a progress bar on stdout, into the report.
        self.run("SET enable_progress_bar = false")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
        self._folder.cleanup()
        _open.discard(Path(self._folder.name))
        self._owned.close()

    def table(self, name: str, columns: dict[str, str]) -> None:
        """Create an empty table of this name."""
        typed = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        self.run(f"CREATE OR REPLACE TABLE {name} ({typed})")

    def load(self, name: str, columns: dict[str, str], rows: Iterable[bytes]) -> None:
        """Add rows of tab-separated text to a table."""
        path = Path(self._folder.name, "rows.tsv")
        with self._told(), path.open("wb") as stream:
            stream.writelines(rows)
        self.run(
            f"INSERT INTO {name} SELECT * FROM "  # noqa: S608  a name of ours
            "read_csv(?, delim = '\t', header = false, quote = '', escape = '', "
            "auto_detect = false, columns = ?)",
            str(path),
            columns,
        )

    def rows(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query, some at a time."""
        with self._told():
            found = self._database.cursor().execute(query, list(values))
        while some := self._fetched(found):
            yield from some

    def one(self, query: str) -> dict[str, Any]:
        """Return the only row of a query, by the names of its columns."""
        with self._told():
            found = self._database.cursor().execute(query)
            names = [column[0] for column in found.description]
            return dict(zip(names, found.fetchone(), strict=True))

    def run(self, query: str, *values: Any) -> None:
        """Run a query, without reading its rows."""
        with self._told():
            self._database.execute(query, list(values))

    def _fetched(self, found: Any) -> list[tuple[Any, ...]]:
        with self._told():
            some: list[tuple[Any, ...]] = found.fetchmany(10_000)
        return some

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Raise EventonceError if disk or memory is too small."""
        module = duckdb()
        try:
            yield
        except (OSError, module.IOException, module.OutOfMemoryException) as error:
            first = str(error).partition("\n")[0].rstrip(".")
            # DuckDB reports a full temporary folder as out of memory too.
            if isinstance(error, module.OutOfMemoryException) and DISK_FULL not in str(error):
                raise EventonceError(
                    f"this capture needs more memory than the limit of {MEMORY_LIMIT}, or than the "
                    f"machine has: {first}. End other programs, or study fewer files at "
                    f"once"
                ) from error
            raise EventonceError(
                f"{self._folder.name}, the folder of the study, cannot be written: {first}. Free "
                f"some space, or name another folder in TMPDIR, and start again"
            ) from error


_open: Final[set[Path]] = set()


def remove_open() -> None:
    """Remove the folders of this process, which ends at once."""
    for folder in _open:
        # Renamed first: a thread of DuckDB may still write there. The study may have removed it.
        with suppress(FileNotFoundError):
            shutil.rmtree(folder.rename(f"{folder}-ended"), ignore_errors=True)


def _own(folder: Path) -> IO[bytes]:
    """Lock this folder as in use, until the file is closed."""
    new = folder / "new"
    owned = new.open("wb")
    if fcntl is not None:
        fcntl.flock(owned, fcntl.LOCK_EX)
    # Locked before it gets its name: no other process sees it unlocked.
    new.rename(folder / OWNER_FILE)
    return owned


def _remove_abandoned() -> None:
    """Remove the folders of studies that were killed."""
    if fcntl is None:
        return
    for owner in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*/{OWNER_FILE}"):
        # The folder may belong to another user, or disappear meanwhile.
        with suppress(OSError), owner.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(owner.parent)
