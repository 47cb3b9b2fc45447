"""Proofs that an event is a copy: an empty part is missing, a missing part is replaced by the
transport id or by no proof, and `explain` names the proof."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from eventonce import Consumer, presets
from eventonce.core.ports import Delivery
from eventonce.envelope import read
from eventonce.errors import ConfigError, EnvelopeError
from eventonce.rules import Rule, Ruleset
from eventonce.sources import FileSource
from eventonce.stores.memory import MemoryStore
from eventonce.testing.harness import ManualClock
from eventonce.types import Event
from eventonce.worker import worker as worker_module

BLANK = ["", " ", "\t\n", "\u00a0\u2003"]


def event(detail: Any, headers: Mapping[str, str] | None = None, **more: Any) -> Event:
    envelope = {"id": "e-1", "source": "shop", "detail-type": "order", "detail": detail, **more}
    return read(json.dumps(envelope).encode(), headers=headers or {})


def ruleset(**fields: Any) -> Ruleset:
    return Ruleset([Rule(name="r", **fields)], name="crm")


def statuses(rules: Any, events: list[Any]) -> list[str]:
    """The outcomes of these events, one after the other, and all in one call."""
    clock = ManualClock()

    def consumer() -> Consumer:
        store = MemoryStore(clock=clock)
        return Consumer(store, name="crm", rules=rules, handler=lambda _: None, clock=clock)

    one, all_ = consumer(), consumer()
    found: list[str] = [one.process([it])[0].status for it in events]
    assert [outcome.status for outcome in all_.process(events)] == found
    return found


# --- empty parts ---

KEYS = {
    "picked from the detail, with its time": {
        "key": ["detail.id", "detail.state", "detail.at"],
        "at": "detail.at",
    },
    "picked from the detail": {"key": ["detail.id", "detail.state"]},
    "in another order than it is picked in": {"key": ["detail.state", "type", "detail.id"]},
    "of a state": {"subject": ["detail.id", "detail.state"], "order": "detail.at"},
    "as what a version says": {
        "subject": ["detail.id"],
        "order": "detail.at",
        "state": ["detail.state"],
    },
    "hashed": {"key": ["detail.id", "hash(detail.state)"]},
}


@pytest.mark.parametrize("blank", BLANK)
@pytest.mark.parametrize("fields", KEYS.values(), ids=KEYS)
def test_an_empty_text_is_no_part_of_a_key(fields: dict[str, Any], blank: str) -> None:
    rules = ruleset(**fields)
    whole = {"id": "o-1", "state": "paid", "at": 1_772_530_245_126}
    assert rules.plan(event(whole), 1)
    with pytest.raises(EnvelopeError, match=r"detail\.state\)? is empty"):
        rules.plan(event({**whole, "state": blank}), 1)


@pytest.mark.parametrize("blank", BLANK)
def test_an_empty_order_header_or_transport_id_is_missing(blank: str) -> None:
    with pytest.raises(EnvelopeError, match=r"detail\.at is empty"):
        ruleset(subject="detail.id", order="detail.at").plan(event({"id": 1, "at": blank}), 1)
    headed = event({"id": 1}, {"webhook-id": blank})
    with pytest.raises(EnvelopeError, match=r"headers\.webhook-id is empty"):
        ruleset(key="headers.webhook-id").plan(headed, 1)
    with pytest.raises(EnvelopeError, match="no id"):
        Ruleset([], name="crm").plan(event({"id": 1}, id=blank), 1)


@pytest.mark.parametrize("blank", BLANK)
def test_an_empty_part_is_allowed_where_a_part_is_optional_and_gives_another_key(
    blank: str,
) -> None:
    rules = ruleset(key=["detail.id", "detail.coupon?"])
    keys = [
        rules.plan(event(detail), 1)[1].key
        for detail in ({"id": 1, "coupon": blank}, {"id": 1}, {"id": 1, "coupon": None})
    ]
    assert len(set(keys)) == 3


@pytest.mark.parametrize("blank", BLANK)
def test_a_message_keeps_its_own_id_where_the_id_of_the_event_is_empty(blank: str) -> None:
    body = {"id": blank, "source": "shop", "detail-type": "order", "detail": {"n": 1}}
    message = {"messageId": "m-1", "body": json.dumps(body)}
    assert read(message).id == "m-1"


@pytest.mark.parametrize("blank", BLANK)
@pytest.mark.parametrize("missing", ["hash", "id", "run"])
def test_the_replacement_of_a_missing_part_also_replaces_an_empty_part(
    missing: str, blank: str
) -> None:
    rules = [Rule(name="r", key="detail.id", missing=missing)]
    events = [
        {"id": f"e-{n}", "detail-type": "order", "detail": {"id": blank, "n": n}} for n in (1, 2)
    ]
    assert statuses(rules, [*events, events[1]]) == ["done", "done", "duplicate"]


@pytest.mark.parametrize("preset", ["relayed", "auto"])
@pytest.mark.parametrize("times", [{}, {"timestamp": "2026-03-03T09:30:45.126Z"}])
def test_two_routing_updates_without_the_name_of_their_interaction_both_run(
    preset: str, times: dict[str, str]
) -> None:
    events = [
        {
            "id": f"e-{queue}",
            "source": "genesys.cloud",
            "detail-type": "interaction.routing.update",
            "time": "2026-03-03T09:30:45Z",
            "detail": {"interaction-id": "", "state": "QUEUED", "queue": queue, **times},
        }
        for queue in (1, 2)
    ]
    assert statuses(preset, events) == ["done", "done"]


# --- a missing part of a key ---


def order(detail: Any, **more: Any) -> dict[str, Any]:
    return {"source": "shop", "detail-type": "order", "detail": detail, **more}


def test_an_event_with_a_missing_part_is_invalid_by_default() -> None:
    rules = [Rule(name="r", key="detail.id")]
    assert statuses(rules, [order({"n": 1}, id="e-1")]) == ["invalid"]


@pytest.mark.parametrize("missing", ["id", "run"])
@pytest.mark.parametrize(
    "own", [{"key": "detail.id"}, {"subject": "detail.id", "order": "detail.at"}]
)
def test_a_missing_part_is_replaced_by_the_transport_id(own: dict[str, Any], missing: str) -> None:
    rules = [Rule(name="r", **own, missing=missing)]
    one, other = order({"n": 1}, id="e-1"), order({"n": 1}, id="e-2")
    assert statuses(rules, [one, other, one]) == ["done", "done", "duplicate"]


def test_two_events_that_share_a_transport_id_but_not_their_content_both_run() -> None:
    rules = [Rule(name="r", key="detail.id", missing="id")]
    assert statuses(rules, [order({"n": 1}, id="e"), order({"n": 2}, id="e")]) == ["done", "done"]


def test_a_missing_part_without_a_transport_id_is_invalid_or_runs_at_every_delivery() -> None:
    one = order({"n": 1})
    assert statuses([Rule(name="r", key="detail.id", missing="id")], [one]) == ["invalid"]
    assert statuses([Rule(name="r", key="detail.id", missing="run")], [one] * 3) == ["done"] * 3
    with pytest.raises(EnvelopeError, match="no transport id to use instead"):
        ruleset(key="detail.id", missing="id").plan(read(one), 1)


def test_a_missing_part_of_a_state_cannot_be_replaced_by_its_content() -> None:
    with pytest.raises(ConfigError, match="missing: is for facts"):
        Rule(name="r", subject="detail.id", order="detail.at", missing="hash")


def test_events_without_an_identity_have_their_own_attempts_and_dead_letters() -> None:
    store = MemoryStore()
    rules = [Rule(name="r", key="detail.id", missing="run", attempts=1)]

    def fail(_: object) -> None:
        raise ValueError

    consumer = Consumer(store, name="crm", rules=rules, handler=fail)
    assert [it.status for it in consumer.process([order({"n": 1})] * 2)] == ["dead", "dead"]
    assert len(list(consumer.letters())) == 2


def test_a_capture_counts_the_attempts_of_events_without_an_identity(tmp_path: Path) -> None:
    file = tmp_path / "capture.jsonl"
    file.write_text('{"light": "green"}\n{"light": "green"}\n')

    def fail(_: object) -> None:
        raise ValueError

    rules = presets.overridden("auto", attempts=2)
    consumer = Consumer(MemoryStore(), name="crm", rules=rules, handler=fail)
    lines = FileSource([file])
    for status in ("failed", "dead"):
        deliveries = lines.receive(10)
        outcomes = consumer.process([worker_module._incoming(one) for one in deliveries])
        assert [it.status for it in outcomes] == [status, status]
        lines.postpone([(one, 0.0) for one in deliveries])
    assert len(list(consumer.letters())) == 2


def test_the_id_of_a_message_comes_before_an_id_that_may_name_an_entity() -> None:
    for body in ('{"id": "order-1", "payload": {"n": 1}}', '{"id": " ", "detail": {"n": 1}}'):
        read_ = worker_module._incoming(Delivery(body.encode(), id="m-1"))
        assert isinstance(read_, Event)
        assert read_.id == "m-1"


# --- a rule that spans types ---

SPANNING: dict[str, Any] = {"match": {"type": "order.*"}, "scope": "order"}


def of(kind: str, **detail: Any) -> dict[str, Any]:
    return {"id": f"{kind}-{detail}", "source": "shop", "detail-type": kind, "detail": detail}


def test_a_scope_makes_one_history_of_several_types() -> None:
    state = Rule(name="r", **SPANNING, subject="detail.id", order="detail.at")
    events = [of("order.changed", id=1, at=5), of("order.closed", id=1, at=1)]
    assert statuses([state], events) == ["done", "stale"]
    fact = Rule(name="r", **SPANNING, key=["detail.id", "detail.at"])
    assert statuses([fact], [of("order.a", id=1, at=1), of("order.b", id=1, at=1)]) == [
        "done",
        "duplicate",
    ]


def test_two_scopes_and_a_type_with_the_name_of_a_scope_share_no_key() -> None:
    rules = [
        Rule(name="orders", match="order.*", scope="order", key="detail.id"),
        Rule(name="bills", match="bill.*", scope="bill", key="detail.id"),
        Rule(name="rest", key="detail.id"),
    ]
    kinds = ("order.a", "bill.a", "order", "bill")
    assert statuses(rules, [of(kind, id=1) for kind in kinds]) == ["done"] * 4


def test_a_missing_part_under_a_scope_leaves_each_type_its_own_transport_ids() -> None:
    rules = [Rule(name="r", **SPANNING, key="detail.id", missing="id")]
    one, other = of("order.a", n=1), {**of("order.b", n=1), "id": of("order.a", n=1)["id"]}
    assert statuses(rules, [one, other, one]) == ["done", "done", "duplicate"]


# --- the explanation ---

STRENGTHS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "an id": ({"key": "detail.id"}, {}, "business key"),
    "a user named by the topic": ({"key": ["topic(2)", "hash(body)"]}, {}, "business key"),
    "a subject": ({"subject": "detail.id", "order": "detail.at"}, {}, "business key"),
    "the transport's": ({"key": ["id", "hash(detail)"]}, {}, "transport id"),
    "a header": ({"key": "headers.webhook-id"}, {}, "transport id"),
    "a hole": ({"key": "detail.none", "missing": "id"}, {}, "transport id"),
    "content and its own time": (
        {"key": ["hash(detail)", "detail.at"], "at": "detail.at"},
        {},
        "content and time",
    ),
    "content and the envelope's time": ({"key": ["hash(detail)", "time"]}, {}, "content and time"),
    "content alone": ({"key": ["type", "hash(detail)"], "remember": "10s"}, {}, "content"),
    "content for a missing id": ({"key": "detail.none", "missing": "hash"}, {}, "content"),
    "an id that may be there and is": (
        {"key": ["hash(detail)", "time", "id?"]},
        {},
        "transport id",
    ),
    "an id that may be there and is not": (
        {"key": ["hash(detail)", "time", "id?"]},
        {"id": ""},
        "content and time",
    ),
    "nothing": ({"key": "detail.none", "missing": "run"}, {"id": ""}, "none"),
}


@pytest.mark.parametrize(("fields", "more", "strength"), STRENGTHS.values(), ids=STRENGTHS)
def test_an_explanation_has_the_strength_of_a_key_and_how_long_the_key_is_remembered(
    fields: dict[str, Any], more: dict[str, Any], strength: str
) -> None:
    detail = {"id": "o-1", "at": "2026-03-03T09:30:45Z", "topicName": "v2.users.a.presence"}
    given = event(detail, {"webhook-id": "w-1"}, time="2026-03-03T09:30:45Z", **more)
    found = ruleset(**fields).explain(given)
    assert found.strength == strength
    remembered = 10 if "remember" in fields else 864_000
    assert found.remember == (0 if strength == "none" else remembered)
    assert (found.key is None) is (strength == "none")
    assert not found.missing


@pytest.mark.parametrize("name", ["none", *presets.names()])
def test_events_of_two_sources_with_one_cloudevents_id_have_different_keys(name: str) -> None:
    rules = Ruleset([] if name == "none" else presets.resolve(name), name="crm")
    attributes = {"specversion": "1.0", "type": "ended", "id": "1"}
    keys = set()
    for source in ("/calls", "/chats"):
        named = {**attributes, "source": source}
        binary = {f"ce-{attribute}": value for attribute, value in named.items()}
        for given in (
            read({**named, "data": {"n": 1}}),
            read({"n": 1}, headers=binary),
        ):
            keys.add((source, rules.plan(given, 1)[1].key))
    assert len({key for _, key in keys}) == len(keys)


PERSONAL = "ada@example.org since noon, +43 660 1234567"


@pytest.mark.parametrize(
    "fields",
    [
        {"subject": "detail.id", "order": "detail.at"},
        {"key": ["detail.id", "time(detail.at)"]},
        {"key": ["detail.id", 'floor(detail.at, "1s")']},
        {"key": ["detail.id", "max(detail.at, detail.then)"]},
    ],
)
def test_an_unusable_value_is_shown_by_explain_alone(
    fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    rules = [Rule(name="r", **fields)]
    caplog.set_level(logging.DEBUG)
    consumer = Consumer("memory:", rules=rules, handler=lambda _: None)
    outcome = consumer.process([order({"id": 1, "at": PERSONAL}, id="e-1")])[0]
    assert "detail.at" in outcome.reason
    assert "a string" in outcome.reason
    (letter,) = consumer.letters()
    for said in (outcome.reason, str(outcome.error), letter.reason, caplog.text):
        assert "ada@" not in said
    found = ruleset(**fields).explain(event({"id": 1, "at": PERSONAL}))
    assert "ada@example.org" in found.missing[0]
