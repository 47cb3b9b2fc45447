"""The OpenAPI description: that it is one, and that the receiver does what it says."""

from __future__ import annotations

import json
from typing import Any, get_args

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

from eventonce import Consumer, Rule
from eventonce.core.status import MEANINGS
from eventonce.types import Status
from eventonce.web import Serve, openapi, receiver
from eventonce.web.refusals import KINDS
from tests.unit.asking import ask

RULE = Rule(name="any", match="*", key=["detail.call"], missing="hash")
CONSUMER = Consumer("memory:", rules=RULE, handler=lambda _: None)
KEY = "a-key-for-the-tests"
APP = receiver(CONSUMER, Serve(api_keys=[KEY], users={"a1": "pw"}, max_events=50))


@schemathesis.serializer("application/x-ndjson")
def lines(_: schemathesis.SerializationContext, value: Any) -> bytes:
    """JSON Lines: the items of a list, or the one thing there is."""
    items = value if isinstance(value, list) else [value]
    return "\n".join(map(json.dumps, items)).encode()


load_all_checks()
schema = schemathesis.openapi.from_asgi("/openapi.json", APP)


@schema.parametrize()
@settings(
    max_examples=25,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_it_does_what_its_description_says(case: schemathesis.Case[Any]) -> None:
    # An array of what is no event fits the description, and is answered 400.
    case.call_and_validate(headers={"x-api-key": KEY}, excluded_checks=[positive_data_acceptance])


def test_it_names_every_status_that_is_answered_with() -> None:
    document = ask(APP, path="/openapi.json", method="GET").body
    responses = document["paths"]["/events"]["post"]["responses"]
    assert set(map(int, responses)) == {*(it.http for it in MEANINGS.values()), *KINDS} - {404}
    assert set(openapi.MEANS) == {it.http for it in MEANINGS.values()}
    statuses = document["components"]["schemas"]["EventReport"]["properties"]["status"]["enum"]
    assert set(statuses) == set(get_args(Status))


def test_it_names_the_ways_to_authenticate_that_are_set() -> None:
    document = ask(APP, path="/openapi.json", method="GET").body
    assert document["paths"]["/events"]["post"]["security"] == [{"api_key": []}, {"basic": []}]
    schemes = document["components"]["securitySchemes"]
    assert schemes["api_key"] == {"type": "apiKey", "in": "header", "name": "x-api-key"}
    assert KEY not in str(document)
    open_ = receiver(CONSUMER, Serve(anyone_may_send_events=True))
    document = ask(open_, path="/openapi.json", method="GET").body
    assert "security" not in document["paths"]["/events"]["post"]
