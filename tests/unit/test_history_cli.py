"""`eventonce history`: the story of a call, from `run` to the words on the terminal."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from eventonce import envelope
from eventonce.clock import wall_clock
from eventonce.history import Decision, History, Search
from eventonce.history.decision import decided
from eventonce.history.story import lateness, told
from eventonce.history.tables import MINUTE
from eventonce.runtime import background
from eventonce.types import Outcome
from tests.helpers import Run, call, until, write_lines

CONFIG = """
store = "sqlite:///{folder}/store.db"
name = "crm"
[history]
store = "sqlite:///{folder}/history.db"
[[sink]]
match = "*"
to = "file:{folder}/out.jsonl"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "crm.toml"
    path.write_text(CONFIG.format(folder=tmp_path))
    return path


def test_history_prints_the_story_of_a_call(run: Run, config: Path, tmp_path: Path) -> None:
    spoken = {"detail-type": "call.ended", "source": "s", "detail": {"contactId": 4711}}
    other = {"detail-type": "call.ended", "source": "s", "detail": {"contactId": 4712}}
    capture = write_lines(
        tmp_path / "c.jsonl", *({"id": name, **spoken} for name in "aab"), {"id": "c", **other}
    )
    early = run("history", "-c", config, "--conversation", "4711")
    assert (early.code, early.err.count("there is no such file")) == (2, 1)
    assert run("run", "-c", config, "--from", capture).code == 0
    found = run("history", "-c", config, "--conversation", "4711")
    assert found.code == 0
    # The order of the two events is not asserted: handlers run side by side.
    head, *_, total = found.out.splitlines()
    assert head.endswith("  call.ended")
    assert found.out.count("\n  ran at ") == 2
    assert found.out.count("under the same transport id: delivered again") == 1
    assert total == "2 events, 3 decisions"
    assert found.out.count("\n  conversation 4711, key ") == 2
    (document,) = run("history", "-c", config, "--event", "c", "--json").documents[0]
    (decision,) = document["decisions"]
    assert (decision["conversation"], decision["status"]) == ("4712", "done")
    named = f"\n  conversation 4712, key {decision['key']}\n"
    assert named in run("history", "-c", config, "--status", "done").out
    both = run("history", "-c", config, "--status", "done, duplicate", "--totals", "--json")
    assert both.documents[0]["outcomes"] == {"done": 3, "duplicate": 1}
    many = [run("history", "-c", config, "--copies", one).code for one in ("same", "other")]
    assert many == [0, 1]
    same = run("history", "-c", config, "--copies", "same,other", "--totals", "--json")
    assert same.documents[0]["outcomes"] == {"duplicate": 1}
    wrong = run("history", "-c", config, "--status", "done,odd")
    assert (wrong.code, "'odd' is not one of" in wrong.err) == (2, True)
    by_key = run("history", "-c", config, "--key", decision["key"], "--name", "crm", "--json")
    assert by_key.documents[0] == [document]


def test_the_story_of_a_state_names_its_subject_and_the_version_that_won(
    run: Run, config: Path, tmp_path: Path
) -> None:
    rule = '[[rule]]\nname = "agent"\nmatch = "agent"\nsubject = ["detail.user", "detail.queue"]\n'
    config.write_text(config.read_text() + rule + 'order = "detail.version"\n')

    def agent(id: str, version: int) -> dict[str, object]:
        detail = {"user": "u-1", "queue": 7, "version": version}
        return {"id": id, "detail-type": "agent", "detail": detail}

    for number, (id_, version) in enumerate((("a", 2), ("b", 1), ("c", 2))):
        capture = write_lines(tmp_path / f"{number}.jsonl", agent(id_, version))
        assert run("run", "-c", config, "--from", capture).code == 0
    explained = run("explain", "-c", config, capture)
    assert "\nsubject   u-1, 7\n" in explained.out
    assert run("explain", "-c", config, capture, "--json").documents[0]["subject"] == "u-1, 7"
    found = run("history", "-c", config, "--subject", "u-1, 7")
    assert "\n  subject u-1, 7, key " in found.out
    assert "which was applied; event a has that version\n" in found.out
    # The event that took effect has none of the statuses that are asked for.
    dropped = run("history", "-c", config, "--status", "duplicate,stale", "--json").documents[0]
    assert [
        (one["id"], one["subject"], one["winner"])
        for chapter in dropped
        for one in chapter["decisions"]
    ] == [("b", "u-1, 7", "a"), ("c", "u-1, 7", "a")]
    copy = run("history", "-c", config, "--status", "duplicate")
    assert ", of event a, under another transport id: published again; the run before" in copy.out
    shown = run("show", "-c", config, capture)
    assert "ran at " in shown.out
    assert ", of event a" in shown.out
    assert run("history", "-c", config, "--subject", "u-1").code == 1
    counted = run("history", "-c", config, "--subject", "u-1, 7", "--totals")
    assert (counted.code, "--totals takes only" in counted.err) == (2, True)


