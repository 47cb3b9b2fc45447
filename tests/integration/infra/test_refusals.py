"""What `apply` says when AWS refuses, is away, or has something else under that name."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError
from msgspec.structs import replace

from eventonce.errors import ConfigError, EventonceError, SourceUnavailable, StoreMismatch
from eventonce.infra.apply import apply
from eventonce.infra.plan import Infra, planned
from tests.integration.infra.account import SOURCE, Apply, between
from tests.servers.aws import REGION


@pytest.mark.parametrize(
    ("code", "error", "word"),
    [
        ("AccessDeniedException", ConfigError, "permission denied"),
        ("ThrottlingException", SourceUnavailable, "throttling"),
        ("ConcurrentModificationException", SourceUnavailable, "Run this again"),
        ("ResourceAlreadyExistsException", SourceUnavailable, "Run this again"),
        ("ResourceNotFoundException", EventonceError, "m"),
    ],
)
def test_what_aws_refuses_is_said_with_what_to_do(
    applied: Apply, name: str, code: str, error: type[Exception], word: str
) -> None:
    """A bus that vanishes in between is an error too: the emulator plays none of these itself."""

    def refusing(operation: str, _: Any) -> None:
        if operation == "PutRule":
            raise ClientError({"Error": {"Code": code, "Message": "m"}}, operation)

    with between(refusing), pytest.raises(error, match=rf"rule {name}: .*{word}"):
        applied()


def test_a_region_that_nobody_names_is_asked_for(
    applied: Apply, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with pytest.raises(ConfigError, match="--region"):
        applied(region="")


def test_a_table_with_another_key_is_not_touched(
    applied: Apply, name: str, client: Callable[[str], Any]
) -> None:
    client("dynamodb").create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "other", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "other", "AttributeType": "S"}],
    )
    with pytest.raises(StoreMismatch, match="its key is other"):
        applied(store=f"dynamodb://{name}")


def test_a_wrong_pattern_is_the_configurations_fault(applied: Apply, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"rule {name}: InvalidEventPatternException"):
        applied(pattern={"source": "not a list"})


def test_a_service_that_is_away_is_said_to_be(
    applied: Apply, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventonce.infra.account.SENT", 1)
    with pytest.raises(SourceUnavailable, match="bus default: not reached"):
        applied(endpoint="http://127.0.0.1:1")


def test_what_was_done_before_a_failure_is_said(endpoint: str, name: str) -> None:
    infra = Infra(source=SOURCE, region=REGION, endpoint=endpoint)
    plan = replace(planned(infra, name=name, store="redis://elsewhere"), receives=0)
    said: list[str] = []
    with pytest.raises(ConfigError, match=rf"queue {name}: InvalidAttributeValue"):
        apply(infra, plan, say=said.append)
    kinds = [" ".join(step.split()[:3]) for step in said]
    assert kinds == ["make the rule", "make the queue", "make the queue"]
