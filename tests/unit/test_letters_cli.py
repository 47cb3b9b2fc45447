"""Dead letters on the command line: selections, dry runs and redrives."""

from __future__ import annotations

import base64
import json
import sys
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from eventonce import Consumer, Job, Reject, Rule
from eventonce.privacy import SealedStore, Sealer
from eventonce.stores.sqlite import SQLiteStore
from eventonce.testing.harness import ManualClock
from tests.helpers import Run, call, reject
from tests.unit.test_letters import CALL
from tests.unit.test_letters_selection import letter

START = 1_700_000_000_000
"""In 2023: the command line uses the machine's clock, for which this must be long ago."""


@pytest.fixture
def run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`letters` in a folder whose store has three dead letters: of two rules, and one invalid."""
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("eventonce.toml").write_text(
        'store = "sqlite:///store.db"\nname = "crm"\n'
        '[[rule]]\nname = "call"\nmatch = "call"\nkey = ["detail.call"]\n'
        '[[rule]]\nname = "other"\nkey = ["id"]\n'
    )
    clock = ManualClock(START)
    store = SQLiteStore("store.db", clock=clock)
    other = Rule(name="other", key=["id"])
    with Consumer(store, name="crm", rules=[CALL, other], handler=reject, clock=clock) as consumer:
        consumer.process([call(1)])
        clock.advance(3600)
        consumer.process([{"id": "o-1", "detail-type": "order", "detail": {}}])
        clock.advance(3600)
        consumer.process([b"no event"])
    return partial(run, "letters")


def listed(run: Run, *args: str) -> list[str]:
    lines = run("list", "--json", *args).out.splitlines()
    return [json.loads(line)["rule"] or "invalid" for line in lines]


def test_dead_letters_are_selected_by_time_and_rule(run: Run) -> None:
    def at(seconds: int) -> str:
        moment = datetime.fromtimestamp(START / 1000 + seconds, UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%S")

    assert listed(run) == ["call", "other", "invalid"]
    assert listed(run, "--since", at(3600)) == ["other", "invalid"]
    assert listed(run, "--until", at(3600)) == ["call"]
    assert listed(run, "--until", "1970-01-01") == []
    assert listed(run, "--since", at(1), "--until", at(3601)) == ["other"]
    assert listed(run, "--since", at(3600) + "+00:00", "--until", at(3601) + "Z") == ["other"]
    second = json.loads(run("list", "--json").out.splitlines()[1])["when"]
    assert listed(run, "--since", second, "--rule", "other") == ["other"], "as it is listed"
    assert listed(run, "--rule", "other") == ["other"]
    assert listed(run, "--from", "store") == ["call", "other", "invalid"]


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (("--since", "yesterday"), "2026-11-16T08:00Z"),
        (("--status", "done"), "'conflict', 'dead', 'invalid'"),
    ],
)
def test_a_wrong_time_or_status_in_a_selection_is_refused(
    run: Run, choice: tuple[str, str], said: str
) -> None:
    refused = run("list", *choice)
    assert (refused.code, said in refused.err) == (2, True)


@pytest.mark.parametrize("command", [("show",), ("drop",), ("redrive", "--handler", "-")])
def test_an_id_without_a_dead_letter_gives_exit_code_1(run: Run, command: tuple[str, ...]) -> None:
    assert run(*command, "nobody").code == 1
    assert len(listed(run)) == 3


def put_unreadable_letters(count: int = 1) -> None:
    """Put dead letters that are difficult to show into the store."""
    said = "no\ncustomer \x1b[31mred" + "!" * 100

    def refuse(_: Job) -> None:
        raise Reject(said)

    agent = Rule(name="agent", subject=["detail.agent"], order="detail.version")
    with Consumer("sqlite:///store.db", name="crm", rules=agent, handler=refuse) as consumer:
        consumer.process(
            [
                b'{"detail-type": "t", "detail": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
                b"no \x1b[2J event \xff\n at all",
                *(
                    {"id": "v", "detail-type": "t", "detail": {"agent": "a1", "version": version}}
                    for version in range(count)
                ),
            ]
        )


def test_dead_letters_with_unreadable_events_are_shown_without_control_characters(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_unreadable_letters()
    # As on a terminal, which would execute their control characters.
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("list").out.splitlines()
    assert len(lines) == 1 + 6, "a line a letter"
    shown = run("show")
    assert shown.code == 0
    assert "\\x1b[2J event" in shown.out
    assert "!" * 100 in shown.out, "whole, however narrow the terminal"
    assert not [line for line in (*lines[1:], shown.out) if "\x1b[3" in line or "\x1b[2" in line]
    documents = [json.loads(line) for line in run("show", "--json").out.splitlines()]
    assert [document["event"] for document in documents if "\ufffd" in str(document["event"])]


def test_dead_letters_without_a_key_are_selected_by_the_rule_of_their_event(run: Run) -> None:
    with Consumer("sqlite:///store.db", name="crm", rules=[CALL], handler=reject) as consumer:
        consumer.process([{"id": "c-0", "detail-type": "call", "detail": {}}])
    found = run("list", "--rule", "call", "--json").out.splitlines()
    assert [json.loads(line)["status"] for line in found] == ["dead", "invalid"]


def test_dead_letters_of_one_subject_are_listed_under_different_ids(run: Run) -> None:
    put_unreadable_letters(3)
    ids = [line.split()[0] for line in run("list", "--rule", "agent").out.splitlines()[1:]]
    assert len(set(ids)) == 3
    for name in ids:
        assert len(listed(run, name)) == 1


def test_an_export_reports_how_many_dead_letters_it_wrote(run: Run) -> None:
    exported = run("export", "--status", "dead", "-o", "dead.jsonl", "--json")
    assert json.loads(exported.err) == {"exported": 2}
    assert len(Path("dead.jsonl").read_bytes().splitlines()) == 2


def test_a_dry_run_of_an_export_counts_and_writes_nothing(run: Run) -> None:
    sealer = Sealer([base64.b64encode(bytes(32)).decode()])
    with closing(SQLiteStore("store.db")) as store:
        SealedStore(store, sealer).put_letters([letter(1, rule="call")])
    dry = run("export", "--dry-run", "-o", "out.jsonl")
    assert (dry.code, dry.out) == (1, "3 dead letters would be exported\n")
    assert "1 dead letter not opened: `letters list` names the keys" in dry.err
    (document,) = run("export", "--dry-run", "--json").documents
    assert document == {"would_export": 3, "sealed": 1}
    assert run("export", "--dry-run", "--status", "invalid").code == 0
    assert not Path("out.jsonl").exists()
    exported = run("export", "-o", "out.jsonl")
    assert (exported.code, len(Path("out.jsonl").read_bytes().splitlines())) == (1, 3)


def test_dead_letters_of_all_consumers_are_listed_only_with_the_option(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(SQLiteStore("store.db")) as store:
        store.put_letters([letter(1, rule="agent", consumer="billing")])
    assert sorted(listed(run)) == ["call", "invalid", "other"]
    assert sorted(listed(run, "--all-consumers")) == ["agent", "call", "invalid", "other"]
    both = run("list", "--all-consumers", "--name", "billing")
    assert (both.code, "--all-consumers all of them" in both.err) == (2, True)
    monkeypatch.setenv("EVENTONCE_NAME", "billing")
    assert listed(run) == ["agent"]
    assert len(listed(run, "--all-consumers")) == 4


def test_a_dry_run_lists_the_dead_letters_that_would_run_and_runs_none(run: Run) -> None:
    dry = run("redrive", "--dry-run")
    assert dry.out.startswith("2 dead letters would run again\n")
    assert "invalid not JSON" in " ".join(dry.out.split())
    document = json.loads(run("redrive", "--dry-run", "--rule", "call", "--json").out)
    assert document["would_run"] == 1
    assert [(one["rule"], one["would"]) for one in document["letters"]] == [("call", "run")]
    assert listed(run) == ["call", "other", "invalid"]


def test_a_dead_letter_that_took_effect_meanwhile_does_not_run(run: Run) -> None:
    with Consumer("sqlite:///store.db", name="crm", rules=CALL, handler=lambda _: None) as consumer:
        letters = [letter for letter in consumer.letters() if letter.rule == "call"]
        consumer.redrive(letters)
        consumer.admin.put_letters(letters)
    (foretold,) = json.loads(run("redrive", "--dry-run", "--rule", "call", "--json").out)["letters"]
    assert foretold["would"] == "duplicate"
    redriven = run("redrive", "--rule", "call", "--handler", "-", "--json")
    assert (redriven.out, json.loads(redriven.err)) == ("", {"duplicate": 1})
    assert listed(run) == ["other", "invalid"]


def test_a_redrive_sends_to_the_sinks_of_the_file(run: Run) -> None:
    with Path("eventonce.toml").open("a") as file:
        file.write('[[sink]]\nmatch = "call"\nto = "file:calls.jsonl"\n')
    redriven = run("redrive", "--json")
    assert json.loads(redriven.err) == {"done": 1, "ignored": 1, "invalid": 1}
    assert (redriven.code, redriven.out) == (1, "")
    assert Path("calls.jsonl").read_bytes() == call(1) + b"\n"
    assert listed(run) == ["other", "invalid"]


def test_a_dry_run_reports_the_events_that_no_sink_takes(run: Run) -> None:
    with Path("eventonce.toml").open("a") as file:
        file.write('[[sink]]\nmatch = "call"\nto = "file:calls.jsonl"\n')
    document = json.loads(run("redrive", "--dry-run", "--json").out)
    assert document["would_run"] == 1
    assert [one["would"] for one in document["letters"]] == ["run", "ignored", "invalid"]


def test_a_dry_run_follows_the_policy_for_events_that_no_sink_takes(run: Run) -> None:
    file = Path("eventonce.toml")
    sink = '[[sink]]\nmatch = "call"\nto = "file:calls.jsonl"\n'
    file.write_text(f'unhandled = "letter"\n{file.read_text()}{sink}')
    document = json.loads(run("redrive", "--dry-run", "--json").out)
    assert [one["would"] for one in document["letters"]] == ["run", "dead", "invalid"]
    assert json.loads(run("redrive", "--json").err) == {"done": 1, "dead": 1, "invalid": 1}


def test_a_dry_run_and_a_redrive_agree_about_an_object_without_a_type(run: Run) -> None:
    with Path("eventonce.toml").open("a") as file:
        file.write('[[sink]]\nmatch = "call"\nto = "file:calls.jsonl"\n')
    with Consumer("sqlite:///store.db", name="crm", rules=CALL, handler=reject) as consumer:
        consumer.process([{"a": 1}])
    *_, foretold = json.loads(run("redrive", "--dry-run", "--json").out)["letters"]
    assert foretold["would"] == "invalid"
    assert json.loads(run("redrive", foretold["id"], "--json").err) == {"invalid": 1}


def test_a_redrive_without_a_target_is_refused_and_stdout_must_be_requested(run: Run) -> None:
    refused = run("redrive", "--rule", "call")
    assert (refused.code, refused.out) == (2, "")
    assert "--handler MODULE:NAME, or have them written to stdout with --handler -" in refused.err
    assert "call" in listed(run), "nothing was dropped"
    redriven = run("redrive", "--rule", "call", "--handler", "-")
    assert (redriven.code, redriven.out) == (0, call(1).decode() + "\n")
    assert "call" not in listed(run)


def test_a_dead_letter_that_fails_again_runs_only_once_in_one_redrive(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rewritten dead letter is the youngest, and the redrive reads on while dead letters run."""
    monkeypatch.setattr("eventonce.letters.sources.READ_TOGETHER", 1)
    monkeypatch.setattr("eventonce.letters.bulk.RUN_TOGETHER", 1)
    monkeypatch.setattr("eventonce.stores.sqlite.store.LETTERS_A_PAGE", 1)
    Path("failing.py").write_text("def fail(job):\n    raise ValueError('again')\n")
    redriven = run("redrive", "--handler", "failing:fail", "--json")
    assert json.loads(redriven.err) == {"failed": 2, "invalid": 1}
    assert len(listed(run, "--reason", "ValueError: again")) == 2


