"""The headers of a request: headers that stay with its events, and secrets that do not."""

from __future__ import annotations

import pytest

from eventonce import ConfigError, Consumer, Rule
from eventonce.aws import lambda_handler
from eventonce.web import receiver
from tests.unit.asking import JSON, ask
from tests.unit.endpoint import OPEN
from tests.unit.test_bodies import ONE, SECRETS

MARKER = "marker-of-a-secret"
NAMED = Rule(name="tenant", key=["headers.x-tenant", "detail.call"], verify=["headers.x-version?"])


def consumer(**named: object) -> Consumer:
    def fail(_: object) -> None:
        raise ValueError

    rules = [NAMED, "auto"]
    return Consumer("memory:", rules=rules, handler=fail, **named)  # type: ignore[arg-type]


def test_no_secret_header_reaches_a_dead_letter_of_a_receiver_or_a_function() -> None:
    headers = JSON | dict.fromkeys(SECRETS, MARKER) | {"x-tenant": "acme"}
    with consumer() as one:
        # An event without its part of the key, invalid bytes, and an event whose handler fails.
        for body in (b'{"detail-type":"t","detail":{}}', b"no", ONE):
            ask(receiver(one, OPEN), body, headers=headers)
            request = {
                "requestContext": {"http": {"method": "POST", "path": "/"}},
                "headers": headers,
                "body": body.decode(),
            }
            for _ in range(5):
                lambda_handler(one)(request, None)
        kept = [letter.event for letter in one.letters()]
    assert len(kept) >= 2
    assert not [event for event in kept if MARKER.encode() in event]


def test_a_header_that_a_rule_names_is_kept_and_is_part_of_the_key() -> None:
    with consumer() as one:
        assert one.kept_headers >= {"x-tenant", "x-version", "webhook-id"}
        answers = [
            ask(receiver(one, OPEN), ONE, headers=JSON | {"x-tenant": tenant}).body["events"][0]
            for tenant in ("acme", "other")
        ]
    assert [told["status"] for told in answers] == ["failed", "failed"]
    assert answers[0]["key"] != answers[1]["key"]


def test_a_header_in_keep_headers_reaches_the_handler() -> None:
    seen: list[dict[str, str]] = []
    one = Consumer(
        "memory:",
        keep_headers=["X-Wanted"],
        handler=lambda job: seen.append(dict(job.event.headers)),
    )
    with one:
        ask(receiver(one, OPEN), ONE, headers=JSON | {"x-wanted": "1", "x-other": "2"})
    assert seen == [JSON | {"x-wanted": "1"}]


@pytest.mark.parametrize("name", ["Authorization", "cookie", "no name", ""])
def test_a_header_that_cannot_be_kept_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="keep_headers"):
        Consumer("memory:", keep_headers=[name])
