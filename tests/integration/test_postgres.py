"""The calls of the PostgreSQL store: their parts, types, query plans and estimates."""

from __future__ import annotations

import time

import msgspec
import pytest

from eventonce.errors import StoreUnavailable
from eventonce.stores.postgres import PostgresStore
from eventonce.stores.postgres import codec as wire
from eventonce.testing.cases.samples import fact, new_keys, new_letters, version
from tests.integration.granted import completed
from tests.servers.postgres import Cluster


def test_a_key_may_come_twice_in_a_batch_of_settlements(store: PostgresStore) -> None:
    """Such as when a run and the run that took over from it are renewed together."""
    first, second, other = fact(*new_keys(1), lease=1), fact(b""), fact(*new_keys(1))
    (late,) = completed(store, [first])
    time.sleep(0.01)
    second = msgspec.structs.replace(second, key=first.key)
    batch = [late, *completed(store, [second, other]), late]
    assert store.settle(batch) == ["fenced", "kept", "kept", "fenced"]
    copies = [fact(first.key), fact(other.key), fact(first.key)]
    assert [verdict.kind for verdict in store.claim(copies)] == ["duplicate"] * 3


def test_a_long_call_is_split_into_parts(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the SQL functions grows with the square of the rows: without parts, a long call
    would be given up before its answer."""
    lengths: list[int] = []
    ask = store._connections.ask

    def counted(query: bytes, *args: object) -> list[tuple[object, ...]]:
        rows = ask(query, *args)
        lengths.append(len(rows))
        return rows

    monkeypatch.setattr(store._connections, "ask", counted)
    keys = new_keys(2 * wire.BATCH_ROWS + 1)
    for order in (1, 2):
        ended = completed(store, [version(key, order) for key in keys])
        assert lengths == [wire.BATCH_ROWS, wire.BATCH_ROWS, 1]
        assert set(store.settle(ended)) == {"kept"}
        assert lengths[3:] == [wire.BATCH_ROWS, wire.BATCH_ROWS, 1]
        lengths.clear()
    again = [version(key, 2) for key in [*keys, *keys[:2]]]
    assert {verdict.kind for verdict in store.claim(again)} == {"duplicate"}
    assert lengths == [wire.BATCH_ROWS, wire.BATCH_ROWS, 1, 2]


def test_answers_of_earlier_parts_are_kept_if_a_later_part_fails(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of a lost grant would be busy for a lease; and each further part would be waited for
    in vain."""
    asked = 0
    ask = store._connections.ask

    def away_after_the_first(query: bytes, *args: object) -> list[tuple[object, ...]]:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise StoreUnavailable
        return ask(query, *args)

    monkeypatch.setattr(store._connections, "ask", away_after_the_first)
    claims = [fact(key) for key in new_keys(3 * wire.BATCH_ROWS)]
    kinds = [verdict.kind for verdict in store.claim(claims)]
    assert kinds == ["run"] * wire.BATCH_ROWS + ["error"] * 2 * wire.BATCH_ROWS
    assert asked == 2
    with pytest.raises(StoreUnavailable):
        store.claim(claims)


def test_a_dead_letter_may_hold_characters_that_a_text_column_refuses(store: PostgresStore) -> None:
    (letter,) = new_letters(1)
    letter = msgspec.structs.replace(letter, reason="a\0b \ud800", rule="\x00")
    store.put_letters([letter])
    assert store.letter(letter.id) == letter
    assert list(store.letters(letter.consumer)) == [letter]


def test_the_index_is_used_by_plans_that_were_made_while_the_table_was_empty(
    cluster: Cluster,
) -> None:
    """Plans are kept as long as the connection is, and the table may fill within a minute."""
    store = PostgresStore(cluster.uri(options="?schema=filling"))
    store.create()
    cluster.execute(
        "ALTER TABLE filling.records SET (autovacuum_enabled = off)", "VACUUM filling.records"
    )
    for _ in range(7):
        store.settle(completed(store, [fact(*new_keys(1))]))
        store.claim([version(key, 1) for key in new_keys(1)])
    cluster.execute(
        "INSERT INTO filling.records (token, expires, done, key) "
        "SELECT 1, 1, true, sha256(int8send(n)) FROM generate_series(1, 100000) AS n"
    )
    before = reads(cluster)
    ended = completed(store, [fact(key) for key in new_keys(50)])
    store.settle(ended)
    store.claim([fact(it.claim.key) for it in ended])
    store.claim([version(key, 1) for key in new_keys(50)])
    store.sweep(100)
    store.close()
    assert reads(cluster) - before < 5_000


def reads(cluster: Cluster) -> int:
    """The number of rows of that table that were read by a scan or by the index."""
    query = (
        "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE schemaname = 'filling'"
        " AND relname = 'records'"
    )
    time.sleep(1.1)  # each backend reports its figures once a second
    with cluster.connect() as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def test_more_than_a_million_records_are_estimated(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = store._queries["stats"].replace(b"1000000", b"2")
    monkeypatch.setattr(store, "_queries", {**store._queries, "stats": few})
    completed(store, [fact(key) for key in new_keys(5)])
    assert store.stats().records >= 2
