"""The OpenAPI description: its content, and a receiver that behaves as described."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

import eventonce
from eventonce import Consumer, Rule
from eventonce.core.status import MEANINGS
from eventonce.http_report import Report
from eventonce.types import Status
from eventonce.web import Serve, receiver
from eventonce.web.health import Health
from eventonce.web.responses import STATUS_KINDS, ErrorResponse
from tests.unit.asking import ask

RULE = Rule(name="any", match="*", key=["detail.call"], missing="hash")
CONSUMER = Consumer("memory:", rules=RULE, handler=lambda _: None)
KEY = "a-key-for-the-tests"
APP = receiver(CONSUMER, Serve(api_keys=[KEY], users={"a1": "pw"}, max_events=50))


@schemathesis.serializer("application/x-ndjson")
def lines(_: schemathesis.SerializationContext, value: Any) -> bytes:
    """JSON Lines: the items of a list, or a single value."""
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
def test_the_receiver_behaves_as_its_description_says(case: schemathesis.Case[Any]) -> None:
    # An array of invalid events fits the description, and is answered with 400.
    case.call_and_validate(headers={"x-api-key": KEY}, excluded_checks=[positive_data_acceptance])


def test_the_description_has_every_status_of_an_answer_and_the_schema_of_its_body() -> None:
    document = ask(APP, path="/openapi.json", method="GET").body
    responses = document["paths"]["/events"]["post"]["responses"]
    reports, refusals = {means.http for means in MEANINGS.values()}, STATUS_KINDS.keys() - {404}
    assert set(map(int, responses)) == reports | refusals
    for status, response in responses.items():
        schema = response["content"]["application/json"]["schema"]
        named = {one["$ref"].rpartition("/")[2] for one in schema.get("anyOf", [schema])}
        told = (int(status) in reports and Report, int(status) in refusals and ErrorResponse)
        assert named == {struct.__name__ for struct in told if struct}
        assert ("Retry-After" in response.get("headers", {})) == (status in {"429", "503"})


def test_the_schemas_of_the_description_are_the_schemas_of_the_answers() -> None:
    document = ask(APP, path="/openapi.json", method="GET").body
    _, schemas = msgspec.json.schema_components(
        (Report, ErrorResponse, Health), ref_template="#/components/schemas/{name}"
    )
    assert document["components"]["schemas"] == json.loads(msgspec.json.encode(schemas))
    statuses = document["components"]["schemas"]["EventReport"]["properties"]["status"]["enum"]
    assert set(statuses) == set(get_args(Status))


def test_the_description_has_the_version_of_the_package() -> None:
    document = ask(APP, path="/openapi.json", method="GET").body
    assert document["info"]["version"] == eventonce.__version__


def test_the_description_has_the_configured_ways_to_authenticate() -> None:
    document = ask(APP, path="/openapi.json", method="GET").body
    assert document["paths"]["/events"]["post"]["security"] == [{"api_key": []}, {"basic": []}]
    schemes = document["components"]["securitySchemes"]
    assert schemes["api_key"] == {"type": "apiKey", "in": "header", "name": "x-api-key"}
    assert KEY not in str(document)
    open_ = receiver(CONSUMER, Serve(anyone_may_send_events=True))
    document = ask(open_, path="/openapi.json", method="GET").body
    assert "security" not in document["paths"]["/events"]["post"]
