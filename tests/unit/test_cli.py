"""The command line, as a person or a script uses it."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete

from eventonce import Consumer, Job, Reject, Rule, presets
from eventonce.cli import GROUPS, cli
from eventonce.cli.event_filter import EventFilter
from eventonce.demo import worker
from eventonce.rules import Ruleset
from eventonce.stores.memory import MemoryStore
from eventonce.stores.sqlite import SQLiteStore
from eventonce.testing.harness import ManualClock
from tests.helpers import Run, write_lines

SHAPES = Path(__file__).parent.parent / "shapes"
VOICE = SHAPES / "genesys_acd_end_voice.json"


def event(number: int, *, id: str | None = None, **more: Any) -> dict[str, Any]:
    voice: dict[str, Any] = json.loads(VOICE.read_text())
    voice["id"] = id or f"id-{number}"
    voice["detail"]["eventBody"]["sessionId"] = f"session-{number}"
    voice["detail"]["eventBody"].update(more)
    return voice


def test_the_help_groups_the_commands_and_names_the_exit_codes(run: Run) -> None:
    result = run("--help")
    assert result.code == 0
    for word in ("Start:", "Operate:", "explain", "letters", "Exit codes", "EVENTONCE_STORE"):
        assert word in " ".join(result.out.split())


@pytest.mark.parametrize(
    "command",
    [name for names in GROUPS.values() for name in names],
)
def test_every_command_has_a_help_text(run: Run, command: str) -> None:
    result = run(command, "--help")
    assert result.code == 0
    assert "Usage: eventonce" in result.out


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("fliter",), "Did you mean 'filter'?"),
        (("leters", "list"), "Did you mean 'letters'?"),
        (("letters", "shwo"), "Did you mean 'show'?"),
        (("filter", "--stroe", "memory:"), "Did you mean '--store'?"),
        (("store", "create", "--dry"), "Did you mean '--dry-run'?"),
        (("store", "check", "--store", "memory:"), "Write URI alone: eventonce store check URI"),
        (("check", "--config", "eventonce.toml"), "Write CONFIG alone: eventonce check CONFIG"),
    ],
)
def test_a_misspelt_command_or_option_is_reported_with_the_probable_name(
    run: Run, typed: tuple[str, ...], meant: str
) -> None:
    result = run(*typed)
    assert result.code == 2
    assert meant in result.err


def test_filter_writes_new_events_in_their_order(run: Run, tmp_path: Path) -> None:
    one, two, copy = event(1), event(2), event(1, id="new")
    capture = write_lines(tmp_path / "capture.jsonl", one, two, copy)
    result = run("filter", capture)
    assert [json.loads(line) for line in result.out.splitlines()] == [one, two]
    assert result.code == 0
    assert "remembered only during this run" in result.err
    assert "3 events, 2 new" in result.err


def test_filter_with_a_store_remembers_events_of_an_earlier_run(run: Run, tmp_path: Path) -> None:
    capture = write_lines(tmp_path / "capture.jsonl", event(1), event(2))
    first = run("filter", capture, "--store", "sqlite:///seen.db")
    second = run("filter", capture, "--store", "sqlite:///seen.db", "--json")
    assert len(first.out.splitlines()) == 2
    assert second.out == ""
    assert json.loads(second.err)["statuses"] == {"duplicate": 2}


def test_filter_reads_stdin(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    capture = write_lines(tmp_path / "capture.jsonl", event(1), event(1))
    with capture.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        result = run("filter")
    assert len(result.out.splitlines()) == 1


def test_filter_writes_invalid_lines_to_the_rejects_with_the_reason(
    run: Run, tmp_path: Path
) -> None:
    Path("mine.toml").write_text('[[rule]]\nname = "mine"\nkey = ["body.sessionId"]\n')
    capture = write_lines(tmp_path / "capture.jsonl", event(1), "{", "", event(2, sessionId=None))
    result = run("filter", capture, "--rejects", "bad.jsonl", "--rules", "mine.toml", "--json")
    assert result.code == 1
    assert len(result.out.splitlines()) == 1
    rejected = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]
    assert [entry["place"].split(":")[-1] for entry in rejected] == ["2", "4"]
    assert "not JSON" in rejected[0]["reason"]
    assert "sessionId" in rejected[1]["reason"]
    assert json.loads(rejected[1]["event"])["id"] == "id-2"
    assert json.loads(result.err.splitlines()[-1])["statuses"] == {"done": 1, "invalid": 2}


def test_filter_without_a_file_for_rejects_reports_them_on_stderr(run: Run, tmp_path: Path) -> None:
    result = run("filter", write_lines(tmp_path / "capture.jsonl", "{", event(1)))
    assert ":1: invalid: not JSON" in result.err
    assert result.code == 1


class FullDisk:
    """A file that refuses every write."""

    def __init__(self, error: int = errno.ENOSPC) -> None:
        self._error = error

    def write(self, _: bytes) -> int:
        raise OSError(self._error, os.strerror(self._error))


def test_filter_does_not_settle_an_event_that_could_not_be_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = write_lines(tmp_path / "capture.jsonl", event(1))
    with monkeypatch.context() as patch:
        patch.setattr("eventonce.cli.filter.standard_output", FullDisk)
        failed = run("filter", capture, "--store", "sqlite:///seen.db")
    assert failed.code == 1
    assert "No space left on device; what was written is not complete: make room" in failed.err
    with monkeypatch.context() as patch:
        patch.setattr("eventonce.cli.filter.standard_output", lambda: FullDisk(errno.EIO))
        other = run("filter", capture, "--store", "sqlite:///seen.db")
    assert (other.code, "make room" in other.err) == (1, False)
    again = run("filter", capture, "--store", "sqlite:///seen.db", "--json")
    assert json.loads(again.err)["statuses"] == {"done": 1}


def test_filter_writes_the_events_of_a_pipe_before_the_pipe_ends(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "eventonce", "filter"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for number in range(3):
        process.stdin.write(json.dumps(event(number)).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == f"id-{number}"
    process.stdin.close()
    assert process.wait(120) == 0
    process.stdout.close()


def test_filter_rejects_a_line_that_is_too_long_and_reads_the_lines_after(
    run: Run, tmp_path: Path
) -> None:
    long = event(1, note="x" * 3_000_000)
    capture = write_lines(tmp_path / "capture.jsonl", event(0), long, event(2))
    result = run("filter", capture, "--rejects", "bad.jsonl", "--json")
    assert [json.loads(line)["id"] for line in result.out.splitlines()] == ["id-0", "id-2"]
    (rejected,) = Path("bad.jsonl").read_text().splitlines()
    assert json.loads(rejected)["place"].endswith(":2")


def test_filter_judges_versions_of_one_subject_one_after_the_other(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "eventonce.toml").write_text(
        '[[rule]]\nname = "s"\nmatch = "s"\nsubject = ["detail.a"]\n'
        'order = "detail.v"\nstate = ["detail.s"]\n'
    )

    def version(number: int, state: str) -> dict[str, Any]:
        return {"id": f"{number}", "detail-type": "s", "detail": {"a": 1, "v": number, "s": state}}

    capture = write_lines(
        tmp_path / "capture.jsonl",
        version(1, "A"),
        version(3, "B"),
        version(2, "A"),
        version(3, "B"),
        version(4, "A"),
    )
    result = run("filter", capture, "--json")
    assert [json.loads(line)["id"] for line in result.out.splitlines()] == ["1", "3", "4"]
    counted = json.loads(result.err.splitlines()[-1])["statuses"]
    assert counted == {"done": 3, "stale": 1, "duplicate": 1}


def test_a_file_that_is_no_store_is_exit_code_2(run: Run, tmp_path: Path) -> None:
    (tmp_path / "not-a-database.db").write_bytes(b"x" * 5000)
    capture = write_lines(tmp_path / "capture.jsonl", event(1))
    result = run("filter", capture, "--store", "sqlite:///not-a-database.db")
    assert result.code == 2
    assert result.err.startswith("eventonce: ")
    assert "Traceback" not in result.err


def test_a_store_that_is_away_is_exit_code_3(run: Run, tmp_path: Path) -> None:
    capture = write_lines(tmp_path / "capture.jsonl", event(1))
    with SQLiteStore("held.db").transaction():
        result = run("filter", capture, "--store", "sqlite:///held.db?wait=0.1")
    assert result.code == 3
    assert "locked" in result.err


def test_a_reading_command_does_not_create_a_store(run: Run) -> None:
    typo = run("stats", "--store", "sqlite:///typo.db")
    assert (typo.code, "--store" in typo.err) == (2, True)
    assert not Path("typo.db").exists()


def test_an_error_about_the_store_goes_on_in_a_sentence_about_another_store(run: Run) -> None:
    """Some of these errors end with a full stop, and others do not."""
    Path("other.db").write_bytes(b"of another program" * 1_000)
    for name in ("other", "typo"):
        said = run("stats", "--store", f"sqlite:///{name}.db").err
        assert re.search(r"\w\W?; --store names another store\n$", said)
        assert ".;" not in said


def test_an_unknown_store_is_named_without_its_password(run: Run, tmp_path: Path) -> None:
    capture = write_lines(tmp_path / "capture.jsonl", event(1))
    result = run("filter", capture, "--store", "oracle://me:hunter2@host/db")
    assert result.code == 2
    assert "hunter2" not in result.err


def test_explain_shows_rule_parts_and_key(run: Run) -> None:
    result = run("explain", VOICE)
    assert result.code == 0
    assert "genesys.session (fact)" in result.out
    document = json.loads(run("explain", VOICE, "--json").out)
    assert document["rule"] == "genesys.session"
    assert document["key"] in result.out
    assert {part["expression"] for part in document["parts"]} >= {"body.conversationId"}


def test_explain_names_a_missing_part_and_fails(run: Run, tmp_path: Path) -> None:
    broken = write_lines(tmp_path / "event.json", event(1, sessionId=None))
    Path("mine.toml").write_text('[[rule]]\nname = "mine"\nkey = ["body.sessionId"]\n')
    result = run("explain", broken, "--rules", "mine.toml")
    assert result.code == 1
    assert "sessionId" in result.out
    result = run("explain", broken, "--presets", "genesys")
    assert result.code == 0
    assert "keyed by  its transport id, because body.sessionId is null" in result.out


def test_explain_prints_the_strength_of_a_key_and_reports_a_missing_key(
    run: Run, tmp_path: Path
) -> None:
    assert "strength  business key, remembered for 10d" in run("explain", VOICE).out
    unknown = write_lines(tmp_path / "unknown.json", '{"light": "green"}')
    result = run("explain", unknown)
    assert result.code == 1
    assert "strength  none: a copy cannot be recognised, so every delivery runs" in result.out
    document = json.loads(run("explain", unknown, "--json").out)
    assert (document["key"], document["strength"], document["remember"]) == (None, "none", 0)
    compared = run("explain", unknown, unknown)
    assert "every delivery runs" in compared.out
    assert json.loads(run("explain", unknown, unknown, "--json").out)["same"] is False


def test_explain_compares_two_events(run: Run, tmp_path: Path) -> None:
    one = write_lines(tmp_path / "one.json", event(1))
    copy = write_lines(tmp_path / "copy.json", event(1, id="new"))
    other = write_lines(tmp_path / "other.json", event(2))
    assert "same key" in run("explain", one, copy).out
    different = run("explain", one, other)
    assert "different keys" in different.out
    assert "body.sessionId" in different.out
    assert "session-2" in different.out
    document = json.loads(run("explain", one, other, "--json").out)
    assert (document["same"], document["differ"]) == (False, ["body.sessionId"])


def test_explain_reports_invalid_input_without_a_traceback(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    result = run("explain", tmp_path / "bad.json")
    assert result.code == 1
    assert "not JSON" in result.err
    assert "Traceback" not in result.err


def test_init_writes_a_file_that_check_accepts_and_does_not_overwrite(run: Run) -> None:
    assert run("init", "--presets", "genesys").code == 0
    assert run("check", "eventonce.toml").code == 0
    again = run("init")
    assert again.code == 2
    assert "--force" in again.err


def test_check_reports_every_fault_with_its_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(
        '[[rule]]\nname = "a"\nkey = ["detail..x"]\nremember = "soon"\n\n'
        '[[rule]]\nname = "b"\nkeys = ["id"]\n'
    )
    result = run("check", "bad.toml")
    assert result.code == 2
    for fault in ("bad.toml:3", "bad.toml:4", "bad.toml:8"):
        assert fault in result.err


def test_check_reports_keys_that_have_changed(run: Run, tmp_path: Path) -> None:
    run("init", "--presets", "genesys")
    write_lines(tmp_path / "event.json", event(1))
    (tmp_path / "keys.json").write_text('[{"file": "event.json"}]')
    assert run("check", "eventonce.toml", "--expect", "keys.json", "--update").code == 0
    assert run("check", "eventonce.toml", "--expect", "keys.json").code == 0
    text = (tmp_path / "eventonce.toml").read_text()
    (tmp_path / "eventonce.toml").write_text(text.replace("my-consumer", "another"))
    result = run("check", "eventonce.toml", "--expect", "keys.json")
    assert result.code == 1
    assert "event.json: key" in result.out


def test_the_store_and_the_name_may_come_from_the_environment(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = write_lines(tmp_path / "capture.jsonl", event(1))
    run("filter", capture, "--store", "sqlite:///twin.db", "--name", "crm")
    monkeypatch.setenv("EVENTONCE_STORE", "sqlite:///twin.db")
    monkeypatch.setenv("EVENTONCE_NAME", "crm")
    assert json.loads(run("show", capture, "--json").out)["name"] == "crm"


def _options(command: click.Command) -> Iterator[tuple[str, click.Parameter]]:
    found = list(command.params)
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            inner = command.get_command(click.Context(command), name)
            assert inner is not None
            yield from ((f"{name} {option}", param) for option, param in _options(inner))
    yield from ((param.opts[-1], param) for param in found)


def test_no_command_suggests_an_option_that_is_not_alike(run: Run) -> None:
    taken: defaultdict[str, set[str]] = defaultdict(set)
    for path, _ in _options(cli):
        named, _, option = path.rpartition(" --")
        taken[named].add(option)
    for named, options in taken.items():
        for other in set().union(*taken.values()) - options if named else ():
            for meant in re.findall("mean '--(.*)'", run(*named.split(), f"--{other}").err):
                assert other[0] == meant[0] or other in meant or meant in other, (named, other)


def test_no_action_and_no_confirmation_can_be_set_in_the_environment() -> None:
    twins = {param.envvar for _, param in _options(cli) if param.envvar}
    words = ("STORE", "NAME", "PRESETS", "CONFIG", "QUEUE", "HISTORY", "HEADER")
    assert twins == {f"EVENTONCE_{word}" for word in words}
    queues = [name for name, param in _options(cli) if param.envvar == "EVENTONCE_QUEUE"]
    assert queues == ["run --queue"]


def test_the_help_names_every_variable_of_an_option(run: Run) -> None:
    told = set(re.findall(r"EVENTONCE_\w+", run("--help").out))
    assert {param.envvar for _, param in _options(cli) if param.envvar} == told
    reading = {path.split()[0] for path, it in _options(cli) if it.envvar == "EVENTONCE_HISTORY"}
    assert reading == {"history", "workers", "show", "dashboard"}


def test_several_presets_in_the_environment_are_separated_by_spaces(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENTONCE_PRESETS", "stripe genesys")
    capture = write_lines(tmp_path / "one.json", event(1))
    assert "genesys.session" in run("explain", capture).out


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("gen", {"genesys", "genesys:latest"}), ("", set(presets.names())), ("my-", set())],
)
def test_the_shell_completes_presets(typed: str, offered: set[str]) -> None:
    completion = ShellComplete(cli, {}, "eventonce", "_EVENTONCE_COMPLETE")
    items = completion.get_completions(["filter", "--presets"], typed)
    assert {item.value for item in items} == offered


def test_show_forget_and_sweep_work_on_the_store_of_the_file(run: Run, tmp_path: Path) -> None:
    run("init", "--presets", "genesys")
    one = write_lines(tmp_path / "one.json", event(1))
    here = ("--store", "sqlite:///eventonce.db")
    run("filter", one, *here)
    shown = run("show", one)
    assert shown.code == 0
    assert ": done" in shown.out
    document = json.loads(run("show", one, "--json").out)
    rows = dict(line.split(maxsplit=1) for line in shown.out.splitlines()[1:])
    assert rows["token"] == str(document["token"])
    assert rows["by"] == f"{document['by']} (a hash of the transport id)"
    assert rows["done"] == "yes"
    key = document["key"]
    assert run("show", key).code == 0
    assert run("sweep").out == "deleted 0 of 1 record\n"
    assert run("forget", key, "--yes").code == 0
    assert run("show", key).code == 1
    assert len(run("filter", one, *here).out.splitlines()) == 1


@pytest.fixture
def letters(run: Run, tmp_path: Path) -> Path:
    """A store with two letters of the consumer that eventonce.toml names."""
    run("init", "--preset", "genesys", "--name", "crm")

    def reject(job: Job) -> None:
        raise Reject(f"no customer for {job.event.id}")

    with Consumer(
        "sqlite:///eventonce.db", name="crm", rules="genesys", handler=reject
    ) as consumer:
        consumer.process([json.dumps(event(1)), json.dumps(event(2)), "{"])
    return tmp_path


def test_letters_are_listed_shown_and_selected(run: Run, letters: Path) -> None:
    listed = run("letters", "list")
    assert "no customer for id-1" in listed.out
    assert len(listed.out.splitlines()) == 4
    (chosen,) = run("letters", "list", "--reason", "id-2", "--json").out.splitlines()
    letter = json.loads(chosen)
    assert letter["status"] == "dead"
    shown = json.loads(run("letters", "show", letter["id"][:10], "--json").out)
    assert shown["event"]["id"] == "id-2"
    assert run("letters", "list", "--status", "invalid").out.count("invalid") == 1
    assert run("letters", "show", "nothing").code == 1
    assert json.loads(run("stats", "--json").out)["letters"] == 3


def test_letters_are_exported_and_dropped(run: Run, letters: Path) -> None:
    exported = run("letters", "export", "--status", "dead").out.splitlines()
    assert {json.loads(line)["id"] for line in exported} == {"id-1", "id-2"}
    assert run("letters", "drop", "--status", "invalid", "--yes").code == 0
    assert len(run("letters", "list").out.splitlines()) == 3


def test_letters_are_redriven_to_stdout_once(run: Run, letters: Path) -> None:
    assert run("letters", "redrive", "--status", "dead", "--dry-run").out.startswith(
        "2 dead letters"
    )
    redriven = run("letters", "redrive", "--status", "dead", "--handler", "-", "--json")
    assert {json.loads(line)["id"] for line in redriven.out.splitlines()} == {"id-1", "id-2"}
    assert json.loads(redriven.err) == {"done": 2}
    assert run("letters", "redrive", "--status", "dead", "--handler", "-").out == ""
    assert len(run("letters", "list").out.splitlines()) == 2


def test_letters_are_redriven_into_a_handler_of_the_user(
    run: Run, letters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (letters / "my_app.py").write_text(
        "seen = []\n\ndef close(job):\n    seen.append(job.event.id)\n"
    )
    monkeypatch.syspath_prepend(str(letters))
    assert run("letters", "redrive", "--status", "dead", "--handler", "my_app:close").code == 0
    assert sorted(sys.modules.pop("my_app").seen) == ["id-1", "id-2"]
    wrong = run("letters", "redrive", "--handler", "my_app:nothing")
    assert wrong.code == 2


def test_the_demo_shows_that_only_eventonce_loses_and_repeats_nothing(run: Run) -> None:
    document = json.loads(run("demo", "--json").out)
    results = {result["recipe"]: result for result in document["results"]}
    ours = results.pop("eventonce")
    assert (ours["lost"], ours["copies"]) == (0, 0)
    assert document["killed"] == 1
    assert all(result["copies"] for result in results.values())
    safe = [name for name, result in results.items() if not result["lost"]]
    assert [name.partition(",")[0] for name in safe] == [
        "an SQS FIFO queue",
        "Powertools' idempotency",
    ]


def test_the_demo_prints_its_story_and_writes_a_page(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "duckdb", None)  # `make demo` installs no extra
    told = run("demo").out
    assert "A Monday of a contact centre" in told
    assert "eventonce explain" in told
    assert told.splitlines()[-1].endswith(": eventonce-demo.html")
    page = Path("eventonce-demo.html").read_text(encoding="utf-8")
    assert "<h1>In 2.8" in page
    assert "eventonce loses <b>0</b> and lets <b>0</b> through." in page


def test_no_line_of_the_demo_is_cut_or_too_long_on_a_terminal_of_80_columns(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("eventonce.cli.demo.started_as", lambda: ".venv/bin/eventonce")
    told = click.unstyle(run("demo").out)
    assert [line for line in told.splitlines() if len(line) > 80 or "…" in line] == []


def test_the_demo_writes_its_page_to_another_folder_if_this_folder_refuses_the_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    Path("eventonce-demo.html").mkdir()
    elsewhere = Path(run("demo").out.splitlines()[-1].rpartition(": ")[2])
    assert elsewhere.parent.parent == tmp_path
    assert elsewhere.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_ctrl_c_in_the_terminal_of_the_demo_does_not_reach_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The worker would end with a traceback; the demo ends it instead.
    program, group = tmp_path / "program", tmp_path / "group"
    program.write_text(
        f"#!{sys.executable}\nimport os\nopen({str(group)!r}, 'w').write(str(os.getpgrp()))\n"
    )
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    assert worker._worked([], tmp_path / "demo.db") == []
    assert int(group.read_text()) != os.getpgrp()


def test_a_filter_remembers_its_own_lines_only_for_the_time_of_their_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now / 1000)
    rule = Rule(name="call", match="call", key=["detail.call"], remember="5s")
    rules, out = Ruleset([rule], name="short"), io.BytesIO()
    events = EventFilter(MemoryStore(clock=clock), rules, out, max_bytes=1000)
    line = b'{"id": "1", "detail-type": "call", "detail": {"call": 1}}'
    for seconds in (0, 4.999, 0.001):
        clock.advance(seconds)
        events.write_new(events.plan([line]))
    assert events.counts == {"done": 2, "duplicate": 1}
