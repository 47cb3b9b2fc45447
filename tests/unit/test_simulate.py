"""`eventonce simulate`: the same seed gives the same traffic, and the right file of the truth."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from eventonce import presets
from eventonce.envelope import read
from eventonce.rules import Ruleset
from eventonce.sources.files import Capture
from eventonce.study.causes import Cause
from eventonce.study.simulate import SOURCES, Scenario, SimulatedLine, capture
from eventonce.study.simulate.world import Rates
from tests.helpers import runner

NOTHING = Rates(*(0.0 for _ in Rates.__struct_fields__))
MANY = Scenario(events=6_000, seed=3, sources=tuple(SOURCES))


@pytest.fixture(scope="module")
def lines() -> list[SimulatedLine]:
    return list(capture(MANY))


def test_the_same_seed_gives_the_same_lines() -> None:
    few = MANY._replace(events=500)
    assert list(capture(few)) == list(capture(few))
    assert list(capture(few)) != list(capture(few._replace(seed=4)))


def test_every_cause_occurs_and_every_copy_has_an_earlier_original(
    lines: list[SimulatedLine],
) -> None:
    assert {line.cause for line in lines} == {None, *get_args(Cause)} - {"unknown"}
    for number, line in enumerate(lines, start=1):
        assert (line.copy_of is None) == (line.cause is None)
        if line.copy_of is not None:
            first = lines[line.copy_of - 1]
            assert line.copy_of < number
            assert (first.fact, first.copy_of) == (line.fact, None)


def test_a_line_has_arrival_channel_and_receive_count_and_the_arrivals_rise(
    lines: list[SimulatedLine],
) -> None:
    found = [json.loads(line.text) for line in lines]
    arrivals = [one["arrived"] for one in found]
    assert arrivals == sorted(arrivals)
    again = [one for one, line in zip(found, lines, strict=True) if line.cause == "redelivery"]
    assert again
    assert all(one["receives"] > 1 and one["channel"].startswith("sqs:") for one in again)


def test_without_faults_each_fact_arrives_once() -> None:
    lines = list(capture(MANY._replace(rates=NOTHING)))
    assert {line.cause for line in lines} == {None}
    assert len({line.fact for line in lines}) == len(lines)


@pytest.mark.parametrize("source", ["genesys", "cxone"])
def test_the_preset_never_gives_two_facts_one_key(source: str) -> None:
    rules = Ruleset(presets.load(source).rules, name="study")
    facts: dict[bytes, set[int]] = defaultdict(set)
    for line in capture(Scenario(events=5_000, seed=5, sources=(source,))):
        _, claim = rules.plan(read(line.text), 0)
        facts[claim.key].add(line.fact)
    assert not [found for found in facts.values() if len(found) > 1]


def test_the_unknown_source_has_other_fields_under_another_seed() -> None:
    def paths(seed: int) -> set[str]:
        line = next(capture(Scenario(events=1, seed=seed, sources=("unknown",))))
        return set(json.loads(line.text)["event"]["detail"])

    assert len({frozenset(paths(seed)) for seed in range(8)}) > 4


def test_the_command_writes_the_capture_the_truth_and_the_expected_events(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    files = {name: tmp_path / name for name in ("output", "truth", "expected")}
    options = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    rates = ("--rate", "none", "--rate", "lost=0.2", "--rate", "redelivery=0.1")
    run = runner(capfdbinary)
    result = run("simulate", "--events", "800", "--json", *rates, *options)
    assert result.code == 0
    written = files["output"].read_bytes().splitlines()
    truth = [json.loads(line) for line in files["truth"].read_bytes().splitlines()]
    expected = files["expected"].read_bytes().splitlines()
    assert [row["line"] for row in truth] == list(range(1, len(written) + 1))
    causes = Counter(row["cause"] for row in truth)
    assert set(causes) == {None, "redelivery"}
    summary = json.loads(result.err)
    assert summary == {
        "lines": len(written),
        "first": causes[None],
        "copies": {"redelivery": causes["redelivery"]},
    }
    lost = set(range(len(expected))) - {row["fact"] for row in truth}
    assert 0.1 < len(lost) / len(expected) < 0.3


def test_an_interrupted_simulation_keeps_the_files_of_the_earlier_simulation(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any) -> Iterator[Any]:
        yield from islice(capture(*given), 100)
        raise KeyboardInterrupt

    run = runner(capfdbinary)
    files = [tmp_path / name for name in ("capture.gz", "truth", "expected")]
    options = ("-o", files[0], "--truth", files[1], "--expected", files[2])
    run("simulate", "--events", "300", *options)
    before = [file.read_bytes() for file in files]
    monkeypatch.setattr("eventonce.cli.simulate.capture", interrupted)
    assert run("simulate", "--events", "800", "--force", *options).code == 130
    assert [file.read_bytes() for file in files] == before
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert run("simulate", "--events", "300", "-o", "/dev/null").code == 130


@pytest.mark.parametrize("option", ["-o", "--truth", "--expected"])
def test_an_existing_file_is_overwritten_only_with_force(
    option: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The file may be a capture of real traffic."""
    run, mine = runner(capfdbinary), tmp_path / "capture.jsonl"
    mine.write_text("mine")
    refused = run("simulate", "--events", "10", option, mine)
    assert (refused.code, mine.read_text()) == (2, "mine")
    assert "exists already; --force overwrites it" in refused.err
    assert run("simulate", "--events", "10", option, mine, "--force").code == 0
    assert mine.read_text() != "mine"


def test_bare_lines_are_the_events_alone() -> None:
    few = Scenario(events=300, seed=2)
    for line, bare in zip(capture(few), capture(few._replace(bare=True)), strict=True):
        assert json.loads(line.text)["event"] == json.loads(bare.text)


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_the_ending_of_the_file_name_chooses_the_compression(
    ending: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    file = tmp_path / f"capture.jsonl.{ending}"
    result = runner(capfdbinary)("simulate", "--events", "300", "--seed", "2", "-o", file)
    assert result.code == 0
    written = [line.text.rstrip() for line in capture(Scenario(events=300, seed=2))]
    assert list(Capture([file])) == written
    assert file.stat().st_size < len(b"".join(written)) / 4


@pytest.mark.parametrize("rate", ["nobody=0.1", "redelivery", "redelivery=2", "redelivery=x"])
def test_a_wrong_rate_is_named(rate: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    result = runner(capfdbinary)("simulate", "--rate", rate)
    assert result.code == 2
    assert rate.partition("=")[0] in result.err


def test_clock_skew_changes_only_the_time_of_the_envelope() -> None:
    right = list(capture(Scenario(events=1_000, seed=9109, rates=NOTHING)))
    rates = msgspec.structs.replace(NOTHING, clock_skew=0.3)
    wrong = list(capture(Scenario(events=1_000, seed=9109, rates=rates)))
    pairs = [
        (json.loads(one.text), json.loads(other.text))
        for one, other in zip(right, wrong, strict=True)
    ]
    skewed = [one for one, other in pairs if one["event"]["time"] != other["event"].pop("time")]
    assert 0.1 < len(skewed) / len(pairs) < 0.6
    for one, other in pairs:
        del one["event"]["time"]
        assert one == other
