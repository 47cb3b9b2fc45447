"""Rules: the rule that an event takes, the values that it reads, and events that lack a part."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest

from eventonce.envelope import read
from eventonce.errors import EnvelopeError
from eventonce.rules import Rule, Ruleset
from eventonce.types import Claim, Event
from tests.unit.made import ORG, TIME, body, classic, event, raw


def plan(rule: Rule, given: Event) -> Claim:
    return Ruleset([rule], name="crm").plan(given, 1)[1]


def key(parts: list[str], detail: Any, **fields: Any) -> bytes:
    return plan(Rule(name="r", key=parts, **fields), event(detail)).key


# --- the choice of a rule ---


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        ("*", True),
        ("v2.*", True),
        ("v2.detail.events.conversation.*.acd.end", True),
        ("v2.detail.events.conversation.{id}.acd.end", True),
        ("v2.detail.*.end", True),
        (["nothing", "*.acd.end"], True),
        ("V2.*", False),
        ("v2.detail", False),
        ("v2.detail.events.conversation.?id?.acd.end", False),
        ("v2.[d]etail.*", False),
        ("v2xdetail*", False),
        ({"source": "aws.partner/genesys.com/*"}, True),
        ({"source": "aws.partner/genesys.com/*", "type": "v2.*"}, True),
        ({"source": "aws.partner/stripe.com/*", "type": "v2.*"}, False),
        ({"source": ["x", "*/orders"], "type": ["y", "*end"]}, True),
        ({"form": "eventbridge"}, True),
        ({"form": "cxone"}, False),
    ],
)
def test_globs_choose_by_type_source_and_form(match: Any, fits: bool) -> None:
    ruleset = Ruleset([Rule(name="r", match=match, key="body.conversationId")], name="crm")
    assert ruleset.plan(event(), 1)[0].name == ("r" if fits else "transport-id")


def test_the_first_rule_that_fits_wins() -> None:
    rules = [
        Rule(name="no", match="nothing", key="id"),
        Rule(name="needs", requires=["body.missing"], key="id"),
        Rule(name="null", requires=["body.null"], key="id"),
        Rule(name="empty", requires=["body.empty"], key="id"),
        Rule(name="crosses", requires=["body.eventTime.deeper"], key="id"),
        Rule(name="header", requires=["headers.webhook-id"], key="id"),
        Rule(name="first", requires=["body.queueId", "detail.eventBody", "org"], key="id"),
        Rule(name="second", key="id"),
    ]
    given = event({"eventBody": body(null=None, empty="")})
    ruleset = Ruleset(rules, name="crm")
    assert ruleset.plan(given, 1)[0].name == "first"
    assert ruleset.explain(given).rule == "first"
    assert ruleset.plan(event({"eventBody": body(queueId="")}), 1)[0].name == "second"


@pytest.mark.parametrize("value", [0, False, {}, [], "x"])
def test_a_required_field_may_be_zero_false_or_an_empty_collection(value: Any) -> None:
    rules = [Rule(name="r", requires=["detail.a"], key="id")]
    assert Ruleset(rules, name="crm").plan(event({"a": value}), 1)[0].name == "r"


def test_without_a_rule_the_transport_id_is_the_fact() -> None:
    ruleset = Ruleset([], name="crm")
    one, copy, other = (ruleset.plan(event(id=id_), 1)[1] for id_ in ("a", "a", "b"))
    assert one.key == copy.key != other.key
    assert one.order is None


@pytest.mark.parametrize("given", [{"state": "x"}, {"id": "of something", "state": "x"}])
def test_without_a_rule_and_an_id_there_is_no_key(given: Any) -> None:
    with pytest.raises(EnvelopeError, match="no rule matches the event, and it has no id"):
        Ruleset([], name="crm").plan(read(given), 1)


def test_many_types_do_not_fill_the_memory() -> None:
    ruleset = Ruleset([Rule(name="r", key=["detail.t"], at="detail.t")], name="crm")
    for number in range(5000):
        ruleset.plan(Event(b"{}", b'{"t": 1765551865126}', type=f"t{number}"), 1)
    ruleset.plan(Event(b"{}", b'{"t": 1765551865126}', type="t" * 2000), 1)
    assert 0 < len(ruleset._kinds) <= 2048
    assert all(len(names[3]) < 2000 for names in ruleset._kinds)


# --- the values that a rule reads ---

NESTED = {
    "topicName": "v2.users.u-1.presence",
    "timestamp": "2025-12-12T15:04:25.431Z",
    "eventBody": {
        "a.b": "dotted",
        "interaction-id": "i-1",
        "seconds": 1_765_551_865,
        "iso": "2025-12-12T15:04:25.431Z",
        "fraction": 1_765_551_865.431,
        "older": "2025-12-11T00:00:00Z",
        "items": [{"u": "2", "f": True}, {"u": "1", "f": False}],
        "names": ["b", "a"],
        "deep": {"x": {"y": 7}},
        "null": None,
    },
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("body.interaction-id", "i-1"),
        ('body."a.b"', "dotted"),
        ("detail.eventBody.deep.x.y", 7),
        ("body.deep.x.y", 7),
        ("id", classic()["id"]),
        ("source", classic()["source"]),
        ("type", classic()["detail-type"]),
        ("time", "2025-12-12T15:04:25Z"),
        ("org", ORG),
        ("envelope.account", "123456789012"),
        ("envelope.detail.timestamp", "2025-12-12T15:04:25.431Z"),
        ("headers.webhook-id", "w-1"),
        ("topic", "v2.users.u-1.presence"),
        ("topic(0)", "v2"),
        ("topic(2)", "u-1"),
        ("time(body.iso)", 1_765_551_865_431),
        ('time(body.seconds, "s")', 1_765_551_865_000),
        ("time(body.seconds)", 1_765_551_865_000),
        ("time(body.fraction)", 1_765_551_865_431),
        ('floor(body.iso, "1s")', 1_765_551_865_000),
        ('floor(body.iso, "1m")', 1_765_551_840_000),
        ('floor(time(body.seconds, "s"), "1h")', 1_765_551_600_000),
        ("max(body.older, body.iso)", 1_765_551_865_431),
        ("max(body.older, body.missing, body.null)", 1_765_411_200_000),
        ("max(body.missing?)", None),
        ("each(body.items, u, f)", [["1", False], ["2", True]]),
        ("each(body.items, u, g?)", [["1", None], ["2", None]]),
        ("each(body.names)", ["a", "b"]),
        ("each(body.missing?, u)", None),
        ("body.missing?", None),
        ("body.missing.deeper?", None),
        ("body.iso.deeper?", None),
        ("body.null?", None),
        ("topic(9)?", None),
    ],
)
def test_an_expression_finds_its_value(expression: str, value: Any) -> None:
    given = read(raw(classic(NESTED)), headers={"Webhook-Id": "w-1"})
    rule = Rule(name="r", key=["id", expression] if expression != "id" else ["id"])
    explained = Ruleset([rule], name="crm").explain(given)
    assert explained.parts[-1].value == value
    assert explained.parts[-1].expression == expression
    assert explained.key == plan(rule, given).key


def test_body_is_the_detail_where_there_is_no_event_body() -> None:
    flat = Ruleset([Rule(name="r", key="body.conversationId")], name="crm")
    assert flat.explain(event({"conversationId": "c"})).parts[0].value == "c"
    assert flat.explain(event({"eventBody": {"conversationId": "c"}})).parts[0].value == "c"


def test_the_detail_is_the_whole_object_where_there_is_no_envelope() -> None:
    bare = read({"conversationId": "c", "state": "x"})
    explained = Ruleset([Rule(name="r", key="detail.conversationId")], name="crm").explain(bare)
    assert explained.parts[0].value == "c"


def test_the_envelope_of_an_event_on_a_bus_is_the_inner_envelope() -> None:
    rule = Rule(name="r", key=["envelope.account", "id"])
    wrapped = read({"Data": classic(), "SystemMetadata": {}})
    assert plan(rule, wrapped).key == plan(rule, event()).key


def test_each_ignores_the_order_of_a_list_and_counts_repeated_items() -> None:
    def keyed(*items: int) -> bytes:
        return key(["each(detail.l, n)"], {"l": [{"n": item, "x": item} for item in items]})

    assert keyed(1, 2, 3) == keyed(3, 1, 2)
    assert keyed(1, 2) != keyed(1, 2, 2)
    assert keyed(1, 2) != keyed(1, 3)


def test_an_absent_list_differs_from_an_empty_list() -> None:
    parts = ["detail.id", "each(detail.l?, n)"]
    assert key(parts, {"id": 1, "l": []}) != key(parts, {"id": 1})


# --- missing parts ---


@pytest.mark.parametrize(
    ("parts", "detail", "complaint", "place"),
    [
        (["detail.a"], {}, "detail.a is missing", "detail.a"),
        (["detail.a"], {"a": None}, "detail.a is null", "detail.a"),
        (["detail.a"], {"a": {}}, r"detail.a is an object: write hash\(...\)", "detail.a"),
        (["detail.a"], {"a": [1]}, r"detail.a is an array: write hash\(...\)", "detail.a"),
        (
            ["detail.a.b"],
            {"a": "text"},
            "detail.a.b is missing: detail.a is a string, not an object",
            "detail.a.b",
        ),
        (["body.a"], {"eventBody": "text"}, "body is a string, not an object", "body.a"),
        (["detail.a", "detail.b"], {}, "detail.a is missing; detail.b is missing", "detail.a"),
        (["hash(detail.a)"], {}, r"hash\(detail.a\) is missing", "detail.a"),
        (["hash(detail.a)"], {"a": None}, r"hash\(detail.a\) is null", "detail.a"),
        (["topic(2)"], {}, r"topic\(2\) is missing", "detail.topicName"),
        (["topic(2)"], {"topicName": "v2.x"}, "has only 2 segments", "detail.topicName"),
        (["topic(2)"], {"topicName": 7}, "is a number, not a topic name", "detail.topicName"),
        (["time(detail.a)"], {"a": "soon"}, "is a string, not a time", "detail.a"),
        (['time(detail.a, "s")'], {"a": "x"}, 'not a time of the form "s"', "detail.a"),
        (["max(detail.a, detail.b)"], {}, r"max\(detail.a, detail.b\) is missing", "detail.a"),
        (["max(detail.a)"], {"a": "x"}, "neither a whole number nor a time", "detail.a"),
        (["each(detail.l, u)"], {}, r"each\(detail.l, u\) is missing", "detail.l"),
        (["each(detail.l, u)"], {"l": {}}, "is an object, not an array", "detail.l"),
        (["each(detail.l, u)"], {"l": [{}]}, "holds an item without u", "detail.l"),
        (["each(detail.l, u)"], {"l": [7]}, "holds an item without u", "detail.l"),
        (["each(detail.l, u)"], {"l": [{"u": []}]}, "holds an array as u", "detail.l"),
        (["each(detail.l)"], {"l": [{}]}, "holds an object: name the fields", "detail.l"),
        (["detail.a?", "detail.b?"], {}, "every part of the key is empty", "detail.a"),
        (["detail.a", "detail.b"], {"a": "x", "b": ""}, "detail.b is empty", "detail.b"),
        (["detail.a", "detail.b"], {"a": "x", "b": " \t\u00a0"}, "detail.b is empty", "detail.b"),
        (["detail.a"], {"a": "undefined"}, 'detail.a is the text "undefined"', "detail.a"),
        (["detail.a", "detail.b"], {"a": 1, "b": "null"}, 'b is the text "null"', "detail.b"),
        (["detail.a?"], {"a": "null"}, "every part of the key is empty", "detail.a"),
        (["each(detail.l, a)"], {"l": [{"a": "null"}]}, "holds an item without a", "detail.l"),
        (["hash(detail.a)", "detail.b"], {"a": "", "b": 1}, r"\(detail.a\) is empty", "detail.a"),
        (["hash(detail)"], {}, "every part of the key is empty", "detail"),
        (["hash(detail.a)", "detail.b?"], {"a": []}, "every part of the key is", "detail.a"),
        (["topic(2)"], {"topicName": "v2.x..y"}, "an empty segment 2", "detail.topicName"),
        (["each(detail.l, u)"], {"l": [{"u": ""}]}, "holds an item without u", "detail.l"),
        (["each(detail.l)"], {"l": ["a", " "]}, "holds an empty text", "detail.l"),
        (["max(detail.a, detail.b)"], {"a": "", "b": " "}, r"detail.b\) is empty", "detail.a"),
        (["headers.webhook-id"], {}, "headers.webhook-id is missing", "headers.webhook-id"),
        (["detail.a?"], {"a": None}, "every part of the key is empty", "detail.a"),
        (["each(detail.l)"], {"l": []}, r"each\(detail.l\) is empty", "detail.l"),
        (["each(detail.l)?"], {"l": []}, "every part of the key is empty", "detail.l"),
    ],
)
def test_an_incomplete_key_is_refused_with_the_part_and_its_place(
    parts: list[str], detail: Any, complaint: str, place: str
) -> None:
    rule = Rule(name="the rule", key=parts)
    with pytest.raises(EnvelopeError, match=complaint) as caught:
        plan(rule, event(detail))
    assert "rule 'the rule'" in str(caught.value)
    assert caught.value.place == place
    explained = Ruleset([rule], name="crm").explain(event(detail))
    assert explained.key is None
    assert explained.missing


def test_the_error_for_a_missing_part_advises_an_optional_part_or_the_id() -> None:
    with pytest.raises(EnvelopeError, match='with "\\?"; missing = "id"'):
        key(["detail.a"], {})


def test_the_error_suggests_an_optional_part_only_where_a_part_is_missing() -> None:
    with pytest.raises(EnvelopeError, match="is an object: write hash") as refused:
        key(["detail.a"], {"a": {}})
    assert '"?"' not in str(refused.value)
    with pytest.raises(EnvelopeError, match="every part of the key is empty") as refused:
        key(["detail.a?"], {})
    assert '"?"' not in str(refused.value)
    with pytest.raises(EnvelopeError, match=r"is an object.*detail\.b is missing") as refused:
        key(["detail.a", "detail.b"], {"a": {}})
    assert '"?"' in str(refused.value)


@pytest.mark.parametrize(
    ("at", "write"),
    [
        (1765551866.5, ': write time(detail.at, "s")'),
        ("1765551866.5", ': write time(detail.at, "s")'),
        (1765551866500.5, ': write time(detail.at, "ms")'),
        ("soon", ""),
        (2**60, ""),
    ],
)
def test_the_error_for_an_order_with_a_fraction_names_the_expression_of_a_time(
    at: Any, write: str
) -> None:
    rule = Rule(name="r", subject="detail.a", order="detail.at")
    with pytest.raises(EnvelopeError, match="nor an ISO time") as refused:
        plan(rule, event({"a": 1, "at": at}))
    assert write in str(refused.value)
    assert ("write time" in str(refused.value)) == bool(write)
    assert '"?"' not in str(refused.value)


@pytest.mark.parametrize(("one", "other"), [(0, False), ("", None), (0, "")])
def test_falsy_values_of_an_optional_part_give_different_keys(one: Any, other: Any) -> None:
    parts = ["detail.id", "detail.x?"]
    keys = {key(parts, {"id": "i", "x": value}) for value in (one, other)}
    assert len(keys) == 2


def test_a_missing_part_can_be_replaced_by_the_content() -> None:
    rule = Rule(name="r", key=["body.interaction-id"], missing="hash", ignore=["body.at"])

    def keyed(**fields: Any) -> bytes:
        return plan(rule, event({"eventBody": fields, "timestamp": fields.get("at")})).key

    assert keyed(a=1, at=1) == keyed(a=1, at=2)
    assert keyed(a=1) != keyed(a=2)
    assert keyed(**{"a": 1, "interaction-id": "i"}) == keyed(**{"a": 2, "interaction-id": "i"})


def test_the_content_of_one_event_is_never_the_key_of_another() -> None:
    hashed = Rule(name="r", key=["topic?", "hash(body)"])
    fallback = Rule(name="r", key=["detail.missing"], missing="hash")
    assert plan(hashed, event({"a": 1})).key != plan(fallback, event({"a": 1})).key


# --- ignored fields ---


@pytest.mark.parametrize(
    ("expression", "ignore", "one", "other", "same"),
    [
        ("hash(detail)", ["detail.t"], {"a": 1, "t": 1}, {"a": 1, "t": 2}, True),
        ("hash(detail)", ["detail.t"], {"a": 1, "t": 1}, {"a": 1}, True),
        ("hash(detail)", ["detail.t"], {"a": 1, "t": 1}, {"a": 2, "t": 1}, False),
        ("hash(detail)", ["detail.m.t"], {"m": {"t": 1, "a": 1}}, {"m": {"t": 2, "a": 1}}, True),
        ("hash(detail)", ["detail.m.t"], {"m": {"t": 1, "a": 1}}, {"m": {"t": 1, "a": 2}}, False),
        ("hash(detail.m)", ["detail.m.t"], {"m": {"t": 1}}, {"m": {"t": 2}}, True),
        ("hash(detail.m)", ["detail.t"], {"m": {"t": 1}}, {"m": {"t": 2}}, False),
        ("hash(body)", ["body.t"], {"eventBody": {"t": 1}}, {"eventBody": {"t": 2}}, True),
        ("hash(body)", ["detail.eventBody.t"], {"eventBody": {"t": 1}}, {"eventBody": {}}, True),
        ("hash(body)", ["body.t"], {"t": 1}, {"t": 2}, True),
        ("hash(body)", ["detail.t"], {"t": 1}, {"t": 2}, True),
        ("hash(detail)", ["body.t"], {"eventBody": {"t": 1}}, {"eventBody": {"t": 2}}, True),
        ("hash(detail)", ["body.t"], {"t": 1}, {"t": 2}, True),
        ("hash(detail)", ["body.t"], {"eventBody": {}, "t": 1}, {"eventBody": {}, "t": 2}, False),
    ],
)
def test_ignored_fields_are_left_out_of_a_hash(
    expression: str, ignore: list[str], one: Any, other: Any, same: bool
) -> None:
    keys = [key([expression, "type"], detail, ignore=ignore) for detail in (one, other)]
    assert (keys[0] == keys[1]) is same


# --- the other fields of a claim ---


def test_a_claim_has_the_settings_of_its_rule() -> None:
    rule = Rule(
        name="r",
        key="detail.a",
        lease="5m",
        remember=60,
        attempts=3,
        sliding=True,
        at='time(detail.t, "s")',
    )
    claim = plan(rule, event({"a": 1, "t": 7}))
    assert (claim.lease, claim.remember, claim.attempts) == (300_000, 60_000, 3)
    assert (claim.sliding, claim.at, claim.order, claim.digest) == (True, 7000, None, b"")
    assert (claim.nonce, claim.peek, claim.redrive) == (1, False, False)


def test_claims_with_one_transport_id_have_one_hash_of_that_id() -> None:
    rule = Rule(name="r", key="detail.a")
    first, copy, again = (plan(rule, event({"a": 1}, id=id_)) for id_ in ("x", "x", "y"))
    assert first.by == copy.by != again.by
    assert len(first.by) == 4
    assert plan(rule, event({"a": 1}, id="")).by == b""


@pytest.mark.parametrize(
    ("verify", "one", "other", "same"),
    [
        (True, {"id": 1, "a": 1}, {"id": 1, "a": 1}, True),
        (True, {"id": 1, "a": 1}, {"id": 1, "a": 2}, False),
        (True, {"id": 1, "t": 1}, {"id": 1, "t": 2}, True),
        (["detail.a"], {"id": 1, "a": 1, "b": 1}, {"id": 1, "a": 1, "b": 2}, True),
        (["detail.a"], {"id": 1, "a": 1}, {"id": 1, "a": {"x": 1}}, False),
        (["detail.a"], {"id": 1, "a": 1}, {"id": 1}, False),
    ],
)
def test_a_verified_fact_carries_a_digest_of_its_content(
    verify: Any, one: Any, other: Any, same: bool
) -> None:
    rule = Rule(name="r", key="detail.id", verify=verify, ignore=["detail.t"])
    first, second = plan(rule, event(one)), plan(rule, event(other))
    assert first.key == second.key
    assert (first.digest == second.digest) is same
    assert len(first.digest) == 8


def state(detail: Any, **fields: Any) -> Claim:
    rule = Rule(name="r", subject="detail.id", **{"order": "detail.v", **fields})
    return plan(rule, event({"id": "s", **detail}))


@pytest.mark.parametrize(
    ("order", "value", "expected"),
    [
        ("detail.v", 7, 7),
        ("detail.v", -7, -7),
        ("detail.v", "12", 12),
        ("detail.v", 2**53 - 1, 2**53 - 1),
        ("detail.v", 7.0, 7),
        ("detail.v", "2025-12-12T15:04:25.431Z", 1_765_551_865_431),
        ('time(detail.v, "s")', 5, 5000),
        ("max(detail.v, detail.w)", 7, 7),
        ("time", "-", 1_765_551_865_000),
    ],
)
def test_an_order_is_a_whole_number_or_a_time(order: str, value: Any, expected: int) -> None:
    assert state({"v": value}, order=order).order == expected


@pytest.mark.parametrize("value", [None, "new", True, 1.5, 2**53, "9" * 40, [], {}, "²"])
def test_a_value_that_is_no_order_makes_the_event_invalid(value: Any) -> None:
    with pytest.raises(EnvelopeError, match=r"detail\.v is"):
        state({"v": value})
    with pytest.raises(EnvelopeError, match=r"detail\.v\? is missing"):
        state({}, order="detail.v?")


def test_versions_of_one_subject_share_its_key() -> None:
    one, two = state({"v": 1, "x": 1}), state({"v": 2, "x": 2})
    assert one.key == two.key
    assert (one.order, two.order) == (1, 2)


def test_the_digest_of_a_state_is_of_its_parts_or_of_the_whole_body() -> None:
    assert state({"v": 1, "x": 1}).digest != state({"v": 1, "x": 2}).digest
    assert state({"v": 1, "x": 1}).digest == state({"v": 1, "x": 1}).digest
    by_status = {"state": ["detail.status"]}
    one, two = (state({"v": 1, "status": "a", "x": x}, **by_status) for x in (1, 2))
    assert one.digest == two.digest
    ignoring = {"ignore": ["detail.v"]}
    assert state({"v": 1}, **ignoring).digest == state({"v": 2}, **ignoring).digest
    with pytest.raises(EnvelopeError, match=r"detail\.status is missing"):
        state({"v": 1}, **by_status)


@pytest.mark.parametrize(
    ("fields", "detail", "at", "within"),
    [
        ({}, {"v": TIME}, TIME, 500),
        ({}, {"v": "2025-12-12T15:04:25Z"}, 1_765_551_865_000, 500),
        ({"at": "detail.t"}, {"v": 3, "t": TIME}, TIME, 500),
        ({"at": "detail.t"}, {"v": TIME, "t": TIME - 1}, TIME - 1, 500),
        ({"at": "detail.t"}, {"v": 3}, 0, 0),
        ({}, {"v": 3}, 0, 0),
    ],
)
def test_unchanged_within_needs_the_time_of_the_version(
    fields: Any, detail: Any, at: int, within: int
) -> None:
    claim = state(detail, unchanged_within="500ms", **fields)
    assert (claim.at, claim.unchanged_within) == (at, within)


def test_a_forced_replay_has_a_key_of_its_own() -> None:
    for parts, at in ((["body.conversationId"], ""), (["body.eventTime"], "body.eventTime")):
        keys = [
            plan(Rule(name="r", key=parts, at=at, on_replay=policy), event(replay_name=replay)).key
            for policy, replay in (
                ("missing", ""),
                ("missing", "friday"),
                ("report", "friday"),
                ("force", ""),
                ("force", "friday"),
                ("force", "monday"),
            )
        ]
        assert len(set(keys[:4])) == 1
        assert len(set(keys)) == 3


# --- older keys ---


def test_the_key_of_an_older_rule_is_looked_up_too() -> None:
    older = Rule(name="r", key=["body.conversationId"])
    newer = Rule(
        name="r", key=["body.conversationId", "body.sessionId"], also=[["body.conversationId"]]
    )
    ruleset = Ruleset([newer], name="crm")
    [claim] = ruleset.also(event(), newer, 1)
    assert claim.key == plan(older, event()).key
    assert claim.peek
    assert claim.lease == newer.lease


def test_a_new_rule_finds_the_earlier_keys_by_transport_id() -> None:
    newer = Rule(name="r", key=["body.conversationId"], also=[["id"]])
    ruleset = Ruleset([newer], name="crm")
    [claim] = ruleset.also(event(), newer, 1)
    assert claim.key == Ruleset([], name="crm").plan(event(), 1)[1].key


def test_an_older_key_that_is_incomplete_or_the_same_is_not_looked_up() -> None:
    rule = Rule(name="r", key=["detail.a"], also=[["detail.b"], ["detail.a"]])
    assert Ruleset([rule], name="crm").also(event({"a": 1}), rule, 1) == []


@pytest.mark.parametrize(
    "detail",
    [
        {"b": 1, "a": {"é": [1.0, 1e-7, 2**70, None, True, "ü"]}},
        {"interaction-id": "i-1", "at": "2025-12-12"},
        {},
    ],
)
def test_the_keys_of_a_hand_made_table_are_found(detail: Any) -> None:
    rule = Rule(name="r", key="id", also=["sha256(detail)"])
    [claim] = Ruleset([rule], name="crm").also(event(detail), rule, 1)
    text = json.dumps(detail, sort_keys=True, default=str)
    assert claim.key.decode() == hashlib.sha256(text.encode("utf-8")).hexdigest()
    assert claim.peek


def test_the_keys_of_a_table_of_hashed_ids_are_found() -> None:
    rule = Rule(name="r", key="id", also=["sha256(detail.interaction-id)", "sha256(detail.no)"])
    [claim] = Ruleset([rule], name="crm").also(event({"interaction-id": "i-1"}), rule, 1)
    assert claim.key.decode() == hashlib.sha256(b"i-1").hexdigest()


# --- odd content of events ---

WEIRD = [
    b'{"a": 1e400}',
    b'{"a": -1e400, "b": [1e999]}',
    b'{"a": ' + b"9" * 5000 + b"}",
    b'{"a": 18446744073709551616}',
    b'{"a": -9223372036854775809}',
    b'{"a": 1, "a": {"b": 2}}',
    b'{"a": {"b": 1}, "a": 7}',
    b'{"a": "\\ud83d\\ude00"}',
    b'{"a": "\\u0000"}',
    b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}",
    b'{"a": ' + b'{"b":' * 500 + b"18446744073709551616" + b"}" * 500 + b"}",
    b'{"a": -0}',
    b'{"eventBody": null, "a": 1}',
    b'{"eventBody": [], "a": 1}',
    b'{"topicName": null, "a": 1}',
]
EXPRESSIONS = [
    "detail.a",
    "detail.a?",
    "detail.a.b?",
    "hash(detail.a)",
    "hash(detail)",
    "hash(body)?",
    "time(detail.a)?",
    'floor(detail.a, "1s")',
    "max(detail.a, detail.b)",
    "each(detail.a)",
    "topic(1)?",
    "envelope.detail.a",
]


@pytest.mark.parametrize("detail", WEIRD, ids=lambda detail: detail[:30].decode())
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_odd_content_of_an_event_raises_no_error_but_an_envelope_error(
    detail: bytes, expression: str
) -> None:
    given = read(b'{"id": "i", "detail-type": "t", "detail": ' + detail + b"}")
    for rule in (
        Rule(name="r", key=expression, at="detail.a", verify=True, also=["sha256(detail)"]),
        Rule(name="r", key=expression, missing="hash"),
        Rule(name="r", subject=expression, order="detail.a"),
    ):
        ruleset = Ruleset([rule], name="crm")
        ruleset.explain(given)
        try:
            claim = ruleset.plan(given, 1)[1]
        except EnvelopeError:
            continue
        ruleset.also(given, rule, 1)
        assert msgspec.msgpack.encode(claim)
