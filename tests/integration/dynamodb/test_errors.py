"""Errors of the network and of the service: each is named, nothing is lost, work resumes."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.config import Config

from eventonce import Consumer, Job
from eventonce.aws import direct
from eventonce.errors import (
    ConfigError,
    EventonceError,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)
from eventonce.rules import Rule
from eventonce.stores.dynamodb import DynamoDBStore, uri
from eventonce.stores.dynamodb import optimistic as decisions
from eventonce.stores.dynamodb import table as tables
from eventonce.types import Settlement
from tests.integration.dynamodb.asks import completed, copies, fact, facts, version
from tests.integration.dynamodb.between import (
    Between,
    Forward,
    Reply,
    Trick,
    fail_statement,
    hang_up,
    held_up,
    leave_keys,
    lose_the_reply,
    refuse,
)
from tests.servers import free_port
from tests.servers.aws import REGION

EVENT = {"id": "e-1", "source": "s", "detail-type": "t", "detail": {"n": 1}}


@pytest.fixture(params=["on_ministack", "by_botocore"])
def endpoint(request: pytest.FixtureRequest) -> str:
    """One emulator is enough: the proxy makes the errors."""
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def hasty(table: str, between: Between, monkeypatch: pytest.MonkeyPatch) -> DynamoDBStore:
    """A store that sends everything once."""
    monkeypatch.setattr(uri, "ATTEMPTS", 1)
    return DynamoDBStore.from_uri(f"dynamodb://{table}?region={REGION}&endpoint={between.url}")


@pytest.fixture
def impatient(table: str, between: Between) -> DynamoDBStore:
    """A store whose client is the user's, and sends everything once."""
    client = boto3.client(
        "dynamodb",
        region_name=REGION,
        endpoint_url=between.url,
        config=Config(retries={"total_max_attempts": 1}),
    )
    return DynamoDBStore(client, table)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pauses between attempts, counted and not waited for."""
    pauses: list[int] = []
    monkeypatch.setattr(tables, "pause", pauses.append)
    monkeypatch.setattr(decisions, "pause", pauses.append)
    monkeypatch.setattr(direct, "RETRY_PAUSE", 0.0)
    return pauses


@pytest.mark.parametrize("size", [1, 10])
@pytest.mark.parametrize("trick", [hang_up, lose_the_reply], ids=lambda it: it.__name__)
def test_a_lost_request_or_reply_is_repeated_and_gets_the_same_grant(
    trick: Trick, size: int, store: DynamoDBStore, between: Between
) -> None:
    claims = facts(size)
    between.spoil("PutItem", trick)
    between.spoil("BatchExecuteStatement", trick)
    runs = store.claim(claims)
    assert [(run.kind, run.attempt) for run in runs] == [("run", 1)] * size
    assert [it.kind for it in store.claim(copies(claims))] == ["busy"] * size
    between.spoil("BatchExecuteStatement", trick)
    assert store.settle(completed(claims, runs)) == ["kept"] * size
    assert [it.kind for it in store.claim(copies(claims))] == ["duplicate"] * size


@pytest.mark.parametrize("code", ["ThrottlingError", "TransactionConflict", "InternalServerError"])
def test_a_statement_that_fails_for_a_moment_is_sent_again_alone(
    code: str, store: DynamoDBStore, between: Between, no_waiting: list[int]
) -> None:
    claims = facts(5)
    between.spoil("BatchExecuteStatement", fail_statement(2, code), fail_statement(0, code))
    runs = store.claim(claims)
    assert {run.kind for run in runs} == {"run"}
    assert between.count() == ["BatchExecuteStatement"] * 3
    assert no_waiting == [0, 1]
    between.spoil("BatchExecuteStatement", fail_statement(4, code))
    assert store.settle(completed(claims, runs)) == ["kept"] * 5


def test_a_statement_that_keeps_failing_is_the_error_of_its_claim_alone(
    store: DynamoDBStore, between: Between, no_waiting: list[int]
) -> None:
    claims = facts(5)
    always = [fail_statement(2, "ThrottlingError")]
    always += [fail_statement(0, "ProvisionedThroughputExceeded")] * (tables.BATCH_ATTEMPTS - 1)
    between.spoil("BatchExecuteStatement", *always)
    runs = store.claim(claims)
    assert [run.kind for run in runs] == ["run", "run", "error", "run", "run"]
    assert isinstance(runs[2].error, StoreUnavailable)
    assert len(no_waiting) == tables.BATCH_ATTEMPTS
    (again,) = store.claim([claims[2]])
    assert (again.kind, again.attempt) == ("run", 1)


def test_a_settlement_that_keeps_failing_raises_and_can_be_repeated(
    store: DynamoDBStore, between: Between
) -> None:
    claims = facts(3)
    done = completed(claims, store.claim(claims))
    always = [fail_statement(0, "ThrottlingError")] * tables.BATCH_ATTEMPTS
    between.spoil("BatchExecuteStatement", *always)
    with pytest.raises(StoreUnavailable):
        store.settle(done)
    assert store.settle(done) == ["kept"] * 3


def test_a_request_that_fails_is_the_error_of_its_own_claims_alone(
    impatient: DynamoDBStore, between: Between
) -> None:
    claims = facts(60)
    between.spoil("BatchExecuteStatement", refuse("ThrottlingException"))
    verdicts = impatient.claim(claims)
    failed = [it for it in verdicts if it.kind == "error"]
    assert len(failed) in (10, 25)
    assert {it.kind for it in verdicts} == {"run", "error"}
    assert {it.kind for it in impatient.claim(claims)} == {"run"}, "asking again is safe"


def test_a_contended_key_is_busy_and_its_settlement_raises(
    opening: Callable[[], DynamoDBStore], between: Between, no_waiting: list[int]
) -> None:
    """Before every write of the store, another writer was quicker."""
    store = opening()
    claim = fact(lease=1)
    (run,) = store.claim([claim])
    time.sleep(0.01)
    between.count()
    with between.spoiling(_always_refused):
        (verdict,) = opening().claim([fact(claim.key)])
        assert verdict.kind == "busy"
        assert 0 < verdict.wait <= 2_000
        assert len(no_waiting) == decisions.MOST_ROUNDS - 1
        with pytest.raises(StoreUnavailable, match="others keep changing"):
            store.settle(completed([claim], [run]))
    assert store.settle(completed([claim], [run])) == ["kept"]


def _always_refused(operation: str, body: bytes, forward: Forward) -> Reply | None:
    if operation != "BatchExecuteStatement":
        return forward(body)
    return fail_statement(0, "ConditionalCheckFailed")(operation, body, forward)


def test_unread_keys_are_read_again_and_are_errors_of_their_claims_at_last(
    store: DynamoDBStore, between: Between, no_waiting: list[int]
) -> None:
    claims = [version(secrets.token_bytes(16), 1) for _ in range(4)]
    between.spoil("BatchGetItem", leave_keys(2))
    assert {it.kind for it in store.claim(claims)} == {"run"}
    between.spoil("BatchGetItem", *[leave_keys(1)] * tables.BATCH_ATTEMPTS)
    verdicts = store.claim([version(claim.key, 2) for claim in claims])
    assert [it.kind for it in verdicts] == ["busy"] * 3 + ["error"]
    assert len(no_waiting) == 1 + tables.BATCH_ATTEMPTS


def test_a_slow_answer_is_given_up_after_the_timeout(
    table: str, between: Between, opening: Callable[[], DynamoDBStore]
) -> None:
    store = DynamoDBStore.from_uri(
        f"dynamodb://{table}?region={REGION}&endpoint={between.url}&timeout=0.2"
    )
    claim = fact()
    at_last = threading.Event()
    with (
        between.spoiling(held_up(at_last)),
        pytest.raises(StoreUnavailable, match="not reached"),
    ):
        store.claim([claim])
    at_last.set()
    (run,) = opening().claim([claim])
    assert run.kind == "run", "its own grant, though it never heard of it"


def test_an_event_without_any_answer_fails_and_runs_when_the_service_answers(
    store: DynamoDBStore, between: Between
) -> None:
    ran = []
    consumer = Consumer(store, name="crm", handler=lambda job: ran.append(job.event.id))
    with between.spoiling(hang_up):
        (outcome,) = consumer.process([EVENT])
        assert (outcome.status, outcome.ack, ran) == ("failed", False, [])
    (outcome,) = consumer.process([EVENT])
    assert (outcome.status, ran) == ("done", ["e-1"])


def test_a_rule_may_run_unguarded_while_the_store_is_away(
    store: DynamoDBStore, between: Between
) -> None:
    ran = []
    rule = Rule(name="r", key=["detail.n"], on_store_error="run")
    consumer = Consumer(store, name="c", rules=rule, handler=lambda job: ran.append(job.event.id))
    with between.spoiling(refuse("ThrottlingException")):
        (outcome,) = consumer.process([EVENT])
    assert (outcome.status, outcome.ack, ran) == ("unguarded", True, ["e-1"])


def test_an_event_whose_settlement_was_lost_is_not_acknowledged_and_not_run_under_its_lease(
    store: DynamoDBStore, between: Between
) -> None:
    """The service is away between the effect and its settlement for longer than the store waits."""

    ran = []

    def handler(job: Job) -> None:
        ran.append(job.attempt)
        between.always = hang_up

    consumer = Consumer(store, name="crm", handler=handler)
    (outcome,) = consumer.process([EVENT])
    assert (outcome.status, outcome.ack) == ("failed", False)
    between.always = None
    (outcome,) = consumer.process([EVENT])
    assert (outcome.status, outcome.ack, ran) == ("busy", False, [1])


@pytest.mark.parametrize(
    ("code", "status", "error", "says"),
    [
        ("ThrottlingException", 400, StoreUnavailable, "throttling"),
        ("ProvisionedThroughputExceededException", 400, StoreUnavailable, "throttling"),
        ("RequestLimitExceeded", 400, StoreUnavailable, "throttling"),
        ("InternalServerError", 500, StoreUnavailable, "failing for a moment"),
        ("ServiceUnavailable", 503, StoreUnavailable, "failing for a moment"),
        ("ExpiredTokenException", 400, StoreUnavailable, "have expired"),
        ("UnrecognizedClientException", 400, ConfigError, "does not accept the credentials"),
        ("InvalidSignatureException", 400, ConfigError, "this machine's clock"),
        ("AccessDeniedException", 400, ConfigError, "eventonce infra iam"),
        ("ResourceNotFoundException", 400, StoreMismatch, 'eventonce store create "dynamodb://t-'),
        ("ValidationException", 400, StoreMismatch, 'eventonce store check "dynamodb://t-'),
    ],
)
def test_an_error_of_the_service_is_reported_with_its_remedy(
    code: str,
    status: int,
    error: type[EventonceError],
    says: str,
    hasty: DynamoDBStore,
    between: Between,
) -> None:
    store = hasty
    claims = facts(2)
    runs = store.claim(claims)
    with between.spoiling(refuse(code, status=status)):
        for call in (
            lambda: store.claim(facts(1)),
            lambda: store.claim(facts(2)),
            lambda: store.claim([version(fact().key, 1)]),
            lambda: store.settle(completed(claims, runs)),
            lambda: store.show(claims[0].key),
            lambda: store.forget([claims[0].key]),
            store.stats,
        ):
            with pytest.raises(error, match=says) as told:
                call()
            assert told.value.__cause__ is not None
    assert store.settle(completed(claims, runs)) == ["kept", "kept"]


def test_a_missing_table_is_named_with_the_command_that_makes_it(endpoint: str) -> None:
    store = DynamoDBStore.from_uri(f"dynamodb://nowhere?region={REGION}&endpoint={endpoint}")
    named = f'"dynamodb://nowhere?region={REGION}&endpoint={endpoint}"'
    for size in (1, 3):
        with pytest.raises(StoreMismatch, match="eventonce store create") as told:
            store.claim(facts(size))
        assert named in str(told.value)


def test_a_table_with_another_key_is_a_mismatch(endpoint: str, table: str) -> None:
    store = DynamoDBStore.from_uri(f"dynamodb://{table}?region={REGION}&endpoint={endpoint}&key=pk")
    for size in (1, 3):
        with pytest.raises(StoreMismatch, match="eventonce store check"):
            store.claim(facts(size))


def test_a_missing_server_is_unavailable() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    store = DynamoDBStore.from_uri(f"dynamodb://nowhere?region={REGION}&endpoint={url}&timeout=0.5")
    with pytest.raises(StoreUnavailable, match="not reached"):
        store.claim(facts(1))


def test_a_result_that_fits_no_item_is_refused_and_nothing_is_settled(store: DynamoDBStore) -> None:
    claims = facts(2)
    runs = store.claim(claims)
    first, second = completed(claims, runs)
    large = Settlement(second.claim, second.token, "complete", bytes(400_001))
    with pytest.raises(StoreError, match="400001 bytes is too large"):
        store.settle([first, large])
    assert [it.kind for it in store.claim(copies(claims))] == ["busy", "busy"]
    largest = Settlement(second.claim, second.token, "complete", secrets.token_bytes(400_000))
    assert store.settle([first, largest]) == ["kept", "kept"]
    assert store.claim(copies(claims))[1].result == largest.result


def test_a_record_of_a_newer_format_is_the_error_of_its_claim_alone(
    store: DynamoDBStore, client: Any, table: str
) -> None:
    claims = facts(3)
    client.put_item(
        TableName=table,
        Item={"eventHash": {"S": claims[1].key.hex()}, "format": {"N": "2"}, "stamp": {"N": "1"}},
    )
    verdicts = store.claim(claims)
    assert [it.kind for it in verdicts] == ["run", "error", "run"]
    assert isinstance(verdicts[1].error, StoreMismatch)
    with pytest.raises(StoreMismatch, match="newer eventonce"):
        store.claim([claims[1]])


def test_the_users_own_client_is_used_with_its_own_settings(
    impatient: DynamoDBStore, between: Between
) -> None:
    claims = facts(2)
    assert impatient.settle(completed(claims, impatient.claim(claims))) == ["kept", "kept"]
    between.count()
    with between.spoiling(refuse("ThrottlingException")), pytest.raises(StoreUnavailable):
        impatient.claim(facts(2))
    assert between.count() == ["BatchExecuteStatement"], "sent once, as the client is told to"
    impatient.close()
    assert impatient.claim(facts(1)), "the client is the user's to close"
