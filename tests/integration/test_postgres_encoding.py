"""The store in databases of any encoding: text is read as it was written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg_pool import ConnectionPool

from eventonce import Consumer, Job, Rule
from eventonce.stores.postgres import PostgresStore
from eventonce.testing.cases.samples import fact, new_keys, new_letters
from eventonce.types import Settlement
from tests.servers.postgres import Cluster, serving

ENCODINGS = ("SQL_ASCII", "LATIN1", "EUC_JIS_2004")
"""An encoding without rules for text, an encoding of single bytes, and an encoding that Python and
the server name differently."""

CLIENTS = ("", "SQL_ASCII", "LATIN1")
"""The encodings that a caller's own connections may ask for."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with serving() as cluster:
        for encoding in ENCODINGS:
            name = encoding.lower()
            cluster.execute(
                f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
            )
            with cluster.connect(name) as connection:
                connection.execute("CREATE TABLE names (name text)")
            store = PostgresStore(cluster.uri(name))
            store.create()
            store.close()
        yield cluster


def works(store: PostgresStore) -> None:
    """Every call that reads something back."""
    claim = fact(*new_keys(1))
    (run,) = store.claim([claim])
    assert run.kind == "run"
    assert store.settle([Settlement(claim, run.token, "complete", b"{}")]) == ["kept"]
    (copy,) = store.claim([fact(claim.key)])
    assert (copy.kind, copy.result) == ("duplicate", b"{}")
    (letter,) = new_letters(1)
    store.put_letters([letter])
    assert store.letter(letter.id) == letter
    assert [it for it in store.check() if not it.fine] == []
    assert store.create() == []


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_store_works_in_a_database_of_any_encoding(cluster: Cluster, encoding: str) -> None:
    store = PostgresStore(cluster.uri(encoding.lower()))
    works(store)
    store.close()


@pytest.mark.parametrize("encoding", CLIENTS[1:])
def test_the_store_works_with_the_encoding_that_the_uri_asks_for(
    cluster: Cluster, encoding: str
) -> None:
    store = PostgresStore(cluster.uri("sql_ascii", options=f"?client_encoding={encoding}"))
    works(store)
    # It is UTF8 unless the URI says otherwise.
    asked = store._connections.do(lambda it: it.info.parameter_status("client_encoding"))
    assert asked == encoding
    store.close()


@pytest.mark.parametrize("encoding", CLIENTS)
def test_the_store_works_over_a_pool_of_any_encoding(cluster: Cluster, encoding: str) -> None:
    settings = {"client_encoding": encoding} if encoding else {}
    with ConnectionPool(cluster.uri("sql_ascii"), min_size=1, kwargs=settings) as pool:
        works(PostgresStore(pool))
        with pool.connection() as connection:
            ((now,),) = connection.execute("SHOW client_encoding").fetchall()
        assert now in (encoding or "SQL_ASCII", (encoding or "SQL_ASCII").encode())


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_handler_reads_text_as_text(cluster: Cluster, encoding: str) -> None:
    read: list[object] = []

    def handler(job: Job) -> str:
        job.connection.execute("INSERT INTO names VALUES (%s)", ("Müller",))
        read.append(job.connection.execute("SELECT name FROM names").fetchone())
        return "kept"

    rule = Rule(name="call", match="*", key=["detail.call"])
    event = {"id": "1", "detail-type": "call", "detail": {"call": 1}}
    uri = cluster.uri(encoding.lower())
    with Consumer(uri, name="calls", rules=rule, handler=handler) as consumer:
        for expected in ("done", "duplicate"):
            (outcome,) = consumer.process([event])
            assert (outcome.status, outcome.result) == (expected, "kept")
    assert read == [("Müller",)]
