"""Shadow mode on the record: the events that rules would drop, and when the rules are safe."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventonce import Consumer, Job, Rule, presets
from eventonce.aws import lambda_handler
from eventonce.errors import ConfigError
from eventonce.history import History, Search
from eventonce.runtime.shadow import NO_RECORD, ShadowLine, line_of, shadow_observer
from eventonce.study.page.shadowed import shadow_page
from eventonce.study.shadow import SAFE_DROPS, shadow_report
from tests.helpers import Run
from tests.unit.made import classic

DAY = 86_400_000


def recorded(
    rule: Rule, events: Sequence[dict[str, Any]], handler: Any = lambda _: None
) -> list[ShadowLine]:
    """The lines of these events, one after the other."""
    lines: list[bytes] = []
    with Consumer("memory:", name="test", rules=[rule], handler=handler) as consumer:
        write = lambda decided: lines.append(line_of(decided))  # noqa: E731  an argument
        consumer.observers.append(shadow_observer(consumer, write))
        for event in events:
            consumer.process([event])
    return [msgspec.json.decode(line, type=ShadowLine) for line in lines]


def call(id: str, **detail: Any) -> dict[str, Any]:
    return classic(detail, id=id)


def test_a_drop_is_recorded_with_its_status_and_without_its_content() -> None:
    rule = Rule(name="call", key=["detail.call"], shadow=True, ignore=["detail.sent"])
    secret = "+49 170 1234567"
    events = [
        call("1", call=1, sent=1, number=secret),
        call("1", call=1, sent=1, number=secret),
        call("2", call=1, sent=2, number=secret),
        call("3", call=1, sent=3, number="another"),
    ]
    lines = recorded(rule, events)
    assert [(line.id, line.would) for line in lines] == [
        ("1", ""),
        ("1", "duplicate"),
        ("2", "duplicate"),
        ("3", "duplicate"),
    ]
    assert len({line.content for line in lines[:3]}) == 1
    assert lines[3].content != lines[0].content
    assert secret not in str(lines)


def test_rules_that_are_not_in_shadow_mode_write_no_line(caplog: pytest.LogCaptureFixture) -> None:
    assert not recorded(Rule(name="call", key=["detail.call"]), [call("1", call=1)])
    assert not caplog.records


def test_a_proposed_rule_ignores_the_fields_that_a_second_publish_changes(run: Run) -> None:
    pytest.importorskip("duckdb")
    run("simulate", "--source", "unknown", "--seed", "7001", "--events", "2000", "-o", "c.jsonl")
    assert run("diagnose", "c.jsonl", "--propose", "rules.toml").code == 0
    (rule,) = presets.resolve("rules.toml")
    captured = [json.loads(line)["event"] for line in Path("c.jsonl").read_bytes().splitlines()]
    lines = recorded(msgspec.structs.replace(rule, shadow=True), captured)
    report = shadow_report(map(msgspec.json.encode, lines))
    assert (report.drops > 100, report.differing) == (True, 0)


def test_a_failed_event_writes_no_line_and_a_state_writes_no_content_and_no_unknown_guard() -> None:
    def handler(job: Job) -> dict[str, str]:
        if job.event.id == "1":
            raise ValueError
        return {"guard": "perhaps"}

    rule = Rule(name="call", subject=["detail.call"], order="detail.at", shadow=True)
    (line,) = recorded(rule, [call("1", call=1, at=1), call("2", call=2, at=1)], handler)
    assert (line.id, line.content, line.guard) == ("2", "", "")


def test_the_result_of_a_handler_reports_the_decision_of_another_guard() -> None:
    seen: set[str] = set()

    def guarded(job: Job) -> dict[str, str]:
        known = job.event.id in seen
        seen.add(job.event.id)
        return {"guard": "dropped" if known else "ran"}

    rule = Rule(name="call", key=["detail.call"], shadow=True)
    events = [call("1", call=1), call("1", call=1), call("2", call=1), call("1", call=2)]
    lines = recorded(rule, events, guarded)
    report = shadow_report(msgspec.json.encode(line) for line in lines)
    assert report.guard is not None
    assert msgspec.to_builtins(report.guard) == {
        "both_run": 1,
        "both_drop": 1,
        "only_rules_drop": 1,
        "only_guard_drops": 1,
    }
    assert {(one.why, one.count) for one in report.by_type} == {
        ("same transport id", 1),
        ("another transport id", 1),
    }


@pytest.mark.parametrize(("said", "variable"), [(True, ""), (None, "log"), (None, "")])
def test_a_function_prints_its_lines(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    said: bool | None,
    variable: str,
) -> None:
    monkeypatch.setenv("EVENTONCE_SHADOW_LOG", variable)
    rule = Rule(name="call", key=["detail.call"], shadow=True)
    with Consumer("memory:", name="test", rules=[rule], handler=lambda _: None) as consumer:
        lambda_handler(consumer, shadow_log=said)(call("1", call=1), None)
    printed = capsys.readouterr().out
    assert [json.loads(line)["shadow"] for line in printed.splitlines()] == [1] * bool(
        said or variable
    )


def lines_of(
    drops: int, *, gap: int = 1000, days: int = 8, remember: int = 10 * DAY, differing: int = 0
) -> list[bytes]:
    """The record of `days` days with `drops` drops, each `gap` milliseconds after its original."""
    lines = []
    for number in range(drops):
        at = number * days * DAY // drops
        content = "b" if number < differing else "a"
        first = ShadowLine(1, at, f"o{number}", "call", "r", f"{number:032x}", remember, "", "a")
        again = (f"c{number}", "call", "r", first.key, remember, "duplicate", content)
        lines += [first, ShadowLine(1, at + gap, *again)]
    return [msgspec.json.encode(line) for line in sorted(lines, key=lambda line: line.at)]


def test_a_rule_is_safe_after_enough_drops_that_all_agree() -> None:
    report = shadow_report(lines_of(SAFE_DROPS))
    assert (report.safe, report.missing, report.wait) == (True, [], None)
    assert (report.drops, report.differing, report.unmatched) == (SAFE_DROPS, 0, 0)


def test_too_few_drops_are_not_safe_and_the_report_estimates_the_wait() -> None:
    report = shadow_report(lines_of(SAFE_DROPS // 4, days=4))
    assert not report.safe
    assert report.wait is not None
    assert 11 * DAY < report.wait < 13 * DAY


def test_a_single_drop_with_other_content_is_not_safe_and_no_wait_is_estimated() -> None:
    report = shadow_report(lines_of(SAFE_DROPS, differing=1))
    assert not report.safe
    assert report.wait is None
    assert report.differing == 1
    assert report.examples == [("o0", "c0")]
    assert report.missing[0].startswith("1 of the drops differs in content: ")
    # The backquotes around a name are for a terminal only.
    assert "`ignore`" in report.missing[0]
    (missing,) = re.findall(
        r"What is missing.*?</section>", shadow_page(report).render(), re.DOTALL
    )
    assert "publish in ignore" in missing


def test_the_report_of_one_drop_is_in_the_singular() -> None:
    assert shadow_report(lines_of(1)).missing[0].startswith("1 drop has its original in the record")
    assert shadow_report(lines_of(2)).missing[0].startswith("2 drops have their original in the")


def test_the_longest_gap_must_fit_twice_into_the_window_and_into_the_record() -> None:
    narrow = shadow_report(lines_of(SAFE_DROPS, gap=3 * DAY, remember=5 * DAY))
    assert "what is remembered" in narrow.missing[0]
    assert narrow.wait is None
    short = shadow_report(lines_of(SAFE_DROPS, gap=3 * DAY, days=2))
    assert "twice as long" in short.missing[0]
    assert short.wait is not None
    assert abs(short.wait - DAY) < DAY / 100


def test_a_drop_whose_original_is_not_in_the_record_proves_nothing() -> None:
    late = [line for line in lines_of(SAFE_DROPS) if b'"would"' in line]
    report = shadow_report([*late, *lines_of(1)])
    assert not report.safe
    assert report.unmatched == SAFE_DROPS - 1
    assert report.by_type[0].why == "unknown"


def test_a_record_without_a_line_of_shadow_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="shadow_log"):
        shadow_report([b"{}", b"no json"])


CONFIG = """
store = "sqlite:///seen.db"
name = "test"
presets = []
shadow_log = "shadow.jsonl"

