"""Failures that were reproduced in other libraries, none of which eventonce has, on every store.

E8, the throughput, is measured by `make bench`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import msgspec
import pytest

from eventonce import Consumer, Job, Rule, StoreUnavailable
from eventonce.runtime import gate
from eventonce.stores.dynamodb import DynamoDBStore
from eventonce.stores.memory import MemoryStore
from eventonce.stores.postgres import PostgresStore
from eventonce.stores.probe import write_trial
from eventonce.stores.redis import RedisStore
from eventonce.stores.sqlite import SQLiteStore
from eventonce.types import Claim, Outcome, Settlement, SettleResult, Verdict
from tests.helpers import WatchedStore, away, call, statuses
from tests.integration.granted import made
from tests.servers import aws, free_port, postgres, valkey

RULE = Rule(name="call", match="call", key=["detail.call"])
NOW = 1_900_000_000_000
LEASE = 60_000


class Place(NamedTuple):
    """The openers of a store, and of a store of its kind that cannot be reached."""

    open: Callable[[], Any]
    away: Callable[[], Any]


@pytest.fixture(scope="module")
def servers() -> Iterator[ExitStack]:
    with ExitStack() as running:
        yield running


AWAY = partial(WatchedStore, away("claim", "put_letters"))
"""A substitute for an embedded store that cannot be reached, because it has no server to stop."""


def _memory(_: ExitStack, __: Path) -> Place:
    store = MemoryStore()
    return Place(lambda: store, AWAY)


def _sqlite(_: ExitStack, folder: Path) -> Place:
    return Place(partial(SQLiteStore, folder / "eventonce.db"), AWAY)


def _redis(servers: ExitStack, _: Path) -> Place:
    node = servers.enter_context(valkey.serving())
    closed = f"redis://127.0.0.1:{free_port()}"
    return Place(partial(RedisStore.from_uri, node.uri), partial(RedisStore.from_uri, closed))


def _cluster(servers: ExitStack, _: Path) -> Place:
    cluster = servers.enter_context(valkey.clustered())
    closed = f"redis+cluster://127.0.0.1:{free_port()}"
    return Place(partial(RedisStore.from_uri, cluster.uri), partial(RedisStore.from_uri, closed))


def _postgres(servers: ExitStack, _: Path) -> Place:
    uri = made(servers.enter_context(postgres.serving()).uri())
    closed = f"postgresql://postgres@127.0.0.1:{free_port()}/postgres?connect_timeout=1"
    return Place(partial(PostgresStore, uri), partial(PostgresStore, closed))


def _dynamodb(servers: ExitStack, _: Path) -> Place:
    servers.enter_context(aws.emulated())
    endpoint = servers.enter_context(aws.ministack())
    uri = f"dynamodb://peers-{token_hex(4)}?region={aws.REGION}&endpoint="
    DynamoDBStore.from_uri(uri + endpoint).create()
    closed = f"{uri}http://127.0.0.1:{free_port()}"
    return Place(
        partial(DynamoDBStore.from_uri, uri + endpoint), partial(DynamoDBStore.from_uri, closed)
    )


@pytest.fixture(
    scope="module",
    params=[_memory, _sqlite, _redis, _cluster, _postgres, _dynamodb],
    ids=lambda make: make.__name__[1:],
)
def place(
    request: pytest.FixtureRequest, servers: ExitStack, tmp_path_factory: pytest.TempPathFactory
) -> Place:
    place: Place = request.param(servers, tmp_path_factory.mktemp("stores"))
    return place


@pytest.fixture
def store(place: Place) -> Iterator[Any]:
    store = place.open()
    yield store
    store.close()


@pytest.fixture
def name() -> str:
    """A consumer's name of this test's own, because all tests share the store."""
    return token_hex(8)


def claim(nonce: int, key: bytes, remember: int = 86_400_000) -> Claim:
    return Claim(key, nonce, LEASE, remember, 5)


def key() -> bytes:
    return bytes.fromhex(token_hex(16))


def test_e1_an_identical_replay_passes_content_verification(store: Any, name: str) -> None:
    rule = msgspec.structs.replace(RULE, verify=["detail.amount"])
    consumer = Consumer(store, name=name, rules=rule, handler=lambda _: "ticket")
    first, replay = consumer.process([call(1, amount=5)]) + consumer.process([call(1, amount=5)])
    assert (first.status, replay.status, replay.result) == ("done", "duplicate", "ticket")
    assert statuses(consumer.process([call(1, amount=6)])) == ["conflict"]


def test_a_trial_of_a_store_is_written_again_and_again_and_leaves_no_record(store: Any) -> None:
    about = key()
    for _ in range(3):
        write_trial(store, about)
        assert store.show(about) is None


def test_a_trial_of_a_store_that_is_away_fails(place: Place) -> None:
    with closing(place.away()) as store, pytest.raises(StoreUnavailable):
        write_trial(store, key())


def overtaken(store: Any, about: bytes) -> tuple[Settlement, Settlement]:
    """The completions of A, which outlived its lease, and of B, which took over."""
    a, b = claim(1, about), claim(2, about)
    (first,) = store.claim([a], NOW)
    (second,) = store.claim([b], NOW + LEASE)
    assert (first.kind, second.kind) == ("run", "run")
    return Settlement(a, first.token, "complete"), Settlement(b, second.token, "complete")


def test_e2_a_worker_that_was_overtaken_and_fails_frees_no_other_run(store: Any) -> None:
    about = key()
    a, _ = overtaken(store, about)
    late = msgspec.structs.replace(a, action="release")
    assert store.settle([late], NOW + LEASE + 1) == ["fenced"]
    assert store.claim([claim(3, about)], NOW + LEASE + 2)[0].kind == "busy"


def test_e3_a_worker_that_was_overtaken_and_succeeds_completes_no_other_run(store: Any) -> None:
    about = key()
    a, b = overtaken(store, about)
    late = msgspec.structs.replace(a, result=b'"of A"')
    assert store.settle([late], NOW + LEASE + 1) == ["fenced"]
    assert store.claim([claim(3, about)], NOW + LEASE + 2)[0].kind == "busy"
    assert store.settle([msgspec.structs.replace(b, result=b'"of B"')], NOW + LEASE + 3) == ["kept"]
    (copy,) = store.claim([claim(4, about)], NOW + LEASE + 4)
    assert (copy.kind, copy.result) == ("duplicate", b'"of B"')


def test_e5_an_async_handler_is_awaited_and_leaves_nothing_in_progress(
    place: Place, name: str
) -> None:
    ran: list[str] = []

    async def handler(job: Job) -> str:
        await asyncio.sleep(0)
        ran.append(job.event.id)
        return "awaited"

    with Consumer(place.open(), name=name, rules=RULE, handler=handler) as consumer:
        first, copy = consumer.process([call(1)]) + asyncio.run(consumer.process_async([call(1)]))
    assert (first.status, first.result, copy.status) == ("done", "awaited", "duplicate")
    assert ran == ["id-1"]


def test_e6_a_key_with_a_part_missing_is_refused_and_never_merged(store: Any, name: str) -> None:
    rule = Rule(name="call", match="call", key=["detail.call", "detail.leg"])
    consumer = Consumer(store, name=name, rules=rule, handler=lambda _: None)
    outcomes = consumer.process([call(1), call(1, leg=None), call(1, leg={"a": 1}), call(1, leg=2)])
    assert statuses(outcomes) == ["invalid", "invalid", "invalid", "done"]
    assert "detail.leg" in outcomes[0].reason
    assert len(list(consumer.letters())) == 3


class Counting:
    """A store that counts its calls."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.calls = 0

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        self.calls += 1
        return self._store.claim(claims, now)  # type: ignore[no-any-return]

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        self.calls += 1
        return self._store.settle(settlements, now)  # type: ignore[no-any-return]

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._store, attribute)


