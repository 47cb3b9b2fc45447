"""`eventonce diagnose` against the truth of simulated traffic, with seeds not used for tuning."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from eventonce import presets
from eventonce.rules import Ruleset
from eventonce.study.arrivals import arrival
from eventonce.study.diagnose import Late
from eventonce.study.page.diagnosis import covering
from eventonce.study.proposals import Proposal, toml
from eventonce.types import Event
from tests.helpers import Run, write_lines
from tests.unit import made

SEEDS = (7001, 7002)


class Studied:
    """A simulated capture, its truth, and its diagnosis."""

    def __init__(self, run: Run, folder: Path, *options: str) -> None:
        self.capture, truth, lines, rules = (folder / name for name in ("c", "t", "l", "r.toml"))
        assert run("simulate", "-o", self.capture, "--truth", truth, *options).code == 0
        result = run("diagnose", self.capture, "--lines", lines, "--propose", rules, "--json")
        assert result.code == 0, result.err
        self.found = result.documents[0]
        self.truth = [json.loads(line) for line in truth.read_bytes().splitlines()]
        self.lines = [json.loads(line) for line in lines.read_bytes().splitlines()]
        self.rules = rules

    @property
    def right(self) -> float:
        """The share of copies that have their true cause."""
        copies: list[bool] = [
            true["cause"] == told["cause"]
            for true, told in zip(self.truth, self.lines, strict=True)
            if true["cause"]
        ]
        return sum(copies) / len(copies)

    @property
    def let_through(self) -> int:
        """The number of copies whose key no earlier line of the same original has."""
        rules = Ruleset(presets.resolve(["auto"]), name="study")
        keys: dict[int, set[bytes]] = {}
        for told, raw in zip(self.lines, self.capture.read_bytes().splitlines(), strict=True):
            event = arrival(raw).event
            assert isinstance(event, Event)
            keys.setdefault(told["copy_of"] or told["line"], set()).add(rules.plan(event, 0)[1].key)
        return sum(len(found) - 1 for found in keys.values())

    @property
    def invented(self) -> int:
        """The number of lines that are reported as a copy of another fact."""
        pairs = zip(self.truth, self.lines, strict=True)
        return sum(
            told["copy_of"] is not None and self.truth[told["copy_of"] - 1]["fact"] != true["fact"]
            for true, told in pairs
        )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("source", ["genesys", "cxone", "unknown"])
def test_copies_are_found_with_their_cause_and_no_copy_is_invented(
    run: Run, tmp_path: Path, source: str, seed: int
) -> None:
    studied = Studied(run, tmp_path, "--source", source, "--seed", str(seed), "--events", "6000")
    assert studied.right >= 0.95
    assert studied.invented == 0
    assert studied.found["lines"] == len(studied.lines)
    told = Counter(line["cause"] for line in studied.lines if line["cause"])
    assert studied.found["causes"] == told
    assert [line["line"] for line in studied.lines] == list(range(1, len(studied.lines) + 1))
    plotted = studied.found["over_time"]
    assert sum(plotted["events"]) == len(studied.lines)
    assert {cause: sum(counts) for cause, counts in plotted["causes"].items()} == told
    assert {len(counts) for counts in plotted["causes"].values()} == {len(plotted["events"])}
    assert sum(studied.found["late"]["bins"].values()) == told.total()
    assert studied.found["let_through"] == studied.let_through


@pytest.mark.parametrize("source", ["genesys", "cxone", "unknown"])
def test_no_copy_and_no_rule_is_reported_for_a_capture_without_copies(
    run: Run, tmp_path: Path, source: str
) -> None:
    options = ("--source", source, "--seed", "103", "--events", "4000", "--rate", "none")
    studied = Studied(run, tmp_path, *options)
    assert studied.found["copies"] == 0
    assert studied.found["proposals"] == []
    assert {line["copy_of"] for line in studied.lines} == {None}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_proposed_rule_catches_all_copies_of_an_unknown_source_and_drops_nothing_else(
    run: Run, tmp_path: Path, seed: int
) -> None:
    studied = Studied(run, tmp_path, "--source", "unknown", "--seed", str(seed), "--events", "6000")
    (proposal,) = studied.found["proposals"]
    assert proposal["enough"]
    assert proposal["wrong"] == 0
    rules = Ruleset(presets.resolve(str(studied.rules)), name="study")
    keys: dict[bytes, set[int]] = {}
    facts: dict[int, set[bytes]] = {}
    for raw, true in zip(studied.capture.read_bytes().splitlines(), studied.truth, strict=True):
        event = arrival(raw).event
        assert isinstance(event, Event)
        _, claim = rules.plan(event, 0)
        keys.setdefault(claim.key, set()).add(true["fact"])
        facts.setdefault(true["fact"], set()).add(claim.key)
    assert all(len(found) == 1 for found in keys.values())
    missed = sum(len(found) - 1 for found in facts.values())
    assert missed <= 0.001 * proposal["copies"]


def test_a_key_that_is_too_wide_is_named_with_the_fields_that_differ(
    run: Run, tmp_path: Path
) -> None:
    capture, rules = tmp_path / "c.jsonl", tmp_path / "wide.toml"
    run("simulate", "--seed", "104", "--events", "3000", "-o", capture)
    rules.write_text(
        '[[rule]]\nname = "wide"\nmatch = { type = "v2.detail.events.conversation.*.user.end" }\n'
        'key = ["body.conversationId"]\n'
    )
    (found,) = run("diagnose", capture, "--rules", rules, "--json").documents
    (merged,) = [one for one in found["findings"] if one["code"] == "merged"]
    assert merged["type"].endswith("user.end")
    assert merged["count"] > 50
    assert re.match(r"of \d+ drops by rule wide so many differ in ", merged["text"])
    assert "detail.eventBody.sessionId" in merged["text"]


def test_a_weak_key_that_is_too_wide_is_named_although_a_better_key_is_learned(
    run: Run, tmp_path: Path
) -> None:
    capture, rules = tmp_path / "c.jsonl", tmp_path / "wide.toml"
    run("simulate", "--seed", "99", "--events", "3000", "-o", capture)
    rules.write_text(
        '[[rule]]\nname = "wide"\nmatch = { source = "aws.partner/*" }\n'
        'key = ["detail.topicName"]\n'
    )
    (found,) = run("diagnose", capture, "--rules", rules, "--json").documents
    merged = {one["type"]: one for one in found["findings"] if one["code"] == "merged"}
    told = merged["v2.users.{id}.routingStatus"]
    assert told["count"] > 100
    assert "detail.eventBody.routingStatus.startTime" in told["text"]


def test_without_a_channel_a_copy_of_another_region_is_no_double_emission(
    run: Run, tmp_path: Path
) -> None:
    first = {"id": "a", "detail-type": "call", "time": "2026-11-16T08:00:00Z", "detail": {"n": 1}}
    capture = write_lines(
        tmp_path / "c.jsonl",
        *(
            {"eventonce": 1, "arrived": 1794816000000 + at, "event": {**first, "id": str(at)}}
            for at in (0, 900)
        ),
    )
    rules = tmp_path / "r.toml"
    rules.write_text('[[rule]]\nname = "call"\nmatch = "call"\nkey = ["detail.n"]\n')
    (found,) = run("diagnose", capture, "--rules", rules, "--json").documents
    assert found["causes"] == {"cross-region": 1}


def stated(id: str, user: str, state: str, at: int) -> dict[str, Any]:
    """The routing status that a user takes at these milliseconds."""
    since = datetime.fromtimestamp(made.TIME / 1000 + at / 1000, UTC).isoformat()
    body = {"id": user, "routingStatus": {"status": state, "startTime": since}}
    detail = {
        "topicName": f"v2.users.{user}.routingStatus",
        "eventBody": body,
        "metadata": {"CorrelationId": id},
    }
    return made.classic(detail, id=id, **{"detail-type": "v2.users.{id}.routingStatus"})


def test_states_that_return_come_out_of_order_or_are_told_twice_are_counted(
    run: Run, tmp_path: Path
) -> None:
    states = [
        ("ann", "idle", 0),
        ("ann", "busy", 10_000),
        ("ann", "idle", 20_000),  # returns
        ("ann", "busy", 30_000),
        ("ann", "busy", 30_200),  # told twice
        ("ann", "away", 25_000),  # out of order, and between `idle` and `busy`
        ("bob", "idle", 20_000),
        ("bob", "busy", 10_000),  # out of order
        ("bob", "away", 15_000),  # out of order
        ("eve", "idle", 5_000),  # an older version than that of another user
    ]
    lines = (stated(f"e-{number}", *state) for number, state in enumerate(states))
    capture = write_lines(tmp_path / "c.jsonl", *lines)
    (found,) = run("diagnose", capture, "--json").documents
    counts = {one["code"]: one["count"] for one in found["findings"]}
    assert counts == {"returns": 1, "out-of-order": 3, "told-twice": 1}


def test_lines_that_are_no_events_are_counted_and_the_rest_is_diagnosed(
    run: Run, tmp_path: Path
) -> None:
    capture = tmp_path / "c.jsonl"
    run("simulate", "--events", "200", "-o", capture)
    lines = capture.read_bytes().splitlines()
    capture.write_bytes(b"\n".join([b"no json", *lines, b'{"eventonce":1,"event":[]}', b"[1, 2]"]))
    (found,) = run("diagnose", capture, "--json").documents
    assert found["lines"] >= len(lines) + 2
    faults = [one for one in found["findings"] if one["code"] == "no-key"]
    assert sum(one["count"] for one in faults) == found["lines"] - len(lines)


def test_lines_without_a_key_are_all_counted_with_their_reasons(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventonce.study.index.MOST_FAULTS", 2)
    bad = [f"{' ' * n}{{" for n in range(30)] + ["[1]", '"text"', "7", "\\"]
    capture = write_lines(tmp_path / "c.jsonl", {"id": "1", "detail-type": "t"}, *bad)
    (found,) = run("diagnose", capture, "--json").documents
    faults = [one for one in found["findings"] if one["code"] == "no-key"]
    assert sum(one["count"] for one in faults) == len(bad) == found["lines"] - 1
    assert {one["text"] for one in faults} > {"other reasons"}
    assert next(one for one in faults if one["count"] == 30)["lines"] == [2]
    assert run("diagnose", capture).out.startswith("35 lines, 34 of them without a key")


def test_the_report_on_a_terminal_counts_the_types_and_fields_that_are_not_shown(
    run: Run, tmp_path: Path
) -> None:
    wide = {"id": "1", "detail-type": "t", "detail": {f"f{n}": n for n in range(100)}}
    others = ({"id": f"{n}", "detail-type": f"type{n}"} for n in range(2, 52))
    shown = run("diagnose", write_lines(tmp_path / "c.jsonl", wide, wide, *others)).out
    assert "… and 39 types more: --html and --json have them all" in shown
    assert "… and 61 fields more" in shown
    assert ("type12" in shown, "type50" in shown) == (True, False)


def test_the_proposed_window_is_longer_than_the_delay_of_the_latest_copy() -> None:
    day = 86_400_000
    assert "window of 5\u00a0days covers" in covering(Late({}, 4 * day - 1, 0, 0))
    assert "window of 40\u00a0days covers" in covering(Late({}, 20 * day, 0, 0))


def test_a_field_that_no_rule_can_name_is_left_out_of_a_proposed_rule() -> None:
    fields = ("detail.a?", "detail.sent")
    text = toml([Proposal("s", ("s",), ("t",), ("detail.id",), fields, 90, 40, 40, 0, True, {})])
    assert tomllib.loads(text)["rule"][0]["ignore"] == ["detail.sent"]


@pytest.mark.parametrize(
    ("under_new_ids", "wrong", "said"),
    [
        (29, 0, ["Not enough yet"]),
        (30, 1, ["Not proved"]),
        (29, 1, ["Not enough yet", "Not proved"]),
    ],
)
def test_a_rule_that_is_proposed_in_a_comment_names_the_missing_proof(
    under_new_ids: int, wrong: int, said: list[str]
) -> None:
    counts = (90, 40, under_new_ids, wrong)
    text = toml([Proposal("s", ("s",), ("t",), ("detail.id",), (), *counts, False)])
    assert [words for words in ("Not enough yet", "Not proved") if words in text] == said
    assert not tomllib.loads(text)


def test_the_report_is_text_with_causes_remedies_and_rules(run: Run, tmp_path: Path) -> None:
    capture = tmp_path / "c.jsonl"
    run("simulate", "--source", "unknown", "--events", "4000", "-o", capture)
    page = tmp_path / "page.html"
    result = run("diagnose", capture, "--html", page)
    for words in ("Copies by cause", "How late copies come", "Proposed rules", "[[rule]]"):
        assert words in result.out
    assert re.search(r"window of [\d.]+ \w+ covers all of them", result.out)
    assert re.search(r"from \d{4}-\d\d-\d\d \d\d:\d\d to \d{4}-", result.out)
    assert not {"\u00a0", "\u202f", "\u2011"} & {*result.out}, "no keyboard has them"
    assert re.search(r"window of [\d.]+\u00a0\w+ covers all of them", page.read_text())
    assert re.search(r"from \d{4}\u2011\d\d\u2011\d\d\u00a0\d\d:\d\d to ", page.read_text())


def test_the_capture_is_never_overwritten(run: Run, tmp_path: Path) -> None:
    capture = tmp_path / "c.jsonl"
    run("simulate", "--events", "50", "-o", capture)
    before = capture.read_bytes()
    result = run("diagnose", capture, "--lines", capture)
    assert result.code == 2
    assert "name another file" in result.err
    twice = run("diagnose", capture, capture)
    assert (twice.code, "named twice" in twice.err) == (2, True)
    missing = run("reconcile", capture, capture, "--missing", capture)
    assert (missing.code, capture.read_bytes()) == (2, before)
    assert capture.read_bytes() == before


def test_two_options_do_not_write_one_file(run: Run, tmp_path: Path) -> None:
    capture, other = tmp_path / "c.jsonl", tmp_path / "o"
    refused = run("simulate", "--events", "50", "-o", capture, "--truth", capture)
    assert (refused.code, "written twice" in refused.err) == (2, True)
    run("simulate", "--events", "50", "-o", capture)
    assert run("diagnose", capture, "--lines", other, "--propose", other).code == 2
    assert not other.exists()
    assert run("diagnose", capture, "--lines", os.devnull, "--propose", os.devnull).code == 0


SHARED = """
import sys
from pathlib import Path
from eventonce import presets
from eventonce.rules import Ruleset
from eventonce.study import index

