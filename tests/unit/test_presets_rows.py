"""Every row of every preset, by the table in `tests.rows`: the same facts, different facts, missing
parts, and the keys that a released version may never change.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from eventonce import presets
from eventonce.errors import EnvelopeError
from eventonce.rules import Rule, Ruleset
from eventonce.rules.expressions import Max, parse, paths
from eventonce.types import Claim
from tests.rows import ROWS
from tests.rows.edits import changed, cut, republished
from tests.rows.relayed import relayed
from tests.rows.row import Row, bridge, read

GOLDEN = Path(__file__).parent.parent / "golden_keys.json"
PRESETS = list(presets.names())


@cache
def ruleset(preset: str) -> Ruleset:
    return Ruleset(presets.resolve(preset), name="golden")


def planned(row: Row) -> tuple[Rule, Claim]:
    return ruleset(row.preset).plan(row.read(), 1)


def rule_of(row: Row) -> Rule:
    return next(rule for rule in presets.resolve(row.preset) if rule.name == row.rule)


def parts_of(rule: Rule) -> list[str]:
    return [*rule.key, *rule.subject, *([rule.order] if rule.order else [])]


every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
BY_SHAPE = [row for row in ROWS if row.preset != "genesys:latest"]
PARTS = [(row, text) for row in ROWS for text in parts_of(rule_of(row))]


def some_parts(chosen: list[tuple[Row, str]]) -> pytest.MarkDecorator:
    params = [pytest.param(row, text, id=f"{row.name}-{text}") for row, text in chosen]
    return pytest.mark.parametrize(("row", "text"), params)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_rule_of_a_preset_has_a_row(preset: str) -> None:
    tabled = {row.rule for row in ROWS}
    assert {rule.name for rule in presets.resolve(preset)} <= tabled


@every_row
def test_a_row_is_taken_by_its_rule(row: Row) -> None:
    assert planned(row)[0].name == row.rule


@every_row
def test_the_same_fact_published_again_has_the_same_key(row: Row) -> None:
    again = row._replace(event=republished(row))
    assert again.event != row.event or json.dumps(again.event) != json.dumps(row.event)
    (rule, claim), (rule_again, claim_again) = planned(row), planned(again)
    assert rule_again == rule
    same = (claim_again.key, claim_again.digest) == (claim.key, claim.digest)
    assert same is not row.transport


@some_parts(PARTS)
def test_a_change_in_any_part_is_another_fact_or_another_version(row: Row, text: str) -> None:
    rule, claim = planned(row)
    others = list(changed(row, text))
    if not others:
        assert text.endswith("?") or rule.missing == "run", f"{row.rule} should have {text}"
    for other in others:
        other_rule, other_claim = planned(other)
        assert other_rule == rule
        if text == rule.order:
            assert other_claim.key == claim.key
            if not isinstance(parse(text), Max):
                assert other_claim.order != claim.order
        else:
            assert other_claim.key != claim.key


@some_parts([(row, text) for row, text in PARTS if text not in ("hash(detail)", "hash(envelope)")])
def test_a_missing_part_is_named_or_another_rule_takes_the_event(row: Row, text: str) -> None:
    without = cut(row, text)
    if text in row.hands_on and row.hands_on[text] == "transport-id":
        rest = ruleset(row.preset).explain(without.read())
        assert rest.rule == "transport-id"
    elif text in row.hands_on:
        assert planned(without)[0].name == row.hands_on[text]
    elif all(path.optional for path in paths(parse(text))):
        rule, claim = planned(without)
        assert rule.name == row.rule
        assert claim.key != planned(row)[1].key or without.event == row.event
    else:
        found = ruleset(row.preset).explain(without.read())
        if found.rule == row.rule and found.strength != "none":
            assert any(text in one for one in found.lacking or found.missing)
        if found.strength == "none":
            assert not found.missing
        elif without.read().id:
            assert found.key != planned(row)[1].key
            assert found.strength == "transport id" or not found.lacking
        else:
            with pytest.raises(EnvelopeError) as raised:
                planned(without)
            assert text in str(raised.value)
            assert found.missing


@pytest.mark.parametrize("row", BY_SHAPE, ids=lambda row: row.name)
def test_under_auto_a_row_has_the_key_of_its_own_preset(row: Row) -> None:
    rule, claim = ruleset("auto").plan(row.read(), 1)
    assert rule.kind == "fact"
    if row.auto or row.rule == "auto.unidentified":
        assert rule.name == row.auto or row.rule
    elif planned(row)[0].kind == "state":
        assert rule.name == row.rule
    else:
        assert (rule.name, claim.key) == (row.rule, planned(row)[1].key)


def event(rule: str, **more: Any) -> dict[str, Any]:
    """The event of a row with some of its fields replaced."""
    row = next(row for row in ROWS if row.rule == rule)
    return {**row.event, **more}


def nested(postback: str) -> dict[str, Any]:
    detail = {"eventId": "request-1", "postback": {"eventType": postback, "data": {}}}
    return bridge("acme.cxone", "digital", detail)


def shop(topic: str) -> dict[str, Any]:
    row = event("shopify")
    metadata = {**row["detail"]["metadata"], "X-Shopify-Topic": topic}
    return {**row, "detail": {**row["detail"], "metadata": metadata}}


DIFFERENT = {
    "two replies to one request": ("cxone", nested("MessageSent"), nested("MessageRefused")),
    "one id in two sources": (
        "cloudevents",
        event("cloudevents"),
        event("cloudevents", source="/b"),
    ),
    "one event on two topics": ("shopify", shop("orders/create"), shop("orders/paid")),
    "two updates that read alike within a second": (
        "connect",
        event("connect.contact-updated"),
        event("connect.contact-updated", id="another"),
    ),
    "the same words of a relay under two ids": (
        "auto",
        relayed("probe", {"light": "green"}),
        relayed("probe", {"light": "green"}, id="another"),
    ),
}


@pytest.mark.parametrize(("preset", "one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_facts_that_look_alike_have_different_keys(
    preset: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    rules = ruleset(preset)
    assert rules.plan(read(one), 1)[1].key != rules.plan(read(other), 1)[1].key
    assert rules.plan(read(one), 1)[1].key == rules.plan(read(dict(one)), 1)[1].key


@pytest.mark.parametrize("preset", PRESETS)
def test_the_keys_of_a_released_version_never_change(preset: str) -> None:
    """A new row is added to the file by hand; an existing row never changes."""
    version = presets.load(preset).version
    golden = json.loads(GOLDEN.read_text())[f"{preset}@{version}"]
    keys = {row.rule: keyed(row) for row in ROWS if row.preset == preset}
    assert keys == golden


def keyed(row: Row) -> str:
    key = ruleset(row.preset).explain(row.read()).key
    return key.hex() if key else "none"


def test_two_rows_share_a_key_only_as_two_forms_of_one_fact_or_subject() -> None:
    rows: dict[bytes, list[str]] = {}
    for row in BY_SHAPE:
        rows.setdefault(planned(row)[1].key, []).append(row.rule)
    shared = [names for names in rows.values() if len(names) > 1]
    assert shared == [
        ["cxone.contact", "cxone.contact-camel"],
        ["cloudevents.binary", "cloudevents.relayed"],
        ["stripe", "stripe.webhook"],
        ["auth0", "auth0.data"],
        ["salesforce.platform", "salesforce.platform-flat"],
        ["relayed.interaction-newest-timed", "relayed.interaction-newest"],
        ["relayed.newest-timed", "relayed.newest"],
    ]


def test_a_copy_over_the_websocket_is_the_same_fact_within_its_organisation() -> None:
    """The key has the template of the topic, not the topic itself: both transports give one key."""
    row = next(row for row in ROWS if row.rule == "genesys.session")
    detail = dict(row.event["detail"])
    detail["eventBody"] = {**detail["eventBody"], "organizationId": row.read().org}
    assert read(detail).type == row.event["detail-type"]
    over_socket = ruleset("genesys").plan(read(detail), 1)[1]
    assert over_socket.key == planned(row)[1].key
