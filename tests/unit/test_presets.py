"""Presets by name: the rules of a spec, the versions of a preset, and the choice of `auto`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventonce import presets
from eventonce.envelope import elements, read, topics
from eventonce.errors import ConfigError, EnvelopeError
from eventonce.rules import Rule, Ruleset
from eventonce.rules.claims import compiled
from tests.rows.row import ORG, bridge, genesys

SHAPES = Path(__file__).parent.parent / "shapes"
EXPECTED = json.loads((SHAPES.parent / "expected_parts.json").read_text())

OWN = Rule(name="own", match="v2.detail.events.conversation.*.acd.end", key=["body.conversationId"])


def rule_names(spec: Any) -> list[str]:
    return [rule.name for rule in presets.resolve(spec)]


def chosen(spec: Any, event: dict[str, Any], **headers: str) -> str:
    rules = Ruleset(presets.resolve(spec), name="test")
    return rules.plan(read(event, headers=headers), 1)[0].name


def test_a_spec_is_a_name_a_path_a_rule_or_a_list_of_these(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[[rule]]\nname = "mine"\nkey = ["detail.call"]\n')
    assert rule_names("auth0") == ["auth0", "auth0.data"]
    assert rule_names(file) == rule_names(str(file)) == ["mine"]
    assert rule_names(OWN) == ["own"]
    assert rule_names([OWN, file, "auth0"]) == ["own", "mine", "auth0", "auth0.data"]


def test_the_earlier_rule_of_a_list_wins() -> None:
    event = genesys("v2.detail.events.conversation.{id}.acd.end", {"conversationId": "c"})
    assert chosen([OWN, "genesys"], event) == "own"
    assert chosen(["genesys", OWN], event) == "genesys.session"


def test_the_error_for_an_unknown_preset_lists_all_names_and_the_nearest() -> None:
    with pytest.raises(ConfigError) as raised:
        presets.resolve("genesis")
    assert "did you mean 'genesys'?" in str(raised.value)
    for name in presets.names():
        assert name in str(raised.value)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nowhere/rules.toml", "nowhere/rules.toml"),
        ("missing.toml", "missing.toml"),
        ("genesys@7", "genesys@1"),
        (7, "not int"),
        ({"genesys": 1}, "not dict"),
        ("", "there are"),
    ],
)
def test_the_error_for_a_wrong_spec_names_the_mistake(spec: Any, said: str) -> None:
    with pytest.raises(ConfigError, match="rules: ") as raised:
        presets.resolve(spec)
    assert said in str(raised.value)


def test_a_wrong_rule_file_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text('[[rule]]\nname = "mine"\nkeys = ["detail.call"]\n')
    with pytest.raises(ConfigError, match=r"wrong\.toml:3: keys"):
        presets.resolve(file)


def test_a_version_can_be_named() -> None:
    assert presets.resolve("genesys@1") == presets.resolve("genesys")
    assert presets.resolve("genesys:latest@1") == presets.resolve("genesys:latest")


def test_the_presets_have_these_names() -> None:
    described = presets.names()
    assert list(described) == [
        "auto",
        "auth0",
        "cloudevents",
        "connect",
        "cxone",
        "eventbridge",
        "genesys",
        "genesys:latest",
        "relayed",
        "salesforce",
        "shopify",
        "standard-webhooks",
        "stripe",
        "zendesk",
    ]
    assert all(described.values())


@pytest.mark.parametrize("name", [name for name in presets.names() if name != "auto"])
def test_rule_names_are_unique_and_the_header_of_a_preset_names_only_its_rules(name: str) -> None:
    preset = presets.load(name)
    names = [rule.name for rule in preset.rules]
    assert len(set(names)) == len(names)
    assert preset.broad <= set(names)
    assert preset.last | preset.anyone <= preset.broad


def test_the_rules_of_auto_are_facts_so_that_no_event_is_stale() -> None:
    assert {rule.kind for rule in presets.resolve("auto")} == {"fact"}


def test_presets_are_read_when_first_asked_for() -> None:
    script = (
        "from eventonce import presets; assert not presets._texts.cache_info().currsize;"
        "presets.resolve('eventbridge'); print(presets.load.cache_info().currsize)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "1"


def test_latest_has_the_facts_of_genesys_after_its_states() -> None:
    latest, facts = presets.resolve("genesys:latest"), presets.resolve("genesys")
    states = latest[: -len(facts)]
    assert latest[-len(facts) :] == facts
    assert {rule.kind for rule in states} == {"state"}
    assert {rule.kind for rule in facts} == {"fact"}


def test_keys_sort_by_time_where_the_rule_of_a_fact_has_a_time() -> None:
    every = [rule for name in presets.names() for rule in presets.resolve(name)]
    facts = {rule.name: rule for rule in every if rule.kind == "fact"}
    for rule in facts.values():
        assert compiled(rule, rule.key, "fact").prefixed == bool(rule.at), rule.name
    assert {name for name, rule in facts.items() if name.startswith("genesys") and not rule.at} == {
        "genesys.audit",
        "genesys.evaluation",
        "genesys.flow-execution",
        "genesys.forwarded-untimed",
        "genesys.level-untimed",
        "genesys.notice-untimed",
        "genesys.outbound-config",
    }


# --- the topics of Genesys Cloud ---


def every_topic(node: dict[str, Any] | None = None, *before: str) -> Iterator[str]:
    for step, below in (topics._known() if node is None else node).items():
        if step:
            yield from every_topic(below, *before, step)
        else:
            yield ".".join(before)


def test_every_topic_has_a_rule_and_each_rule_takes_this_number_of_topics() -> None:
    rules = Ruleset(presets.resolve("genesys"), name="test")
    taken: dict[str, list[str]] = {}
    for topic in every_topic():
        taken.setdefault(rules.explain(read(genesys(topic, {"note": 1}))).rule, []).append(topic)
    assert sum(map(len, taken.values())) == 213
    assert "genesys.unnamed" not in taken
    counts = {name: len(found) for name, found in taken.items()}
    assert counts == {
        "genesys.activity-timed": 1,
        "genesys.attributes": 1,
        "genesys.audit": 1,
        "genesys.contact": 1,
        "genesys.evaluation-timed": 1,
        "genesys.external-contact": 6,
        "genesys.flow": 2,
        "genesys.flow-execution": 1,
        "genesys.flow-outcome": 1,
        "genesys.journey": 5,
        "genesys.metric": 2,
        "genesys.notice": 112,
        "genesys.operation": 1,
        "genesys.outbound-config": 17,
        "genesys.post-contact": 3,
        "genesys.pre-contact": 3,
        "genesys.presence-timed": 1,
        "genesys.queue-member": 1,
        "genesys.routing-status": 1,
        "genesys.session": 9,
        "genesys.snapshot": 31,
        "genesys.statistics": 5,
        "genesys.transcription": 1,
        "genesys.voicemail": 1,
        "genesys.workitem": 3,
        "genesys.wrapup": 2,
    }


@pytest.mark.parametrize(
    ("topic", "rule"),
    [
        ("v2.users.{id}.conversations.summaries.settings.preview", "genesys.notice"),
        ("v2.users.{id}.conversations.{id}.recordings", "genesys.notice"),
        ("v2.users.{id}.conversations.inbound.typing.event", "genesys.notice"),
        ("v2.users.{id}.conversationsummary", "genesys.notice"),
        ("v2.users.{id}.integrationpresence", "genesys.notice"),
        ("v2.users.{id}.outbound.contactlists.{id}.export", "genesys.notice"),
        ("v2.analytics.queues.{id}.activity", "genesys.notice"),
        ("v2.outbound.campaigns.{id}.progress", "genesys.snapshot"),
        ("v2.outbound.contactlists.{id}.importstatus", "genesys.snapshot"),
        ("v2.externalcontacts.contacts.{id}.journey.sessions", "genesys.snapshot"),
        ("v2.externalcontacts.contacts.{id}.journey.segments", "genesys.journey"),
        ("v2.of.the.year.{id}.2031", "genesys.notice"),
    ],
)
def test_a_topic_is_not_taken_by_the_rule_of_a_similar_topic(topic: str, rule: str) -> None:
    rules = Ruleset(presets.resolve("genesys"), name="test")
    assert rules.explain(read(genesys(topic, {"note": 1}))).rule == rule


def test_a_topic_without_a_body_still_has_a_key() -> None:
    event = genesys("v2.users.{id}.alerting.heartbeat.rules", None)
    assert chosen("genesys", event) == "genesys.notice"


# --- auto ---


def test_auto_never_lets_a_shape_overrule_the_transport_id_of_an_unknown_source() -> None:
    """The id of an order or the event_id of a ticket names an entity, which has many events."""
    for detail in (
        {"id": "order-1", "status": "paid"},
        {"event_id": "concert-1", "seat": 4},
        {"eventId": "concert-1"},
        {"conversationId": "c", "status": "on", "timestamp": 1},
        {"data": {"id": "order-1"}},
        {"interactionId": "i"},
        {"Type": "Invoice", "total": 3},
        {"IdempotencyKey": "${id}"},
    ):
        assert chosen("auto", bridge("com.acme.shop", "changed", detail)) == "eventbridge"
    beside = bridge("com.acme.shop", "changed", {"order": 1}, IdempotencyKey="${id}")
    assert chosen("auto", beside) == "eventbridge"


def test_auto_recognises_a_relay_by_its_source() -> None:
    detail = {"event_id": "evt-1", "conversation_id": "conv-1", "status": "ended"}
    for source in (
        "genesys.cloud",
        "genesys-cloud-conversations",
        "com.acme.genesys",
        "nice.cxone",
    ):
        assert chosen("auto", bridge(source, "call ended", detail)) == "relayed.event_id"


def test_an_event_without_any_id_takes_the_dated_or_the_unidentified_rule_of_auto() -> None:
    assert chosen("auto", {"call": "ended", "updatedAt": 1_772_530_245}) == "auto.dated-updatedAt"
    assert chosen("auto", {"call": "ended", "agent": "ada"}) == "auto.unidentified"
    order = {"source": "x", "detail-type": "y", "detail": {"id": "order-7", "state": "paid"}}
    assert chosen("auto", order) == "auto.unidentified"
    assert chosen("relayed", order) == "relayed.hash"


def test_the_last_rules_of_auto_ignore_no_part_of_the_content() -> None:
    names = rule_names("auto")
    assert not presets.load("relayed").last & set(names)
    last = len(names) - names[::-1].index("eventbridge")
    for rule in presets.resolve("auto")[last:]:
        assert not rule.ignore


@pytest.mark.parametrize("name", presets.names())
def test_no_preset_drops_by_a_rounded_time_a_window_or_content_that_has_no_time(name: str) -> None:
    for rule in presets.resolve(name):
        assert not any("floor(" in part for part in (*rule.key, *rule.subject, rule.order)), rule
        assert rule.remember >= 864_000_000, rule
        told = [part for part in rule.key if not part.startswith(("hash(", "topic"))]
        assert rule.kind == "state" or told, rule


@pytest.mark.parametrize("name", presets.names())
def test_rules_of_presets_replace_a_missing_part_by_the_transport_id_or_run(name: str) -> None:
    assert {rule.missing for rule in presets.resolve(name)} <= {"id", "run"}


def test_auto_can_be_named_with_its_version() -> None:
    assert presets.resolve("auto@1") == presets.resolve("auto")


def test_an_event_without_an_id_is_refused_by_a_rule_that_needs_the_transport_id() -> None:
    specs: list[Any] = ["eventbridge", []]
    for spec in specs:
        with pytest.raises(EnvelopeError, match="no id"):
            chosen(spec, {"source": "x", "detail-type": "y", "detail": {"call": 1}})


def test_auto_prefers_the_business_key_to_the_id_of_the_webhook_around_it() -> None:
    body = {"conversationId": "c", "participantId": "p", "sessionId": "s", "eventTime": 1}
    event = genesys("v2.detail.events.conversation.{id}.acd.end", body)
    assert chosen("auto", event, **{"webhook-id": "msg_1"}) == "genesys.session"
    assert chosen("auto", {"call": 1}, **{"webhook-id": "msg_1"}) == "standard-webhooks"


# --- shapes that really arrive ---


@pytest.mark.parametrize("file", sorted(SHAPES.glob("*.json")), ids=lambda file: file.stem)
def test_a_shape_that_really_arrives_has_its_expected_parts(file: Path) -> None:
    (part,) = elements(file.read_bytes())
    found = Ruleset(presets.resolve("auto"), name="test").explain(read(part))
    values = {part.expression: part.value for part in found.parts}
    assert {"rule": found.rule, "kind": found.kind, "parts": values} == EXPECTED[file.stem]
    assert found.key is not None


def test_every_shape_has_its_expected_parts_in_the_file() -> None:
    assert sorted(EXPECTED) == sorted(file.stem for file in SHAPES.glob("*.json"))


def test_the_key_depends_on_the_organisation_and_not_on_its_integration() -> None:
    rules = Ruleset(presets.resolve("genesys"), name="test")

    def key(source: str) -> bytes:
        event = genesys("v2.users.{id}.station", {"associatedStation": None})
        return rules.plan(read({**event, "source": source}), 1)[1].key

    first = key(f"aws.partner/genesys.com/cloud/{ORG}/first")
    assert key(f"aws.partner/genesys.com/cloud/{ORG}/second") == first
    assert key("aws.partner/genesys.com/cloud/another-org/first") != first


def test_every_rule_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "presets.md").read_text()
    for name in presets.names():
        assert f"`{name}`" in page
        for rule in presets.resolve(name):
            assert f"`{rule.name}`" in page, rule.name