index.BATCH_LINES = index.ONE_PROCESS_LINES = 250
planned = index.Planned(
    Ruleset(presets.resolve("auto"), name="study"),
    Ruleset(presets.load("genesys:latest").rules, name="study"),
)
found = []
for processes in (1, 2):
    with index.Index([Path(sys.argv[1])], planned) as opened:
        opened.build(processes)
        found.append((opened.names, list(opened.rows("FROM events ORDER BY line"))))
assert len(found[0][1]) > 3000, len(found[0][1])
assert found[0] == found[1]
"""


def test_several_processes_make_the_same_rows_as_one_process(run: Run, tmp_path: Path) -> None:
    """In a separate process: this process has threads, which a fork does not copy."""
    capture = tmp_path / "c.jsonl"
    sources = ("--source", "genesys", "--source", "unknown")
    run("simulate", *sources, "--seed", "106", "--events", "3000", "-o", capture)
    with capture.open("ab") as stream:
        stream.write(b"no json\n")
    subprocess.run([sys.executable, "-c", SHARED, str(capture)], check=True)


def test_the_report_prints_no_control_character_and_hostile_values_do_not_stop_the_diagnosis(
    run: Run, tmp_path: Path
) -> None:
    odd = {"\x07red": "0001-01-01T00:00:00", "n": 10**30, "t": "9999-12-31T23:59:59+00:00"}
    events = [
        {"detail-type": "x\x07", "id": f"i{number}", "detail": {**odd, "trace": number}}
        for number in range(20)
    ]
    capture = write_lines(tmp_path / "c.jsonl", *events, *events)
    result = run("diagnose", capture)
    assert result.code == 0
    assert "\x07" not in result.out


def findings(run: Run, *words: object) -> dict[str, dict[str, Any]]:
    (found,) = run("diagnose", *words, "--json").documents
    return {one["code"]: one for one in found["findings"]}


def test_a_key_that_is_too_narrow_is_named_with_the_part_that_differs(
    run: Run, tmp_path: Path
) -> None:
    event = {"detail-type": "call", "source": "crm", "detail": {"call": "c1", "at": 7}}
    events = [{**event, "id": f"e{n}", "time": f"2026-11-16T09:00:0{n}Z"} for n in range(4)]
    capture = write_lines(tmp_path / "c.jsonl", *events)
    rules = tmp_path / "narrow.toml"
    rules.write_text(
        '[[rule]]\nname = "narrow"\nmatch = "call"\nkey = ["detail.call", "envelope.time"]\n'
    )
    narrow = findings(run, capture, "--rules", rules)["apart"]
    assert "envelope.time differs: its key may be too narrow" in narrow["text"]
    assert (narrow["type"], narrow["count"]) == ("call", 3)


def test_a_key_with_a_field_that_each_notification_writes_anew_is_too_narrow(
    run: Run, tmp_path: Path
) -> None:
    events = [
        made.classic({"eventBody": made.body(), "metadata": {"CorrelationId": n}}, id=f"e{n}")
        for n in range(3)
    ]
    rules = tmp_path / "narrow.toml"
    key = 'key = ["body.conversationId", "detail.metadata.CorrelationId"]'
    rules.write_text(f'[[rule]]\nname = "narrow"\nmatch = "v2.detail.*"\n{key}\n')
    capture = write_lines(tmp_path / "c.jsonl", *events)
    narrow = findings(run, capture, "--rules", rules)["apart"]
    assert "detail.metadata.CorrelationId differs" in narrow["text"]
    assert narrow["count"] == 2


def test_transport_ids_that_are_used_again_for_other_events_are_reported(
    run: Run, tmp_path: Path
) -> None:
    times = [f"2026-11-16T00:{n // 60:02}:{n % 60:02}Z" for n in range(300)]
    events = [
        {"id": f"{n % 50}", "detail-type": "tick", "source": "s", "time": at, "detail": {"at": at}}
        for n, at in enumerate(times)
    ]
    capture = write_lines(tmp_path / "c.jsonl", *events)
    said = " ".join(run("diagnose", capture).out.split())
    assert "drop about 250 events whose content is not that of the original." in said


def test_the_report_on_one_event_has_no_time(run: Run, tmp_path: Path) -> None:
    capture = write_lines(tmp_path / "c.jsonl", made.classic())
    assert run("diagnose", capture).out.startswith("1 event, and no copy was found among them.")


def test_the_rules_of_two_forms_of_a_source_have_names_of_their_own(
    run: Run, tmp_path: Path
) -> None:
    events: list[dict[str, Any]] = []
    for number in range(600):
        name = ("order", "call")[number % 2]
        at = 1_794_787_200_000 + number * 2_000
        told = {name: f"{name}-{number}", "at": at}
        for sent in (at, at + 9_000) if number % 4 < 2 else (at,):
            event: dict[str, Any] = {"detail-type": name, "source": "crm"}
            event |= {"id": f"{len(events)}"}
            event["time"] = datetime.fromtimestamp(sent / 1000, UTC).isoformat()
            events.append({**event, "detail": {**told, "sent": sent}})
    rules = tmp_path / "r.toml"
    run("diagnose", write_lines(tmp_path / "c.jsonl", *events), "--propose", rules)
    assert re.findall('name = "(.*)"', rules.read_text()) == ["crm", "crm 2"]
    assert run("backtest", tmp_path / "c.jsonl", "--rules", rules).code == 0


def test_a_type_that_no_rule_names_is_reported(run: Run, tmp_path: Path) -> None:
    events = [
        {"detail-type": "odd", "source": "crm", "id": f"e{n}", "detail": {"n": n}} for n in range(3)
    ]
    capture = write_lines(tmp_path / "c.jsonl", *events)
    unruled = findings(run, capture)["no-rule"]
    assert (unruled["type"], unruled["count"]) == ("odd", 3)
    assert "no rule names this type" in unruled["text"]


def test_an_event_inside_another_event_that_was_not_unpacked_is_reported(
    run: Run, tmp_path: Path
) -> None:
    inner = {"detail-type": "call", "detail": {"call": "c1"}}
    details = [{"text": json.dumps(inner)}, {"inner": inner}]
    events = [
        {"detail-type": f"relay{n}", "source": "crm", "id": f"e{n}", "detail": detail}
        for n, detail in enumerate(details)
    ]
    (found,) = run("diagnose", write_lines(tmp_path / "c.jsonl", *events), "--json").documents
    texts = [one["text"] for one in found["findings"] if one["code"] == "wrapped"]
    assert [text.partition(" ")[0] for text in texts] == ["detail.inner", "detail.text"]


def test_missing_parts_are_counted_and_no_value_is_printed(run: Run, tmp_path: Path) -> None:
    rules = tmp_path / "r.toml"
    rules.write_text(
        '[[rule]]\nname = "call"\nmatch = "call"\nkey = ["detail.call"]\nmissing = "id"\n'
    )
    event = {"detail-type": "call", "source": "crm"}
    whole = [{**event, "id": f"a{n}", "detail": {"call": f"secret{n}"}} for n in range(6)]
    lame = [{**event, "id": f"b{n}", "detail": {"call": ["secret"]}} for n in range(3)]
    capture = write_lines(tmp_path / "c.jsonl", *whole, *lame)
    missing = findings(run, capture, "--rules", rules)["missing-part"]
    assert missing["count"] == 3
    assert missing["text"].startswith("detail.call is missing")
    assert "secret" not in missing["text"]


def test_the_types_channels_and_times_of_a_cause_are_reported(run: Run, tmp_path: Path) -> None:
    capture = tmp_path / "c.jsonl"
    rates = ("--rate", "none", "--rate", "overlapping-rules=0.06")
    run("simulate", "--seed", "9107", "--events", "3000", *rates, "-o", capture)
    (found,) = run("diagnose", capture, "--json").documents
    where = found["where"]["overlapping-rules"]
    assert sum(where["types"].values()) == found["causes"]["overlapping-rules"]
    assert where["channels"]
    assert where["began"] < where["ended"]
    assert next(iter(where["types"])) in run("diagnose", capture).out.partition("Types with")[0]


def test_a_capture_without_arrivals_shows_which_fields_are_times(run: Run, tmp_path: Path) -> None:
    """The time of an event stands for its arrival."""
    capture = tmp_path / "c.jsonl"
    run("simulate", "--bare", "--events", "600", "-o", capture)
    (found,) = run("diagnose", capture, "--json").documents
    roles = {field["path"]: field["role"] for kind in found["kinds"] for field in kind["fields"]}
    assert roles["detail.eventBody.eventTime"] == "time"


def test_the_evidence_of_a_proposed_rule_has_m_and_u(run: Run, tmp_path: Path) -> None:
    capture, rules = tmp_path / "c.jsonl", tmp_path / "r.toml"
    run("simulate", "--source", "unknown", "--seed", "9108", "--events", "3000", "-o", capture)
    (found,) = run("diagnose", capture, "--propose", rules, "--json").documents
    (proposal,) = found["proposals"]
    text = rules.read_text()
    for path, (m, u) in proposal["agreement"].items():
        assert f"# {path}: copies agree in {m:.1%} (m), other events in {u:.2%} (u)." in text
    assert [*proposal["agreement"]]


def test_a_diagnosis_without_a_proposed_rule_says_so_if_a_file_was_asked_for(
    run: Run, tmp_path: Path
) -> None:
    capture = write_lines(tmp_path / "c.jsonl", {"id": "1", "detail-type": "t", "detail": {}})
    rules = tmp_path / "rules.toml"
    asked = run("diagnose", capture, "--propose", rules)
    assert f"No rule is proposed, and {rules} has none" in asked.out
    assert "No rule is proposed" not in run("diagnose", capture).out
