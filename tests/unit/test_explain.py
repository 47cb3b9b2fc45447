"""The output of `eventonce explain` for one event, and for two."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventonce.cli.explain import _from_the_difference
from tests.helpers import Run, write_lines

Explain = Callable[..., str]

HASHED = """
[[rule]]
name = "order"
match = { type = "order.*" }
key = ["detail.id", "detail.b", "detail.c"]
missing = "hash"
"""


def order(type: str = "order.paid", org: str = "", **detail: Any) -> dict[str, Any]:
    source = f"aws.partner/genesys.com/cloud/{org}/bus" if org else "shop"
    return {"id": "1", "source": source, "detail-type": type, "detail": detail}


@pytest.fixture
def explain(run: Run) -> Explain:
    Path("rules.toml").write_text(HASHED)

    def explain(*events: dict[str, Any], code: int = 0, more: tuple[str, ...] = ()) -> str:
        names = [f"{number}.json" for number in range(len(events))]
        for name, event in zip(names, events, strict=True):
            Path(name).write_text(json.dumps(event))
        told = run("explain", *names, "--rules", "rules.toml", *more)
        assert told.code == code
        return told.out

    return explain


COMPLETE: dict[str, Any] = {"id": 1, "b": 2, "c": 3}
ORGS = ("1a2b3c4d-0000-4000-8000-000000000001", "1a2b3c4d-0000-4000-8000-000000000002")


def rows(told: str) -> dict[str, list[str]]:
    """The fields that differ, by name, with the value of each event."""
    lines = [line.split("  ") for line in told.partition("\n\n")[0].splitlines()[2:]]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    return {name: values for name, *values in cells}


def test_events_of_two_types_have_two_keys_and_the_types_are_printed(explain: Explain) -> None:
    events = order(**COMPLETE), order("order.sent", **COMPLETE)
    told = explain(*events)
    assert told.startswith("different keys: order\n")
    assert rows(told) == {"type": ["order.paid", "order.sent"]}
    document = json.loads(explain(*events, more=("--json",)))
    assert (document["same"], document["differ"]) == (False, ["type"])
    assert [one["type"] for one in document["events"]] == ["order.paid", "order.sent"]


def test_events_of_two_organisations_have_two_keys_and_the_organisations_are_printed(
    explain: Explain,
) -> None:
    events = [order(org=org, **COMPLETE) for org in ORGS]
    assert rows(explain(*events)) == {"org": list(ORGS)}
    document = json.loads(explain(*events, more=("--json",)))
    assert (document["same"], document["differ"]) == (False, ["org"])
    assert [one["org"] for one in document["events"]] == list(ORGS)


def test_the_type_and_the_organisation_of_an_event_are_printed(explain: Explain) -> None:
    told = explain(order(org=ORGS[0], **COMPLETE)).splitlines()
    assert told[1:3] == ["type      order.paid", f"org       {ORGS[0]}"]
    assert not any(line.startswith("org") for line in explain(order(**COMPLETE)).splitlines())


def test_a_type_that_is_also_a_part_of_the_key_is_named_once(explain: Explain) -> None:
    Path("rules.toml").write_text('[[rule]]\nname = "r"\nkey = ["type", "detail.id"]\n')
    told = explain(order(id=1), order("order.sent", id=1), more=("--json",))
    assert json.loads(told)["differ"] == ["type"]


def test_values_that_are_equal_in_python_but_not_in_a_key_are_shown_as_different(
    explain: Explain,
) -> None:
    told = explain(order(**COMPLETE), order(**{**COMPLETE, "id": True}))
    assert rows(told) == {"detail.id": ["1", "true"]}


def test_a_key_by_the_content_is_compared_with_a_key_by_the_parts(explain: Explain) -> None:
    events = order(**COMPLETE), order(id=1, b=2)
    told = explain(*events)
    assert told.startswith("different keys: order\n")
    assert rows(told) == {
        "keyed by": ["detail.id, detail.b, detail.c", "its content, because detail.c is missing"]
    }
    document = json.loads(explain(*events, more=("--json",)))
    assert document["differ"] == ["keyed by"]
    assert [one["lacking"] for one in document["events"]] == [[], ["detail.c is missing"]]
    other = explain(order(id=1), order(id=2), more=("--json",))
    assert json.loads(other)["differ"] == ["hash(body)"]


def test_two_rules_of_one_name_are_compared_with_each_other(explain: Explain) -> None:
    rule = '[[rule]]\nname = "order"\nmatch = {{ type = "{}" }}\nkey = {}\n'
    Path("rules.toml").write_text(
        rule.format("one", '["detail.id"]') + rule.format("two", '["detail.id", "detail.b"]')
    )
    told = explain(
        {"type": "one", "id": 1, "b": 2}, {"type": "two", "id": 1, "b": 2}, more=("--json",)
    )
    assert json.loads(told)["differ"] == ["type", "keyed by"]


def test_the_reason_why_an_event_is_keyed_by_its_content_is_printed(explain: Explain) -> None:
    assert "keyed by  its content, because detail.c is missing\n" in explain(order(id=1, b=2))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (HASHED.replace("[[rule]]", "[[rules]]"), "rules.toml:2: rules: expected only"),
        (f'secrets = ["of sixteen bytes."]{HASHED}', "rules.toml:1: secrets: belongs to a whole"),
        ("", "there is no [[rule]] in it"),
    ],
)
def test_a_file_given_as_rules_that_is_no_file_of_rules_is_refused(
    run: Run, text: str, complaint: str
) -> None:
    Path("rules.toml").write_text(text)
    Path("event.json").write_text(json.dumps(order(**COMPLETE)))
    refused = run("explain", "event.json", "--rules", "rules.toml")
    assert (refused.code, complaint in refused.err) == (2, True)


def test_a_copy_is_shown_with_its_cause_and_the_fields_that_differ_outside_its_key(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture, truth = tmp_path / "c.jsonl", tmp_path / "t.jsonl"
    rates = ("--rate", "none", "--rate", "re-publish=0.05")
    run("simulate", "--seed", "5", "--events", "900", *rates, "-o", capture, "--truth", truth)
    lines = capture.read_bytes().splitlines()
    told = [json.loads(line) for line in truth.read_bytes().splitlines()]
    copy = next(row for row in told if row["cause"])
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(lines[copy["copy_of"] - 1])
    second.write_bytes(lines[copy["line"] - 1])
    (found,) = run("explain", first, second, "--json").documents
    assert found["same"]
    assert found["cause"] == "re-publish"
    assert found["outside"] == ["id", "time"]
    text = run("explain", first, second).out
    assert "outside the key" in text
    assert "cause  re-publish" in text
    numbers = ("--line", f"{copy['copy_of']}", "--line", f"{copy['line']}")
    assert run("explain", capture, *numbers).out == text
    with monkeypatch.context() as narrow:
        narrow.setattr("sys.stdout.isatty", lambda: True)
        narrow.setenv("COLUMNS", "60")
        shown = run("explain", first, second).out.splitlines()
    events = [json.loads(file.read_bytes())["event"] for file in (first, second)]
    at = shown.index("  id")
    assert shown[at + 1 : at + 3] == [
        f'    {name:6}  "{event["id"]}"'
        for name, event in zip(("first", "second"), events, strict=True)
    ]
    assert max(map(len, shown)) <= 60
    gone = run("explain", capture, "--line", f"{len(lines) + 1}")
    assert (gone.code, f"has no line {len(lines) + 1}" in gone.err) == (2, True)


def test_a_capture_of_every_form_is_explained(run: Run, tmp_path: Path) -> None:
    # The lowest versions are tried without the extra that reads Parquet.
    duckdb, zstd = pytest.importorskip("duckdb"), pytest.importorskip("backports.zstd")
    both = [
        {"eventonce": 1, "arrived": at, "id": "m", "receives": at, "event": order(**COMPLETE)}
        for at in (1, 2)
    ]
    lines = "".join(f"{json.dumps(line)}\n" for line in both)
    with duckdb.connect() as database:
        database.execute("CREATE TABLE t AS SELECT unnest(?) AS told", [both])
        events = "SELECT told.* EXCLUDE (eventonce) FROM t"
        database.execute(f"COPY ({events}) TO '{tmp_path / 'c.parquet'}' (FORMAT parquet)")
    (tmp_path / "c.zst").write_bytes(zstd.compress(lines.encode()))
    stamp = "2026-11-16T08:00:00.000Z"
    stamped = "".join(f"{stamp} {line}\n" for line in lines.splitlines())
    (tmp_path / "c.gz").write_bytes(gzip.compress(stamped.encode()))
    logged = [{"message": line, "timestamp": 5, "ingestionTime": 6} for line in lines.splitlines()]
    (tmp_path / "log.json").write_text(json.dumps({"events": logged}, indent=4))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "c.jsonl").write_text(lines)
    (tmp_path / "folder" / "note.txt").touch()
    for name in ("c.parquet", "c.zst", "c.gz", "log.json", "folder"):
        told = run("explain", tmp_path / name, "--line", "1", "--line", "2", "--json")
        assert (told.code, told.documents[0]["same"]) == (0, True), (name, told.err)
        assert told.documents[0]["cause"] == "redelivery", name
    assert run("explain", tmp_path / "c.zst", "--line", "2").code == 0


def test_lines_of_two_captures_and_of_three_events_are_not_compared(run: Run) -> None:
    Path("c").write_text("{}")
    assert "one capture" in run("explain", "c", "c", "--line", "1").err
    assert "twice at most" in run("explain", "c", *("--line", "1") * 3).err


def test_two_lines_are_compared_in_the_order_in_which_they_are_named(
    run: Run, tmp_path: Path
) -> None:
    both = [order(**{**COMPLETE, "note": note}) for note in ("a", "b")]
    capture = write_lines(tmp_path / "c.jsonl", *both, "{")
    shown = run("explain", capture, "--line", "2", "--line", "1").out
    assert re.search(r'detail.note +"b" +"a"', shown)
    (same,) = run("explain", capture, "--line", "1", "--line", "1", "--json").documents
    assert (same["same"], same["outside"]) == (True, [])
    assert f"{capture}:3: not JSON" in run("explain", capture, "--line", "3").err


def test_the_fault_of_a_broken_event_over_several_lines_is_the_fault_of_the_whole_text(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("event.json").write_text('{\n"id": "a"\n"detail": {}\n}')
    fault = run("explain", "event.json")
    assert (fault.code, "not JSON at byte 12" in fault.err) == (1, True)
    with Path("event.json").open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert run("explain", "-").err == fault.err.replace("event.json", "stdin")
    monkeypatch.setattr("sys.stdin", None)
    closed = run("explain", "-")
    assert (closed.code, "standard input is closed" in closed.err) == (2, True)


def test_a_replay_that_is_forced_and_a_part_of_the_body_are_not_outside_the_key(
    run: Run, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.toml"
    forced = 'name = "order"\nkey = ["body.id", "time(body.at)"]\non_replay = "force"'
    rules.write_text(f"[[rule]]\n{forced}\n")
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(json.dumps(order(id=1, at="2026-11-16T00:00:00Z", sent=1)))
    again = order(id=2, at="2026-11-16T02:00:00+02:00", sent=2)
    second.write_text(json.dumps({**again, "replay-name": "r"}))
    (found,) = run("explain", first, second, "--rules", rules, "--json").documents
    assert found["differ"] == ["body.id", "replay"]
    assert found["outside"] == ["detail.sent"]


def test_two_versions_of_a_state_are_no_copies_and_have_no_cause(run: Run, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nname = "s"\nsubject = ["detail.id"]\norder = "detail.version"\n')
    for version in (1, 2):
        event = order(id=1, version=version)
        (tmp_path / f"{version}").write_text(json.dumps({**event, "id": f"{version}"}))
    words = ("explain", tmp_path / "1", tmp_path / "2", "--rules", rules)
    (found,) = run(*words, "--json").documents
    assert (found["same"], found["differ"], found["cause"]) == (True, ["hash(body)", "order"], None)
    assert "cause" not in run(*words).out


def test_values_with_a_long_common_beginning_are_shown_from_their_difference_on_a_narrow_terminal(
    explain: Explain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    long = "a" * 40
    told = explain(order(**COMPLETE, url=f"{long}one"), order(**COMPLETE, url=f"{long}two"))
    at = told.splitlines().index("  detail.url")
    assert told.splitlines()[at + 1 : at + 3] == [
        '    first   …aaaaaaaaaaone"',
        '    second  …aaaaaaaaaatwo"',
    ]


def test_a_missing_part_of_two_events_is_named_with_its_file(run: Run) -> None:
    write_lines(Path("rules.toml"), HASHED.replace('missing = "hash"', ""))
    write_lines(Path("a.json"), order(**COMPLETE))
    write_lines(Path("b.json"), order(id=1, b=2))
    told = run("explain", "a.json", "b.json", "--rules", "rules.toml")
    assert told.code == 1
    assert told.out.splitlines()[0] == "b.json: detail.c is missing"


@pytest.mark.parametrize("text", ["", "[]", " \n"])
def test_an_empty_array_is_no_broken_json(run: Run, text: str) -> None:
    Path("a.json").write_text(text)
    told = run("explain", "a.json")
    assert told.code == 1
    assert told.err == "eventonce: a.json: no event: the input is empty, or an empty array\n"


def test_two_long_values_are_shown_from_their_difference_at_any_width() -> None:
    for room in (2, 12, 40):
        first, second = _from_the_difference("same" * 10 + "one", "same" * 10 + "two", room=room)
        assert (first, second) == ("…mesamesameone", "…mesamesametwo")
    assert _from_the_difference("abcdef", "abcxyz", room=4) == ("abcdef", "abcxyz")