def test_a_limit_cuts_no_run_from_the_story_of_a_call(
    run: Run, config: Path, tmp_path: Path
) -> None:
    event = {"detail-type": "call.ended", "source": "s", "detail": {"contactId": 4711}}
    for number, name in enumerate("aaaaaa"):
        capture = write_lines(tmp_path / f"{number}.jsonl", {"id": name, **event})
        assert run("run", "-c", config, "--from", capture).code == 0
    found = run("history", "-c", config, "--conversation", "4711", "--limit", "4")
    assert found.out.count("\n  ran at ") == 1
    assert " as event a on worker " in found.out
    assert "\n  4 or more copies since, the last at " in found.out
    assert "the latest 4, and 1 run before them; a larger --limit shows more" in found.err
    (document,) = run("history", "-c", config, "--event", "a", "--json").documents[0]
    key = document["decisions"][0]["key"]
    copies = run("history", "-c", config, "--conversation", "4711", "--status", "duplicate").out
    assert f"the run before is not shown here: eventonce history --key {key} shows it" in copies
    assert "not shown here" not in run("history", "-c", config, "--key", key).out
    last = run("show", "-c", config, capture, "--json").documents[0]["history"]
    assert last[0].startswith("ran at ")


def test_the_totals_show_the_statuses_of_each_outcome(
    run: Run, config: Path, tmp_path: Path
) -> None:
    config.write_text(config.read_text().replace('"*"', '"call.ended"'))
    ended = {"detail-type": "call.ended", "source": "s", "detail": {"contactId": 4711}}
    begun = {"id": "c", "detail-type": "call.begun", "source": "s", "detail": {"contactId": 4711}}
    ended_thrice = ({"id": name, **ended} for name in "aab")
    capture = write_lines(tmp_path / "c.jsonl", *ended_thrice, begun, "no event")
    run("run", "-c", config, "--from", capture)
    head, *lines = run("history", "-c", config, "--totals").out.split("\n\n")[0].splitlines()
    assert head.split() == ["outcome", "events", "status"]
    said = {line[: head.index("events")].strip(): line[head.index("status") :] for line in lines}
    assert {name: text.partition("  ")[0].strip() for name, text in said.items()} == {
        "ran": "done 2",
        "copies": "duplicate 1",
        "not settled": "",
        "dead letters": "invalid 1",
        "ignored": "ignored 1",
    }


def test_the_totals_include_deleted_decisions_and_show_since_when_they_count(
    run: Run, config: Path, tmp_path: Path
) -> None:
    run("store", "create", "-c", config)
    minute = (wall_clock() - 3_600_000) // MINUTE * MINUTE
    outcomes = [Outcome(envelope.read(call(number)), "done") for number in range(5)]
    with History(f"sqlite:///{tmp_path}/history.db") as history, history._tables() as tables:
        tables.add(decided(outcomes, minute + 7, "crm", "w", "file"))
    config.write_text(config.read_text().replace("[[sink]]", "most = 2\n[[sink]]"))
    assert run("sweep", "-c", config, "--json").documents[0]["decisions"] == 3
    assert len(run("history", "-c", config, "--json").documents[0]) == 2
    (counted,) = run("history", "-c", config, "--totals", "--json").documents
    assert (counted["outcomes"]["done"], counted["since"]) == (5, minute)
    *_, last = run("history", "-c", config, "--totals").out.strip().splitlines()
    begin = datetime.fromtimestamp(minute / 1000, UTC)
    assert last.startswith(f"all decisions since {begin:%Y-%m-%d %H:%M}:00")
    assert "also those that are no longer kept" in last


@pytest.mark.parametrize("digests", [True, False])
def test_with_secrets_a_call_is_found_by_its_plain_id(
    run: Run, config: Path, tmp_path: Path, digests: bool
) -> None:
    config.write_text(
        'secrets = ["the secret in use, new", "the secret before it"]\n' + config.read_text()
    )
    table = "" if digests else "[privacy]\ndigests = false\n"
    config.write_text(config.read_text() + table)
    event = {"id": "e-1", "detail-type": "call.ended", "detail": {"contactId": "+49 30 901820"}}
    capture = write_lines(tmp_path / "c.jsonl", event)
    assert run("run", "-c", config, "--from", capture).code == 0
    for option in (("--conversation", "+49 30 901820"), ("--event", "e-1")):
        (found,) = run("history", "-c", config, *option, "--json").documents[0]
        (decision,) = found["decisions"]
        assert decision["conversation"].startswith("#") is digests
        assert decision["id"].startswith("#") is digests
    assert "ran at " in run("show", "-c", config, capture).out
    erased = run("forget", "-c", config, "--conversation", "+49 30 901820", "--yes", "--json")
    assert erased.code == 0
    assert run("history", "-c", config, "--event", "e-1").code == 1


