"""Selections and groups of dead letters."""

from __future__ import annotations

import shlex
import subprocess
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventonce.letters import groups
from eventonce.letters.groups import grouped
from eventonce.letters.reasons import LONGEST_REASON, group_of, normalised
from eventonce.letters.selection import Selection, quoted
from eventonce.stores.sqlite import SQLiteStore
from eventonce.types import Letter, Status
from tests.helpers import PATIENCE, Run, call

AT = 1_700_000_000_123


def letter(
    number: int,
    reason: str = "no customer",
    *,
    rule: str = "call",
    status: Status = "dead",
    consumer: str = "crm",
    type: str = "call",
    conversation: str = "c-1",
) -> Letter:
    event = call(number, type=type, conversationId=conversation)
    return Letter(f"{number:04}-id", consumer, status, reason, rule, b"k", event, AT + number)


LETTERS = [
    letter(1),
    letter(2, rule="agent"),
    letter(3, status="conflict"),
    letter(4, type="order"),
    letter(5, conversation="-dash of 'quotes'"),
    letter(6, "no answer for 17"),
    letter(7, "no answer for 18"),
    letter(8, consumer="billing"),
    Letter("0009-id", "crm", "invalid", "not JSON", "", b"", b"no event", AT + 9),
]


@pytest.mark.parametrize(
    ("selection", "numbers"),
    [
        (Selection(), [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (Selection(ids=("0001", "0003-id")), [1, 3]),
        (Selection(consumer="billing"), [8]),
        (Selection(status="conflict"), [3]),
        (Selection(rule="agent"), [2]),
        (Selection(type="order"), [4]),
        (Selection(reason="answer"), [6, 7]),
        (Selection(group=group_of("no answer for 99")), [6, 7]),
        (Selection(conversation="-dash of 'quotes'"), [5]),
        (Selection(since=AT + 7), [7, 8, 9]),
        (Selection(until=AT + 3), [1, 2]),
        (Selection(since=AT + 2, until=AT + 5, rule="call"), [3, 4]),
        (Selection(until=0), []),
        (Selection(consumer="crm", reason="answer for 17"), [6]),
    ],
    ids=str,
)
def test_a_selection_and_its_command_line_select_the_same(
    run: Run, selection: Selection, numbers: list[int]
) -> None:
    assert [int(one.id[:4]) for one in LETTERS if selection.matches(one)] == numbers
    store = SQLiteStore("store.db")
    store.put_letters(LETTERS)
    store.close()
    Path("eventonce.toml").write_text('store = "sqlite:///store.db"\nname = "billing"\n')
    listed = run("letters", "list", "--json", *shlex.split(selection.text()))
    assert [int(one["id"][:4]) for one in listed.documents] == numbers


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_bash_reads_a_quoted_word_unchanged(locale: str) -> None:
    words = ["\u202egnp.exe", "a\nb\tc", "\x1b[31m'\\n", "\u00a0", "\u200b7", "é\u2028\x7f", "$x !"]
    shown = " ".join(map(quoted, words))
    assert shown.isprintable()
    said = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {shown}"],
        env={"LC_ALL": locale},
        check=True,
        capture_output=True,
        timeout=PATIENCE,
    )
    assert said.stdout.decode().split("\0")[:-1] == words
    assert quoted("a\0b") == "$'a\ufffdb'", "no word can have NUL"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("given up after 5 attempts: Retry: a", "given up after … attempts: Retry: a"),
        (
            "https://crm.example.com/calls/17?x=1 answered 503 Service Unavailable: try 9",
            "https://crm.example.com/… answered 503 Service Unavailable: try …",
        ),
        ("https://crm.example.com answered 404 Not Found", None),
        ("KeyError: 'Anna Smith'", "KeyError: …"),
        ('no customer "Anna" today', "no customer … today"),
        ("it isn't there, and won't be", None),
        ("call 6b8b4567-327b-23c6-643c-98696633 4873", "call …"),
        ("call deadbeef-dead-beef-dead-beefdeadbeef is gone", "call … is gone"),
        ("mail anna@example.com", "mail …"),
        ("ring +49 89 1234-5678 again", "ring … again"),
        ("at 2026-11-16T08:00:00.123Z", "at …"),
        ("one of [1, 2, 3] is none", "one of […] is none"),
        ("two\nlines   of it", "two lines of it"),
        ("", None),
    ],
)
def test_a_reason_is_normalised_without_its_variable_parts(
    reason: str, expected: str | None
) -> None:
    assert normalised(reason) == (reason if expected is None else expected)


