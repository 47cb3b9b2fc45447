"""The findings of `eventonce check`: settings that cannot work, and keys that are not expected."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from eventonce import presets
from eventonce.sinks import Sink, check_sink
from eventonce.stores import ADAPTERS, check_uri
from tests.helpers import Result, Run


@pytest.fixture
def check(run: Run) -> Run:
    """Checks a file with this text."""

    def check(text: str, *more: str) -> Result:
        Path("my.toml").write_text(text)
        return run("check", "my.toml", *more)

    return check


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('store = "sqlit:///x"', "1: store: 'sqlit:///x': no store is called 'sqlit:'"),
        (
            'store = "postgresql:/x"\nname = "n"',
            "1: store: 'postgresql:/x': must begin with postgresql://",
        ),
        ('store = "sqlite:x.db"', "1: store: 'sqlite:x.db': write sqlite:///x.db"),
        ('store = "sqlite://x.db"', "1: store: sqlite://x.db: the path of a file is missing"),
        ('store = "memory:x"', "1: store: 'memory:x': memory: takes no path"),
        (
            'store = "redis://h/x"\nname = "n"',
            "1: store: redis://h…: the database must be a number",
        ),
        (
            'store = "dynamodb://t?colour=1"\nname = "n"',
            "1: store: dynamodb://t…: no option 'colour'",
        ),
        ('store = "dynamodb://"\nname = "n"', "1: store: '' cannot be a DynamoDB table"),
        ('store = "redis://h"', "1: name: a shared store needs a name"),
        ('name = "n"\npresets = ["genesis"]', "2: presets: no preset is called 'genesis'"),
        ('rules = ["auto"]', """1: rules: 'auto' is not a .toml file; write presets = ["auto"]"""),
        (
            'rules = ["calls.jsonl"]',
            "1: rules: 'calls.jsonl' is not a .toml file; rules are [[rule]] tables in a file such",
        ),
        ('rules = "genesys"', '1: rules: expected a list; write presets = ["genesys"]'),
        ('presets = ["a.toml"]', """1: presets: 'a.toml' is a file; write rules = ["a.toml"]"""),
        ('presets = "genesys"', '1: presets: expected a list; write presets = ["genesys"]'),
        ("presets = 7", "1: presets: expected a list, not a whole number"),
        ('rules = ["missing.toml"]', "1: rules: missing.toml cannot be read"),
        ('[[sink]]\nto = "nosuch_module:f"', "2: sink.to: sink 'nosuch_module:f' for '*'"),
        ('[[sink]]\nto = "json:not a name"', "2: sink.to: "),
        ('[[sink]]\nto = "nosuch://x"', "2: sink.to: sink 'nosuch://x' for '*': no sink is called"),
        ('[[sink]]\nto = "http://h"\n[[sink]]\nto = "table:a b"', "4: sink.to: sink 'table:a b'"),
        (
            '[[sink]]\nto = "json:loads"\ngroup = "x"',
            "2: sink.to: sink 'json:loads' for '*': a fun",
        ),
        (
            'store = "memory:"\n[[sink]]\nto = "table:t"',
            "3: sink.to: sink 'table:t' for '*': a table",
        ),
        ('letters = "store"', "1: letters: queue: 'store' is not the URI of a queue"),
        (
            'letters = "sqs://x"\n[worker]\nqueue = "sqs://x"',
            "1: letters: dead letters must",
        ),
        (
            'letters = "sqs://x"\n[worker]\nqueue = "sqs://x?region=eu-west-1"',
            "1: letters: dead letters must",
        ),
        (
            '[worker]\nqueue = "calls"',
            "2: worker.queue: 'calls' is not the URI of a queue; write sqs://NAME",
        ),
        ('[worker]\nvisibility = "3 days"', "2: worker.visibility: expected a duration such as"),
        ('[worker]\nvisibility = "2d"', "2: worker.visibility: expected 2 s to 12 h"),
        ('[worker]\nwait = "long"', "2: worker.wait: expected a duration such as"),
        ("[worker]\nconcurrency = 0", "2: worker.concurrency: expected 1 to 1000, not 0"),
        ('[serve]\nbody_timeout = "0s"', "2: serve.body_timeout: must be greater than 0"),
        ("[worker]\nconcurrency = 5000", "2: worker.concurrency: expected 1 to 1000, not 5000"),
        ("[worker]\nreceivers = 101", "2: worker.receivers: expected 1 to 100, not 101"),
        ('[worker]\nhealth = "here"', "2: worker.health: expected HOST:PORT or a port"),
        ('[dashboard]\nlisten = "here"', "2: dashboard.listen: expected HOST:PORT or a port"),
        (
            '[dashboard]\nviewers = { ann = "short" }',
            "2: dashboard.viewers: the password of 'ann' needs",
        ),
        ('[serve]\nwebhook_secrets = ["hush"]', "2: serve.webhook_secrets: holds a text that"),
        ('[serve]\ngithub_secrets = ["hush"]', "2: serve.github_secrets: holds a secret of less"),
        (
            '[serve]\nsns_topics = ["calls"]',
            "2: serve.sns_topics: holds 'calls': it must be the ARN of",
        ),
        ('[serve]\nusers = { "a:b" = "c" }', "2: serve.users: holds 'a:b': a user name of Basic"),
        ('[serve]\napi_keys = [" "]', "2: serve.api_keys: holds an empty text"),
        (
            '[serve]\napi_key_header = "a b"',
            "2: serve.api_key_header: is 'a b', which is not a name",
        ),
        ("[serve]\nport = 65536", "2: serve.port: expected 0 to 65535, not 65536"),
        ("history = 5", "1: history: expected a table, not a whole number"),
    ],
)
def test_a_setting_that_can_never_work_is_reported_with_its_line(
    check: Run, text: str, complaint: str
) -> None:
    found = check(text)
    assert found.code == 2
    assert f"my.toml:{complaint}" in found.err
    assert len(found.err.splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    [
        'store = "redis://nowhere.invalid"\nname = "n"',
        'store = "postgresql://nowhere.invalid/x"\nname = "n"\n[[sink]]\nto = "table:t"',
        'store = "dynamodb://nowhere?region=eu-central-1"\nname = "n"',
        '[[sink]]\nto = "https://nowhere.invalid/x"\n[worker]\nqueue = "sqs://nowhere"\nwait = "5"',
        '[[sink]]\nmatch = "call.*"\nto = "events://bus"\n[[sink]]\nto = "sqs://queue"',
        '[[sink]]\nto = "json:nothing"',
        "[history]\nkeep = '7d'\n[dashboard]\nlisten = 8090",
    ],
)
def test_the_check_connects_to_no_server_and_creates_no_file(check: Run, text: str) -> None:
    assert check(text) == (0, f"my.toml: no faults, {RULES} rules\n", "")
    assert [path.name for path in Path().iterdir()] == ["my.toml"]


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("run", "[worker]\nconcurrency = 5000"),
        ("run", "[worker]\nreceivers = 0"),
        ("run", '[worker]\ndrain = "soon"'),
        ("run", '[worker]\nvisibility = "1s"'),
        ("serve", '[serve]\ndrain = "0s"'),
        ("serve", "[serve]\nmax_events = 0"),
        ("serve", "[serve]\nport = 70000"),
        ("serve", "[serve]\nmax_in_flight = 10"),
        ("serve", '[serve]\ngithub_secrets = ["hush"]'),
        ("serve", '[serve]\nusers = { "a:b" = "c" }'),
        *(
            (command, f"[dashboard]\n{wrong}")
            for command in ("run", "serve", "dashboard")
            for wrong in (
                "listen = '0.0.0.0:0'",
                "listen = '[::]:0'",
                "listen = '10.1.2.3:99999'",
                "listen = 0\nviewers = { ann = 'short' }",
                "listen = 0\nviewers = { ann = 'it is long' }\noperators = { ann = 'it is long' }",
            )
        ),
        ("infra sam", "[infra]\ntimeout = 1000"),
        ("infra sam", "[infra]\nbus = 'arn:aws:events:x'"),
        ("infra sam", "[infra]\nparameters = { Vpc = 'vpc-1' }"),
    ],
)
def test_check_and_the_command_refuse_a_setting_with_the_same_words(
    check: Run, run: Run, command: str, text: str
) -> None:
    said = f"store = 'memory:'\n[[sink]]\nto = 'json:loads'\n{text}\n"
    checked = check(said)
    refused = run(*command.split(), "--config", "my.toml")
    assert (checked.code, refused.code) == (2, 2)
    complaint = refused.err.removeprefix("eventonce: ")
    assert complaint.startswith(text[1:].partition("]")[0])
    assert complaint in checked.err


@pytest.mark.parametrize("field", ["tap", "shadow_log", "audit"])
@pytest.mark.parametrize("command", ["run", "serve", "dashboard"])
def test_a_file_in_a_missing_folder_is_refused_at_the_start_and_a_warning_of_the_check(
    check: Run, run: Run, command: str, field: str
) -> None:
    text = f"{field} = 'nowhere/lines.jsonl'\nstore = 'memory:'\n[[sink]]\nto = 'json:loads'\n"
    missing = f"{field}: there is no folder nowhere: create it first"
    checked = check(text)
    assert checked.code == 0
    assert checked.err.splitlines() == [
        f"eventonce: warning: my.toml: {missing}. Commands that use it would not start here"
    ]
    assert check(text, "--json").documents[0]["warnings"] == [
        f"{missing}. Commands that use it would not start here"
    ]
    if command == "dashboard" and field != "audit":
        return  # the dashboard writes no other file
    port = {"run": "--dashboard", "serve": "--dashboard", "dashboard": "--listen"}[command]
    refused = run(command, "--config", "my.toml", port, "0")
    assert refused == (2, "", f"eventonce: {missing}\n")
    assert not Path("nowhere").exists()


@pytest.mark.parametrize("field", ["tap", "shadow_log"])
@pytest.mark.parametrize("name", ["s.db", "tap.json.txt", ".jsonl", "shadow_log"])
@pytest.mark.parametrize("command", ["run", "serve"])
def test_a_file_name_that_no_capture_can_have_is_refused_by_the_check_and_the_command(
    check: Run, run: Run, command: str, field: str, name: str
) -> None:
    text = f"{field} = '{name}'\nstore = 'memory:'\n[[sink]]\nto = 'json:loads'\n"
    said = "the name of a capture ends with .jsonl, .jsonl.gz or .jsonl.zst"
    fault = f"{field}: {said}" if field == name else f"{field}: {name}: {said}"
    assert check(text) == (2, "", f"eventonce: my.toml:1: {fault}\n")
    assert run(command, "--config", "my.toml") == (2, "", f"eventonce: {fault}\n")
    assert not Path(name).exists()


@pytest.mark.parametrize("command", ["run", "serve", "dashboard", "letters drop", "sweep"])
@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("audit = 's.db'\nstore = 'sqlite:///s.db'\n", ("1: audit", "2: store")),
        ("audit = 'eventonce.db'\n", ("1: audit", "1: store")),
        ("audit = './s.db-wal'\nstore = 'sqlite:///./s.db'\n", ("1: audit", "2: store")),
        ("audit = 'link'\nstore = 'sqlite:///s.db'\n", ("1: audit", "2: store")),
        ("tap = 'x.jsonl'\naudit = './x.jsonl'\n", ("1: tap", "2: audit")),
        ("tap = 'x.jsonl'\nshadow_log = 'x.jsonl'\n", ("1: tap", "2: shadow_log")),
        (
            "audit = 'h.db'\n[history]\nstore = 'sqlite:///h.db'\n",
            ("1: audit", "3: history.store"),
        ),
        (
            "shadow_log = 'x.jsonl'\n[[sink]]\nto = 'file:x.jsonl'\n",
            ("1: shadow_log", "3: sink.to"),
        ),
        (
            "[[sink]]\nto = 'file:h.db'\n[history]\nstore = 'sqlite:///h.db'\n",
            ("2: sink.to", "4: history.store"),
        ),
    ],
)
def test_two_settings_that_name_one_file_are_refused_and_nothing_is_written(
    check: Run, run: Run, command: str, text: str, places: tuple[str, str]
) -> None:
    Path("s.db").write_bytes(b"")
    Path("link").symlink_to("s.db")
    one, other = places
    names = [place.partition(": ")[2] for place in (one, other)]
    said = "names the same file as {}: give each a file of its own"
    checked = check(text)
    assert checked.code == 2
    assert sorted(checked.err.removeprefix("eventonce: ").splitlines()) == sorted(
        [f"my.toml:{one}: {said.format(names[1])}", f"my.toml:{other}: {said.format(names[0])}"]
    )
    refused = run(*command.split(), "--config", "my.toml")
    assert refused.code == 2
    assert sorted(refused.err.removeprefix("eventonce: ").splitlines()) == sorted(
        [f"{names[0]}: {said.format(names[1])}", f"{names[1]}: {said.format(names[0])}"]
    )
    assert {it.name for it in Path().iterdir()} == {"s.db", "link", "my.toml"}
    assert not Path("s.db").read_bytes()


def test_an_option_that_names_the_file_of_a_setting_is_refused(run: Run) -> None:
    Path("my.toml").write_text("audit = 's.db'\nstore = 'memory:'\n[[sink]]\nto = 'file:x.jsonl'\n")
    said = "names the same file as"
    assert f"audit: {said} store" in run("sweep", "-c", "my.toml", "-s", "sqlite:///s.db").err
    assert f"tap: {said} sink.to" in run("serve", "-c", "my.toml", "--tap", "x.jsonl").err


def test_sinks_may_share_a_file_and_so_may_store_and_history(check: Run) -> None:
    found = check(
        "store = 'sqlite:///s.db'\n[[sink]]\nmatch = 'call'\nto = 'file:x.jsonl'\n"
        "[[sink]]\nmatch = 'chat'\nto = 'file:x.jsonl'\n[history]\nstore = 'sqlite:///s.db'\n"
    )
    assert found.code == 0


def test_a_folder_for_audit_lines_is_needed_only_where_they_are_written(run: Run) -> None:
    Path("my.toml").write_text(
        "audit = 'nowhere/lines.jsonl'\nstore = 'memory:'\n[[sink]]\nto = 'file:out.jsonl'\n"
    )
    Path("one.json").write_text('{"id": "1", "detail-type": "call", "detail": {}}')
    began = run("run", "--config", "my.toml", "--from", "one.json", "--json")
    assert (began.code, Path("out.jsonl").exists()) == (0, True)


def test_a_folder_in_the_place_of_a_file_is_refused(check: Run, run: Run) -> None:
    text = "audit = '.'\nstore = 'memory:'\n[[sink]]\nto = 'json:loads'\n"
    assert "audit: . is a folder: name a file in it" in check(text).err
    refused = run("dashboard", "--config", "my.toml", "--listen", "0")
    assert refused == (2, "", "eventonce: audit: . is a folder: name a file in it\n")


def test_a_form_that_no_event_has_is_named_with_its_line(check: Run) -> None:
    found = check('[[rule]]\nname = "mine"\nkey = "id"\nmatch = { form = "acmee" }\n')
    said = "my.toml:4: match of 'mine': no event has the form 'acmee'; there are eventbridge, "
    assert found.code == 2
    assert said in found.err


def test_a_fault_that_depends_on_the_machine_is_a_warning(
    check: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = check(
        'store = "sqlite:///nowhere/x.db"\n[[sink]]\nto = "file:nowhere/x.jsonl"\n'
        '[serve]\nhost = "0.0.0.0"\n'
    )
    assert (found.code, found.out) == (0, f"my.toml: no faults, {RULES} rules\n")
    assert [line.split(": ")[3] for line in found.err.splitlines()] == [
        "store",
        "sink 'file:nowhere/x.jsonl' for '*'",
        "serve",
    ]
    assert [path.name for path in Path().iterdir()] == ["my.toml"]
    monkeypatch.setenv("EVENTONCE_API_KEYS", "a-key-of-some-length")
    assert check('[serve]\nhost = "0.0.0.0"\n').err == ""


def test_two_rules_of_one_name_are_a_warning(check: Run) -> None:
    mine = '[[rule]]\nname = "mine"\nkey = "id"\n'
    other = '[[rule]]\nname = "other"\nkey = "id"\n'
    Path("more.toml").write_text(mine)
    said = "warning: my.toml: rule mine: 2 rules have this name, and reports cannot tell them apart"
    for text in (mine + other + mine, 'rules = ["more.toml"]\n' + mine):
        told = check(text)
        assert told.code == 0
        assert said in told.err
        assert len(told.err.splitlines()) == 1
    assert check(mine + other).err == ""


def test_a_short_key_of_a_receiver_that_others_reach_is_a_warning(
    check: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = '[serve]\nhost = "{}"\napi_keys = ["a key that nobody guesses", "hunter2"]\n'
    told = check(table.format("0.0.0.0"))
    assert (told.code, len(told.err.splitlines())) == (0, 1)
    assert (
        "serve.api_keys: a key has less than 16 characters, and other machines reach " in told.err
    )
    assert "hunter2" not in told.err
    assert check(table.format("127.0.0.1")).err == ""
    monkeypatch.setenv("EVENTONCE_API_KEYS", "short")
    assert "serve.api_keys" in check('[serve]\nhost = "::"\n').err


def test_a_sink_after_a_sink_that_takes_every_event_is_a_warning(check: Run) -> None:
    first, other = (
        '[[sink]]\nto = "file:a.jsonl"\n',
        '[[sink]]\nmatch = "call.*"\nto = "file:b.jsonl"\n',
    )
    told = check('store = "memory:"\n' + first + other)
    assert "sink 1: it takes every event, so the sinks after it get none" in told.err
    assert "takes every event" not in check('store = "memory:"\n' + other + first).err


@pytest.mark.parametrize("text", ["keep = '7d'", "most = 5", "store = ''\nkeep = '7d'"])
def test_a_history_without_a_store_is_a_warning(check: Run, text: str) -> None:
    """No fault, because `--dashboard` keeps a history without a store."""
    found = check(f"[history]\n{text}")
    assert found.code == 0
    assert 'history: nothing is kept without a store or a dashboard; write store = "' in found.err
    assert "would not start" not in found.err, "they start, and keep nothing"


def test_a_password_that_a_service_holds_is_accepted_without_a_request(check: Run) -> None:
    ann = "{ ann = '${ssm:/ann}' }"
    listen = "[dashboard]\nlisten = '0.0.0.0:8090'\n"
    assert check(f"{listen}operators = {ann}\n").code == 0
    twice = check(f"{listen}operators = {ann}\nviewers = {ann}\n")
    assert "my.toml:1: dashboard: 'ann' is a viewer and an operator: choose one" in twice.err


@pytest.mark.parametrize(
    ("command", "table", "wrong"),
    [("run", "worker", ("wait", "drain")), ("serve", "serve", ("body_timeout", "drain"))],
)
def test_a_command_reports_all_faults_before_it_begins(
    check: Run, run: Run, command: str, table: str, wrong: tuple[str, str]
) -> None:
    fields = "".join(f'{name} = "soon"\n' for name in wrong)
    check(
        "store = 'memory:'\nkeep_letters = '0d'\nunhandled = 'drop'\n[[sink]]\nto = 'json:loads'\n"
        f"[history]\nkeep = 'soon'\n[privacy]\nsealing_keys = ['a', 'kms://']\n[{table}]\n{fields}"
    )
    refused = run(command, "--config", "my.toml", "--dashboard", "0")
    assert refused.code == 2
    said = refused.err.removeprefix("eventonce: ").splitlines()
    assert sorted(line.partition(": ")[0] for line in said) == sorted(
        [
            *("keep_letters", "unhandled", "history.keep"),
            *("privacy.sealing_keys[0]", "privacy.sealing_keys[1]"),
            *(f"{table}.{name}" for name in wrong),
        ]
    )


@pytest.mark.parametrize(
    "command",
    [
        *("sweep", "forget --conversation c --dry-run"),
        *(f"letters {verb}" for verb in ("list", "groups", "show", "export", "redrive", "drop")),
    ],
)
def test_a_command_for_kept_records_or_dead_letters_reports_all_faults_too(
    check: Run, run: Run, command: str
) -> None:
    check(
        "store = 'nowhere:'\nletters = 'sqs://'\nkeep_letters = '0d'\n"
        "[history]\nkeep = 'soon'\nstore = 'redis://r'\n[privacy]\nsealing_keys = ['a']\n"
    )
    refused = run(*command.split(), "--config", "my.toml")
    assert refused.code == 2
    said = refused.err.removeprefix("eventonce: ").splitlines()
    assert [line.partition(": ")[0] for line in said] == [
        *("store", "letters", "keep_letters"),
        *("privacy.sealing_keys[0]", "history.store", "history.keep"),
    ]


@pytest.mark.parametrize(
    ("command", "looked_at"),
    [
        ("stats", ()),
        ("show 00ff", ("history.store", "history.keep")),
        ("doctor", ("worker.wait",)),
    ],
)
def test_a_reading_command_reports_all_faults_too(
    check: Run, run: Run, command: str, looked_at: tuple[str, ...]
) -> None:
    check(
        "store = 'nowhere:'\nkeep_letters = '0d'\n[worker]\nwait = 'soon'\n"
        "[history]\nkeep = 'soon'\nstore = 'redis://r'\n[privacy]\nsealing_keys = ['a']\n"
    )
    refused = run(*command.split(), "--config", "my.toml")
    assert refused.code == 2
    said = refused.err.removeprefix("eventonce: ").splitlines()
    assert [line.partition(": ")[0] for line in said] == [
        *("store", "keep_letters", "privacy.sealing_keys[0]"),
        *looked_at,
    ]


@pytest.mark.parametrize("text", ["[worker]\nconcurrency = 0", "[infra]\ntimeout = 0", "not TOML"])
def test_faults_are_printed_as_json_with_the_option_json(check: Run, text: str) -> None:
    complaint = check(text).err.removeprefix("eventonce: ").strip()
    in_json = check(text, "--json")
    assert (in_json.code, in_json.err) == (2, "")
    assert in_json.documents == [{"faults": [complaint]}]


def test_a_handlers_module_is_looked_for_and_not_run(check: Run) -> None:
    Path("sad_handlers.py").write_text("raise RuntimeError\n")
    assert check('[[sink]]\nto = "sad_handlers:take"').code == 0
    assert "sad_handlers" not in sys.modules


@pytest.mark.parametrize(
    "text",
    [
        "store = 5",
        "letters = 3",
        "worker.queue = 7",
        'worker.concurrency = "ten"',
        'serve.port = "x"',
    ],
)
def test_a_setting_of_the_wrong_type_is_reported_once(check: Run, text: str) -> None:
    result = check(f"{text}\n")
    assert result.code == 2
    assert f":1: {text.partition(' ')[0]}: expected a" in result.err
    assert result.err.count("expected") == 1


def test_the_name_may_come_from_the_environment(
    check: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "a shared store needs a name" in check('store = "redis://localhost"\n').err
    monkeypatch.setenv("EVENTONCE_NAME", "crm")
    assert check('store = "redis://localhost"\n').code == 0


def test_faults_of_all_kinds_come_together_in_the_order_of_their_lines(check: Run) -> None:
    Path("mine.toml").write_text('[[rule]]\nname = "a"\nkeys = 1\n')
    found = check(
        'stroe = "x"\nstore = "sqlit:///x"\npresets = ["genesis"]\nrules = ["mine.toml"]\n'
        '[[rule]]\nname = "own"\nkey = ["nope"]\n[worker]\nvisibility = "3 days"\nwait = true\n'
        '[[sink]]\nto = 1\n[[sink]]\nto = "nosuch_module:f"\n'
    )
    assert found.code == 2
    said = found.err.removeprefix("eventonce: ").splitlines()
    assert [line.split(": ")[:2] for line in said] == [
        ["my.toml:1", "stroe"],
        ["my.toml:2", "store"],
        ["my.toml:3", "presets"],
        ["my.toml:4", "rules"],
        ["my.toml:4", "rules"],
        ["my.toml:7", "key of 'own'"],
        ["my.toml:9", "worker.visibility"],
        ["my.toml:10", "worker.wait"],
        ["my.toml:12", "sink.to"],
        ["my.toml:14", "sink.to"],
    ]
    assert "mine.toml:3: keys of 'a'" in found.err


def test_all_faults_of_infra_are_named_beside_the_others(check: Run, run: Run) -> None:
    text = (
        "name = 'a name'\n[worker]\nconcurrency = 0\n[infra]\nqueue = 'sqs:/q'\nrule = 'a rule'\n"
        "bus = ''\nendpoint = 'here'\ncode = 's3:'\ntimeout = 0\nreceives = 0\n"
        "parameters = { Vpc = 'x', Timeout = 'x' }\n"
    )
    said = check(text).err.removeprefix("eventonce: ").splitlines()
    assert [line.split(":")[1] for line in said] == [*"1356789", "10", "11", "12", "12"]
    assert all(": infra: " in line for line in said if not line.startswith("my.toml:3:"))
    wrong = text.replace("queue = 'sqs:/q'", "queue = 'a queue'").partition("parameters")[0]
    Path("my.toml").write_text(wrong)
    assert len(run("infra", "iam", "-c", "my.toml").err.splitlines()) == 8


def test_a_missing_environment_variable_is_reported_and_its_setting_is_not_checked(
    check: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    (line,) = check('store = "${NOWHERE}"').err.splitlines()
    assert line.endswith("my.toml:1: store: the environment has no variable NOWHERE")
    (line,) = check('secrets = ["${NOWHERE}", "${file:/no/file}"]').err.splitlines()[:-1]
    assert line.endswith("my.toml:1: secrets: the environment has no variable NOWHERE")
    monkeypatch.setenv("NOWHERE", "oracle://me:hunter2@host")
    told = check('store = "${NOWHERE}"').err
    assert "no store is called 'oracle:'" in told
    assert "hunter2" not in told


def test_only_the_scheme_is_checked_of_a_store_or_a_sink_whose_extra_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for scheme, adapter in ADAPTERS.items():
        if adapter.extra:
            monkeypatch.setitem(sys.modules, adapter.uri.partition(":")[0], None)
            check_uri(f"{scheme}://anything?at=all")
    monkeypatch.setattr("eventonce.sinks.find_spec", lambda _: None)
    check_sink(Sink("sqs://no such queue"))


RULES = len(presets.resolve("auto"))

EVENT: dict[str, Any] = {"id": "1", "detail-type": "order", "detail": {"id": 1}}
OWN = 'presets = []\n[[rule]]\nname = "order"\nkey = ["detail.id"]\n'


@pytest.fixture
def expect(check: Run) -> Run:
    def expect(entries: Any, *more: str) -> Result:
        Path("event.json").write_text(json.dumps(EVENT))
        Path("keys.json").write_text(json.dumps(entries))
        return check(OWN, "--expect", "keys.json", *more)

    return expect


@pytest.mark.parametrize("entry", [{"file": "event.json"}, {"event": EVENT}])
def test_an_entry_without_an_expected_rule_or_key_is_a_difference_until_an_update(
    expect: Run, entry: dict[str, Any]
) -> None:
    found = expect([entry])
    assert found.code == 1
    assert found.out.count("nothing: run with --update") == 2
    assert expect([entry], "--update").code == 0
    (kept,) = json.loads(Path("keys.json").read_text())
    assert kept == {**entry, "rule": "order", "key": kept["key"]}
    assert expect([kept]).code == 0
    for field in ("rule", "key"):
        lacking = {name: value for name, value in kept.items() if name != field}
        found = expect([lacking], "--json")
        assert found.code == 1
        (difference,) = json.loads(found.out)["differences"]
        assert difference["what"].endswith(f": {field}")
        assert difference["expected"] == "nothing: run with --update"


def test_the_expected_key_of_an_invalid_event_is_invalid(expect: Run) -> None:
    assert expect([{"event": None}]).code == 1
    assert expect([{"event": None}], "--update").code == 0
    (kept,) = json.loads(Path("keys.json").read_text())
    assert kept == {"event": None, "key": "invalid"}
    assert expect([kept]).code == 0


@pytest.mark.parametrize("entry", [{}, {"key": "invalid"}, {"file": "event.json", "event": EVENT}])
@pytest.mark.parametrize("more", [(), ("--update",)])
def test_an_entry_names_a_file_or_holds_an_event(
    expect: Run, entry: dict[str, Any], more: tuple[str, ...]
) -> None:
    found = expect([{"event": EVENT}, entry], *more)
    assert found.code == 2
    assert 'keys.json: event 1: expected either a "file" or an "event"' in found.err


@pytest.mark.parametrize(
    "pattern",
    [
        "*",
        "v2.detail.events.conversation.*.user.end",
        "v2.detail.events.conversation.{id}.user.end",
        "v2.users.*",
        "*.presence",
        "Conversation Status *",
        "Amazon Connect Contact Event",
        "com.nice.interaction.routing.updated",
    ],
)
def test_a_pattern_that_matches_a_known_type_is_no_warning(check: Run, pattern: str) -> None:
    checked = check(f'[[sink]]\nmatch = "{pattern}"\nto = "file:x.jsonl"\n')
    assert (checked.code, checked.err) == (0, "")


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("v2.detail.events.conversations.*.user.end", "v2.detail.events.conversation.{id}."),
        ("v2.user.*.presence", "v2.users.{id}.presence"),
        ("v2.users.0815.presence", "v2.users.{id}.presence"),
        ("order.created", "This is right for a type of your own"),
    ],
)
def test_a_pattern_that_matches_no_known_type_is_a_warning_and_no_fault(
    check: Run, pattern: str, meant: str
) -> None:
    sink = f'[[sink]]\nmatch = "{pattern}"\nto = "file:x.jsonl"\n'
    rule = f'[[rule]]\nname = "mine"\nmatch = {{ type = ["{pattern}", "v2.*"] }}\nkey = "id"\n'
    checked = check(sink + rule)
    assert checked.code == 0
    for line, place in zip(
        checked.err.splitlines(), ("sink.match", "rule mine: match"), strict=True
    ):
        assert f"warning: my.toml: {place}: {pattern!r} matches no event type" in line
        assert meant in line
    told = json.loads(check(sink, "--json").out)
    assert len(told["warnings"]) == 1


def test_a_misspelt_field_of_a_rule_is_reported_with_the_probable_name(check: Run) -> None:
    found = check('[[rule]]\nname = "call"\nkey = ["id"]\nmissng = "id"\n')
    assert "there is no such field (did you mean 'missing'?)" in found.err


HANDLERS = """
consumer = Consumer("memory:")

