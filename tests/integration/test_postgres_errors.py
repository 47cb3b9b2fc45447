"""Errors of PostgreSQL: each says what is wrong and what to do, and shows no secret."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterator

import psycopg
import pytest

from eventonce.errors import (
    ConfigError,
    EventonceError,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)
from eventonce.stores.postgres import PostgresStore
from eventonce.testing.cases.samples import fact, new_keys
from tests.helpers import PATIENCE
from tests.integration.granted import alone, made
from tests.servers import free_port
from tests.servers.postgres import Cluster, prepared
from tests.servers.relay import relaying

SECRET = "hunter2"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with prepared() as cluster:
        guarded = "host all guarded 127.0.0.1/32 scram-sha-256\n"
        rules = cluster.folder / "pg_hba.conf"
        rules.write_text(guarded + rules.read_text())
        with cluster.running():
            cluster.execute(
                "CREATE ROLE guarded LOGIN PASSWORD 'right'",
                "CREATE ROLE poor LOGIN",
                "CREATE ROLE single LOGIN CONNECTION LIMIT 1",
            )
            made(cluster.uri())
            for role in ("guarded", "single"):
                cluster.execute(
                    f"GRANT USAGE ON SCHEMA eventonce TO {role}",
                    f"GRANT ALL ON ALL TABLES IN SCHEMA eventonce TO {role}",
                )
            yield cluster


def refusal(uri: str) -> EventonceError:
    """The error of a claim in this store; no part of it shows the password."""
    with pytest.raises(EventonceError) as caught:
        ask(uri)
    assert_no_secret(caught.value)
    return caught.value


def ask(uri: str) -> None:
    store = PostgresStore.from_uri(uri)
    try:
        assert SECRET not in repr(store)
        store.claim([fact(*new_keys(1))])
    finally:
        store.close()


def assert_no_secret(error: BaseException | None) -> None:
    while error is not None:
        told = "".join(traceback.format_exception_only(error))
        assert SECRET not in told
        assert SECRET not in repr(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_a_wrong_password_is_a_mistake_in_the_configuration(cluster: Cluster) -> None:
    error = refusal(f"postgresql://guarded:{SECRET}@127.0.0.1:{cluster.port}/postgres")
    assert isinstance(error, ConfigError)
    assert "password" in str(error)
    assert isinstance(error.__cause__, psycopg.OperationalError)


def test_a_password_that_is_wrong_for_a_while_is_an_outage(cluster: Cluster) -> None:
    """A rotation under way must not end a worker for good."""
    store = PostgresStore(f"postgresql://guarded:right@127.0.0.1:{cluster.port}/postgres")
    assert store.claim([fact(*new_keys(1))])[0].kind == "run"
    cluster.execute("ALTER ROLE guarded PASSWORD 'other'")
    cut_all(cluster)
    with pytest.raises(StoreUnavailable, match="refuses this user or password"):
        store.claim([fact(*new_keys(1))])
    cluster.execute("ALTER ROLE guarded PASSWORD 'right'")
    assert store.claim([fact(*new_keys(1))])[0].kind == "run"
    store.close()


@pytest.mark.parametrize(
    ("path", "user", "says"),
    [("nowhere", "postgres", "createdb"), ("postgres", "nobody_at_all", "user or password")],
)
def test_an_unknown_database_or_user_is_a_mistake_in_the_configuration(
    cluster: Cluster, path: str, user: str, says: str
) -> None:
    error = refusal(cluster.uri(path, user=f"{user}:{SECRET}"))
    assert isinstance(error, ConfigError)
    assert says in str(error)


def test_a_port_without_a_server_is_an_outage() -> None:
    error = refusal(f"postgresql://postgres:{SECRET}@127.0.0.1:{free_port()}/postgres")
    assert isinstance(error, StoreUnavailable)
    assert "cannot be reached" in str(error)


def test_a_host_without_an_address_is_an_outage() -> None:
    error = refusal(f"postgresql://postgres:{SECRET}@no.such.host.invalid/postgres")
    assert isinstance(error, StoreUnavailable)


def test_a_server_that_accepts_a_connection_and_never_answers_is_an_outage(
    cluster: Cluster,
) -> None:
    """Such as a frozen machine, or a firewall that drops packets."""
    hold = threading.Event()
    with relaying(cluster.port, lambda _: hold.wait(2 * PATIENCE)) as relay:
        begun = time.monotonic()
        uri = f"postgresql://postgres:{SECRET}@127.0.0.1:{relay.port}/postgres?connect_timeout=2"
        error = refusal(uri)
        hold.set()
    assert isinstance(error, StoreUnavailable)
    assert time.monotonic() - begun < PATIENCE


@pytest.mark.parametrize(
    "uri",
    [
        f"postgresql://u:a/{SECRET}@127.0.0.1/x",
        f"postgresql://u:a?{SECRET}@127.0.0.1/x",
        f"postgresql://u:a#{SECRET}@127.0.0.1/x",
        f"postgresql://u:{SECRET}@127.0.0.1:port/x",
        f"postgresql://u:{SECRET}@127.0.0.1:99999999/x",
        f"postgresql://u:{SECRET}@[::1/x",
        f"postgresql://u@127.0.0.1/x?password={SECRET}&colour=blue",
        f"postgresql://u:{SECRET}@127.0.0.1/x?timeout=soon",
        f"postgresql://u:{SECRET}@127.0.0.1/x?connections=0",
        f"postgresql://u:{SECRET}@127.0.0.1/x?schema=a%22b",
    ],
)
def test_the_error_of_an_invalid_uri_does_not_show_the_password(uri: str) -> None:
    error = refusal(uri)
    assert isinstance(error, ConfigError)


def test_the_error_of_a_missing_schema_names_the_command_that_creates_it(cluster: Cluster) -> None:
    error = refusal(
        f"postgresql://postgres:{SECRET}@127.0.0.1:{cluster.port}/postgres?schema=other"
    )
    assert isinstance(error, StoreMismatch)
    uri = cluster.uri(options="?schema=other")
    assert f'eventonce store create "{uri}"' in str(error)


def test_the_error_of_a_missing_permission_names_the_grants(cluster: Cluster) -> None:
    error = refusal(cluster.uri(user="poor"))
    assert isinstance(error, ConfigError)
    assert "GRANT USAGE ON SCHEMA eventonce" in str(error)
    for statement in str(error).split("eventonce: ", 1)[-1].split(". It said")[0].split(";"):
        cluster.execute(statement.replace("…", "poor"))
    ask(cluster.uri(user="poor"))
    cluster.execute("REVOKE ALL ON ALL TABLES IN SCHEMA eventonce FROM poor")
    error = refusal(cluster.uri(user="poor"))
    assert isinstance(error, ConfigError)


def test_too_many_connections_are_an_outage(cluster: Cluster) -> None:
    alone(cluster, "single")
    with psycopg.connect(cluster.uri(user="single")):
        error = refusal(cluster.uri(user="single"))
    assert isinstance(error, StoreUnavailable)
    assert "max_connections" in str(error)


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        ("53100", StoreUnavailable, "disk is full"),
        ("53200", StoreUnavailable, "overloaded"),
        ("57014", StoreUnavailable, "overloaded"),
        ("58030", StoreUnavailable, "overloaded"),
        ("XX000", StoreUnavailable, "overloaded"),
        ("XX001", StoreMismatch, "damaged"),
        ("40001", StoreUnavailable, "overloaded"),
        ("22023", StoreError, "told"),
    ],
)
def test_each_error_code_of_the_server_becomes_the_right_kind_of_error(
    cluster: Cluster, code: str, kind: type[StoreError], says: str
) -> None:
    name = f"raises_{code.lower()}"
    made(cluster.uri(options=f"?schema={name}"))
    cluster.execute(
        f"""
        CREATE OR REPLACE FUNCTION {name}.clock_1(instant bigint) RETURNS bigint
        LANGUAGE plpgsql AS $$ BEGIN RAISE 'told' USING ERRCODE = '{code}'; END $$
        """
    )
    error = refusal(cluster.uri(options=f"?schema={name}"))
    assert type(error) is kind
    assert says in str(error)
    assert isinstance(error.__cause__, psycopg.Error)
    assert error.__cause__.sqlstate == code


def test_a_session_that_is_read_only_by_default_is_an_outage(cluster: Cluster) -> None:
    alone(cluster, "single")
    cluster.execute("ALTER ROLE single SET default_transaction_read_only = on")
    error = refusal(cluster.uri(user="single"))
    cluster.execute("ALTER ROLE single RESET default_transaction_read_only")
    assert isinstance(error, StoreUnavailable)
    assert "read-only" in str(error)


def test_a_call_to_a_closed_store_is_an_error(cluster: Cluster) -> None:
    store = PostgresStore(cluster.uri())
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.claim([fact(*new_keys(1))])


def test_an_argument_that_is_neither_a_uri_nor_a_pool_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"psycopg_pool\.ConnectionPool"):
        PostgresStore(object())  # type: ignore[arg-type]


def cut_all(cluster: Cluster) -> None:
    """End every connection of eventonce, as a restart or a firewall would."""
    cluster.execute(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
        "WHERE application_name = 'eventonce'"
    )
