"""The page about Lambda: its examples work, and no link is broken."""

from __future__ import annotations

import json
import re
import types
from typing import Any

import pytest

from eventonce import Consumer
from eventonce.aws import lambda_handler
from eventonce.infra.template import CONSUMER
from tests.docs.pages import DOCS, broken_links

PAGE = DOCS / "lambda.md"
SHAPES = DOCS.parent / "tests" / "shapes"


class Crm:
    """The CRM of the example."""

    def __init__(self) -> None:
        self.closed: list[tuple[str, str]] = []

    def close(self, call: str, idempotency_key: str) -> None:
        self.closed.append((call, idempotency_key))


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_first_example_closes_a_call_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example runs with the variables of the templates, and with another store."""
    told = {"EVENTONCE_NAME": "crm-sync", "EVENTONCE_STORE": "memory:"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
        assert f"\n          {name}: !Ref" in CONSUMER.cloudformation
    function: dict[str, Any] = {"crm": Crm()}
    exec(blocks()[0], function)
    assert set(re.findall(r'os\.environ\["(\w+)"\]', blocks()[0])) == set(told)
    assert function["consumer"].name == "crm-sync"
    event = json.loads((SHAPES / "genesys_acd_end_voice.json").read_text())
    event["detail-type"] = event["detail-type"].replace("acd.end", "user.end")
    again = {**event, "id": "another"}
    for given, expected in ((event, "processed"), (event, "duplicates"), (again, "duplicates")):
        answer = function["handler"](given, None)
        assert json.loads(answer["body"])[expected] == 1
    assert len(function["crm"].closed) == 1


def test_the_example_of_authentication_accepts_only_the_right_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("API_KEY", "right")
    consumer = Consumer("memory:", handler=lambda _: None)
    function: dict[str, Any] = {"consumer": consumer, "lambda_handler": lambda_handler}
    exec(blocks()[1], function)
    assert isinstance(function["admits"], types.FunctionType)
    for key, status in (("right", 200), ("wrong", 401), ("", 401)):
        request = {"requestContext": {}, "headers": {"X-Api-Key": key}, "body": "[]"}
        assert function["handler"](request, None)["statusCode"] == status


def test_no_link_is_broken() -> None:
    assert broken_links(PAGE) == []