@consumer.on("v2.users.*.presence")
def known(job): ...

@consumer.on("v2.user.*.presence")
async def misspelt(job): ...

consumer.on("order.created")(known)
consumer.on()(known)
consumer.on(PATTERN)(known)
raise RuntimeError("this module is not run")
"""


@pytest.mark.parametrize("path", ["desk.py", "desk/__init__.py", "desk/calls.py"])
def test_the_patterns_of_handlers_are_read_from_the_source_of_their_module(
    check: Run, tmp_path: Path, path: str
) -> None:
    (tmp_path / "desk").mkdir()
    (tmp_path / path).write_text(HANDLERS)
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    checked = check("", "--handler", f"{module}:consumer")
    assert checked.code == 0
    first, second = checked.err.splitlines()
    assert f"{path}:7: on: 'v2.user.*.presence' matches no event type" in first
    assert "did you mean 'v2.users.{id}.presence'?" in first
    assert f"{path}:10: on: 'order.created' matches no event type" in second


CONSTANTS = """
from elsewhere import FAR
NEAR = "v2.user.*.presence"
TYPED: Final = "v2.flow"

@consumer.on(NEAR)
def near(job): ...

@consumer.on(TYPED)
def typed(job): ...

@consumer.on(FAR)
def far(job): ...

@consumer.on(pattern=FAR)
async def by_keyword(job): ...

@consumer.on()
@consumer.on
def every(job): ...

events.on(NOTHING_OF_OURS)
"""


def test_a_constant_is_read_and_a_pattern_that_cannot_be_read_is_named(check: Run) -> None:
    Path("constants.py").write_text(CONSTANTS)
    said = check("", "--handler", "constants:consumer").err.splitlines()
    assert [it.partition("constants.py:")[2].partition(": on: ")[0] for it in said] == [
        "6",
        "9",
        "12",
        "15",
    ]
    assert "'v2.user.*.presence' matches no event type" in said[0]
    assert "'v2.flow' matches no event type" in said[1]
    assert all(
        "cannot be checked, because it is not a text in this module" in it for it in said[2:]
    )


@pytest.mark.parametrize(
    ("source", "said"),
    [(None, "there is no source of a module nosuch"), ("def", "nosuch.py:1: invalid syntax")],
)
def test_a_handler_that_cannot_be_read_is_named(check: Run, source: str | None, said: str) -> None:
    if source:
        Path("nosuch.py").write_text(source)
    found = check("", "--handler", "nosuch:consumer")
    assert (found.code, said in found.err) == (2, True)
