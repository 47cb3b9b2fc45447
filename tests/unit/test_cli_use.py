"""The command line of a new user: wrong names, missing files, unanswered questions."""

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest

from eventonce import Consumer, Job, Rule
from eventonce.cli import started_as
from eventonce.cli.output import progress, table
from eventonce.cli.serve import _say
from eventonce.runtime import background_task
from eventonce.sending import Outgoing, RefusedCopy, Summary, published, send_all
from tests.helpers import PATIENCE, Run, reject
from tests.unit.made import classic

RULE = '[[rule]]\nname = "call"\nkey = ["body.call"]\n'
STORE = "sqlite:///s.db"


def event(call: int, id: str = "1") -> dict[str, Any]:
    return classic({"eventBody": {"call": call}}, id=id)


def settle(name: str, call: int, handler: Callable[[Job], object]) -> None:
    rule = Rule(name="call", key=["body.call"])
    with Consumer(STORE, name=name, rules=rule, handler=handler) as consumer:
        consumer.process([event(call)])


# The receiver's first line


@pytest.mark.parametrize(
    ("ways", "named"), [([], "none"), (["api key", "github"], "api key or github")]
)
def test_serve_says_how_senders_authenticate(
    ways: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with click.Context(click.Command("serve")):
        _say(("127.0.0.1", 8080), ways)
    expected = f"listening on http://127.0.0.1:8080/events; authentication: {named}\n"
    assert capsys.readouterr().out == expected


# Names


def test_show_finds_an_event_under_another_name_and_prints_that_name(run: Run) -> None:
    Path("eventonce.toml").write_text(f'store = "{STORE}"\nname = "mine"\n{RULE}')
    Path("event.json").write_text(json.dumps(event(1)))
    settle("default", 1, print)
    found = run("show", "event.json")
    assert ": done under the name 'default'" in found.out
    assert "found under the name 'default', not under the name 'mine'" in found.err
    settle("crm", 2, reject)
    Path("event.json").write_text(json.dumps(event(2)))
    shown = json.loads(run("show", "event.json", "--name", "typo", "--json").out)
    assert (shown["name"], shown["is"]) == ("crm", "given up")
    settle("mine", 3, lambda _: None)
    Path("event.json").write_text(json.dumps(event(3)))
    shown = json.loads(run("show", "event.json", "--name", "typo", "--json").out)
    assert (shown["name"], shown["is"]) == ("mine", "done")


def test_show_finds_an_event_under_a_name_that_only_the_store_has(run: Run) -> None:
    settle("crm-x", 1, lambda _: None)
    Path("eventonce.toml").write_text(RULE)
    Path("event.json").write_text(json.dumps(event(1)))
    found = run("show", "event.json", "--store", STORE)
    assert ": done under the name 'crm-x'" in found.out


def test_show_reports_the_names_that_it_tried_if_no_event_is_found(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_task, "LONGEST_NAME", 5)
    settle("hidden", 1, print)
    settle("crm", 2, reject)
    for number in range(3, 13):
        settle(f"n{number}", number, lambda _: None)
    Path("eventonce.toml").write_text(RULE)
    Path("event.json").write_text(json.dumps(event(1)))
    missed = run("show", "event.json", "--name", "typo", "--store", STORE)
    assert missed.code == 1
    assert "under the names 'typo', 'default', 'crm', 'n10', " in missed.err
    assert "'n6' and 3 more; if its consumer has another name, give it: --name" in missed.err
    assert run("show", "event.json", "--name", "hidden", "--store", STORE).code == 0


def test_an_argument_that_is_neither_a_file_nor_a_key_is_refused_before_the_store_is_opened(
    run: Run,
) -> None:
    wrong = run("show", "evnt.json")
    assert (wrong.code, "neither a file nor a key" in wrong.err) == (2, True)


# Letters


@pytest.mark.parametrize(
    "command",
    [("list",), ("show",), ("export",), ("drop", "--yes"), ("redrive", "--handler", "-")],
)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_id_that_no_dead_letter_has_is_reported_by_every_command(
    run: Run, command: tuple[str, ...], options: tuple[str, ...]
) -> None:
    settle("default", 1, reject)
    known = json.loads(run("letters", "list", "--store", STORE, "--json").out)["id"]
    missed = run("letters", *command, "abc", known, "--store", STORE, *options)
    assert missed.code == 1
    assert "no dead letter has an id that begins with 'abc'" in missed.err
    for text in missed.err.splitlines() if options else ():
        json.loads(text)


def test_a_count_of_one_is_followed_by_the_singular(run: Run) -> None:
    Path("eventonce.toml").write_text(RULE)
    settle("default", 1, reject)
    assert "1 dead letter would" in run("letters", "redrive", "--dry-run", "--store", STORE).out
    assert "exported 1 dead letter\n" in run("letters", "export", "--store", STORE).err
    assert run("letters", "drop", "--yes", "--store", STORE).out == "dropped 1 dead letter\n"
    Path("capture").write_text(json.dumps(event(1)))
    assert "1 event, 1 new" in run("filter", "capture").err
    Path("rules.toml").write_text("presets = []\n" + RULE)
    assert run("check", "rules.toml").out == "rules.toml: no faults, 1 rule\n"


def test_forget_reports_keys_without_a_record(run: Run) -> None:
    settle("default", 1, lambda _: None)
    key = ("forget", "00ff", "--store", STORE, "--yes")
    told = run(*key)
    assert (told.code, told.out) == (1, "forgot 0 of 1 record\n")
    assert told.err.startswith("eventonce: the store had no record of 1 key; ")
    as_json = run(*key, "--json")
    assert as_json.documents == [{"forgotten": 0}]
    assert [*json.loads(as_json.err)] == ["error"]


# Questions


@pytest.mark.parametrize("command", [("forget", "00ff"), ("letters", "drop")])
@pytest.mark.parametrize("answer", ["", "n\n", "y\n"])
def test_a_question_without_an_answer_names_the_missing_option(
    run: Run, command: tuple[str, ...], answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle("default", 1, reject)
    monkeypatch.setenv("EVENTONCE_YES", "1")
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    asked = run(*command, "--store", STORE)
    assert "[y/N]" in asked.err
    assert "interrupted" not in asked.err
    assert ("--yes" in asked.err) == (not answer)
    kept = len(run("letters", "list", "--store", STORE, "--json").out.splitlines())
    assert kept == (0 if answer == "y\n" and command[0] == "letters" else 1)


# Reading commands


@pytest.mark.parametrize(
    "command",
    [("stats",), ("show", "00ff"), ("letters", "list"), ("letters", "redrive", "--dry-run")],
)
def test_a_reading_command_creates_no_file_and_no_tables_in_another_database(
    run: Run, command: tuple[str, ...]
) -> None:
    missing = run(*command, "--store", "sqlite:///typo.db")
    assert (missing.code, "--store" in missing.err) == (2, True)
    assert not Path("typo.db").exists()
    with closing(sqlite3.connect("other.db")) as other:
        other.execute("CREATE TABLE theirs (a)")
    before = Path("other.db").read_bytes()
    foreign = run(*command, "--store", "sqlite:///other.db")
    assert (foreign.code, "no tables of eventonce" in foreign.err) == (2, True)
    assert Path("other.db").read_bytes() == before
    assert [path.name for path in Path().iterdir()] == ["other.db"]


# Options and file


def test_an_option_replaces_the_field_of_the_file_that_has_its_name(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("eventonce.toml").write_text('presets = ["stripe"]\n' + RULE)
    Path("other.toml").write_text(RULE.replace('"call"', '"other"'))
    Path("narrow.toml").write_text(RULE.replace("key", 'match = "other"\nkey'))
    Path("event.json").write_text(json.dumps(event(1)))

    def rule(*options: str) -> str:
        found: str = json.loads(run("explain", "event.json", "--json", *options).out)["rule"]
        return found

    assert rule() == rule("--presets", "eventbridge") == "call"
    assert rule("--rules", "other.toml") == "other"
    assert rule("--rules", "narrow.toml", "--rules", "other.toml") == "other"
    assert rule("--rules", "narrow.toml") == "transport-id"
    assert rule("--rules", "narrow.toml", "--presets", "eventbridge") == "eventbridge"
    monkeypatch.setenv("EVENTONCE_PRESETS", "stripe eventbridge")
    assert rule() == "call"
    assert rule("--rules", "narrow.toml") == "eventbridge"


def test_a_preset_and_a_file_of_rules_are_not_taken_for_each_other(run: Run) -> None:
    Path("event.json").write_text(json.dumps(event(1)))
    preset = run("explain", "event.json", "--rules", "genesys")
    assert (preset.code, 'write presets = ["genesys"]' in preset.err) == (2, True)
    file = run("explain", "event.json", "--presets", "a.toml")
    assert (file.code, 'write rules = ["a.toml"]' in file.err) == (2, True)
    unknown = run("explain", "event.json", "--presets", "genesis")
    assert unknown.err.startswith("eventonce: presets: no preset is called 'genesis'")


# For machines


WRONG = [
    ("stats", "--store", "sqlite:///none.db"),
    ("show", "nothing"),
    ("explain", "nothing"),
    ("filter", "nothing"),
    ("check", "nothing"),
    ("run", "--from", "nothing"),
    ("run",),
    ("serve", "--port", "many"),
    ("store", "check", "nosuch://x"),
    ("send", "nothing", "--url", "http://127.0.0.1:1"),
    ("infra", "sam"),
    ("infra", "apply", "--pattern", "{"),
    ("letters", "list", "--since", "yesterday"),
    ("sweep", "--store", "oracle://x"),
    ("forget", "nothing"),
    ("init", "nowhere/x.toml"),
    ("nosuch",),
]


@pytest.mark.parametrize("args", WRONG, ids=" ".join)
def test_errors_are_printed_as_json_with_the_option_json(run: Run, args: tuple[str, ...]) -> None:
    plain, wrong = run(*args), run(*args, "--json")
    assert wrong.code == plain.code == 2
    assert "Traceback" not in plain.err
    for text in (*wrong.out.splitlines(), *wrong.err.splitlines()):
        said = json.loads(text)
    assert set(said) <= {"error", "faults"}


# Printed commands work as they are typed


@pytest.mark.parametrize("start", [("eventonce",), (sys.executable, "-m", "eventonce")])
def test_the_commands_that_the_demo_prints_work_as_they_are_typed(
    tmp_path: Path, start: tuple[str, ...]
) -> None:
    folder = Path(sys.executable).parent
    command = [str(folder / start[0]), *start[1:]] if len(start) == 1 else list(start)
    demo = subprocess.run(
        [*command, "demo"], capture_output=True, text=True, cwd=tmp_path, check=True, env={}
    )
    rows = demo.stdout.partition("\nNext, with")[2].splitlines()[2:-2]
    typed = [row.strip().partition("  ")[0] for row in rows]
    assert len(typed) == 4
    for line in typed:
        subprocess.run(
            line,
            shell=True,
            cwd=tmp_path,
            check=True,
            capture_output=True,
            timeout=PATIENCE,
            env={"PATH": "/usr/bin:/bin"},
        )
    assert (tmp_path / "eventonce.toml").exists()
    assert (tmp_path / "new.jsonl").read_bytes().count(b"\n") == 765


@pytest.mark.parametrize(
    ("typed", "path", "shown"),
    [
        (".venv/bin/eventonce", "", ".venv/bin/eventonce"),
        ("bin/eventonce", "bin", "eventonce"),
        ("/somewhere/pytest", "", "eventonce"),
        ("lib/eventonce/__main__.py", "", f"{sys.executable} -m eventonce"),
    ],
)
def test_a_command_is_printed_in_the_form_in_which_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, path: str, shown: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("bin", ".venv/bin"):
        Path(folder).mkdir(parents=True)
        Path(folder, "eventonce").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / path) if path else "/nowhere")
    monkeypatch.setattr(sys, "argv", [typed])
    assert started_as() == shown


# Templates


@pytest.mark.parametrize("command", ["sam", "terraform"])
def test_a_template_for_a_function_refuses_an_embedded_store_and_prints_no_password(
    run: Run, command: str
) -> None:
    told = ("infra", command, "--name", "crm", "--source", "com.example", "--store")
    for embedded in ("sqlite:///eventonce.db", "memory:"):
        refused = run(*told, embedded)
        assert (refused.code, refused.out) == (2, "")
        for word in ("--store dynamodb://crm", "--role worker"):
            assert word in refused.err
        assert run(*told, embedded, "--role", "worker").code == 0
    # A URI that may hold a password is a parameter of the template's deployment.
    asked = "StoreUri" if command == "sam" else "store_uri"
    for printed in ((), ("--json",)):
        secret = run(*told, "rediss://me:hunter2@cache:6379/0", *printed).out
        assert "hunter2" not in secret
        assert (asked in secret) == (not printed)
        assert '"dynamodb://crm"' in run(*told, "dynamodb://crm", *printed).out


# PutEvents


ENTRY = {
    "Source": "com.example.shop",
    "DetailType": "order.placed",
    "Detail": '{"order": 7}',
    "Resources": ["arn:a"],
    "EventBusName": "calls",
}


@pytest.mark.parametrize(
    "said", [ENTRY, {"Entries": [ENTRY]}, {**ENTRY, "Detail": {"order": 7}}], ids=str
)
def test_an_entry_of_putevents_is_published_as_the_event_that_eventbridge_makes(
    said: dict[str, Any],
) -> None:
    raw = json.dumps(said).encode()
    (made,) = published(raw, "2026-11-15T09:00:00Z")
    assert published(raw, "2026-11-15T09:00:00Z") == [made]
    sent = json.loads(made)
    assert sent.pop("id")
    assert sent == {
        "version": "0",
        "source": "com.example.shop",
        "detail-type": "order.placed",
        "time": "2026-11-15T09:00:00Z",
        "resources": ["arn:a"],
        "detail": {"order": 7},
    }


def test_every_copy_of_an_entry_is_sent_as_the_same_event(tmp_path: Path) -> None:
    (tmp_path / "entries.json").write_text(json.dumps([ENTRY, {**ENTRY, "Detail": "{}"}]))
    sent: list[bytes] = []

    def send(going: Sequence[Outgoing], _: Counter[str]) -> list[RefusedCopy]:
        sent.extend(one.raw for one in going)
        return []

    send_all(send, tmp_path / "entries.json", Summary(), copies=2, every=0, fresh=False)
    first, second, *again = sent
    assert again == [first, second]
    assert json.loads(first)["id"] != json.loads(second)["id"]
    assert json.loads(first)["detail-type"] == "order.placed"


@pytest.mark.parametrize(
    "raw",
    [
        b'{"id": "1", "detail-type": "t", "source": "s", "detail": {"Source": "x"}}',
        b'{"Source": "s", "DetailType": "t", "Detail": "not JSON"}',
        b'{"Source": "s"}',
        b"{",
    ],
)
def test_input_that_is_no_entry_of_putevents_is_sent_unchanged(raw: bytes) -> None:
    assert published(raw, "") == [raw]


def test_an_entry_with_bytes_that_are_no_text_is_published_like_any_other() -> None:
    raw = b'{"Source": "s", "DetailType": "t", "Detail": "{}", "TraceHeader": "\xff"}'
    (made,) = published(raw, "2026-11-15T09:00:00Z")
    assert json.loads(made)["detail-type"] == "t"


# Tables


def test_numbers_of_a_table_are_aligned_to_the_right_and_words_to_the_left() -> None:
    shown = table([("a", 1, "one"), ("bc", 12_345, "many")], head=("name", "events", "how"))
    assert click.unstyle(shown).splitlines() == [
        "name  events  how",
        "a          1  one",
        "bc    12,345  many",
    ]


@pytest.mark.parametrize("wrap", [False, True])
def test_on_a_terminal_the_last_column_of_a_table_is_cut_or_wrapped(
    wrap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "30")
    long = "as many words as no narrow terminal has room for"
    lines = table([(7, long)], indent=2, wrap=wrap).splitlines()
    assert max(map(len, lines)) <= 30
    if wrap:
        assert " ".join(" ".join(lines).split()) == f"7 {long}"
        assert {line[:5] for line in lines[1:]} == {"     "}
    else:
        assert lines == ["  7  as many words as no narr…"]


# The start

LOADED = """
import atexit, sys
from eventonce.cli import main

slow = ("asyncio", "boto3", "http.client", "ssl", "eventonce.stores.dynamodb")
atexit.register(lambda: print([name for name in slow if name in sys.modules]))
main()
"""


def test_a_command_on_a_file_loads_no_network_code(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOADED, "filter", "--store", f"sqlite:///{tmp_path}/a.db"]
    result = subprocess.run(
        command, input="", capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert result.stdout == "[]\n"


# Standard streams


@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize(
    "command",
    [
        ("simulate", "--events", "20", "--output", "c.jsonl"),
        ("diagnose", "capture"),
        ("backtest", "capture"),
        ("reconcile", "capture", "capture"),
        ("explain", "event.json"),
        ("show", "event.json"),
        ("stats",),
    ],
)
def test_a_command_works_although_its_caller_closed_standard_output(
    command: Sequence[str], form: Sequence[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("eventonce.toml").write_text(f'store = "{STORE}"\nname = "mine"\n{RULE}')
    settle("mine", 1, lambda _: None)
    for name in ("event.json", "capture"):
        Path(name).write_text(json.dumps(event(1)))
    monkeypatch.setattr(sys, "stdout", None)
    assert run(*command, *form).code == 0


def test_a_sweep_works_although_its_caller_closed_standard_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle("default", 1, lambda _: None)
    monkeypatch.setattr(sys, "stderr", None)
    assert run("sweep", "--store", STORE).out == "deleted 0 of 1 record\n"


@pytest.mark.parametrize(
    "command",
    [
        ("explain", "-"),
        ("filter",),
        ("show", "-", "--store", STORE),
        ("forget", "-", "--store", STORE),
        ("send", "-", "--url", "http://127.0.0.1:1/events"),
    ],
)
def test_a_command_that_reads_a_closed_standard_input_is_refused(
    command: Sequence[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle("default", 1, lambda _: None)
    monkeypatch.setattr(sys, "stdin", None)
    told = run(*command)
    assert (told.code, "standard input is closed" in told.err) == (2, True)


def test_a_question_on_a_closed_standard_input_names_the_missing_option(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle("default", 1, lambda _: None)
    monkeypatch.setattr(sys, "stdin", None)
    told = run("forget", "00ff", "--store", STORE)
    assert (told.code, "--yes confirms" in told.err) == (2, True)


def test_a_question_that_nobody_can_read_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle("default", 1, lambda _: None)
    monkeypatch.setattr(sys, "stderr", None)
    assert run("forget", "00ff", "--store", STORE).code == 2


def test_an_export_is_refused_if_standard_output_is_closed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle("default", 1, reject)
    monkeypatch.setattr(sys, "stdout", None)
    told = run("letters", "export", "--store", STORE)
    assert (told.code, "standard output is closed" in told.err) == (2, True)
    assert run("letters", "export", "--store", STORE, "-o", "letters.jsonl").code == 0
    assert Path("letters.jsonl").read_text().count("\n") == 1


def test_an_export_to_a_folder_that_does_not_exist_is_refused_before_it_begins(run: Run) -> None:
    settle("default", 1, reject)
    Path("eventonce.toml").write_text(f'store = "{STORE}"\naudit = "audit.jsonl"\n')
    told = run("letters", "export", "-o", "nowhere/letters.jsonl")
    assert (told.code, "the folder of 'nowhere" in told.err) == (2, True)
    assert not Path("audit.jsonl").exists()


def test_a_progress_bar_is_not_full_before_the_end_of_a_pipe_whose_size_is_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("filter") as shown:
        shown(0, 0)
        assert "100%" not in terminal.getvalue()
        shown(5, 3)
        assert "100%" in terminal.getvalue()


def test_the_progress_bar_of_a_sweep_is_full_at_its_end_even_if_the_store_is_empty(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("store", "create", STORE).code == 0
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert run("sweep", "--store", STORE).code == 0
    assert "100%" in terminal.getvalue()
