"""`eventonce backtest`: rules and recipes decide the same deliveries, compared with the truth."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from eventonce.cli import main
from eventonce.rules import Ruleset
from eventonce.study.cost import cost
from eventonce.study.guards import AGAIN, CRASH, OUTAGE, RECIPES, Look, RulesGuard
from tests.helpers import Run, ruled, write_lines


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A capture and its truth, which the tests only read."""
    folder = tmp_path_factory.mktemp("simulated")
    capture, truth = folder / "c.jsonl", folder / "t.jsonl"
    words = ["simulate", "--seed", "201", "--events", "5000", "-o", capture, "--truth", truth]
    with pytest.raises(SystemExit, match=r"^0$"):
        main([str(word) for word in words])
    return capture, truth


def by_guard(document: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["guard"]: one for one in document}


def test_a_guard_of_the_user_is_judged_by_its_recorded_decisions(run: Run, tmp_path: Path) -> None:
    capture, truth, mine = (tmp_path / name for name in ("c.jsonl", "t.jsonl", "mine.jsonl"))
    run("simulate", "--seed", "8", "--events", "600", "-o", capture, "--truth", truth)
    rows = [json.loads(line) for line in truth.read_bytes().splitlines()]
    copies = [row for row in rows if row["copy_of"]]
    copies[0]["copy_of"] = None
    alone = {row["line"] for row in rows} - {row["copy_of"] for row in rows}
    lost = next(row for row in rows[1:] if row["line"] in alone and not row["cause"])
    lost["copy_of"] = 1
    mine.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = ("backtest", capture, "--presets", "genesys:latest", "--truth", truth, "--guard", mine)
    _, found = run(*words, "--json").documents[0]
    assert (found["guard"], found["lost"], found["let_through"]) == ("mine.jsonl", 1, 1)
    renamed = mine.with_name("eventonce-old.jsonl")
    renamed.write_bytes(mine.read_bytes())
    assert "Your guard loses 1 and lets 1 copy through" in run(*words[:-1], renamed).out
    assert [lost["line"], 1] in found["examples"]
    mine.write_text("".join(f"{json.dumps(row)}\n" for row in rows[:-1]))
    assert "ends before the capture" in run(*words).err
    mine.write_text(json.dumps(rows[1]))
    assert "expected line 1, found 2" in run(*words).err
    more = [*rows, {"line": len(rows) + 1, "copy_of": None}]
    mine.write_text("".join(f"{json.dumps(row)}\n" for row in more))
    assert f"mine.jsonl goes on after line {len(rows)}" in run(*words).err
    for wrong in (0, 2, 3):
        decided = ({"line": 1, "copy_of": None}, {"line": 2, "copy_of": wrong})
        mine.write_text("".join(f"{json.dumps(row)}\n" for row in decided))
        assert f"copy_of must be null or a line before 2, found {wrong}" in run(*words).err
    mine.write_text("rubbish\n")
    assert "mine.jsonl:1: no decision on a line" in run(*words).err


def test_a_capture_that_breaks_off_is_named_and_not_its_truth(run: Run, tmp_path: Path) -> None:
    capture, truth = tmp_path / "c.jsonl.gz", tmp_path / "t.jsonl"
    run("simulate", "--events", "3000", "-o", capture, "--truth", truth)
    capture.write_bytes(capture.read_bytes()[:-1000])
    result = run("backtest", capture, "--truth", truth, "--guard", truth)
    assert (result.code, "c.jsonl.gz" in result.err, "goes on" in result.err) == (2, True, False)


def test_latest_wins_loses_nothing_and_lets_nothing_through(
    run: Run, simulated: tuple[Path, Path]
) -> None:
    capture, truth = simulated
    result = run("backtest", capture, "--truth", truth, "-p", "genesys:latest", "--json")
    (found,) = result.documents[0]
    assert (found["lost"], found["let_through"]) == (0, 0)
    assert (found["recall"], found["precision"]) == (1.0, 1.0)
    assert result.code == 0