def test_a_handler_option_replaces_the_sinks(run: Run) -> None:
    with Path("eventonce.toml").open("a") as file:
        file.write('[[sink]]\nto = "file:reject.jsonl"\n')
    Path("mine.py").write_text("def take(job):\n    print(job.event.id)\n")
    redriven = run("redrive", "--rule", "call", "--handler", "mine:take")
    assert (redriven.code, redriven.out) == (0, "id-1\n")
    assert not Path("reject.jsonl").exists()


def test_a_consumer_with_another_name_cannot_run_dead_letters_of_this_consumer(run: Run) -> None:
    Path("theirs.py").write_text(
        "from eventonce import Consumer\n"
        "consumer = Consumer('memory:', name='billing', handler=print)\n"
    )
    refused = run("redrive", "--name", "crm", "--handler", "theirs:consumer")
    assert refused.code == 2
    assert "'billing' cannot run dead letters of 'crm'" in refused.err


OWN = """
from eventonce import Consumer, Rule
ran = []
consumer = Consumer('sqlite:///own.db', name='crm', rules=Rule(name='call', key=['detail.call']))
consumer.on()(lambda job: ran.append(job.event.id))
nothing = {}
"""


def test_a_consumer_object_runs_the_dead_letters_of_its_own_store(run: Run) -> None:
    """Dead letters of another store would run although their effect there is not known."""
    Path("owned.py").write_text(OWN)
    rule = Rule(name="call", key=["detail.call"])
    with Consumer("sqlite:///own.db", name="crm", rules=rule, handler=reject) as consumer:
        consumer.process([call(7)])
    redriven = run("redrive", "--handler", "owned:consumer", "--json")
    assert json.loads(redriven.err) == {"done": 1}
    assert sys.modules.pop("owned").ran == ["id-7"]
    assert len(listed(run)) == 3, "the file's store has its letters still"
    assert listed(run, "--store", "sqlite:///own.db") == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--handler", "owned:consumer", "--store", "sqlite:///store.db"), "remove --store"),
        (("--handler", "owned:nothing"), "neither a function nor a Consumer"),
        (("--handler", "owned:consumer", "--all-consumers"), "remove --all-consumers"),
    ],
)
def test_a_handler_that_cannot_run_the_dead_letters_is_refused_before_the_first_run(
    run: Run, options: tuple[str, ...], said: str
) -> None:
    Path("owned.py").write_text(OWN)
    refused = run("redrive", *options)
    sys.modules.pop("owned").consumer.close()
    assert (refused.code, said in refused.err) == (2, True)
    assert len(listed(run)) == 3
