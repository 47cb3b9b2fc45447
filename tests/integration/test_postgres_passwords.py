"""PostgreSQL with a password that is new for each connection: IAM tokens, and a function."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg_pool import ConnectionPool

from eventonce.errors import ConfigError, StoreUnavailable
from eventonce.stores.postgres import PostgresStore
from eventonce.stores.postgres.uri import read
from eventonce.testing.cases.samples import fact, new_keys
from tests.integration.granted import opened
from tests.servers.aws import REGION, emulated
from tests.servers.postgres import Cluster, serving
from tests.servers.rds import Door, guarding

PLAIN = "sslmode=disable&gssencmode=disable"
"""The proxy of `tests.servers.rds` has no TLS."""


@pytest.fixture
def door(cluster: Cluster) -> Iterator[Door]:
    with emulated(), guarding(cluster.port) as door:
        yield door


def behind(door: Door, options: str = f"iam=rds&{PLAIN}") -> str:
    return f"postgresql://postgres@127.0.0.1:{door.port}/postgres?{options}"


def test_each_connection_sends_a_token_that_iam_would_accept(door: Door) -> None:
    """`tests.servers.rds` replaces IAM and checks the token: there is no AWS here, and the server
    behind it accepts every user."""
    store = PostgresStore(behind(door, f"iam=rds&region={REGION}&{PLAIN}"))
    with store.transaction():
        assert store.claim([fact(*new_keys(1))])[0].kind == "run"
    store.close()
    assert len(door.tokens) == 2
    assert all("X-Amz-Signature" in token for token in door.tokens)


def test_a_token_signed_with_another_secret_is_refused(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This shows that `tests.servers.rds` checks the signature."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    store = PostgresStore(behind(door))
    with pytest.raises(ConfigError, match="refuses this user or password"):
        store.claim([fact(*new_keys(1))])
    store.close()


@pytest.mark.parametrize(
    ("missing", "says"),
    [(("AWS_DEFAULT_REGION",), "needs a region"), (("AWS_SECRET_ACCESS_KEY",), "credentials")],
)
def test_a_missing_region_or_credential_for_a_token_is_named(
    door: Door, missing: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in missing:
        monkeypatch.delenv(name)
    store = PostgresStore(behind(door))
    with pytest.raises(ConfigError, match=says):
        store.claim([fact(*new_keys(1))])


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://host/db?iam=rds",
        "postgresql://me@/db?iam=rds",
        "postgresql://me@one,two/db?iam=rds",
        "postgresql://me:secret@host/db?iam=rds",
        "postgresql://me@host/db?iam=elasticache",
    ],
)
def test_a_uri_that_no_token_can_be_signed_for_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="iam=rds is for") as told:
        read(uri)
    assert "secret" not in str(told.value)


def test_a_token_requires_tls_unless_the_uri_sets_sslmode() -> None:
    assert read("postgresql://me@host/db?iam=rds").parameters["sslmode"] == "require"
    verified = read("postgresql://me@host/db?iam=rds&sslmode=verify-full").parameters
    assert verified["sslmode"] == "verify-full"
    assert "sslmode" not in read("postgresql://me@host/db").parameters


def test_a_region_without_iam_is_refused() -> None:
    with pytest.raises(ConfigError, match="region"):
        read("postgresql://me@host/db?region=eu-central-1")


@pytest.fixture(scope="module")
def strict() -> Iterator[Cluster]:
    """A server that asks for a password, by SCRAM."""
    with serving() as cluster, opened(cluster):
        cluster.execute(
            "ALTER ROLE postgres PASSWORD 'first'", "CREATE ROLE looker SUPERUSER LOGIN"
        )
        rules = cluster.folder / "pg_hba.conf"
        text = rules.read_text()
        asks = "host all postgres 127.0.0.1/32 scram-sha-256\n"
        rules.write_text(asks + text)
        with cluster.connect() as connection:
            connection.execute("SELECT pg_reload_conf()")
            yield cluster
            rules.write_text(text)
            connection.execute("SELECT pg_reload_conf()")


def test_the_password_function_of_a_caller_is_called_before_each_connection(
    strict: Cluster,
) -> None:
    asked: list[str] = []
    current = "first"

    def password() -> str:
        asked.append(current)
        return current

    store = PostgresStore(strict.uri(), password=password)
    assert store.claim([fact(*new_keys(1))])[0].kind == "run"
    store._connections.do(lambda it: it.execute("ALTER ROLE postgres PASSWORD 'second'"))
    current = "second"
    with store.transaction():
        assert asked == ["first", "second"]
    store.close()


def test_a_password_function_that_raises_is_an_outage(strict: Cluster) -> None:
    def password() -> str:
        raise TimeoutError("the vault is away")

    store = PostgresStore(strict.uri(), password=password)
    with pytest.raises(StoreUnavailable, match="the vault is away"):
        store.claim([fact(*new_keys(1))])
    with pytest.raises(StoreUnavailable, match="the vault is away"), store.transaction():
        raise AssertionError("it never began")
    store.close()


def test_a_password_that_is_given_twice_or_with_a_pool_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="once"):
        PostgresStore("postgresql://me:secret@host/db", password=lambda: "")
    with pytest.raises(ConfigError, match="once"):
        PostgresStore("postgresql://me@host/db?iam=rds", password=lambda: "")
    with pytest.raises(ConfigError, match="pool"):
        PostgresStore(ConnectionPool(cluster.uri(), open=False), password=lambda: "")
