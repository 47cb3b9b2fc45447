"""`eventonce filter`: the forms of a capture, its copies, and the lines that are no events."""

from __future__ import annotations

import gzip
import io
import json
import random
import signal
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from eventonce import Consumer, Job, Reject, Rule
from eventonce.cli import event_filter
from eventonce.cli.event_filter import EventFilter
from eventonce.cli.filter import HOW_TO_CONTINUE, NOT_REMEMBERED
from eventonce.cli.output import write_whole
from eventonce.rules import Ruleset
from eventonce.stores.memory import MemoryStore
from eventonce.types import Verdict
from tests.helpers import Result, Run, WatchedStore, call
from tests.unit.made import classic

EVENTS = [
    classic({"eventBody": {"call": 1}}, id="1"),
    classic({"eventBody": {"call": 2}}, id="2"),
    classic({"eventBody": {"call": 1}}, id="3"),
]
NEW = EVENTS[:2]
RULE = '[[rule]]\nname = "call"\nkey = ["body.call"]\n'


@pytest.fixture
def run(run: Run) -> Run:
    Path("eventonce.toml").write_text(RULE)
    return run


def statuses(result: Result) -> dict[str, int]:
    """The counts in the summary of `--json`."""
    counted: dict[str, int] = json.loads(result.err.splitlines()[-1])["statuses"]
    return counted


def message(number: int, event: Any) -> dict[str, Any]:
    """A message as `aws sqs receive-message` prints it."""
    return {"MessageId": f"m-{number}", "ReceiptHandle": f"r-{number}", "Body": json.dumps(event)}


MESSAGES = [message(number, event) for number, event in enumerate(EVENTS)]

CAPTURES: dict[str, str] = {
    "lines": "\n".join(map(json.dumps, EVENTS)),
    "an array": json.dumps(EVENTS),
    "an array over many lines": json.dumps(EVENTS, indent=2),
    "documents over many lines": "\n".join(json.dumps(event, indent=2) for event in EVENTS),
    "documents without a newline": "".join(map(json.dumps, EVENTS)),
}
RECEIVED: dict[str, str] = {
    "messages received together": json.dumps({"Messages": MESSAGES}, indent=4),
    "messages received one by one": "\n".join(
        json.dumps({"Messages": [one]}, indent=4) for one in MESSAGES
    ),
    "messages on a line": json.dumps({"Messages": MESSAGES[:2]}) + "\n" + json.dumps(MESSAGES[2]),
    "an array of messages": json.dumps(MESSAGES),
    "lines of a log, in an array": json.dumps([json.dumps(event) for event in EVENTS], indent=4),
}


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", CAPTURES)
def test_a_capture_is_read_in_each_form(
    run: Run, name: str, pack: Callable[[bytes], bytes]
) -> None:
    Path("capture").write_bytes(pack(CAPTURES[name].encode()))
    result = run("filter", "capture", "--json")
    assert [json.loads(line) for line in result.out.splitlines()] == NEW
    assert (result.code, statuses(result)) == (0, {"done": 2, "duplicate": 1})


@pytest.mark.parametrize("name", RECEIVED)
def test_messages_of_a_queue_and_lines_of_a_log_are_filtered_by_their_events(
    run: Run, name: str
) -> None:
    Path("capture").write_text(RECEIVED[name])
    result = run("filter", "capture", "--json")
    assert statuses(result) == {"done": 2, "duplicate": 1}
    assert len(result.out.splitlines()) == 2


