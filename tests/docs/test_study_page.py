"""docs/study.md and the study in the README are true: their commands run, and print
their table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from eventonce.study.causes import REMEDIES
from tests.docs.pages import DOCS, broken_links
from tests.docs.tables import tables
from tests.helpers import Run

README = (DOCS.parent / "README.md").read_text(encoding="utf-8")
PAGE = (DOCS / "study.md").read_text(encoding="utf-8")


def commands(text: str) -> list[list[str]]:
    """The words of every command that a page shows."""
    shown = re.findall(r"^\$ eventonce (.*?)(?:\s+[#>].*)?$", text, re.MULTILINE)
    return [line.split() for line in shown]


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_the_table_of_recipes_has_the_numbers_that_the_commands_print(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = [words for words in commands(README) if words[0] in ("simulate", "backtest")]
    simulate, backtest = shown
    assert run(*simulate).code == 0
    (results,) = run(*backtest, "--json").documents
    head = r"^\| ([\d,]+) simulated deliveries, ([\d,]+) of them copies"
    ((lines, copies),) = re.findall(head, README, re.MULTILINE)
    truth = [json.loads(line) for line in Path("truth.jsonl").read_bytes().splitlines()]
    assert number(lines) == results[0]["lines"] == len(truth)
    assert number(copies) == sum(row["cause"] is not None for row in truth)
    rows = re.findall(r"^\| \**(.+?)\** \| ([\d,]+) \| ([\d,]+) \|$", README, re.MULTILINE)
    told = {name: (number(lost), number(ran)) for name, lost, ran in rows}
    assert told == {one["guard"]: (one["lost"], one["let_through"]) for one in results}


def test_every_cause_and_finding_is_on_the_page() -> None:
    found = {table.head[0]: table.rows for table in tables("study.md")}
    assert {row["cause"].strip("`") for row in found["cause"]} == REMEDIES.keys() - {"unknown"}
    source = Path("src/eventonce/study/findings.py")
    code = (DOCS.parent / source).read_text(encoding="utf-8")
    codes = re.findall(r'Finding\(\s*"([a-z-]+)"', code)
    assert {row["finding"].strip("`") for row in found["finding"]} == set(codes)


def test_the_two_events_of_the_page_are_copies_for_the_cause_on_the_page(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    simulate, explain = (
        next(words for words in commands(PAGE) if words[0] == name)
        for name in ("simulate", "explain")
    )
    run(*simulate)
    (found,) = run(*explain, "--json").documents
    first, second = (int(word) for word in explain if word.isdecimal())
    told = {"line": second, "copy_of": first, "cause": found["cause"]}
    assert f"`lines.jsonl` has `{json.dumps(told)}`" in PAGE


def test_the_commands_of_the_page_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in commands(PAGE):
        if words[0] == "simulate":
            assert run(*("6000" if word == "20000" else word for word in words)).code == 0
            Path("archive.jsonl").write_bytes(Path("capture.jsonl").read_bytes())
        else:
            result = run(*words)
            assert result.code in (0, 1), (words, result.err)
            assert "Traceback" not in result.err


def test_no_link_is_broken() -> None:
    assert not broken_links(DOCS / "study.md")
