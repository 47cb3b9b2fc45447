"""The settings of PostgreSQL: mistakes are reported at first use, and commands in errors work."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from eventonce.cli import main
from eventonce.errors import ConfigError, StoreMismatch, StoreUnavailable
from eventonce.stores.postgres import PostgresStore
from eventonce.stores.postgres.errors import explain
from eventonce.stores.postgres.uri import read
from eventonce.testing.cases.samples import fact, new_keys
from tests.servers.postgres import Cluster, serving

SECRET = "hunter2"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with serving() as cluster:
        yield cluster


@pytest.fixture
def blank(cluster: Cluster) -> Cluster:
    """The server, without a schema of eventonce."""
    cluster.execute("DROP SCHEMA IF EXISTS eventonce, other CASCADE")
    return cluster


def command_in(said: str) -> list[str]:
    """The words after `eventonce` in the command that an error names, as a shell splits them."""
    _, _, command = said.partition(": eventonce ")
    return shlex.split(command)


@pytest.mark.parametrize("options", ["", "?schema=other&sslmode=disable&application_name=a%20b"])
def test_the_command_that_the_error_names_creates_the_schema(
    blank: Cluster, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGUSER", raising=False)
    store = PostgresStore(blank.uri(options=options))
    with pytest.raises(StoreMismatch) as told:
        store.claim([fact(*new_keys(1))])
    with pytest.raises(SystemExit) as stop:
        main(command_in(str(told.value)))
    assert stop.value.code == 0
    assert store.claim([fact(*new_keys(1))])[0].kind == "run"
    store.close()
    assert schemas(blank) == ["other" if options else "eventonce"]


def schemas(cluster: Cluster) -> list[str]:
    """The schemas with a table of records."""
    with cluster.connect() as connection:
        query = "SELECT schemaname FROM pg_tables WHERE tablename = 'records'"
        return [name for (name,) in connection.execute(query).fetchall()]


def test_the_uri_in_a_named_command_holds_no_secret() -> None:
    address = read(
        f"postgresql://me:{SECRET}@host/db?schema=s&password={SECRET}&sslpassword={SECRET}"
        f"&scram_client_key={SECRET}&sslrootcert=/a/b.pem&timeout=3"
    )
    assert address.typed == "postgresql://me@host/db?schema=s&sslrootcert=/a/b.pem&timeout=3"
    assert address.shown == "postgresql://me@host/db"
    assert SECRET not in repr(address)


@pytest.mark.parametrize(
    ("typed", "meant"), [("a%40b%2Fc", "a@b/c"), ("a@b", "a@b"), ("100%", "100%")]
)
def test_a_password_is_read_with_and_without_percent_encoding(typed: str, meant: str) -> None:
    address = read(f"postgresql://me:{typed}@one:6000,%2Frun%2Fpg/db")
    assert address.parameters["password"] == meant
    assert (address.parameters["host"], address.parameters["port"]) == ("one,/run/pg", "6000,5432")
    assert address.shown == "postgresql://me@one:6000,%2Frun%2Fpg/db"


def test_a_password_with_an_unescaped_question_mark_is_not_shown() -> None:
    with pytest.raises(ConfigError) as told:
        PostgresStore(f"postgresql://me:half@host/db?{SECRET}@host/db")
    assert SECRET not in str(told.value)


def test_with_a_pool_the_error_names_the_call_that_creates_the_schema(blank: Cluster) -> None:
    with ConnectionPool(blank.uri(), min_size=1) as pool:
        store = PostgresStore(pool, schema="other")
        with pytest.raises(StoreMismatch) as told:
            store.claim([fact(*new_keys(1))])
        _, _, named = str(told.value).partition("Create it: ")
        eval(named, {"PostgresStore": PostgresStore, "pool": pool})
        assert store.claim([fact(*new_keys(1))])[0].kind == "run"
    assert schemas(blank) == ["other"]


def test_the_output_of_a_dry_run_is_marked_and_can_be_run_as_sql(
    blank: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["store", "create", "--dry-run", blank.uri()])
    would = capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["store", "create", blank.uri()])
    made = capsys.readouterr().out
    assert would == f"-- would run, in one transaction:\n{made}"
    blank.execute("DROP SCHEMA eventonce CASCADE", would)
    with pytest.raises(SystemExit) as stop:
        main(["store", "check", blank.uri()])
    assert stop.value.code == 0
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["store", "create", "--dry-run", blank.uri()])
    assert capsys.readouterr().out.startswith("nothing to do")


@pytest.mark.parametrize(
    "option",
    [
        "sslmode=bogus",
        "sslmode=require",
        "target_session_attrs=bogus",
        "connect_timeout=soon",
        "keepalives=soon",
        "channel_binding=require",
        "require_auth=scram-sha-256",
        "sslnegotiation=direct",
        "service=nowhere",
        "options=-c%20bogus=1",
        "options=-c%20work_mem=much",
    ],
)
def test_an_option_that_cannot_work_is_a_mistake_in_the_configuration(
    cluster: Cluster, option: str
) -> None:
    store = PostgresStore(cluster.uri(user=f"postgres:{SECRET}", options=f"?{option}"))
    with pytest.raises(ConfigError, match="option in the URI") as told:
        store.claim([fact(*new_keys(1))])
    assert SECRET not in str(told.value)
    store.close()


WITH_TLS = (
    'connection failed: root certificate file "/nope" does not exist',
    "connection failed: SSL error: certificate verify failed",
    'connection failed: private key file "/nope" has group or world access',
    "connection failed: SSL error: tlsv1 alert unknown ca",
)


@pytest.mark.parametrize("said", WITH_TLS)
def test_a_tls_error_is_a_mistake_in_the_configuration_at_first_and_an_outage_later(
    said: str,
) -> None:
    """A certificate may be replaced at that moment."""
    error, address = psycopg.OperationalError(said), read("postgresql://me@host/db")
    assert type(explain(error, address, has_answered=False)) is ConfigError
    assert type(explain(error, address, has_answered=True)) is StoreUnavailable


@pytest.mark.parametrize(
    "said",
    [
        'failed to resolve host "certificate-db.invalid ": Name or service not known',
        'connection to server on socket "/run/invalid certificates/.s.PGSQL.5432" failed: No such',
        "failed to resolve host 'certificate-db': [Errno -2] Name or service not known",
    ],
)
def test_the_name_of_a_host_does_not_make_an_error_a_mistake_in_the_configuration(
    said: str,
) -> None:
    error, address = psycopg.OperationalError(said), read("postgresql://me@host/db")
    assert type(explain(error, address, has_answered=False)) is StoreUnavailable


def test_a_connection_in_place_of_a_pool_is_refused(cluster: Cluster) -> None:
    with cluster.connect() as connection, pytest.raises(ConfigError, match=r"psycopg\.Connection"):
        PostgresStore(connection)  # type: ignore[arg-type]


def test_a_pool_for_asyncio_is_refused(cluster: Cluster) -> None:
    pool = AsyncConnectionPool(cluster.uri(), open=False)
    with pytest.raises(ConfigError, match="synchronous"):
        PostgresStore(pool)  # type: ignore[arg-type]