def test_a_compressed_capture_may_come_from_stdin(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("capture.gz").write_bytes(gzip.compress(CAPTURES["lines"].encode()))
    with Path("capture.gz").open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert len(run("filter").out.splitlines()) == 2


def test_a_bad_element_is_rejected_with_its_number_and_the_other_events_are_written(
    run: Run,
) -> None:
    first, second, _ = map(json.dumps, EVENTS)
    Path("capture").write_text(f"[{first}, {{bad}}, {second}]")
    result = run("filter", "capture", "--rejects", "bad.jsonl", "--json")
    assert [json.loads(line) for line in result.out.splitlines()] == NEW
    (rejected,) = map(json.loads, Path("bad.jsonl").read_text().splitlines())
    assert (rejected["place"], rejected["event"]) == ("capture[1]", "{bad}")


def test_a_truncated_capture_is_reported_and_the_other_captures_are_read(run: Run) -> None:
    packed = gzip.compress(json.dumps(EVENTS[0]).encode() + b"\n")
    Path("1.gz").write_bytes(packed[:-4])
    Path("2").write_text(json.dumps(EVENTS[1]) + "\n")
    result = run("filter", "1.gz", "2")
    assert result.code == 2
    assert json.dumps(EVENTS[1]) in result.out
    assert "1.gz cannot be read completely" in result.err
    assert "2 new" in result.err


@pytest.mark.parametrize("form", ["{}\n{}\n{}\n", "[{},{},{}]"], ids=["lines", "an array"])
def test_an_event_that_is_too_long_is_rejected_whole_with_its_true_size(
    run: Run, form: str
) -> None:
    long = json.dumps({"note": "é\\" + "x" * 3_000_000}, ensure_ascii=False)
    first, second, _ = map(json.dumps, EVENTS)
    Path("capture").write_text(form.replace("{}", "%s") % (first, long, second))
    result = run("filter", "capture", "--rejects", "bad.jsonl", "--json")
    assert [json.loads(line) for line in result.out.splitlines()] == NEW
    (rejected,) = map(json.loads, Path("bad.jsonl").read_text().splitlines())
    assert rejected["event"] == long
    assert rejected["place"] in ("capture:2", "capture[1]")
    assert f"{len(long.encode())} bytes, and the limit is 1048576" in rejected["reason"]
    assert statuses(result) == {"done": 2, "invalid": 1}


def test_the_rejects_file_stays_valid_when_a_line_that_is_too_long_is_truncated(run: Run) -> None:
    noise = random.Random(1).randbytes(3_000_000).hex().encode()
    Path("1.gz").write_bytes(gzip.compress(noise)[:-1_000])
    Path("2").write_text("{\n")
    result = run("filter", "1.gz", "2", "--rejects", "bad.jsonl", "--json")
    first, second = map(json.loads, Path("bad.jsonl").read_text().splitlines())
    assert (result.code, first["place"], second["place"]) == (2, "1.gz:1", "2:1")
    assert noise.startswith(first["event"].encode())


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_line_that_is_too_long_is_reported_with_its_beginning_and_its_true_size(
    run: Run, options: tuple[str, ...]
) -> None:
    Path("capture").write_text("x" * 3_000_000)
    result = run("filter", "capture", "--max-bytes", "1000", *options)
    assert "x" * 400 in result.err
    assert len(result.err) < 2_000
    for word in ("capture:1", "too large: 3000000 bytes, and the limit is 1000"):
        assert word in result.err


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_the_first_20_bad_lines_are_shown_and_the_others_are_counted(
    run: Run, options: tuple[str, ...]
) -> None:
    bad = '{"broken": "' + "x" * 2_000 + '"'
    Path("capture").write_text(f"{bad}\n" * 1_000)
    result = run("filter", "capture", *options)
    assert len(result.err) < 30_000
    for word in ("capture:1", "capture:20", "980", "--rejects"):
        assert word in result.err
    assert "capture:21" not in result.err
    kept = run("filter", "capture", "--rejects", "bad.jsonl", *options)
    rejected = Path("bad.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in rejected] == [bad] * 1_000
    assert "--rejects" not in kept.err


def test_the_summary_counts_the_copies_by_their_cause(run: Run) -> None:
    one, two, again = EVENTS
    republished = again | {"id": "4"}
    Path("first").write_text(json.dumps(one))
    Path("then").write_text("\n".join(map(json.dumps, (one, again, one, two, again, two))))
    Path("later").write_text("\n".join(map(json.dumps, (republished, again, one, two))))

    def causes(file: str) -> dict[str, int]:
        counted = json.loads(run("filter", file, "--store", "sqlite:///s.db", "--json").err)
        assert sum(counted["duplicates"].values()) == counted["statuses"].get("duplicate", 0)
        found: dict[str, int] = counted["duplicates"]
        return found

    assert causes("first") == {}
    assert causes("then") == {"same_id": 3, "another_id": 2}
    # Within one chunk, after a leader that has another id itself: the winner is asked for.
    assert causes("later") == {"another_id": 2, "same_id": 2}
    assert (
        "duplicate  4  2 another transport id, 2 same transport id"
        in run("filter", "later", "--store", "sqlite:///s.db").err
    )


def copies_of(file: str = "copies.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def test_each_copy_is_written_with_its_original_and_its_cause(run: Run) -> None:
    """A copy of a copy has the cause of its own delivery, and the original of all copies."""

    def line(id: str, event: str, arrived: int, receives: int) -> dict[str, Any]:
        inner = classic({"eventBody": {"call": 1}}, id=event)
        told = {"id": id, "arrived": arrived, "channel": "q", "receives": receives}
        return {"eventonce": 1, **told, "event": inner}

    lines = [
        line("m-1", "1", 0, 1),
        line("m-2", "2", 90_000, 1),
        line("m-2", "2", 120_000, 2),
        line("m-3", "1", 125_000, 1),
    ]
    Path("capture").write_text("\n".join(map(json.dumps, lines)))
    result = run("filter", "capture", "--copies", "copies.jsonl")
    assert (result.code, len(result.out.splitlines())) == (0, 1)
    written = copies_of()
    assert [(one["cause"], one["gap"]) for one in written] == [
        ("re-publish", 90_000),
        ("redelivery", 120_000),
        ("target-retry", 125_000),
    ]
    assert [one["copy"]["place"] for one in written] == ["capture:2", "capture:3", "capture:4"]
    assert [one["copy"]["event"] for one in written] == lines[1:]
    assert all(one["original"] == {"place": "capture:1", "event": lines[0]} for one in written)


def test_filter_and_diagnose_find_the_same_causes_of_copies(run: Run) -> None:
    """The exception is a double emission: a rule for facts runs both events."""
    Path("eventonce.toml").unlink()
    run("simulate", "--events", "3000", "--seed", "31", "-o", "c.jsonl", "--truth", "t.jsonl")
    run("filter", "c.jsonl", "--presets", "genesys", "--copies", "copies.jsonl")
    run("diagnose", "c.jsonl", "--presets", "genesys", "--lines", "lines.jsonl")
    told = {one["line"]: one for one in copies_of("lines.jsonl")}
    written = copies_of()
    assert len(written) > 300
    for one in written:
        copy, original = (
            told[int(one[side]["place"].partition(":")[2])] for side in ("copy", "original")
        )
        if original["cause"] is None:
            assert (one["cause"], original["line"]) == (copy["cause"], copy["copy_of"])
        else:
            assert (original["cause"], original["copy_of"]) == ("double-emission", copy["copy_of"])


STATES = """
[[rule]]
name = "presence"
subject = ["detail.user"]
order = "detail.at"
state = ["detail.status"]
unchanged_within = "1s"
"""


def test_a_stale_or_unchanged_version_is_written_with_the_applied_version(run: Run) -> None:
    at = 1_794_819_600_000

    def told(after: int, status: str, id: str) -> dict[str, Any]:
        return classic({"user": 1, "at": at + after, "status": status}, id=id)

    events = [told(0, "a", "1"), told(9_000, "b", "2"), told(5_000, "c", "3")]
    events += [told(9_400, "b", "4"), told(0, "a", "1")]
    Path("eventonce.toml").write_text(STATES)
    Path("capture").write_text("\n".join(map(json.dumps, events)))
    run("filter", "capture", "--copies", "copies.jsonl")
    assert [(one["status"], one["cause"], one["original"]["place"]) for one in copies_of()] == [
        ("stale", None, "capture:2"),
        ("unchanged", "double-emission", "capture:2"),
        ("stale", "unknown", "capture:2"),
    ]


def test_a_copy_of_an_earlier_run_has_no_original_and_no_cause(run: Run) -> None:
    Path("capture").write_text(json.dumps(EVENTS[0]))
    run("filter", "capture", "--store", "sqlite:///seen.db")
    run("filter", "capture", "--store", "sqlite:///seen.db", "--copies", "copies.jsonl")
    [only] = copies_of()
    assert (only["original"], only["cause"]) == (None, None)


def test_copies_do_not_overwrite_the_capture(run: Run) -> None:
    Path("capture").write_text(json.dumps(EVENTS[0]))
    result = run("filter", "capture", "--copies", "capture")
    assert result.code == 2
    assert "name another file" in result.err
    assert Path("capture").read_text()


def test_copies_that_cannot_be_written_are_explained(run: Run) -> None:
    Path("capture").write_bytes(call(1) + b"\n" + call(1) + b"\n")
    result = run("filter", "capture", "--copies", "/dev/full")
    assert result.code == 1
    assert "/dev/full, or " in result.err
    result = run("filter", "capture", "--copies", "-")
    assert result.code == 2
    assert "stdout has the new events" in result.err


def test_copies_of_a_dead_letter_are_reported_as_dead(run: Run) -> None:
    with Consumer("sqlite:///s.db", rules=Rule(name="call", key=["body.call"])) as consumer:
        consumer.on()(_reject)
        consumer.process([EVENTS[0]])
    Path("capture").write_text("\n".join(map(json.dumps, EVENTS)))
    result = run("filter", "capture", "--store", "sqlite:///s.db", "--json")
    assert statuses(result) == {"done": 1, "dead": 2}


def _reject(_: Job) -> None:
    raise Reject("no such customer")


@pytest.mark.parametrize("by", ["file", "environment"])
def test_filter_does_not_write_to_the_store_of_the_file_or_the_environment(
    run: Run, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "file":
        Path("eventonce.toml").write_text(f'store = "sqlite:///live.db"\nname = "crm"\n{RULE}')
    else:
        monkeypatch.setenv("EVENTONCE_STORE", "sqlite:///live.db")
        monkeypatch.setenv("EVENTONCE_NAME", "crm")
    Path("capture").write_text(CAPTURES["lines"])
    result = run("filter", "capture")
    assert not Path("live.db").exists()
    assert "remembered only during this run" in result.err
    assert "sqlite:///live.db is not touched" in result.err
    rules = Rule(name="call", key=["body.call"])
    with Consumer("sqlite:///live.db", name="crm", rules=rules) as consumer:
        consumer.on()(lambda _: None)
        assert [one.status for one in consumer.process(EVENTS)] == ["done", "done", "duplicate"]


def test_filter_reports_its_store_and_how_long_events_are_remembered(run: Run) -> None:
    Path("capture").write_text(CAPTURES["lines"])
    Path("rules.toml").write_text(RULE)
    uri = "sqlite:///seen.db?synchronous=full"
    told = run("filter", "capture", "--store", uri, "--rules", "rules.toml").err
    assert told.startswith("eventonce: events are remembered in sqlite:///seen.db… for 10 days\n")
    with Path("rules.toml").open("a") as file:
        file.write('[[rule]]\nname = "brief"\nkey = ["id"]\nremember = "5m"\n')
    several = run("filter", "capture", "--store", uri, "--rules", "rules.toml").err
    assert several.startswith(
        "eventonce: events are remembered in sqlite:///seen.db… for up to 10 days\n"
    )
    counted = json.loads(run("filter", "capture", "-s", "sqlite:///seen.db", "--json").err)
    assert counted["store"] == "sqlite:///seen.db"
    assert json.loads(run("filter", "capture", "--json").err)["store"] is None


def test_a_line_of_40_megabytes_is_rejected_with_less_than_20_megabytes_of_memory(run: Run) -> None:
    with Path("capture").open("wb") as out:
        out.writelines(b"x" * 1_000_000 for _ in range(40))
    tracemalloc.start()
    try:
        run("filter", "capture", "--rejects", "bad.jsonl", "--json")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert Path("bad.jsonl").stat().st_size > 40_000_000
    assert peak < 20_000_000


def test_a_line_that_is_not_utf_8_is_shown_as_bytes_with_escapes_of_one_kind(run: Run) -> None:
    Path("capture").write_bytes(b"\xa2\x11\xc4\x93\n")
    assert run("filter", "capture").err.splitlines()[2] == r"  \xa2\x11\xc4\x93"


def test_the_control_characters_of_a_bad_line_are_not_printed(run: Run) -> None:
    Path("capture").write_text("{\x1b]0;owned\x07\x1b[2J\n")
    result = run("filter", "capture", "--max-bytes", "100")
    assert r"{\x1b]0;owned\x07\x1b[2J" in result.err
    assert "\x1b" not in result.err
    Path("capture").write_text("\x1b[2J" * 500_000)
    assert "\x1b" not in run("filter", "capture", "--max-bytes", "100").err


def test_the_progress_bar_is_erased_before_a_bad_line_is_reported(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("capture").write_text("{\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    err = run("filter", "capture").err
    before, _, _ = err.partition("capture:1: invalid")
    assert before.endswith("\r\x1b[K")


def test_the_rejects_file_has_no_terminal_codes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("capture").write_text("{\n" + "x" * 2_000_000 + "\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run("filter", "capture", "--rejects", "bad.jsonl")
    rejected = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]
    assert [entry["place"] for entry in rejected] == ["capture:1", "capture:2"]


def test_rejects_are_not_written_to_the_capture_or_to_the_file_of_copies(run: Run) -> None:
    Path("capture").write_text("{\n")
    read = run("filter", "capture", "--rejects", "capture")
    assert (read.code, "belongs to the capture" in read.err) == (2, True)
    twice = run("filter", "capture", "--rejects", "kept", "--copies", "kept")
    assert (twice.code, "written twice" in twice.err) == (2, True)
    assert "written twice" in run("filter", "--rejects", "kept", "--copies", "kept").err
    assert Path("capture").read_text() == "{\n"
    shown = run("filter", ".", "--rejects", "-")
    assert (shown.code, json.loads(shown.out)["event"]) == (1, "{")


def test_an_empty_capture_has_a_summary_of_one_line(run: Run) -> None:
    Path("capture").touch()
    assert run("filter", "capture").err.splitlines()[1:] == ["0 events, 0 new"]


def test_a_limit_of_0_bytes_is_refused(run: Run) -> None:
    Path("capture").touch()
    assert run("filter", "capture", "--max-bytes", "0").code == 2


@pytest.mark.parametrize("name", ["lines", "documents without a newline", "an array"])
def test_explain_says_how_to_choose_one_event_of_a_capture(run: Run, name: str) -> None:
    Path("capture").write_text(CAPTURES[name])
    result = run("explain", "capture")
    assert result.code == 2
    assert "explain capture --line 1" in result.err
    assert run("explain", "capture", "--line", "3").code == 0


def test_explain_accepts_a_message_as_aws_prints_it(run: Run) -> None:
    for number, at in enumerate((0, 2)):
        received = json.dumps({"Messages": [message(number, EVENTS[at])]}, indent=4)
        Path(f"{number}.gz").write_bytes(gzip.compress(received.encode()))
    assert "same key" in run("explain", "0.gz", "1.gz").out
    Path("0.gz").write_bytes(Path("1.gz").read_bytes()[:-4])
    broken = run("explain", "0.gz")
    assert (broken.code, "cannot be read to its end" in broken.err) == (2, True)


def test_a_document_of_many_events_may_be_longer_than_the_limit_of_one_event(
    run: Run, tmp_path: Path
) -> None:
    events = [classic({"eventBody": {"call": number}}, id=str(number)) for number in range(400)]
    file = tmp_path / "batch.json"
    file.write_text(json.dumps({"Records": events}))
    result = run("filter", "--max-bytes", "5000", str(file))
    assert (result.code, len(result.out.splitlines())) == (0, 400)


def test_a_busy_event_is_not_written_even_if_its_verdict_has_a_token() -> None:
    out = io.BytesIO()
    rules = Ruleset([Rule(name="call", key=["body.call"])], name="n")
    busy = WatchedStore(lambda _, __: [Verdict("busy", token=5, attempt=1)])
    events = EventFilter(busy, rules, out, max_bytes=10_000)
    refused = events.write_new(events.plan([json.dumps(EVENTS[0]).encode()]))
    assert ([one.status for one in refused], out.getvalue()) == (["busy"], b"")


def test_no_key_of_a_written_batch_is_still_running() -> None:
    rules = Ruleset([Rule(name="call", key=["body.call"])], name="n")
    events = EventFilter(MemoryStore(), rules, io.BytesIO(), max_bytes=10_000)
    batch = events.plan([json.dumps(event).encode() for event in NEW])
    keys = [claim.key for group in batch.groups for claim, _, _ in group]
    events.write_new(batch)
    assert [events._gate.when_ended(key, lambda: None) for key in keys] == [False, False]


def test_the_decisions_of_a_batch_are_kept_only_with_traces() -> None:
    rules = Ruleset([Rule(name="call", key=["body.call"])], name="n")
    lines = [json.dumps(event).encode() for event in EVENTS]
    kept = {}
    for traces in (False, True):
        events = EventFilter(MemoryStore(), rules, io.BytesIO(), max_bytes=10_000, traces=traces)
        events.write_new(events.plan(lines))
        kept[traces] = len(events.decided)
    assert kept == {False: 0, True: len(EVENTS)}


# Ctrl-C


def test_ctrl_c_waits_until_the_lines_that_were_written_are_settled(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(out: BinaryIO, data: bytes) -> None:
        write_whole(out, data)
        signal.raise_signal(signal.SIGINT)

    for number, event in enumerate(NEW):
        Path(f"{number}.jsonl").write_text(json.dumps(event))
    command = ("filter", "0.jsonl", "1.jsonl", "--store", "sqlite:///seen.db")
    with monkeypatch.context() as patched:
        patched.setattr(event_filter, "write_whole", interrupted)
        first = run(*command)
    assert (first.code, first.documents) == (130, NEW[:1])
    assert first.err.splitlines()[1:] == [
        "1 event, 1 new",
        "  done  1",
        f"eventonce: {HOW_TO_CONTINUE}",
        "eventonce: interrupted",
    ]
    second = run(*command)
    assert (second.code, second.documents) == (0, NEW[1:])


def test_a_second_ctrl_c_does_not_wait_and_the_lines_are_written_by_the_next_run(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: BinaryIO, __: bytes) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    Path("capture").write_text(CAPTURES["lines"])
    command = ("filter", "capture", "--store", "sqlite:///seen.db", "--json")
    with monkeypatch.context() as patched:
        patched.setattr(event_filter, "write_whole", interrupted)
        first = run(*command)
    assert (first.code, first.out) == (130, "")
    second = run(*command)
    assert (second.code, second.documents) == (0, NEW)


def test_an_interrupted_filter_without_a_store_says_that_nothing_is_remembered(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: BinaryIO, __: bytes) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(event_filter, "write_whole", interrupted)
    Path("capture").write_text(CAPTURES["lines"])
    assert NOT_REMEMBERED in run("filter", "capture").err
