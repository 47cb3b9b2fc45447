"""Each planted breakage of a script breaks a promise of the store that runs the script.

The contract and the stores' own tests show that the promises hold without the breakage.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from eventonce.core.ports import Store
from eventonce.errors import EventonceError
from eventonce.stores.redis import RedisStore
from eventonce.testing.cases.samples import fact, new_keys
from eventonce.types import Settlement
from tests.breakages import postgres, redis
from tests.breakages.breakage import Breakage
from tests.integration.granted import opened
from tests.servers import valkey
from tests.servers.postgres import Cluster, postgres18, serving

BROKEN = (AssertionError, EventonceError, ExceptionGroup, TimeoutError)
"""Errors of a promise that fails; a wrong call raises other errors. Hypothesis groups errors."""

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def _let_nothing_live_on() -> Iterator[None]:
    """Connections that a failed promise left open are closed here, and disturb no other test."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def node() -> Iterator[valkey.Node]:
    with valkey.serving() as node:
        yield node


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with serving(postgres18, "-c", "deadlock_timeout=20ms") as cluster:
        yield cluster


@pytest.mark.parametrize("breakage", redis.BREAKAGES, ids=lambda breakage: breakage.name)
def test_redis_breaks_a_promise_if(
    breakage: Breakage, node: valkey.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    breakage.plant(monkeypatch)
    store = RedisStore.from_uri(node.uri)
    works(store)
    with pytest.raises(BROKEN):
        breakage.promise(node, store)
    store.close()


@pytest.mark.parametrize("breakage", postgres.BREAKAGES, ids=lambda breakage: breakage.name)
def test_postgres_breaks_a_promise_if(
    breakage: Breakage, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    breakage.plant(monkeypatch)
    cluster.execute("DROP SCHEMA IF EXISTS eventonce CASCADE")
    with opened(cluster) as store:
        works(store)
        with pytest.raises(BROKEN):
            breakage.promise(cluster, store)


def works(store: Store) -> None:
    """The script still runs: a breakage is a mistake in the law, not in the script's language."""
    claim = fact(new_keys(1)[0])
    (run,) = store.claim([claim])
    assert run.kind == "run"
    assert store.settle([Settlement(claim, run.token, "complete")]) == ["kept"]
    assert store.claim([claim])[0].kind == "duplicate"
