"""The events that windows would drop, estimated without labels, against the truth of simulated
traffic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eventonce.study import windows
from eventonce.study.windows import COPIES_TO_SHOW
from tests.helpers import Run, write_lines

DAY = 86_400_000
WINDOWS = {"10s": 10_000, "1h": 3_600_000, "4d": 4 * DAY}
RULES = {
    "conversation": '{ type = "v2.detail.*" }\nkey = ["body.conversationId"]\nscope = "all"',
    "status": '{ type = "v2.users.*.routingStatus" }\n'
    'key = ["body.id", "body.routingStatus.status"]',
    "body": '{ type = "v2.users.*.conversations.*" }\nkey = ["hash(body)"]',
    "detail": '{ type = "v2.*" }\nkey = ["hash(detail)"]',
}


def rules(tmp_path: Path, *names: str) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text("".join(f'[[rule]]\nname = "{it}"\nmatch = {RULES[it]}\n' for it in names))
    return path


def wrong(document: dict[str, Any], rule: str = "") -> dict[int, dict[str, Any]]:
    (found,) = [one for one in document["windows"] if one["rule"] == rule]
    return {window["length"]: window for window in found["grid"]}


@pytest.mark.parametrize("names", [["conversation", "status"], ["body"], ["detail"]])
def test_expected_wrong_drops_agree_with_the_true_ones(
    run: Run, tmp_path: Path, names: list[str]
) -> None:
    capture, truth = tmp_path / "c.jsonl", tmp_path / "t.jsonl"
    simulated = ("--seed", "9103", "--events", "5000", "--days", "14")
    run("simulate", *simulated, "-o", capture, "--truth", truth)
    used = ("--rules", rules(tmp_path, *names))
    found = wrong(run("diagnose", capture, *used, "--json").documents[0])
    options = [it for window in WINDOWS for it in ("--window", window)]
    calm = ("--crashes", "0", "--outages", "0", "--truth", truth, "--json")
    _, *results = run("backtest", capture, *used, *options, *calm).documents[0]
    for length, result in zip(WINDOWS.values(), results, strict=True):
        expected, true = found[length]["wrong"], result["lost"]
        assert abs(expected - true) <= 0.03 * true + 5, (length, expected, true)
        assert true <= found[length]["at_most"]
    if "conversation" in names:
        assert results[0]["lost"] > 500


def repeating(chance: Random, keys: int, days: int, mean: float) -> list[dict[str, Any]]:
    """Events with identical content that are no copies, at random times."""
    arrivals = sorted(
        (chance.randrange(days * DAY), key)
        for key in range(keys)
        for _ in range(round(chance.expovariate(1 / mean)))
    )
    return [
        {
            "eventonce": 1,
            "arrived": 1_790_000_000_000 + at,
            "event": {
                "id": f"e{at}",
                "detail-type": "door",
                "source": "house",
                "detail": {"n": key},
            },
        }
        for at, key in arrivals
    ]


def test_the_background_estimates_how_often_equal_events_are_no_copies(
    run: Run, tmp_path: Path
) -> None:
    events = repeating(Random(9104), keys=400, days=30, mean=6)
    capture = write_lines(tmp_path / "c.jsonl", *events)
    path = tmp_path / "rules.toml"
    path.write_text('[[rule]]\nname = "door"\nmatch = "door"\nkey = ["hash(detail)"]\n')
    (document,) = run("diagnose", capture, "--rules", path, "--json").documents
    found = wrong(document)
    for length in (DAY, 2 * DAY, 4 * DAY, 8 * DAY):
        last: dict[int, int] = {}
        true = 0
        for event in events:
            key, at = event["event"]["detail"]["n"], event["arrived"]
            if at < last.get(key, 0) + length:
                true += 1
            else:
                last[key] = at
        assert abs(found[length]["repeats"] - true) < 0.1 * true
    assert document["late"]["beyond"] > 1_000


def test_the_report_of_a_short_capture_says_that_the_capture_is_not_enough(
    run: Run, tmp_path: Path
) -> None:
    events = repeating(Random(9105), keys=20, days=4, mean=6)
    capture = write_lines(tmp_path / "c.jsonl", *events, events[-1])
    (document,) = run("diagnose", capture, "--json").documents
    assert wrong(document)[DAY]["repeats"] is None
    assert "Not enough yet" in run("diagnose", capture).out


def test_a_good_key_is_expected_to_drop_no_genuine_event(run: Run, tmp_path: Path) -> None:
    capture = tmp_path / "c.jsonl"
    run("simulate", "--seed", "9106", "--events", "8000", "--days", "14", "-o", capture)
    (document,) = run("diagnose", capture, "--json").documents
    found = wrong(document)
    assert found[8 * DAY]["wrong"] == 0
    assert found[8 * DAY]["share"] > 0.9
    assert found[10_000]["share"] < found[DAY]["share"] < found[8 * DAY]["share"]
    assert found[8 * DAY]["at_most"] < 15


def test_each_rule_with_enough_copies_has_its_own_windows_and_plot(
    run: Run, tmp_path: Path
) -> None:
    def events(name: str, copies: int) -> list[dict[str, Any]]:
        return [
            {
                "eventonce": 1,
                "arrived": 1_790_000_000_000 + number * 1_000 + late,
                "event": {"id": f"{name}{number}", "detail-type": name, "source": "house"},
            }
            for number in range(copies)
            for late in (0, 3_600_000)
        ]

    ours = tmp_path / "rules.toml"
    names = ("many", "few")
    ours.write_text(
        "".join(
            f'[[rule]]\nname = "{it}"\nmatch = {{ type = "{it}" }}\nkey = ["id"]\n' for it in names
        )
    )
    capture = tmp_path / "c.jsonl"
    write_lines(capture, [*events("many", COPIES_TO_SHOW), *events("few", COPIES_TO_SHOW - 1)])
    words = ("diagnose", capture, "--rules", ours, "--html", tmp_path / "page.html")
    document = run(*words, "--json").documents[0]
    assert [one["rule"] for one in document["windows"]] == ["", "many"]
    of_many = wrong(document, "many")
    assert (of_many[900_000]["share"], of_many[6 * 3_600_000]["share"]) == (0.0, 1.0)
    page = (tmp_path / "page.html").read_text(encoding="utf-8").replace("\u00a0", " ")
    assert f"many: {COPIES_TO_SHOW} copies; 8 days drop 100" in page
    assert "What windows would do: many" in page
    assert "few: " not in page
    assert "by rule" not in run(*words).out


def test_a_sample_of_the_keys_of_very_many_lines_is_counted_and_scaled(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = tmp_path / "c.jsonl"
    run("simulate", "--seed", "41", "--events", "6000", "--rate", "redelivery=0.4", "-o", capture)
    looked: list[int] = []
    count = windows._count

    def counted(lines: Sequence[Any], *others: Any, **named: Any) -> None:
        looked.append(len(lines))
        count(lines, *others, **named)

    monkeypatch.setattr(windows, "_count", counted)
    true = wrong(run("diagnose", capture, "--json").documents[0])[4 * DAY]
    every = sum(looked)
    looked.clear()
    most = every // 5
    monkeypatch.setattr(windows, "MOST_ROWS", most)
    told = wrong(run("diagnose", capture, "--json").documents[0])[4 * DAY]
    # The keys of the sample are chosen by their hashes, so that its size varies by chance.
    assert most / 2 < sum(looked) < most * 1.3
    assert told["caught"] == pytest.approx(true["caught"], rel=0.3)
    assert true["caught"] > 1000