def test_facts_lose_nothing_and_let_through_only_states_that_are_published_twice(
    run: Run, simulated: tuple[Path, Path], tmp_path: Path
) -> None:
    """A consumer of facts cannot distinguish these copies from a return to a state."""
    capture, truth = simulated
    result = run("backtest", capture, "--truth", truth, "-p", "genesys", "--json")
    (found,) = result.documents[0]
    lines = tmp_path / "lines"
    run("diagnose", capture, "--lines", lines)
    told = [json.loads(line)["cause"] for line in lines.read_bytes().splitlines()]
    assert found["lost"] == 0
    assert 0 < found["let_through"] < told.count("double-emission")
    assert result.code == 1
    many = run("backtest", capture, "--truth", truth, "-p", "genesys", "--max-copies", "99999")
    assert many.code == 0


def test_every_recipe_loses_events_or_lets_copies_through(
    run: Run, simulated: tuple[Path, Path]
) -> None:
    capture, truth = simulated
    result = run("backtest", capture, "--truth", truth, "--recipes", "--json")
    found = by_guard(result.documents[0])
    assert all(found[one.name]["lost"] + found[one.name]["let_through"] for one in RECIPES)
    assert found[RECIPES[1].name]["lost"] > 1_000
    ours = found["eventonce auto"]
    assert ours["lost"] == 0
    assert ours["let_through"] < min(found[one.name]["let_through"] for one in RECIPES[3:])


def test_the_same_capture_gives_the_same_table(run: Run, tmp_path: Path) -> None:
    capture, truth = tmp_path / "c.jsonl", tmp_path / "t.jsonl"
    run("simulate", "--events", "600", "-o", capture, "--truth", truth)
    words = ("backtest", capture, "--truth", truth, "--recipes", "--json")
    assert run(*words).out == run(*words).out


def test_a_short_window_lets_late_copies_through(run: Run, simulated: tuple[Path, Path]) -> None:
    capture, truth = simulated
    result = run("backtest", capture, "--truth", truth, "-p", "genesys", "--window", "5m", "--json")
    long, short = result.documents[0]
    assert short["guard"] == "eventonce genesys, 5m"
    assert short["let_through"] > long["let_through"]


def test_without_truth_drops_that_differ_are_shown_and_values_only_if_asked(
    run: Run, tmp_path: Path
) -> None:
    event = {"detail-type": "call", "detail": {"call": 1, "status": "secret-one"}, "id": "a"}
    other = {**event, "detail": {"call": 1, "status": "secret-two"}, "id": "b"}
    capture = write_lines(tmp_path / "c.jsonl", event, other)
    rules = tmp_path / "r.toml"
    rules.write_text('[[rule]]\nname = "call"\nmatch = "call"\nkey = ["detail.call"]\n')
    result = run("backtest", capture, "--rules", rules)
    assert result.code == 1
    assert run("backtest", capture, "--rules", rules, "--max-lost", "1").code == 0
    assert "line 2 is dropped as a copy of line 1" in result.out
    assert "detail.status" in result.out
    assert "secret" not in result.out
    assert "secret-two" in run("backtest", capture, "--rules", rules, "--values").out


def look(at: int, line: int, fault: int = 0) -> Look:
    return Look(1, at, line, -1, 0, 86_400_000, 0, fault)


def test_a_crash_and_an_outage_cost_eventonce_nothing_and_a_recipe_the_event() -> None:
    looks = [look(0, 1, CRASH), look(65_000, 1, AGAIN), look(70_000, 2)]
    ours = RulesGuard("ours", Ruleset([ruled()], name="study"))
    assert [status for _, status in ours.decide(looks)] == ["run", "duplicate"]
    assert [status for _, status in RECIPES[0].decide(looks)] == ["copy", "copy"]
    away = [look(0, 1, OUTAGE), look(65_000, 1, AGAIN)]
    assert [status for _, status in ours.decide(away)] == ["run"]
    assert [status for _, status in RECIPES[3].decide(away)] == ["error"]


def test_a_truth_of_another_capture_is_refused(run: Run, tmp_path: Path) -> None:
    capture, truth = tmp_path / "c.jsonl", tmp_path / "t.jsonl"
    run("simulate", "--events", "600", "-o", capture, "--truth", truth)
    truth.write_bytes(truth.read_bytes() + b'{"line": 1, "fact": 1}\n')
    result = run("backtest", capture, "--truth", truth)
    assert result.code == 2
    assert "belongs to another" in result.err
    truth.write_bytes(b"\n".join(truth.read_bytes().splitlines()[:10]))
    assert run("backtest", capture, "--truth", truth).code == 2


