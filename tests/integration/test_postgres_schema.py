"""The schema is created, brought up to date and checked by command; two releases share it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import cycle
from urllib.parse import quote

import pytest
from psycopg_pool import ConnectionPool

from eventonce.errors import ConfigError, StoreMismatch
from eventonce.stores.postgres import PostgresStore
from eventonce.stores.postgres import admin as schema
from eventonce.testing.cases import law
from eventonce.testing.cases.samples import fact, new_keys, version
from eventonce.testing.factory import StoreFactory
from eventonce.types import Action, Settlement
from tests.servers.postgres import Cluster, serving


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with serving() as cluster:
        yield cluster


@pytest.fixture
def blank(cluster: Cluster) -> Iterator[PostgresStore]:
    """A store whose schema does not exist yet."""
    cluster.execute("DROP SCHEMA IF EXISTS eventonce CASCADE")
    store = PostgresStore(cluster.uri())
    yield store
    store.close()


@pytest.fixture
def store(blank: PostgresStore) -> PostgresStore:
    blank.create()
    return blank


def findings(store: PostgresStore) -> dict[str, str]:
    return {it.what: it.fix for it in store.check() if not it.fine}


def test_a_claim_does_not_create_the_schema(cluster: Cluster, blank: PostgresStore) -> None:
    with pytest.raises(StoreMismatch, match='eventonce store create "postgresql://postgres@127'):
        blank.claim([fact(*new_keys(1))])
    assert schemas(cluster) == []


def test_a_dry_run_changes_nothing_and_returns_the_statements_that_create_the_schema(
    cluster: Cluster, blank: PostgresStore
) -> None:
    statements = blank.create(dry_run=True)
    assert statements[0].startswith("-- would run")
    assert statements[1] == "CREATE SCHEMA IF NOT EXISTS eventonce;"
    assert schemas(cluster) == []
    cluster.execute(*statements)
    assert findings(blank) == {}
    assert blank.create() == []
    assert blank.claim([fact(*new_keys(1))])[0].kind == "run"


def test_a_schema_that_four_threads_create_at_once_is_created_once(blank: PostgresStore) -> None:
    made: list[int] = []
    makers = [threading.Thread(target=lambda: made.append(len(blank.create()))) for _ in range(4)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert sorted(made)[:3] == [0, 0, 0]
    assert findings(blank) == {}


@pytest.mark.parametrize("name", ["crm_events", "user", "select", "Crm-Events"])
def test_a_schema_of_any_valid_name_works(cluster: Cluster, name: str) -> None:
    """Also a word that SQL reserves."""
    cluster.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE', f'CREATE SCHEMA "{name}"')
    store = PostgresStore(cluster.uri(options=f"?schema={name}"))
    statements = store.create()
    assert not any("eventonce." in it or it.startswith("CREATE SCHEMA") for it in statements)
    assert findings(store) == {}
    claim = fact(*new_keys(1))
    (run,) = store.claim([claim])
    assert store.settle([Settlement(claim, run.token, "complete")]) == ["kept"]
    assert store.show(claim.key) is not None
    assert store.sweep() == 0
    assert store.stats().records == 1
    assert store.migrate() == []
    cluster.execute(f'DROP FUNCTION "{name}".claim_1')
    assert "claim_1" in findings(store)["its tables and functions exist"]
    store.close()


@pytest.mark.parametrize("name", ["", "pg_events", "a.b", "a b", 'a"b', "a'b", "1st", "x" * 64])
def test_an_invalid_schema_name_is_refused(cluster: Cluster, name: str) -> None:
    with pytest.raises(ConfigError, match="letters, digits"):
        PostgresStore(cluster.uri(options=f"?schema={quote(name)}"))
    with (
        ConnectionPool(cluster.uri(), open=False) as pool,
        pytest.raises(ConfigError, match="letters, digits"),
    ):
        PostgresStore(pool, schema=name)


def test_a_user_without_the_right_to_create_a_schema_gets_an_error(
    cluster: Cluster, blank: PostgresStore
) -> None:
    cluster.execute("DROP ROLE IF EXISTS poor", "CREATE ROLE poor LOGIN")
    store = PostgresStore(cluster.uri(user="poor"))
    with pytest.raises(ConfigError, match="permission"):
        store.create()
    store.close()


@pytest.mark.parametrize("name", ["eventonce", "user"])
def test_check_names_the_missing_permissions(
    cluster: Cluster, store: PostgresStore, name: str
) -> None:
    cluster.execute('DROP ROLE IF EXISTS "poor-one"', 'CREATE ROLE "poor-one" LOGIN')
    cluster.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')
    options = f"?schema={name}"
    made = PostgresStore(cluster.uri(options=options))
    made.create()
    made.close()
    cluster.execute(f'REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA "{name}" FROM PUBLIC')
    poor = PostgresStore(cluster.uri(user="poor-one", options=options))
    (fix,) = findings(poor).values()
    for function in schema.FUNCTIONS:
        assert f"GRANT EXECUTE ON FUNCTION {poor._connections.address.quoted}.{function}" in fix
    cluster.execute(*fix.split("; "))
    assert findings(poor) == {}
    claim = fact(*new_keys(1))
    (run,) = poor.claim([claim])
    assert poor.settle([Settlement(claim, run.token, "complete")]) == ["kept"]
    poor.add_name("crm")
    assert poor.names() == ["crm"]
    # The row of the names is no record: `show` and `forget` ignore it.
    assert (poor.show(b"names"), poor.forget([b"names"]), poor.names()) == (None, 0, ["crm"])
    assert poor.sweep() == 0
    poor.close()
    cluster.execute('DROP OWNED BY "poor-one"')


def test_check_of_a_missing_schema_names_the_command_that_creates_it(blank: PostgresStore) -> None:
    ((what, fix),) = findings(blank).items()
    assert what.endswith("has no tables of eventonce")
    assert "eventonce store create" in fix
    with pytest.raises(StoreMismatch, match="eventonce store create"):
        blank.migrate()


def test_a_newer_format_is_refused(cluster: Cluster, store: PostgresStore) -> None:
    cluster.execute(
        "INSERT INTO eventonce.formats (format, step) VALUES (2, 1)",
        "DROP FUNCTION eventonce.claim_1",
    )
    for refused in (store.create, store.migrate, lambda: store.claim([fact(*new_keys(1))])):
        with pytest.raises(StoreMismatch, match="has format 2"):
            refused()
    assert "has format 2" in findings(store)["the format is known"]


def test_a_missing_function_is_distinguished_from_a_missing_schema(
    cluster: Cluster, store: PostgresStore
) -> None:
    cluster.execute("DROP FUNCTION eventonce.settle_1")
    claim = fact(*new_keys(1))
    (run,) = store.claim([claim])
    with pytest.raises(StoreMismatch, match="not all of its tables and functions"):
        store.settle([Settlement(claim, run.token, "complete")])
    assert "settle_1" in findings(store)["its tables and functions exist"]


NEXT = """
ALTER TABLE eventonce.records ADD COLUMN note text;
CREATE FUNCTION eventonce.claim_2(asked eventonce.asked_1[], instant bigint, patient boolean)
RETURNS SETOF record LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT * FROM eventonce.claim_1(asked, instant, patient);
    UPDATE eventonce.records SET note = 'of ' || token
    WHERE key IN (SELECT a.key FROM unnest(asked) AS a);
