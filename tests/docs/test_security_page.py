"""docs/security.md is true: every test that it names exists, and a row without one says why."""

from __future__ import annotations

import ast
import re
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from tests.docs.tables import tables

ROOT = Path(__file__).parents[2]
ROWS = [row for table in tables("security.md") for row in table.rows]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

VENDORED = {
    "uPlot.iife.min.js": "4408ace91a18b4888998171e122da65b9ab28711c30f19a6a591491c5a82caf1",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
"""Digests of the third-party files of the dashboard, as they were downloaded."""


def _tests() -> set[str]:
    """The names of all tests."""
    return {
        node.name
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def test_every_test_that_is_named_exists() -> None:
    named = {name for row in ROWS for name in re.findall(r"`([^`]+)`", row["shown by"])}
    assert len(named) > 50
    assert named - _tests() == set()


def test_a_row_without_a_test_gives_a_reason() -> None:
    why = ("nothing:", "nothing here:", "your choice", "not tested here:")
    for row in ROWS:
        assert ("`test_" in row["shown by"]) != row["is stopped by"].startswith(why), row


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_of_a_workflow_is_pinned_to_a_commit(path: Path) -> None:
    used = re.findall(r"uses: *(\S+)", path.read_text())
    assert used
    assert [it for it in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", it)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_no_workflow_has_a_right_that_it_does_not_name(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {}
    assert all("permissions" in job for job in workflow["jobs"].values())


def test_the_third_party_scripts_of_the_dashboard_are_unchanged() -> None:
    folder = ROOT / "src" / "eventonce" / "dashboard" / "static"
    found = {name: sha256((folder / name).read_bytes()).hexdigest() for name in VENDORED}
    assert found == VENDORED
    licences = (folder / "LICENSES.txt").read_text()
    assert [name for name in VENDORED if name not in licences] == []