def test_powertools_runs_again_after_a_crash_and_forgets_after_an_hour() -> None:
    hour = 3_600_000
    powertools = RECIPES[-1]
    looks = [
        look(0, 1, CRASH)._replace(remember=hour),
        look(30_000, 2)._replace(remember=hour),
        look(65_000, 1, AGAIN)._replace(remember=hour),
        look(64_000 + hour, 3)._replace(remember=hour),
        look(66_000 + hour, 4)._replace(remember=hour),
    ]
    decided = [(it.line, status) for it, status in powertools.decide(looks)]
    # The second is refused while the first is in progress, and comes again when that is over.
    assert decided == [(1, "run"), (2, "copy"), (3, "copy"), (4, "run")]
    away = [look(0, 1, OUTAGE), look(65_000, 1, AGAIN)]
    assert [status for _, status in powertools.decide(away)] == ["run"]


def test_the_cost_of_a_million_events_equals_the_cost_on_the_page() -> None:
    """docs/cost.md has the arithmetic: a million facts a month, remembered for ten days."""
    million, day = 1_000_000, 86_400_000
    facts = cost(
        span=30 * day,
        runs=million,
        versions=0,
        copies=0,
        remembered=million * 10 * day,
        keys=million,
    )
    assert facts is not None
    assert facts.dynamodb_dollars == pytest.approx(1.25 + 0.0221, abs=1e-4)
    megabytes = [facts.redis_bytes, facts.postgres_bytes, facts.sqlite_bytes]
    assert [round(size / 1e6, 1) for size in megabytes] == [34.0, 65.0, 25.3]
    copies = cost(span=30 * day, runs=0, versions=0, copies=million, remembered=0, keys=0)
    assert copies is not None
    assert copies.dynamodb_dollars == 0.75
    states = cost(span=day, runs=million, versions=million, copies=0, remembered=0, keys=0)
    assert states is not None
    assert states.dynamodb_dollars == pytest.approx(30 * 1.375)


def test_the_cost_of_a_month_is_shown_for_rules_and_not_for_recipes(
    run: Run, simulated: tuple[Path, Path]
) -> None:
    capture, _ = simulated
    words = ("backtest", capture, "-p", "genesys", "--window", "1d", "--recipes")
    long, short, *others = run(*words, "--json").documents[0]
    assert 9 < long["cost"]["records"] / short["cost"]["records"] < 11
    assert long["cost"]["dynamodb_writes"] < short["cost"]["dynamodb_writes"]
    assert {one["cost"] for one in others} == {None}
    assert "at the pace of the capture" in run(*words[:-1]).out.lower()


def test_the_guard_in_use_is_named_by_a_part_of_its_name(run: Run, tmp_path: Path) -> None:
    capture, truth = tmp_path / "c.jsonl", tmp_path / "t.jsonl"
    assert run("simulate", "--events", "1500", "-o", capture, "--truth", truth).code == 0
    words = ("backtest", capture, "--truth", truth, "-p", "genesys:latest")
    mine = run(*words, "--guard", "Event.id in a cache")
    assert re.search(
        r"Your guard loses \d+ and lets \d+ copies through; eventonce genesys:latest loses 0 and "
        r"lets 0 through\.",
        mine.out,
    )
    assert len(run(*words, "--guard", "500 ms", "--json").documents[0]) == 2
    for text in ("event.id", "nothing of the kind"):
        refused = run(*words, "--guard", text)
        assert refused.code == 2
        assert "one of these recipes:\n  event.id in a cache" in refused.err
    assert run(*words, "--guard", "500 ms", "--recipes").code == 2


def test_a_run_whose_content_ran_before_is_shown_with_the_fields_that_differ(
    run: Run, tmp_path: Path
) -> None:
    event = {"detail-type": "call", "source": "crm", "detail": {"call": 1}}
    capture = write_lines(tmp_path / "c.jsonl", *({**event, "id": f"secret{n}"} for n in (1, 2)))
    result = run("backtest", capture)
    assert "line 2 runs, though its content is that of line 1, and differs in\n  id" in result.out
    assert "secret" not in result.out
    assert run("backtest", capture, "--json").documents[0][0]["kept"] == [[2, 1]]


