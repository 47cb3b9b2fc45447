"""The emulators themselves: the behaviour that the store builds on must hold on them."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import boto3
import pytest

from tests.servers.aws import REGION

PROCESSES = 4
KEYS = 15

Contest = Callable[[Any, str, str, int], bool]
"""An attempt of this contestant to win this key; whether it won."""


def by_put(client: Any, table: str, key: str, me: int) -> bool:
    try:
        client.put_item(
            TableName=table,
            Item={"eventHash": {"S": key}, "winner": {"N": str(me)}},
            ConditionExpression="attribute_not_exists(eventHash)",
        )
    except client.exceptions.ConditionalCheckFailedException:
        return False
    return True


def by_insert(client: Any, table: str, key: str, me: int) -> bool:
    return _statement(
        client,
        f"INSERT INTO \"{table}\" VALUE {{'eventHash': ?, 'winner': ?}}",
        [{"S": key}, {"N": str(me)}],
    )


def by_update(client: Any, table: str, key: str, me: int) -> bool:
    return _statement(
        client,
        f'UPDATE "{table}" SET "winner" = ? WHERE "eventHash" = ? AND "winner" IS MISSING',
        [{"N": str(me)}, {"S": key}],
    )


def by_guarded_update(client: Any, table: str, key: str, me: int) -> bool:
    return _statement(
        client,
        f'UPDATE "{table}" SET "stamp" = ? SET "winner" = ? WHERE "eventHash" = ? AND "stamp" = ?',
        [{"N": str(me)}, {"N": str(me)}, {"S": key}, {"N": "-1"}],
    )


def _statement(client: Any, text: str, parameters: list[Any]) -> bool:
    (answer,) = client.batch_execute_statement(
        Statements=[{"Statement": text, "Parameters": parameters}]
    )["Responses"]
    if "Error" in answer:
        assert answer["Error"]["Code"] in ("DuplicateItem", "ConditionalCheckFailed")
        return False
    return True


def _contend(endpoint: str, table: str, keys: list[str], contest: Contest, me: int) -> list[str]:
    client = boto3.client("dynamodb", region_name=REGION, endpoint_url=endpoint)
    return [key for key in keys if contest(client, table, key, me)]


@pytest.fixture(params=["on_ministack", "on_dynamodb_local"])
def endpoint(request: pytest.FixtureRequest) -> str:
    """Either emulator, without the store and so without a choice of its client."""
    return str(request.getfixturevalue(request.param))


@pytest.fixture(scope="module")
def crowd() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("contest", [by_put, by_insert, by_update, by_guarded_update])
def test_a_conditional_write_of_one_key_from_many_processes_has_one_winner(
    contest: Contest, endpoint: str, client: Any, table: str, crowd: ProcessPoolExecutor
) -> None:
    keys = [secrets.token_hex(8) for _ in range(KEYS)]
    if contest in (by_update, by_guarded_update):
        for key in keys:
            client.put_item(TableName=table, Item={"eventHash": {"S": key}, "stamp": {"N": "-1"}})
    shifts = [crowd.submit(_contend, endpoint, table, keys, contest, me) for me in range(PROCESSES)]
    won = [shift.result() for shift in shifts]
    assert Counter(key for keys in won for key in keys) == dict.fromkeys(keys, 1)
    for me, mine in enumerate(won):
        for key in mine:
            item = client.get_item(
                TableName=table, Key={"eventHash": {"S": key}}, ConsistentRead=True
            )["Item"]
            assert item["winner"] == {"N": str(me)}, "who was told it won is not who is stored"


def test_each_statement_of_a_batch_is_judged_alone(client: Any, table: str) -> None:
    client.put_item(TableName=table, Item={"eventHash": {"S": "old"}, "stamp": {"N": "1"}})
    insert = f"INSERT INTO \"{table}\" VALUE {{'eventHash': ?}}"
    answers = client.batch_execute_statement(
        Statements=[
            {"Statement": insert, "Parameters": [{"S": key}]} for key in ("new", "old", "newer")
        ]
    )["Responses"]
    assert [answer.get("Error", {}).get("Code") for answer in answers] == [
        None,
        "DuplicateItem",
        None,
    ]


def test_a_refused_update_brings_the_item_and_every_answer_its_date(
    client: Any, table: str
) -> None:
    client.put_item(TableName=table, Item={"eventHash": {"S": "old"}, "stamp": {"N": "1"}})
    update = f'UPDATE "{table}" SET "stamp" = ? WHERE "eventHash" = ? AND "stamp" = ?'
    answer = client.batch_execute_statement(
        Statements=[
            {
                "Statement": update,
                "Parameters": [{"N": "3"}, {"S": "old"}, {"N": "2"}],
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
        ]
    )
    (refused,) = answer["Responses"]
    assert refused["Error"]["Item"]["stamp"] == {"N": "1"}
    assert answer["ResponseMetadata"]["HTTPHeaders"]["date"].endswith("GMT")
