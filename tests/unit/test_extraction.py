"""The three ways from an event to its claim (in one call, picked, walked) always agree."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eventonce.envelope import read
from eventonce.errors import EnvelopeError
from eventonce.rules import Rule, Ruleset
from eventonce.types import Claim, Event
from tests.unit.made import TIME, body, classic, event

RULES = [
    Rule(name="plain", key=["body.a", "body.b", "body.t"], at="body.t"),
    Rule(name="optional", key=["body.a?", "body.b?", "body.t?"], at="body.t"),
    Rule(name="flat", key=["detail.a", "detail.t"], at="detail.t"),
    Rule(name="down", key=["detail.a.b.c", "detail.a.b.d"], at="detail.a.b.c"),
    Rule(name="across", key=["detail.a", "body.t"], at="body.t"),
    Rule(name="detail", key=["detail.a", "detail.b?"]),
    Rule(name="single", key=["detail.a"]),
    Rule(name="deep", key=["detail.a.b.c?", "detail.a.b.d?", "detail.t"]),
    Rule(name="deeper", key=["detail.a.b", "body.a.b?"]),
    Rule(name="mixed", key=["id", "envelope.detail.a?", "headers.h?", "body.b", "org", "type"]),
    Rule(name="hash", key=["detail.t", "hash(detail.a)"], ignore=["detail.a.b"]),
    Rule(name="hash body", key=["hash(body)"], ignore=["body.t", "detail.b"]),
    Rule(name="hash all", key=["hash(detail)"], ignore=["body.t"]),
    Rule(name="hash part", key=["hash(detail.a)"], ignore=["body.a.b"]),
    Rule(name="hash maybe", key=["hash(body.a?)", "hash(detail.b)?", "id"]),
    Rule(name="twice", key=["detail.a", "hash(detail.a)", "body.a?", "detail.eventBody.a?"]),
    Rule(name="inside", key=["hash(body)", "body.a?"]),
    Rule(name="times", key=["time(body.t)", 'floor(body.t?, "1m")', "body.t"], at="time(body.t)"),
    Rule(name="each", key=["each(body.a, b)", "each(body.b?)"]),
    Rule(name="topic", key=["topic(1)", "topic?"]),
    Rule(name="verify", key=["body.a"], verify=True, ignore=["body.t"]),
    Rule(name="verify some", key=["body.a"], verify=["body.b", "detail.t"]),
    Rule(name="fallback", key=["body.a", "body.b"], missing="hash", ignore=["detail.t"]),
    Rule(name="replay", key=["body.a", "body.t"], at="body.t", on_replay="force"),
    Rule(name="state", subject=["body.a"], order="body.t", unchanged_within="500ms"),
    Rule(name="told", subject=["body.a?", "id"], order="max(body.t, detail.t)", state=["body.b?"]),
    Rule(name="timed", subject=["detail.a"], order="detail.b", at="detail.t", unchanged_within=1),
]
CHOICES = [
    [Rule(name="if", requires=["body.a"], key=["body.a", "body.t"], at="body.t"), RULES[0]],
    [Rule(name="a", requires=["body.a"], key=["body.a", "body.b?"]), RULES[0]],
    [
        Rule(name="b", requires=["detail.b", "headers.h"], key="detail.b"),
        Rule(name="a.b", requires=["body.a.b"], key=["body.a.b", "body.t?"]),
        Rule(name="t", match="t*", requires=["detail.t", "id"], key=["detail.t"], at="detail.t"),
    ],
]
SETS = [*([rule] for rule in RULES), *CHOICES]
SECRET = b"sixteen bytes or more"


def outcome(ruleset: Ruleset, given_: Event) -> tuple[str, Claim] | str:
    try:
        rule, claim = ruleset.plan(given_, 7)
    except EnvelopeError as error:
        return str(error)
    return rule.name, claim


def slower(ruleset: Ruleset, given_: Event, *, walk: bool) -> Ruleset:
    """The same rules, kept from the shorter ways."""
    fits = ruleset._find(given_)
    only: dict[str, Any] = {"picker": None} if walk else {}
    slow = Ruleset(ruleset.rules, name=ruleset.name, secrets=[SECRET])
    slow._fits = {
        (given_.form, given_.source, given_.own_org, given_.type): [
            msgspec.structs.replace(fit, **only) for fit in fits
        ]
    }
    return slow


def agree(rules: list[Rule], given_: Event) -> None:
    ruleset = Ruleset(rules, name="crm", secrets=[SECRET])
    expected = outcome(slower(ruleset, given_, walk=True), given_)
    assert outcome(slower(ruleset, given_, walk=False), given_) == expected
    assert outcome(ruleset, given_) == expected
    explained = ruleset.explain(given_)
    if isinstance(expected, str):
        assert explained.key is None
        assert explained.missing
    else:
        assert (explained.rule, explained.key) == (expected[0], expected[1].key)
        assert explained.missing == ()


single = st.sampled_from(
    [
        *[None, True, 0, 7, -1, 2**63, 2**64, 2**80, 1.0, 1.5, "", "x", "7", TIME, float(TIME)],
        *["2025-12-12T15:04:25.431Z", "v2.users", {}, [], {"b": 1}, {"b": {"c": 1, "d": None}}],
        *[{"b": {"c": TIME, "d": "x"}}],
        *[[{"b": 2}, {"b": 1}], ["y", "x"], [1, None], "é", "😀"],
    ]
)
fields = st.dictionaries(st.sampled_from(["a", "b", "t"]), single, max_size=3)
details = st.builds(
    lambda top, inner, topic: {**top, **inner, **topic},
    fields,
    st.dictionaries(st.just("eventBody"), fields | single, max_size=1),
    st.dictionaries(st.just("topicName"), single, max_size=1),
)


@pytest.mark.parametrize("rules", SETS, ids=lambda rules: "+".join(rule.name for rule in rules))
@given(details, st.booleans(), st.booleans())
@example({"a": 1, "b": 2, "t": TIME}, False, False)
@example({"eventBody": {"a": "x", "b": "y", "t": TIME}}, False, False)
@example({"eventBody": {"a": "x", "b": "y", "t": TIME}}, True, True)
@example({"eventBody": {}, "a": 1, "t": TIME}, False, True)
@example({"eventBody": {"a": "", "b": 1, "t": TIME}}, False, False)
def test_every_way_to_a_claim_gives_the_same(
    rules: list[Rule], detail: Any, has_header: bool, replayed: bool
) -> None:
    envelope = classic(detail, detail_type="t1")
    if replayed:
        envelope["replay-name"] = "friday"
    headers = {"h": "w"} if has_header else {}
    agree(rules, read(envelope, headers=headers))
    agree(rules, read({"Data": envelope, "SystemMetadata": {}}, headers=headers))


@pytest.mark.parametrize("rules", SETS, ids=lambda rules: "+".join(rule.name for rule in rules))
@pytest.mark.parametrize(
    "detail",
    [
        b'{"a": 1, "a": {"b": 2}, "t": 5}',
        b'{"eventBody": {"a": 1}, "eventBody": {"b": 2, "t": 5}}',
        b'{"a": 1e400, "b": 2, "t": 1e400}',
        b'{"x": 1e400, "a": 1, "b": 2, "t": 1765551865126}',
        b'{"x": ' + b"9" * 5000 + b', "a": 1, "b": 2, "t": 1765551865126}',
        b'{"eventBody": {"a": 1, "b": 2, "t": 1765551865126, "x": 1e400}}',
        b'{"eventBody": {"a": -0, "b": -0.0, "t": 1.765551865126e12}}',
    ],
)
def test_odd_json_is_no_exception(rules: list[Rule], detail: bytes) -> None:
    agree(rules, read(b'{"id": "i", "detail-type": "t", "detail": ' + detail + b"}"))


def test_the_usual_event_takes_the_short_way() -> None:
    """Otherwise the agreement above would say nothing of it."""
    given_ = event({"eventBody": body(a=1, b=2, t=TIME)})
    for rule, is_quick in ((RULES[0], True), (RULES[1], True), (RULES[5], False)):
        ruleset = Ruleset([rule], name="crm")
        [fit] = ruleset._find(given_)
        assert fit.picker is not None
        assert bool(ruleset._quick) is is_quick
        for quick in ruleset._quick.values():
            assert quick(given_, 1) == ruleset.plan(given_, 1)


def test_a_walk_reads_only_what_the_struct_refuses() -> None:
    """The struct takes single values as they are, and leaves the rest to the walk."""
    [fit] = Ruleset([RULES[0]], name="crm")._find(event())
    assert fit.picker is not None
    good = json.dumps({"eventBody": {"a": 1, "b": "x", "t": True}}).encode()
    assert fit.picker.read_off(fit.picker.decode(good)) == (1, "x", True)
    for bad in ({}, {"eventBody": 7}, {"eventBody": {"a": 1.0, "b": 1, "t": 1}}, {"a": 1}):
        with pytest.raises(ValueError, match=r"eventBody|float|object"):
            fit.picker.decode(json.dumps(bad).encode())
