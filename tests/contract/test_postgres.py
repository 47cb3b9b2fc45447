"""PostgreSQL is held to the contract: 18, Debian's 15, behind PgBouncer, over a given pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pytest
from msgspec.structs import replace
from psycopg_pool import ConnectionPool

from eventonce.clock import wall_clock
from eventonce.stores.postgres import PostgresStore
from eventonce.testing.cases import histories
from eventonce.testing.contract import StoreContract, StoreFactory
from eventonce.testing.factory import EXAMPLES
from eventonce.types import Claim, Verdict
from tests.contract import FEWER, VariantContract
from tests.helpers import PATIENCE
from tests.integration.granted import made
from tests.servers.postgres import Cluster, bouncing, postgres15, serving


def _opener(uri: str, examples: int = EXAMPLES) -> StoreFactory:
    patient = f"{uri}?timeout={PATIENCE}&connect_timeout={PATIENCE}"
    return StoreFactory(partial(PostgresStore, patient), own_clock=True, examples=examples)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with serving() as cluster:
        made(cluster.uri())
        yield cluster


@pytest.fixture(scope="module")
def debians_uri() -> Iterator[str]:
    with serving(postgres15) as cluster:
        yield made(cluster.uri())


@pytest.fixture(scope="module")
def bouncer_uri(cluster: Cluster) -> Iterator[str]:
    with bouncing(cluster) as uri:
        yield uri


@pytest.fixture(scope="module")
def pool(cluster: Cluster) -> Iterator[ConnectionPool]:
    # The pool has its full size from the start: while a pool grows, its threads draw their pauses
    # from Python's random numbers, and Hypothesis takes that for the test's doing.
    with ConnectionPool(cluster.uri(), min_size=10, timeout=PATIENCE) as pool:
        pool.wait(PATIENCE)
        yield pool


def answering_busy_for_unlocked_rows(uri: str) -> PostgresStore:
    """A store that answers busy, with the token that a takeover would have, for a locked row."""
    store = PostgresStore(uri)
    ask = store.claim

    def claim(claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        return [
            answer(it, verdict, now) for it, verdict in zip(claims, ask(claims, now), strict=True)
        ]

    def answer(claim: Claim, verdict: Verdict, now: int | None) -> Verdict:
        record = store.show(claim.key) if verdict.kind == "busy" else None
        instant = wall_clock() if now is None else now
        if record is None or instant < record.held_until:
            return verdict
        return replace(verdict, token=max(record.token + 1, instant * 1_000))

    store.claim = claim  # type: ignore[method-assign]
    return store


def test_a_token_for_a_row_that_could_not_be_locked_is_found(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every tenth round has the long transactions that lock rows.
    monkeypatch.setenv("EVENTONCE_HISTORIES", "60")
    right = _opener(cluster.uri())
    assert isinstance(right.open, partial)
    planted = replace(right, open=partial(answering_busy_for_unlocked_rows, *right.open.args))
    with pytest.raises(AssertionError, match="got busy with a token"):
        histories.every_history_of_processes_is_linearizable(planted)


class TestPostgres18(StoreContract):
    @pytest.fixture
    def factory(self, cluster: Cluster) -> StoreFactory:
        return _opener(cluster.uri())


class TestPostgres15(VariantContract):
    @pytest.fixture
    def factory(self, debians_uri: str) -> StoreFactory:
        return _opener(debians_uri, FEWER)


class TestPgBouncer(VariantContract):
    @pytest.fixture
    def factory(self, bouncer_uri: str) -> StoreFactory:
        return _opener(bouncer_uri, FEWER)


class TestGivenPool(VariantContract):
    """Connections that open transactions by themselves, as psycopg's do by default."""

    @pytest.fixture
    def factory(self, pool: ConnectionPool) -> StoreFactory:
        return StoreFactory(
            lambda: PostgresStore(pool), processes=False, own_clock=True, examples=FEWER
        )