END
$$;
INSERT INTO eventonce.formats (format, step) VALUES (1, 2);
"""
"""A possible addition of the next minor release: a column, and a function of its own that fills
it."""


def test_additions_of_the_next_release_are_kept(cluster: Cluster, store: PostgresStore) -> None:
    cluster.execute(NEXT)
    assert findings(store) == {}
    assert store.migrate() == []
    claims = [fact(key) for key in new_keys(2)] + [version(key, 1) for key in new_keys(2)]
    runs = store.claim(claims)
    cluster.execute("UPDATE eventonce.records SET note = 'newer'")
    actions: tuple[Action, ...] = ("complete", "release", "complete", "extend")
    done = [
        Settlement(claim, run.token, action)
        for claim, run, action in zip(claims, runs, actions, strict=True)
    ]
    assert store.settle(done) == ["kept"] * 4
    again = [fact(claims[1].key), version(claims[2].key, 2)]
    assert [it.kind for it in store.claim(again)] == ["run", "run"]
    with cluster.connect() as connection:
        notes = connection.execute("SELECT DISTINCT note FROM eventonce.records").fetchall()
    assert notes == [("newer",)]


def test_this_release_and_the_next_work_side_by_side(
    cluster: Cluster, store: PostgresStore
) -> None:
    """Each claims and settles the records of the other, and both answer as the law does."""
    cluster.execute(NEXT)
    newer = PostgresStore(cluster.uri())
    columns = (
        "key bytea, kind text, token bigint, attempt integer, wait bigint, same_id boolean, "
        '"order" bigint, result bytea, alone boolean, spared integer'
    )
    query = f"SELECT * FROM eventonce.claim_2(%s, %s, %s) AS c ({columns})".encode()
    newer._queries = {**newer._queries, "claim": query}
    (key,) = new_keys(1)
    mine, theirs = fact(key), fact(key)
    (run,) = newer.claim([theirs])
    assert store.claim([mine])[0].kind == "busy"
    assert store.settle([Settlement(theirs, run.token, "release")]) == ["kept"]
    (run,) = store.claim([mine])
    assert (run.kind, run.attempt) == ("run", 2)
    assert newer.settle([Settlement(mine, run.token, "complete")]) == ["kept"]
    assert store.claim([fact(key)])[0].kind == newer.claim([fact(key)])[0].kind == "duplicate"
    turns = cycle((newer.claim, store.claim))
    store.claim = lambda claims, now=None: next(turns)(claims, now)  # type: ignore[method-assign]
    law.every_answer_is_the_laws(StoreFactory(lambda: store, examples=30))
    newer.close()


def schemas(cluster: Cluster) -> list[str]:
    query = "SELECT nspname FROM pg_namespace WHERE nspname = 'eventonce'"
    with cluster.connect() as connection:
        return [name for (name,) in connection.execute(query).fetchall()]