@given(st.text(max_size=400))
def test_any_reason_belongs_to_a_group(reason: str) -> None:
    assert len(group_of(reason)) == 8
    assert len(normalised(reason)) <= LONGEST_REASON + 1


def test_the_id_of_a_group_depends_on_the_secret(
    run: Run,
) -> None:
    store = SQLiteStore("store.db")
    store.put_letters(LETTERS)
    store.close()
    said = 'name = "crm"\nstore = "sqlite:///store.db"\n'
    ids = []
    for number, secrets in enumerate(("[]", '["the first secret"]', '["the second secret"]')):
        path = Path(f"{number}.toml")
        path.write_text(f"{said}secrets = {secrets}\n")
        found = run("letters", "groups", "-c", path, "--json").documents
        (group,) = [it["id"] for it in found if it["reason"] == "no answer for …"]
        listed = run("letters", "list", "-c", path, "--group", group, "--json").documents
        assert [it["reason"][:9] for it in listed] == ["no answer"] * 2
        ids.append(group)
    assert ids[0] == group_of("no answer for 99")
    assert len(set(ids)) == 3


def test_groups_are_counted_with_their_types_and_rules() -> None:
    first, *others = grouped(LETTERS, group_of)
    assert (first.reason, first.count, first.example) == ("no customer", 6, "0008-id")
    assert (first.first, first.last) == (AT + 1, AT + 8)
    assert first.types == {"call": 5, "order": 1}
    assert first.rules == {"call": 5, "agent": 1}
    assert [(one.reason, one.count) for one in others] == [("no answer for …", 2), ("not JSON", 1)]


def test_groups_beyond_the_limit_are_counted_in_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MOST_GROUPS", 3)
    monkeypatch.setattr(groups, "MOST_NAMES", 2)
    some = [letter(one, "x" * one, type="t" * one) for one in range(1, 9)]
    found = grouped(some, group_of)
    assert [(one.id == "", one.count) for one in found] == [
        (True, 5),
        (False, 1),
        (False, 1),
        (False, 1),
    ]
    assert len(found[0].types) == 2


def test_groups_on_the_command_line_lead_to_their_dead_letters(run: Run) -> None:
    store = SQLiteStore("store.db")
    store.put_letters(LETTERS)
    store.close()
    letters = partial(run, "letters")
    options = ("--store", "sqlite:///store.db")
    found = letters("groups", "--json", *options).documents
    assert [one["count"] for one in found] == [6, 2, 1]
    listed = letters("list", "--group", found[1]["id"], "--json", *options).documents
    assert [one["id"] for one in listed] == ["0006-id", "0007-id"]
    text = letters("groups", *options).out
    assert "no answer for …" in text
    assert found[0]["id"] in text
    rare = ("--rule", "nobody", "--type", "call.*")
    told = letters("groups", *rare, *options)
    assert told.out == "no dead letters with --rule=nobody '--type=call.*'\n"
    assert letters("groups", "nobody", *options).code == 1
    for command in (["list"], ["groups"], ["redrive", "--handler", "builtins:print"]):
        told = letters(*command, "--group", "9999", *options)
        assert "no dead letters of this group; the id of a group" in told.out + told.err


@pytest.mark.parametrize(
    "given",
    [[""], ["--reason", ""], ["--rule", ""], ["--type", ""], ["--group", ""], ["--conversation="]],
    ids=str,
)
def test_an_empty_value_in_a_selection_is_refused(run: Run, given: list[str]) -> None:
    store = SQLiteStore("store.db")
    store.put_letters(LETTERS)
    refused = run("letters", "drop", "--yes", "--store", "sqlite:///store.db", *given)
    assert (refused.code, "the value is empty" in refused.err) == (2, True)
    assert len(list(store.letters())) == len(LETTERS)
    store.close()