def test_e7_a_batch_costs_two_calls_and_its_copies_one(
    store: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls of the engine to a store. The store's own requests are counted by
    test_redis_records, test_redis_cluster, test_postgres_connections and dynamodb/test_requests."""
    # A batch that a busy machine holds up for longer is settled in more than one call.
    monkeypatch.setattr(gate, "SETTLE_INTERVAL", LEASE)
    counting = Counting(store)
    consumer = Consumer(counting, name=name, rules=RULE, handler=lambda _: None)
    costs = []
    for events in ([call(0)], [call(0)], [call(n) for n in range(1, 101)]):
        before = counting.calls
        consumer.process(events)
        costs.append(counting.calls - before)
    assert costs == [2, 1, 2]


def test_e9_two_configurations_of_one_store_object_are_both_applied(store: Any) -> None:
    short, long = claim(1, key(), remember=500), claim(1, key())
    for verdict, asked in zip(store.claim([short, long], NOW), (short, long), strict=True):
        assert store.settle([Settlement(asked, verdict.token, "complete")], NOW) == ["kept"]
    again = [msgspec.structs.replace(asked, nonce=2) for asked in (short, long)]
    assert [verdict.kind for verdict in store.claim(again, NOW + 500)] == ["run", "duplicate"]


def test_e10_two_functions_in_many_threads_never_get_each_others_results(
    store: Any, name: str
) -> None:
    def consumer(function: str) -> Consumer:
        def handler(job: Job) -> str:
            return f"{function}:{job.event.detail['call']}"

        return Consumer(store, name=f"{name}-{function}", rules=RULE, handler=handler)

    consumers = {function: consumer(function) for function in "ab"}
    seen: Counter[str] = Counter()
    wrong: list[Outcome] = []

    def work(function: str) -> None:
        for start in range(0, 200, 10):
            numbers = range(start, start + 10)
            for number, outcome in zip(
                numbers, consumers[function].process([call(n) for n in numbers]), strict=True
            ):
                seen[outcome.status] += 1
                if outcome.ack and outcome.result != f"{function}:{number}":
                    wrong.append(outcome)

    threads = [threading.Thread(target=work, args=(function,)) for function in "abab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert seen.keys() <= {"done", "duplicate", "busy"}
    assert seen["done"] == 400
    for function in "ab":
        left = consumers[function].process([call(n) for n in range(200)])
        assert set(statuses(left)) == {"duplicate"}


def test_e11_with_the_store_down_each_rule_has_its_own_policy(place: Place, name: str) -> None:
    store = place.away()
    ran: list[str] = []
    rules = [
        Rule(name="careful", match="call", key=["detail.call"], requires=["detail.careful"]),
        msgspec.structs.replace(RULE, on_store_error="run"),
    ]
    consumer = Consumer(store, name=name, rules=rules, handler=lambda job: ran.append(job.event.id))
    waits, runs = consumer.process([call(1, careful=True), call(2)])
    assert (waits.status, waits.ack) == ("failed", False)
    assert isinstance(waits.error, StoreUnavailable)
    assert (runs.status, runs.ack) == ("unguarded", True)
    assert ran == ["id-2"]
    store.close()


def test_e13_a_window_of_half_a_second_is_half_a_second(store: Any) -> None:
    for round_ in range(10):
        start = NOW + round_ * 10_000
        about = key()
        asked = claim(1, about, remember=500)
        (verdict,) = store.claim([asked], start)
        store.settle([Settlement(asked, verdict.token, "complete")], start + 7)
        kinds = [
            store.claim([claim(2, about, remember=500)], start + 7 + after)[0].kind
            for after in (0, 499, 500)
        ]
        assert kinds == ["duplicate", "duplicate", "run"]
