"""From a bus through a rule and an API destination to the receiver, into a sink: each effect once.

ministack delivers to an API destination once, with its key. The retries that EventBridge sends
after 429 and 5xx, until a success, are sent by the test itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import until
from tests.integration.end_to_end import BUS, HANDLER, SOURCE, TYPE, Account, account, call
from tests.servers.receiver import JSON, Receiving, receiving

KEY = "not-a-secret-key"
CONFIG = f"""
store = "sqlite:///site.db"
name = "site"
presets = ["genesys"]

[[sink]]
to = "handling:handle"

[serve]
api_keys = ["{KEY}"]
# However slow the machine, what is asked is answered with what came of it.
answer_within = "60s"
"""
RULES = 2
AGAIN = (429, 503)
"""Statuses after which EventBridge sends again."""


@pytest.fixture
def world() -> Iterator[Account]:
    with account() as made:
        made.events.create_event_bus(Name=BUS)
        made.archive()
        yield made


@pytest.fixture
def receiver(world: Account, tmp_path: Path) -> Iterator[Receiving]:
    (tmp_path / "handling.py").write_text(HANDLER)
    with receiving(tmp_path, CONFIG, "--verbose") as running:
        yield running


def connect(world: Account, url: str) -> None:
    """Two overlapping rules, each with the receiver as its API destination."""
    events = world.events
    key = {"ApiKeyName": "x-api-key", "ApiKeyValue": KEY}
    connection = events.create_connection(
        Name="site", AuthorizationType="API_KEY", AuthParameters={"ApiKeyAuthParameters": key}
    )["ConnectionArn"]
    destination = events.create_api_destination(
        Name="site", ConnectionArn=connection, InvocationEndpoint=url, HttpMethod="POST"
    )["ApiDestinationArn"]
    pattern = json.dumps({"source": [{"prefix": SOURCE}]})
    target = {
        "Id": "site",
        "Arn": destination,
        "RoleArn": "arn:aws:iam::000000000000:role/site",
    }
    for rule in ("site", "site-too")[:RULES]:
        events.put_rule(Name=rule, EventBusName=BUS, EventPattern=pattern)
        events.put_targets(Rule=rule, EventBusName=BUS, Targets=[target])


def retry(receiver: Receiving, event: dict[str, Any]) -> list[int]:
    """Send an event until no answer asks for it again, as EventBridge does; return the answers."""
    answers: list[int] = []

    def sent() -> bool:
        answers.append(receiver.ask(event, headers={**JSON, "x-api-key": KEY}).status)
        return answers[-1] not in AGAIN

    until(sent)
    return answers


def delivered(receiver: Receiving, name: str) -> int:
    """The number of events of this type in the receiver's log."""
    return sum(name in line for line in receiver.log.read_text().splitlines())


def test_each_effect_happens_once_in_spite_of_failures_and_copies(
    world: Account, receiver: Receiving
) -> None:
    plain = [f"plain-{number}" for number in range(3)]
    connect(world, f"http://127.0.0.1:{receiver.port}/events")
    world.put(*map(call, plain))
    total = RULES * len(plain)
    until(lambda: delivered(receiver, TYPE) == total)

    failing = call("fails", do="fail twice")
    event = {"id": "e-1", "detail-type": TYPE, "source": SOURCE, "detail": failing}
    assert retry(receiver, event) == [503, 503, 200]
    total += 3

    # Every copy that can come afterwards: published again, delivered again, replayed.
    world.put(*map(call, plain))
    total += RULES * len(plain)
    for effect in world.effects():
        assert retry(receiver, json.loads(effect)) == [200]
        total += 1
    world.replay()
    total += RULES * 2 * len(plain)
    until(lambda: delivered(receiver, TYPE) == total)
    expected = dict.fromkeys([*plain, "fails"], 1)
    assert world.counted() == expected
