"""docs/rules.md on changing a rule: the changes that make another key, and the reach of `also`."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from eventonce import Consumer, Rule
from eventonce.envelope import read
from eventonce.rules import Ruleset
from eventonce.rules.tomltext import parse_rule_file
from eventonce.stores.memory import MemoryStore
from tests.docs.tables import tables, word

TABLES = tables("rules.md")
TICKET = {"ticket": 1, "action": "opened", "at": 1_772_530_245_000, "try": 1}
EVENT = {"id": "1", "source": "com.example.desk", "detail-type": "ticket", "detail": TICKET}
BEFORE: dict[str, Any] = {
    "name": "ticket",
    "key": ["detail.ticket", "detail.at", "hash(detail)"],
    "ignore": ["detail.try"],
}
CHANGES: list[dict[str, Any]] = [
    {"key": ["detail.at", "detail.ticket", "hash(detail)"]},
    {"scope": "tickets"},
    {"at": "detail.at"},
    {"at": "time"},
    {"ignore": []},
    {"consumer": "another"},
    {"secrets": [b"a long random text"]},
    {"name": "renamed", "match": "ticket", "requires": ["detail.ticket"]},
    {"state": ["detail.action"]},
    {"verify": ["detail.action"]},
    {"remember": "1d", "sliding": True, "lease": 5, "attempts": 2, "shadow": True},
]
"""One change for each row of the table, in its order."""


def key_of(
    consumer: str = "crm-sync", secrets: tuple[bytes, ...] = (), **changed: Any
) -> bytes | None:
    fields = {**BEFORE, **changed}
    if "state" in fields:
        del fields["key"]
        fields |= {"subject": ["detail.ticket"], "order": "detail.at"}
    return Ruleset([Rule(**fields)], name=consumer, secrets=secrets).explain(read(EVENT)).key


def test_a_change_makes_another_key_if_its_row_says_so() -> None:
    (table,) = [table for table in TABLES if table.head == ["changed", "another key"]]
    for row, change in zip(table.rows, CHANGES, strict=True):
        before = key_of(state=["detail.ticket"]) if "state" in change else key_of()
        another = key_of(**change) != before
        assert another == (word(row["another key"]) == "yes"), row


def outcome_of(store: MemoryStore, rule: Rule, detail: dict[str, Any]) -> str:
    consumer = Consumer(store, name="crm-sync", rules=rule, handler=lambda _: None)
    return consumer.process([{**EVENT, "detail": detail}])[0].status


def test_after_a_change_of_state_or_verify_a_copy_is_done_or_a_conflict() -> None:
    version = Rule(name="s", subject=["detail.ticket"], order="detail.at", state=["detail.action"])
    store = MemoryStore()
    other = msgspec.structs.replace(version, state=["detail.try"])
    assert [outcome_of(store, rule, TICKET) for rule in (version, other)] == ["done", "done"]
    fact = Rule(name="f", key=["detail.ticket"], verify=["detail.action"])
    store = MemoryStore()
    other = msgspec.structs.replace(fact, verify=["detail.try"])
    assert [outcome_of(store, rule, TICKET) for rule in (fact, other)] == ["done", "conflict"]


def test_also_finds_the_events_done_under_the_older_key() -> None:
    (table,) = [table for table in TABLES if table.head[-1] == "with it"]
    (rule,) = parse_rule_file(table.above["toml"], name="rules.md")
    (parts,) = rule.also
    older = Rule(name="ticket", match=rule.match, key=parts)
    without = msgspec.structs.replace(rule, also=())
    for column, now in ((table.head[1], without), (table.head[2], rule)):
        store = MemoryStore()
        details = [json.loads(row["what comes"].split("`")[1]) for row in table.rows]
        assert outcome_of(store, older, details[0]) == "done"
        assert [outcome_of(store, now, detail) for detail in details] == [
            row[column] for row in table.rows
        ]


def test_also_does_not_bridge_a_time_that_became_part_of_the_key() -> None:
    older = Rule(name="ticket", key=["detail.ticket", "detail.at"])
    rule = msgspec.structs.replace(older, at="detail.at", also=[older.key])
    store = MemoryStore()
    assert [outcome_of(store, it, TICKET) for it in (older, rule)] == ["done", "done"]
