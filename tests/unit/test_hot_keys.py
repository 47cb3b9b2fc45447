"""A key that nearly every event has, because its rule is far too wide, and many kinds of event: the
study neither compares all events with each other nor holds all of them in memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from eventonce.study import copies, diagnose, sampled, windows
from eventonce.study.copies import EARLY, Row
from eventonce.study.index import Index
from eventonce.study.sampled import Looked, Shown
from tests.helpers import Run, write_lines
from tests.unit.made import classic

LINES = 400
CAUSES = Counter({"redelivery": 200, "overlapping-rules": 133, "double-emission": 66})
"""A redelivery is the second delivery of a message. A copy by overlapping rules is the first
delivery of another message with the same id. All other copies are double emissions."""


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """Events with one key; every message comes twice, and some messages have the same id."""
    (tmp_path / "eventonce.toml").write_text('[[rule]]\nname = "hot"\nkey = ["body.call"]\n')
    lines: list[dict[str, Any]] = []
    for number in range(LINES):
        event = classic({"eventBody": {"call": 1, "n": number // 3}}, id=f"e-{number // 3}")
        told = {"id": f"m-{number // 2}", "arrived": number, "channel": "q", "receives": 1}
        lines.append({"eventonce": 1, **told, "event": event})
    return write_lines(tmp_path / "capture.jsonl", *lines)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """The lines that were compared with others, once for each comparison."""
    rows: list[Row] = []
    likeness = copies._likeness

    def counted(row: Row, other: Row) -> tuple[bool, ...]:
        rows.append(row)
        return likeness(row, other)

    monkeypatch.setattr(copies, "_likeness", counted)
    return rows


def causes(file: Path) -> Counter[str]:
    told = (json.loads(line)["cause"] for line in file.read_bytes().splitlines())
    return Counter(filter(None, told))


def test_filter_compares_each_copy_with_few_lines(
    run: Run, capture: Path, compared: list[Row], tmp_path: Path
) -> None:
    assert run("filter", capture, "--copies", tmp_path / "copies").code == 0
    assert causes(tmp_path / "copies") == CAUSES
    assert max(Counter(row.line for row in compared).values()) <= EARLY + 3


def test_diagnose_compares_each_copy_with_few_lines(
    run: Run,
    capture: Path,
    compared: list[Row],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Copies next to each other are found even if the study forgets earlier lines.
    monkeypatch.setattr(copies, "NAMES_HELD", 20)
    assert run("diagnose", capture, "--lines", tmp_path / "lines").code == 0
    assert causes(tmp_path / "lines") == CAUSES
    assert max(Counter(row.line for row in compared).values()) <= EARLY + 3


def test_the_windows_of_a_key_with_many_lines_are_scaled(
    run: Run, capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_windows() -> dict[str, Any]:
        whole: dict[str, Any] = run("diagnose", capture, "--json").documents[0]["windows"][0]
        return whole

    true = all_windows()
    monkeypatch.setattr(windows, "MOST_OF_A_KEY", LINES // 4)
    told = all_windows()
    for mine, exact in zip(told["grid"], true["grid"], strict=True):
        assert mine["differing"] == pytest.approx(exact["differing"], rel=0.05)
        assert mine["caught"] == pytest.approx(exact["caught"], rel=0.05)
    assert true["grid"][0]["differing"] > LINES / 4


def test_many_kinds_share_the_lines_that_are_held(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    read = sampled.sampled

    def counted(index: Index, shown: Collection[Shown]) -> Looked:
        held.extend(len(some.lines) for some in shown)
        return read(index, shown)

    monkeypatch.setattr(diagnose, "sampled", counted)
    monkeypatch.setattr(sampled, "SAMPLES_IN_ALL", 260)
    capture = tmp_path / "capture.jsonl"
    run("simulate", "--events", "2000", "--seed", "5", "-o", capture)
    assert run("diagnose", capture).code == 0
    assert len(held) > 20
    assert max(held) <= max(sampled.FEWEST_SAMPLES, 260 // len(held))