@pytest.mark.parametrize(
    ("ago", "said"),
    [(59_000, ""), (60_000, "1 minute late"), (7_300_000, "2 hours late"), (None, "")],
)
def test_a_story_says_how_late_an_event_ran(ago: int | None, said: str) -> None:
    now = 1_700_000_000_000
    event = {"id": "a", "detail-type": "call", "detail": {}}
    if ago is not None:
        event["time"] = datetime.fromtimestamp((now - ago) / 1000, UTC).isoformat()
    outcome = Outcome(envelope.read(json.dumps(event).encode()), "done")
    ((kind, own),) = decided([outcome], now, "crm", "w1", "sqs:calls")
    one = Decision(*kind, *own)  # type: ignore[arg-type]  # its fields, in their order
    assert lateness(one) == said
    ((sentence,),) = [chapter.sentences for chapter in told([one])]
    assert sentence.endswith(f", {said}" if said else "through sqs:calls")


def test_a_search_without_a_result_is_explained(run: Run, config: Path, tmp_path: Path) -> None:
    capture = tmp_path / "c.jsonl"
    capture.write_bytes(call(1))
    run("run", "-c", config, "--from", capture)
    for option in (("--conversation", "x"), ("--name", "other"), ("--status", "dead")):
        found = run("history", "-c", config, *option)
        assert (found.code, found.out) == (1, "\n")
        assert (
            "the history has no such decision; a decision is written when the run has" in found.err
        )
    assert run("history", "-c", config, "--since", "1h").code == 0
    assert run("history", "-c", config, "--until", "1970-01-01").code == 1
    for name in ("--conversation", "--event", "--key"):
        empty = run("history", "-c", config, name, "")
        assert (empty.code, "the value is empty" in empty.err) == (2, True)
    wrong = run("history", "-c", config, "--key", "xyz")
    assert (wrong.code, "is not hexadecimal" in wrong.err) == (2, True)