[[rule]]
name = "call"
key = ["detail.call"]
shadow = true

[[sink]]
to = "file:out.jsonl"
"""


def test_a_worker_records_and_the_command_reports(run: Run) -> None:
    Path("eventonce.toml").write_text(CONFIG)
    for event in (call("1", call=1), call("2", call=1), call("3", call=2)):
        # One run for each event: in the same run, a copy would wait for its original.
        Path("capture.jsonl").write_text(json.dumps(event))
        assert run("run", "--from", "capture.jsonl").code == 0
    assert len(Path("out.jsonl").read_bytes().splitlines()) == 3
    result = run("shadow", "report", "shadow.jsonl", "--html", "report.html")
    assert result.code == 1
    assert "Not enough yet" in result.out
    assert "1 drop has its original in the record, 3000 are needed" in result.out
    assert "another transport id" in Path("report.html").read_text()
    (document,) = run("shadow", "report", "shadow.jsonl", "--json").documents
    assert (document["safe"], document["drops"], document["events"]) == (False, 1, 3)
    assert run("shadow", "report", "--json").documents == [document], "the record of the file"


def test_without_a_record_the_command_says_how_to_make_a_record(run: Run) -> None:
    without = run("shadow", "report")
    assert (without.code, NO_RECORD in without.err) == (2, True)
    Path("eventonce.toml").write_text(CONFIG)
    early = run("shadow", "report")
    assert (early.code, "shadow.jsonl does not exist yet" in early.err) == (2, True)


@pytest.mark.parametrize("digests", [True, False])
def test_with_secrets_the_record_has_the_digests_of_the_history(run: Run, *, digests: bool) -> None:
    kept = "[privacy]\ndigests = false\n" if not digests else ""
    history = "[history]\nstore = 'sqlite:///history.db'\n"
    Path("eventonce.toml").write_text(f"secrets = ['{'s' * 32}']\n{CONFIG}{history}{kept}")
    for event in (call("+49 170 1", call=1), call("+49 170 1", call=1), call("2", call=1)):
        Path("capture.jsonl").write_text(json.dumps(event))
        assert run("run", "--from", "capture.jsonl").code == 0
    ids = [json.loads(line)["id"] for line in Path("shadow.jsonl").read_bytes().splitlines()]
    with History("sqlite:///history.db", look=True) as opened:
        assert sorted(ids) == sorted(one.id for one in opened.find(Search(), 10))
    assert ("+49 170 1" in ids, ids[0].startswith("#")) == (not digests, digests)
    (document,) = run("shadow", "report", "shadow.jsonl", "--json").documents
    assert {one["why"]: one["count"] for one in document["by_type"]} == {
        "same transport id": 1,
        "another transport id": 1,
    }


def test_the_command_exits_with_0_when_the_rules_are_safe(run: Run) -> None:
    Path("shadow.jsonl").write_bytes(b"\n".join(lines_of(SAFE_DROPS)) + b"\n")
    result = run("shadow", "report", "shadow.jsonl")
    assert result.code == 0
    assert result.out.startswith("Safe to switch on")


def test_only_the_latest_form_of_a_rule_counts_and_the_change_is_reported(run: Run) -> None:
    def called(*key: str) -> list[bytes]:
        rule = Rule(name="call", key=key, shadow=True, remember="3d" if len(key) > 1 else "2d")
        events = [call(f"{number}", call=1, leg=number % 2) for number in range(4)]
        # A changed rule needs a restart: its lines are of another millisecond.
        lines = recorded(rule, events)
        return [
            msgspec.json.encode(msgspec.structs.replace(line, at=line.at + len(key) * 1_000))
            for line in lines
        ]

    wide, right = called("detail.call"), called("detail.call", "detail.leg")
    assert shadow_report(wide).differing == 2
    report = shadow_report([*wide, *right])
    assert (report.events, report.drops, report.differing) == (4, 2, 0)
    ((rule, at, before),) = ((it.rule, it.at, it.events) for it in report.changed)
    assert (rule, before) == ("call", 4)
    assert at == min(json.loads(line)["at"] for line in right)
    Path("shadow.jsonl").write_bytes(b"\n".join([*wide, *right]))
    told = run("shadow", "report", "shadow.jsonl", "--html", "page.html").out
    assert "which are not counted: 4." in told
    assert "which are not counted: 4." in Path("page.html").read_text()
    same = {
        line.fingerprint
        for rule in (
            Rule(name="call", key=["detail.call"], shadow=True),
            Rule(name="other", key=["detail.call"], shadow=True, remember="3d", attempts=9),
        )
        for line in recorded(rule, [call("1", call=1)])
    }
    assert len(same) == 1
    longer = (
        ShadowLine(1, 9, "a", "call", "r", "aa", DAY),
        ShadowLine(1, 10, "b", "call", "r", "bb", 2 * DAY),
    )
    assert not shadow_report(map(msgspec.json.encode, longer)).changed


def test_the_log_of_a_function_is_read_as_a_record_in_every_exported_form(run: Run) -> None:
    lines = [line.decode() for line in lines_of(2)]
    logged = [{"message": f"{line}\n", "timestamp": 1, "ingestionTime": 2} for line in lines]
    Path("events.json").write_text(json.dumps({"events": logged}))
    stamp = "2026-11-16T08:00:00.000Z"
    Path("export.gz").write_bytes(
        gzip.compress("".join(f"{stamp} {it}\n" for it in ["START x", *lines]).encode())
    )
    for name in ("events.json", "export.gz"):
        (found,) = run("shadow", "report", name, "--json").documents
        assert (found["events"], found["drops"]) == (4, 2), name


def test_a_truncated_record_is_reported_up_to_its_last_whole_line(run: Run) -> None:
    record = b"\n".join(lines_of(2))
    Path("plain").write_bytes(record[:-5])
    (found,) = run("shadow", "report", "plain", "--json").documents
    assert (found["events"], found["broken"]) == (3, 1)
    assert "1 line of the record" in run("shadow", "report", "plain").out
    Path("packed").write_bytes(gzip.compress(record + b"\n") + gzip.compress(record)[:-9])
    cut = run("shadow", "report", "packed")
    assert (cut.code, "4 events in" in cut.out) == (2, True)
    assert "packed cannot be read to its end" in cut.err


def test_a_line_that_is_read_twice_counts_once() -> None:
    half = lines_of(SAFE_DROPS // 2)
    report = shadow_report([*half, *half])
    assert (report.safe, report.drops) == (False, SAFE_DROPS // 2)


def test_a_clock_that_is_set_back_hides_no_difference_in_content() -> None:
    original = ShadowLine(1, 5000, "o", "call", "r", "aa", DAY, "", "a")
    drop = ShadowLine(1, 1000, "c", "call", "r", "aa", DAY, "duplicate", "b")
    report = shadow_report([*lines_of(SAFE_DROPS), *map(msgspec.json.encode, (original, drop))])
    assert (report.safe, report.differing, report.unmatched) == (False, 1, 0)


def test_a_gap_in_the_record_does_not_count_as_time_of_the_record() -> None:
    early = msgspec.json.encode(ShadowLine(1, -300 * DAY, "o", "call", "r", "aa", DAY, "", "a"))
    report = shadow_report([early, *lines_of(SAFE_DROPS, gap=4 * DAY, days=2)])
    assert not report.safe
    assert "twice as long" in report.missing[0]


def test_a_copy_that_ran_after_the_window_makes_the_gap_longer() -> None:
    lines = [ShadowLine(1, at, "o", "call", "r", "aa", 10 * DAY, "", "a") for at in (0, 7 * DAY)]
    report = shadow_report([*lines_of(SAFE_DROPS), *map(msgspec.json.encode, lines)])
    assert report.longest_gap == 7 * DAY
    assert "what is remembered" in report.missing[0]


def test_each_rule_is_judged_by_the_time_that_it_remembers_now() -> None:
    def pair(rule: str, at: int, gap: int, remember: int) -> list[bytes]:
        key = f"{rule}{at}".encode().hex()
        first = ShadowLine(1, at, "a", "call", rule, key, remember, "", "a")
        return [
            msgspec.json.encode(line)
            for line in (
                first,
                ShadowLine(1, at + gap, "b", "call", rule, key, remember, "duplicate", "a"),
            )
        ]

    quick = pair("quick", DAY, 1000, 3600 * 1000)
    slow = pair("slow", DAY, 3 * DAY, 10 * DAY)
    known = shadow_report([*quick, *slow, *lines_of(SAFE_DROPS, days=8)])
    assert known.safe, "the gap of one rule is no concern of another's window"
    narrow = pair("slow", DAY, 3 * DAY, 5 * DAY)
    report = shadow_report([*narrow, *lines_of(SAFE_DROPS, days=8)])
    assert "rule slow" in report.missing[0]
    assert "6d" in report.missing[0]
    raised = shadow_report([*narrow, *pair("slow", 5 * DAY, 1000, 10 * DAY), *lines_of(SAFE_DROPS)])
    assert raised.safe, "what it remembered before it was raised counts no more"
