"""The page about sinks is true: its code and its commands do what it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventonce.config import load
from eventonce.rules.tomltext import parse_rule_file
from eventonce.sinks import open_sink
from tests.docs.pages import DOCS
from tests.integration.test_sinks_table import TABLE


def shown(page: str, language: str) -> list[str]:
    """The examples of a page."""
    found = (DOCS / page).read_text().split(f"```{language}\n")[1:]
    return [example.partition("```")[0] for example in found]


@pytest.mark.parametrize("example", shown("sinks.md", "toml"))
def test_the_tables_shown_can_be_opened(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRM_TOKEN", "hush")
    (tmp_path / "eventonce.toml").write_text(example)
    sinks = load(tmp_path / "eventonce.toml").sink
    assert sinks
    for sink in sinks:
        assert callable(open_sink(sink))


def test_the_code_shown_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(shown("sinks.md", "python")[0], scope)
    with scope["consumer"] as consumer:
        event = {"id": "1", "detail-type": "v2.audits.entitytype.{id}.entityid.{id}"}
        consumer.process([event | {"detail": {"eventBody": {"id": "a-1"}}}])
    assert len(Path("audits.jsonl").read_bytes().splitlines()) == 1


def test_the_table_shown_is_the_tested_table() -> None:
    assert shown("sinks.md", "sql") == [TABLE]


def test_the_rule_for_replays_is_valid() -> None:
    (rule,) = parse_rule_file(shown("letters.md", "toml")[-1], name="letters.md")
    assert rule.on_replay == "missing"
