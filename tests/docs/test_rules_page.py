"""docs/rules.md is true: each field and function is on it, each table shows true results."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from eventonce import Consumer, Rule, presets
from eventonce.cli import main
from eventonce.config import load
from eventonce.envelope import read
from eventonce.rules import Ruleset
from eventonce.rules.expressions import _FUNCTIONS, EVENT_NAMES, Root
from eventonce.rules.instants import duration
from eventonce.rules.tomltext import parse_rule_file
from eventonce.testing.harness import ManualClock
from tests.docs.arrivals import Arrival, Case
from tests.docs.pages import DOCS, broken_links, sections
from tests.docs.tables import Table, plain, tables, word
from tests.docs.timeline import Killed, Observed, Timeline

PAGE = sections("rules.md")
TEXT = (DOCS / "rules.md").read_text(encoding="utf-8")
FIELDS = {field.name: field for field in msgspec.structs.fields(Rule)}
NOTHING = "\N{EN DASH}"
MOMENT = datetime.fromtimestamp(ManualClock().now / 1000, UTC).isoformat()
TABLES = tables("rules.md")
PLAYED = [table for table in TABLES if table.head[0] == "after"]


# --- every field, every function ---


def test_every_field_has_its_heading_and_its_row_with_the_default() -> None:
    (table,) = [table for table in TABLES if table.head[0] == "field"]
    names = [re.sub(r"\[`(\w+)`\]\(#\1\)", r"\1", row["field"]) for row in table.rows]
    assert names == list(FIELDS)
    for name, row in zip(names, table.rows, strict=True):
        assert f"\n### `{name}`\n" in TEXT, name
        default, said = FIELDS[name].default, row["unless you say"]
        if said.startswith("`"):
            value = tomllib.loads(f"it = {plain(said)}")["it"]
            is_duration = name in ("unchanged_within", "remember", "lease", "timeout")
            assert (duration(value) if is_duration else value) == default, name
        else:
            assert not default or name in ("name", "match"), name


def test_every_choice_of_a_field_is_named() -> None:
    for name, field in FIELDS.items():
        for choice in get_args(field.type):
            if isinstance(choice, str):
                assert f'`"{choice}"`' in TEXT, f"{name}: {choice}"


def test_every_function_and_every_beginning_of_a_path_is_shown() -> None:
    shown = " ".join(row["expression"] for table in TABLES for row in table.rows if "gives" in row)
    for function in _FUNCTIONS:
        assert f"{function}(" in shown, function
    for root in get_args(Root):
        assert root == "event" or f"`{root}." in TEXT, root
    for name in EVENT_NAMES:
        assert f"`{name}`" in PAGE["Expressions"].text, name


def test_the_fields_that_can_be_overridden_are_listed() -> None:
    section = PAGE["For all rules at once"].text
    assert ", ".join(f"`{name}`" for name in presets.OVERRIDABLE) in section
    assert "transport-id" in section


# --- the examples ---


@pytest.mark.parametrize("text", [text for it in PAGE.values() for text in it.blocks("toml")])
def test_every_block_of_toml_is_accepted(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EVENTONCE_SECRET", "EVENTONCE_OLD_SECRET"):
        monkeypatch.setenv(name, f"a long random text: {name}")
    file = tmp_path / "eventonce.toml"
    file.write_text(text)
    config = load(file)
    assert len(config.rule) == text.count("[[rule]]")
    config.consumer(store="memory:", name="crm-sync").close()


def played_under(table: Table, rules: list[Rule]) -> list[str]:
    timeline = Timeline()
    arrivals = [arrival(row, rules[0]) for row in table.rows]
    consumer = Consumer(
        Observed(timeline),
        name="crm-sync",
        rules=rules,
        handler=timeline.work,
        clock=timeline.clock,
    )

    def deliver(arrival: Arrival) -> str:
        try:
            return consumer.process([arrival.event])[0].status
        except Killed:
            return NOTHING

    case = Case(table.section, 0, arrivals)
    return timeline.deliver_all(case, [[row["after"]] for row in table.rows], deliver)


def arrival(row: dict[str, str], rule: Rule) -> Arrival:
    wrong = row.get("what goes wrong", "")
    event = {
        "id": plain(row.get("id", "e-1")),
        "source": (*rule.match.source, "com.example.shop")[0],
        "detail-type": plain(row.get("type", (*rule.match.type, "any")[0].replace("*", "changed"))),
        "time": MOMENT,
        "replay-name": plain(row.get("replay", "")),
        "detail": json.loads(plain(row["detail"])),
    }
    return Arrival(
        "",
        event,
        crm_down=wrong == "the handler raises",
        killed=wrong == "the worker dies",
        store_away=wrong == "the store is away",
    )


@pytest.mark.parametrize("table", PLAYED, ids=str)
def test_an_event_has_the_outcome_that_its_row_shows(table: Table) -> None:
    rules = parse_rule_file(table.above["toml"], name="rules.md")
    known = {"after", "id", "type", "detail", "replay", "what goes wrong"}
    columns = [column for column in table.head if column not in known]
    for column in columns:
        chosen = rules
        if column != "outcome":
            policy = json.loads(plain(column))
            chosen = [msgspec.structs.replace(rule, on_replay=policy) for rule in rules]
        said = [word(row[column]) for row in table.rows]
        assert played_under(table, chosen) == said, column


def test_unchanged_within_needs_a_time_of_the_event() -> None:
    (table,) = [table for table in PLAYED if "contact-card" in table.above["toml"]]
    (rule,) = parse_rule_file(table.above["toml"], name="rules.md")
    untimed = msgspec.structs.replace(rule, at="")
    assert played_under(table, [untimed]) == ["done"] * len(table.rows)


def test_an_event_is_taken_by_the_rule_that_its_row_names() -> None:
    (table,) = [table for table in TABLES if table.head[-1] == "rule"]
    rules = Ruleset(parse_rule_file(table.above["toml"], name="rules.md"), name="crm-sync")
    for row in table.rows:
        event = {
            "id": "e-1",
            "source": plain(row["source"]),
            "detail-type": plain(row["type"]),
            "detail": json.loads(plain(row["detail"])),
        }
        found = rules.explain(read(event))
        assert row["rule"].startswith(f"`{found.rule}`"), row
        assert ("invalid" in row["rule"]) == (found.key is None), row
        for missing in found.missing:
            assert missing.split()[0] in row["rule"]


@pytest.mark.parametrize(
    ("row", "event"),
    [
        (row, table.above["json"])
        for table in TABLES
        for row in table.rows
        if table.head[:2] == ["expression", "gives"]
    ],
    ids=lambda it: it["expression"] if isinstance(it, dict) else "",
)
def test_an_expression_gives_the_value_that_its_row_shows(row: dict[str, str], event: str) -> None:
    # With a part that is always present, because a key must not be empty.
    rule = Rule(name="shown", key=[plain(row["expression"]), "hash(envelope)"])
    found = Ruleset([rule], name="crm-sync").explain(read(event)).parts[0]
    if row["gives"] == "absent":
        assert not found.present
    else:
        assert (found.present, found.value) == (True, json.loads(plain(row["gives"])))


# --- the command line ---


def transcript(block: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output that is shown."""
    parts = re.split(r"^\$ (.+)\n", block, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("title", [it.title for it in PAGE.values() if it.blocks("console")])
def test_the_commands_print_the_output_that_is_shown(
    title: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    section = PAGE[title]
    Path("eventonce.toml").write_text(section.blocks("toml")[0])
    (events,) = section.blocks("json")
    lines = events.splitlines()
    if len(lines) == 3:
        for name, line in zip(("one", "copy", "other"), lines, strict=True):
            Path(f"{name}.json").write_text(line)
    else:
        Path("event.json").write_text(events)
    for block in section.blocks("console"):
        for command, shown in transcript(block):
            program, *arguments = shlex.split(command)
            if program == "echo":
                text, _, file = arguments
                Path(file).write_text(text)
                continue
            with pytest.raises(SystemExit) as ended:
                main(arguments)
            printed = capsys.readouterr().out
            assert not ended.value.code, printed
            if shown:
                assert printed == shown


def test_filter_drops_copies_whatever_shadow_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = next(table for table in PLAYED if "shadow = true" in table.above["toml"])
    (rule,) = parse_rule_file(table.above["toml"], name="rules.md")
    new, copy = (arrival(row, rule).event for row in table.rows[:2])
    replayed = {**new, "replay-name": "friday"}
    Path("capture.jsonl").write_text("\n".join(map(json.dumps, (new, copy, replayed))))
    for policy, passed in (("missing", 1), ("report", 1), ("force", 2)):
        Path("eventonce.toml").write_text(f'{table.above["toml"]}on_replay = "{policy}"\n')
        with pytest.raises(SystemExit):
            main(["filter", "capture.jsonl", "--json"])
        assert len(capfdbinary.readouterr().out.splitlines()) == passed, policy


def test_an_override_reaches_a_preset_named_last_but_no_event_without_a_rule() -> None:
    event = {"id": "1", "source": "com.example.timeline", "detail-type": "ticket", "detail": {}}

    def statuses(*names: str) -> list[str]:
        rules = presets.overridden(names, shadow=True)
        with Consumer("memory:", rules=rules, handler=lambda _: None) as consumer:
            return [consumer.process([event])[0].status for _ in range(2)]

    assert statuses("genesys") == ["done", "duplicate"]
    assert statuses("genesys", "eventbridge") == ["done", "unguarded"]


def test_the_python_shown_runs_and_no_link_is_broken() -> None:
    scope: dict[str, Any] = {}
    for block in PAGE["In Python"].blocks("python"):
        exec(block, scope)
    assert scope["consumer"].rules.rules[0] == scope["order"]
    assert broken_links(DOCS / "rules.md") == []
