"""From a bus through a rule, SQS and a real Lambda with DynamoDB into a sink: each effect once.

ministack replaces AWS. It repeats no asynchronous invocation of a Lambda, so the test gives the
event again to Amazon's own runtime client, under the same request id.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from eventonce.stores.dynamodb.codec import KEY, NAMES_KEY
from tests.helpers import until
from tests.integration.end_to_end import BUS, HANDLER, SOURCE, Account, account, apply, call, deploy
from tests.servers.lambda_runtime import environment

QUEUE = "crm"
STORE = "dynamodb://crm"
TIMEOUT = 3
"""Seconds: one call hangs until Lambda kills its function, and the test waits for that."""
PLENTY = 60
"""Seconds for all other calls: Lambda shall not kill a function between an effect and its
settlement because the machine is slow: the effect would happen twice."""
VISIBILITY = 1
"""Seconds: with the value of `infra apply`, six time-outs, the test would wait for minutes."""

CONFIG = f"""
name = "crm"
store = "{STORE}"
presets = ["genesys"]

[infra]
bus = "{BUS}"
source = "{SOURCE}"
timeout = {TIMEOUT}
"""

FUNCTION = f"""
from eventonce import Consumer
from eventonce.aws import lambda_handler
from handling import handle

consumer = Consumer("{STORE}?timeout=60", name="crm", rules="genesys", handler=handle)
handler = lambda_handler(consumer)
"""
FILES = {"function.py": FUNCTION, "handling.py": HANDLER}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    folder = tmp_path_factory.mktemp("lambda")
    with account() as made:
        config = folder / "eventonce.toml"
        config.write_text(CONFIG)
        assert apply(config)["steps"]
        assert apply(config)["steps"] == []
        # Two overlapping rules: every event comes twice, with the same id.
        other = made.rule("crm-too", QUEUE)
        assert apply(config, "--parameter", f"OtherRuleArns={other}")["steps"]
        made.archive()
        deploy("crm", FUNCTION, timeout=PLENTY, FOLDER=str(folder))
        connect(made)
        yield made


def connect(made: Account) -> None:
    """The function behind the queue."""
    url = made.url(QUEUE)
    made.sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": str(VISIBILITY)})
    found = made.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    functions = boto3.client("lambda")
    functions.create_event_source_mapping(
        EventSourceArn=found["Attributes"]["QueueArn"],
        FunctionName="crm",
        BatchSize=10,
        FunctionResponseTypes=["ReportBatchItemFailures"],
    )
    functions.close()


def hurry() -> None:
    """Give the function little time from now on."""
    functions = boto3.client("lambda")
    functions.update_function_configuration(FunctionName="crm", Timeout=TIMEOUT)
    functions.close()


def records() -> list[dict[str, Any]]:
    """The records of the store: facts that took effect, and dead letters, if any."""
    client = boto3.client("dynamodb")
    items: list[dict[str, Any]] = client.scan(TableName="crm")["Items"]
    client.close()
    # The item with the names of the consumers is no record.
    return [item for item in items if item[KEY] != {"S": NAMES_KEY}]


def test_each_effect_happens_once_in_spite_of_failures_and_copies(world: Account) -> None:
    plain = [f"plain-{number}" for number in range(5)]
    failing = [
        call("fails", do="fail twice"),
        call("lasts", do="take long", seconds=1.5 * VISIBILITY),
    ]
    world.put(*map(call, plain), *failing)
    world.drained(QUEUE)
    hurry()
    world.put(call("hangs", do="hang once"))
    world.drained(QUEUE)
    expected = dict.fromkeys([*plain, "fails", "hangs", "lasts"], 1)
    assert world.counted() == expected

    # Every copy that can come afterwards: published again, delivered again, replayed.
    world.put(*map(call, plain))
    world.redeliver(QUEUE, world.effects())
    world.replay()
    world.drained(QUEUE)
    assert world.counted() == expected
    assert len(records()) == len(expected)


def test_a_function_that_eventbridge_invokes_is_retried_under_one_request_id(
    world: Account, tmp_path: Path
) -> None:
    event = {
        "version": "0",
        "id": "6a7e8feb-b491-4cf7-a9f1-bf3703467718",
        "detail-type": "v2.detail.events.conversation.{id}.user.end",
        "source": f"{SOURCE}/cloud",
        "time": "2026-05-04T09:15:27Z",
        "detail": call("directly", do="fail twice"),
    }
    with environment(FILES, env={"FOLDER": str(tmp_path)}) as runtime:
        answers = runtime.invoke_async(event)
        again = runtime.invoke_async(event)
    assert [answer.kind for answer in answers] == ["error", "error", "response"]
    assert json.loads(again[0].payload["body"])["duplicates"] == 1
    until(lambda: world.counted()["directly"] >= 1)
    assert world.counted()["directly"] == 1