def test_drops_that_differ_only_in_fields_that_are_written_anew_are_counted_apart(
    run: Run, simulated: tuple[Path, Path]
) -> None:
    """By the truth none of these drops is wrong, so none may look wrong without the truth."""
    capture, _ = simulated
    (found,) = run("backtest", capture, "-p", "genesys:latest", "--json").documents[0]
    assert found["differing"] == 0
    assert found["written_anew"] > 10
    said = run("backtest", capture, "-p", "genesys:latest").out
    assert "drops 0 events whose content is not that of the original, and runs 0" in said
    assert "differs only in what is written anew\n  detail.metadata.CorrelationId" in said


def test_the_fields_that_an_unknown_source_writes_anew_are_learned(
    run: Run, tmp_path: Path
) -> None:
    capture, rules = tmp_path / "c.jsonl", tmp_path / "r.toml"
    run("simulate", "--source", "unknown", "--seed", "202", "--events", "4000", "-o", capture)
    run("diagnose", capture, "--propose", rules)
    (found,) = run("backtest", capture, "--rules", rules, "--json").documents[0]
    assert found["differing"] == 0
    assert found["written_anew"] > 10


def test_a_time_is_not_counted_as_written_anew_without_proof_of_a_copy(
    run: Run, tmp_path: Path
) -> None:
    """A heartbeat differs from the heartbeat before only in its time."""
    times = [f"2026-11-16T00:{beat // 60:02}:{beat % 60:02}Z" for beat in range(900)]
    beats = [
        {
            "id": at,
            "detail-type": "beat",
            "time": at,
            "detail": {"host": at[-3:], "at": at},
        }
        for at in times
    ]
    rules = tmp_path / "r.toml"
    rules.write_text('[[rule]]\nname = "beat"\nmatch = "beat"\nkey = ["detail.host"]\n')
    capture = write_lines(tmp_path / "c.jsonl", *beats)
    (found,) = run("backtest", capture, "--rules", rules, "--json", "--crashes", 0).documents[0]
    assert (found["differing"], found["written_anew"]) == (840, 0)
    two = write_lines(tmp_path / "two.jsonl", beats[0], beats[60])
    said = run("backtest", two, "--rules", rules, "--crashes", 0).out
    assert "drops 1 event whose content is not that of the original, and runs 0" in said


def test_a_complete_configuration_is_tried_as_in_production(run: Run, tmp_path: Path) -> None:
    capture, truth, rules = (tmp_path / name for name in ("c.jsonl", "t.jsonl", "rules.toml"))
    sources = ("--source", "genesys", "--source", "unknown", "--seed", "204", "--events", "3000")
    run("simulate", *sources, "-o", capture, "--truth", truth)
    run("diagnose", capture, "--propose", rules)
    config = tmp_path / "eventonce.toml"
    config.write_text(f'store = "memory:"\npresets = ["genesys:latest"]\n{rules.read_text()}')
    words = ("backtest", capture, "--truth", truth, "--json")
    result = run(*words, "--config", config, "--window", "10s")
    whole, short = result.documents[0]
    assert (whole["guard"], whole["lost"], whole["let_through"]) == (f"eventonce {config}", 0, 0)
    assert (result.code, short["let_through"] > 0) == (1, True)
    assert run(*words, "--config", config).code == 0


def test_a_negative_order_is_an_order(run: Run, tmp_path: Path) -> None:
    rules = tmp_path / "r.toml"
    rules.write_text(
        '[[rule]]\nname = "s"\nmatch = "s"\nsubject = ["detail.k"]\norder = "detail.v"\n'
        'state = ["detail.s"]\n'
    )
    told = [
        {"id": f"{v}", "detail-type": "s", "detail": {"k": 1, "v": v, "s": v}} for v in (-7, 1, -5)
    ]
    capture = write_lines(tmp_path / "c.jsonl", *told)
    (found,) = run("backtest", capture, "--rules", rules, "--json").documents[0]
    assert (found["ran"], found["dropped"], found["superseded"]) == (2, 0, 1)
