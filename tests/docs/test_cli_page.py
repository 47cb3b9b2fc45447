"""docs/cli.md is true: every command, option, variable and exit code is on it."""

from __future__ import annotations

import inspect
import re

import click
import msgspec
import pytest

from eventonce import cli as command_line
from eventonce.aws import handler
from eventonce.cli.capture import KEY_VARIABLE
from eventonce.cli.checks import FROM_ENVIRONMENT
from eventonce.config import (
    Config,
    DashboardTable,
    HistoryTable,
    PrivacyTable,
    Serve,
    WorkerTable,
)
from eventonce.infra.topology import Infra
from eventonce.sinks import Sink
from tests.docs.pages import DOCS, broken_links
from tests.docs.reference import commands, options_of, written
from tests.docs.tables import plain, tables

TEXT = (DOCS / "cli.md").read_text(encoding="utf-8")
TABLES = {table.head[0]: table.rows for table in tables("cli.md")}


def test_the_option_tables_match_the_commands() -> None:
    assert written() == TEXT, "run: python -m tests.docs.reference"


@pytest.mark.parametrize("name", [name for name, _ in commands() if " " not in name])
def test_every_command_has_its_section_and_its_table(name: str) -> None:
    assert re.search(rf"^### `eventonce {name}\b", TEXT, re.MULTILINE)
    assert f"<!-- options: {name} -->" in TEXT


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_every_command_and_every_option_has_a_help_text(name: str, command: click.Command) -> None:
    for option in options_of(command):
        assert option.help, f"{name} {option.opts}"
        assert option.help.strip()[-1] in ".]", option.help
    assert command.help


def test_every_variable_of_the_environment_is_on_the_page() -> None:
    found = {one.envvar for _, command in commands() for one in options_of(command) if one.envvar}
    found |= {f"EVENTONCE_{name.upper()}" for name in (*FROM_ENVIRONMENT, "users")} | {KEY_VARIABLE}
    found |= set(re.findall(r'"(EVENTONCE_\w+)"', inspect.getsource(handler)))
    described = re.findall(r"EVENTONCE_\w+", str([row["variable"] for row in TABLES["variable"]]))
    assert set(described) == found
    assert set(re.findall(r"\bEVENTONCE_\w+", TEXT)) <= found


def test_every_exit_code_is_on_the_page_and_in_the_help() -> None:
    names = ("FAILED", "MISUSED", "UNAVAILABLE", "INTERRUPTED")
    codes = {0, *(getattr(command_line, name) for name in names)}
    assert {int(row["exit code"]) for row in TABLES["exit code"]} == codes
    assert command_line.cli.epilog is not None
    in_help = command_line.cli.epilog.partition("Exit codes:")[2]
    assert {int(code) for code in re.findall(r"\d+", in_help)} == codes


def test_every_field_of_the_file_is_on_the_page() -> None:
    described = re.findall(r"`\[*(\w+)\]*`", str([row["field"] for row in TABLES["field"]]))
    assert sorted(described) == sorted(Config.__struct_fields__)
    assert plain(TABLES["field"][1]["field"]) == "presets"


@pytest.mark.parametrize(
    ("table", "page"),
    [
        (HistoryTable, "history.md"),
        (PrivacyTable, "privacy.md"),
        (DashboardTable, "dashboard.md"),
        (WorkerTable, "worker.md"),
        (Serve, "receiver.md"),
        (Infra, "infrastructure.md"),
        (Sink, "sinks.md"),
    ],
)
def test_every_field_of_a_table_is_on_its_page(table: type[msgspec.Struct], page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert f"]({page}" in TEXT, "where the table stands in the list, there is a link to its page"
    named = {*re.findall(r"`(\w+)(?: =[^`]*)?`", text), *re.findall(r"(?m)^(\w+) = ", text)}
    assert {*table.__struct_fields__} - named == set()


def test_no_link_is_broken() -> None:
    assert broken_links(DOCS / "cli.md") == []