def test_a_missing_or_wrong_history_setting_is_named_in_the_error(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "crm.toml"
    config.write_text('store = "memory:"')
    told = run("history", "-c", config)
    assert told.code == 2
    assert "[history]" in told.err
    config.write_text('[history]\nstore = "redis://127.0.0.1"\nkeep = "0s"\nmost = 0')
    wrong = run("check", config)
    assert wrong.code == 2
    for field in ("history.store", "history.keep", "history.most"):
        assert field in wrong.err


def test_show_prints_the_decisions_under_another_consumer_name(
    run: Run, config: Path, tmp_path: Path
) -> None:
    event = tmp_path / "event.json"
    event.write_bytes(call(1))
    capture = write_lines(tmp_path / "c.jsonl", *[json.loads(call(1))] * 2)
    early = run("show", "-c", config, event)
    assert early.code == 2
    run("run", "-c", config, "--from", capture, "--name", "other")
    found = run("show", "-c", config, event)
    assert found.code == 0
    assert "found under the name 'other'" in found.err
    assert "ran at " in found.out
    assert "1 copy since" in found.out
    document = run("show", "-c", config, event, "--json").documents[0]
    assert len(document["history"]) == 2
    (tmp_path / "store.db").unlink()
    run("store", "create", f"sqlite:///{tmp_path}/store.db")
    # The store has no record of the event, and the history still has its decisions.
    forgotten = run("show", "-c", config, document["key"])
    assert (forgotten.code, "ran at " in forgotten.out) == (0, True)
    by_event = run("show", "-c", config, event)
    assert (by_event.code, by_event.out) == (0, forgotten.out)
    assert "found under the name 'other'" in by_event.err


def test_show_reads_the_history_of_its_option(run: Run, config: Path, tmp_path: Path) -> None:
    event = tmp_path / "event.json"
    event.write_bytes(call(1))
    run("run", "-c", config, "--from", event)
    away = ["--store", f"sqlite:///{tmp_path}/store.db", "--name", "crm"]
    bare = run("show", event, *away)
    assert (bare.code, "ran at " in bare.out) == (0, False)
    found = run("show", event, *away, "--history", f"sqlite:///{tmp_path}/history.db")
    assert (found.code, "ran at " in found.out) == (0, True)
    missing = run("show", event, *away, "--history", f"sqlite:///{tmp_path}/nothing.db")
    assert (missing.code, "nothing.db" in missing.err) == (2, True)


@pytest.mark.parametrize("id", ["of a copy that nobody delivered", ""])
def test_show_finds_an_event_by_its_key_under_another_consumer_name(
    run: Run, config: Path, tmp_path: Path, id: str
) -> None:
    rule = '[[rule]]\nname = "call"\nkey = ["detail.call"]\n'
    config.write_text(config.read_text() + rule)
    capture, event = tmp_path / "c.jsonl", tmp_path / "event.json"
    capture.write_bytes(call(1))
    event.write_bytes(call(1, id=id))
    assert run("run", "-c", config, "--from", capture, "--name", "other").code == 0
    found = run("show", "-c", config, event)
    assert (found.code, "ran at " in found.out) == (0, True)
    assert "found under the name 'other', not under the name 'crm'" in found.err


def test_show_prints_the_record_when_the_history_cannot_be_read(
    run: Run, config: Path, tmp_path: Path
) -> None:
    event = tmp_path / "event.json"
    event.write_bytes(call(1))
    run("run", "-c", config, "--from", event)
    history = tmp_path / "history.db"
    for one in tmp_path.glob("history.db*"):
        one.unlink()
    history.touch()
    found = run("show", "-c", config, event)
    assert (found.code, ": done" in found.out) == (0, True)
    assert "the history does not answer" in found.err


def planted(folder: Path, moment: int) -> History:
    """A history with one decision of that moment."""
    history = History(f"sqlite:///{folder}/history.db", keep="1d")
    outcome = Outcome(envelope.read(call(1)), "done", "")
    with history._tables() as tables:
        tables.add(decided([outcome], moment, "crm", "w", "file"))
    return history


def test_a_short_run_and_a_sweep_delete_decisions_that_are_too_old(
    run: Run, config: Path, tmp_path: Path
) -> None:
    """Not only a process that runs for longer than a minute deletes old decisions."""
    capture = write_lines(tmp_path / "c.jsonl", call(2).decode())
    for command in (("run", "-c", config, "--from", capture), ("sweep", "-c", config)):
        planted(tmp_path, 1).close()
        done = run(*command, "--json")
        assert done.code == 0, done.err
        with History(f"sqlite:///{tmp_path}/history.db") as history:
            assert {one.id for one in history.find(Search())} <= {"id-2"}
    assert done.documents[0]["decisions"] == 1


def test_a_sweep_empties_the_write_ahead_log_of_an_open_history(
    run: Run, config: Path, tmp_path: Path
) -> None:
    run("store", "create", "-c", config)
    with planted(tmp_path, 1):
        assert (tmp_path / "history.db-wal").stat().st_size
        assert run("sweep", "-c", config, "--json").documents[0]["decisions"] == 1
        assert (tmp_path / "history.db-wal").stat().st_size == 0


def test_a_sweep_reports_its_deletions_even_if_the_history_cannot_be_read(
    run: Run, config: Path, tmp_path: Path
) -> None:
    run("store", "create", "-c", config)
    (tmp_path / "history.db").write_bytes(b"this is no database, and never was one")
    done = run("sweep", "-c", config)
    assert (done.code, done.out) == (2, "deleted 0 of 0 records\n")
    assert "history" in done.err


def test_an_idle_history_deletes_decisions_that_are_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "WRITE_INTERVAL", 0.01)
    with planted(tmp_path, 1) as history:
        history.keep_up()
        until(lambda: not history.find(Search()))


@pytest.mark.parametrize("named", [True, False], ids=["in the file", "of a dashboard"])
def test_a_redrive_is_added_to_the_story_of_its_event(
    run: Run, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("redrive_handlers.py").write_text(
        "from eventonce import Reject\n"
        "def refuse(job):\n    raise Reject('the CRM is away')\n"
        "def take(job):\n    pass\n"
    )
    history = tmp_path / ("history.db" if named else "eventonce-history.db")
    if not named:
        config.write_text(config.read_text().replace("history.db", "eventonce-history.db"))
    event = {"id": "a", "detail-type": "call.ended", "source": "s", "detail": {"contactId": 4711}}
    capture = write_lines(tmp_path / "c.jsonl", event)
    refused = run("run", "-c", config, "--from", capture, "--handler", "redrive_handlers:refuse")
    assert refused.code == 1
    if not named:
        config.write_text('store = "sqlite:///store.db"\nname = "crm"\n')
    handler = ("--handler", "redrive_handlers:take")
    before = history.read_bytes()
    assert run("letters", "redrive", "-c", config, *handler, "--dry-run").code == 0
    assert history.read_bytes() == before
    assert run("letters", "redrive", "-c", config, *handler).code == 0
    story = run("history", "-c", config, "--conversation", "4711").out
    assert "the CRM is away; kept as a dead letter until it ran\n  ran at " in story
    assert story.count(", through redrive\n") == 1
