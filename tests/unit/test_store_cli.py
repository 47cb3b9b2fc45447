"""`eventonce store` on the embedded stores: `create`, `migrate` and `check`."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from eventonce.errors import ConfigError
from eventonce.stores import open_schema, open_store
from eventonce.stores.probe import CAN_WRITE
from eventonce.stores.sqlite import SQLiteStore
from eventonce.types import Claim
from tests.helpers import Result, Run

NOW = 1_790_000_000_000


@pytest.fixture
def run(run: Run) -> Run:
    return partial(run, "store")


def files() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


def used(name: str = "a.db") -> Path:
    """A file with some pages of records."""
    with closing(SQLiteStore(name)) as store:
        store.claim([Claim(n.to_bytes(16, "big"), 1, 60_000, 10**9, 5) for n in range(2_000)], NOW)
    return Path(name)


def fixes(result: Result) -> dict[str, str]:
    return {it["what"]: it["fix"] for it in json.loads(result.out) if not it["fine"]}


def test_a_dry_run_creates_no_file_and_create_creates_the_file_once(run: Run) -> None:
    would = run("create", "--dry-run", "sqlite:///b.db")
    assert would.code == 0
    assert would.out.startswith("would create ")
    assert files() == []
    made = run("create", "sqlite:///b.db")
    assert f"would {made.out}" == would.out
    assert files() == ["b.db"]
    for again in ("create", "migrate"):
        assert run(again, "sqlite:///b.db").out.startswith("nothing to do: the store is complete")
    assert run("check", "sqlite:///b.db").code == 0


@pytest.mark.parametrize("uri", [(), ("sqlite:///a%20%23b.db",)])
def test_a_check_of_a_missing_file_creates_no_file_and_names_the_command_to_type(
    run: Run, uri: tuple[str, ...]
) -> None:
    result = run("check", *uri, "--json")
    assert result.code == 1
    assert files() == []
    assert run("check", *uri).out.startswith("MISSING  ")
    (fix,) = fixes(result).values()
    command, _, typed = fix.removeprefix("Create it: ").partition('"')
    assert command == "eventonce store create "
    assert run("create", typed.partition('"')[0]).code == 0
    assert run("check", *uri).code == 0


@pytest.mark.parametrize("command", ["create", "check"])
def test_a_missing_folder_is_named(run: Run, command: str) -> None:
    result = run(command, "sqlite:///nowhere/a.db", *(["--dry-run"] if command == "create" else []))
    assert result.code == (2 if command == "create" else 1)
    assert "nowhere does not exist" in result.out + result.err


def test_an_upgrade_of_a_missing_file_is_refused_and_creates_no_file(run: Run) -> None:
    result = run("migrate", "sqlite:///a.db")
    assert result.code == 2
    assert "a.db does not exist. Create it: eventonce store create" in result.err
    assert files() == []


def test_a_file_of_another_application_gets_our_tables_only_by_create(run: Run) -> None:
    with closing(sqlite3.connect("theirs.db")) as connection:
        connection.execute("CREATE TABLE theirs (n)")
    before = Path("theirs.db").read_bytes()
    told = run("check", "sqlite:///theirs.db").out.splitlines()
    assert [line.split()[0] for line in told] == ["ok", "MISSING", "Create"]
    refused = run("migrate", "sqlite:///theirs.db")
    assert refused.code == 2
    assert "theirs.db has no tables of eventonce" in refused.err
    assert "would create tables" in run("create", "--dry-run", "sqlite:///theirs.db").out
    assert Path("theirs.db").read_bytes() == before
    assert run("create", "sqlite:///theirs.db").out.startswith("create tables")
    assert run("check", "sqlite:///theirs.db").code == 0


def test_a_check_finds_an_overwritten_page(run: Run) -> None:
    path = used()
    assert run("check", "sqlite:///a.db").code == 0
    content = bytearray(path.read_bytes())
    content[-4096:] = b"\xff" * 4096
    path.write_bytes(content)
    result = run("check", "sqlite:///a.db", "--json")
    assert result.code == 1
    (fix,) = fixes(result).values()
    assert ".recover" in fix


@pytest.mark.parametrize("content", [b"once upon a time\n" * 100, None])
def test_a_check_finds_a_file_that_cannot_be_read(run: Run, content: bytes | None) -> None:
    path = used()
    # The second page is the root of our first table, or of the table with the format.
    whole = path.read_bytes()
    path.write_bytes(content or whole[:4096] + b"\xff" * (len(whole) - 4096))
    result = run("check", "sqlite:///a.db", "--json")
    assert result.code == 1
    assert "it can be read" in fixes(result)


def test_a_file_without_a_write_ahead_log_is_found_and_gets_the_log_back(run: Run) -> None:
    with closing(sqlite3.connect(used())) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    assert (
        "store migrate"
        in fixes(run("check", "sqlite:///a.db", "--json"))["it keeps a write-ahead log"]
    )
    assert run("migrate", "--dry-run", "sqlite:///a.db").out.startswith("would let ")
    assert run("migrate", "sqlite:///a.db").out.startswith("let ")
    assert run("check", "sqlite:///a.db").code == 0


def test_another_format_is_found(run: Run) -> None:
    with closing(sqlite3.connect(used(), isolation_level=None)) as connection:
        connection.execute("UPDATE eventonce_tables SET format = 7")
    result = run("check", "sqlite:///a.db", "--json")
    assert "Install the release that made them" in fixes(result)["it can be read"]
    assert run("create", "sqlite:///a.db").code == run("migrate", "sqlite:///a.db").code == 2


def test_a_check_during_a_transaction_reads_and_reports_that_the_store_takes_no_write(
    run: Run,
) -> None:
    used()
    with closing(SQLiteStore("a.db")) as store, store.transaction():
        found = fixes(run("check", "sqlite:///a.db?wait=0", "--json"))
        assert list(found) == [CAN_WRITE]
        assert "locked by another process for longer than 0 s" in found[CAN_WRITE]
    assert run("check", "sqlite:///a.db?wait=0").code == 0


def test_a_check_writes_a_record_and_leaves_no_record(run: Run) -> None:
    run("create", "sqlite:///a.db")
    assert f"ok       {CAN_WRITE}" in run("check", "sqlite:///a.db").out
    with closing(SQLiteStore("a.db")) as store:
        assert store.stats().records == 0


def test_a_store_with_a_fault_is_not_written_to(run: Run) -> None:
    with closing(sqlite3.connect(used())) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    before = Path("a.db").read_bytes()
    result = run("check", "sqlite:///a.db", "--json")
    assert CAN_WRITE not in result.out
    assert Path("a.db").read_bytes() == before


def test_a_file_that_another_connection_locks_is_exit_code_3(run: Run) -> None:
    shutil.copy(used(), "held.db")
    with closing(sqlite3.connect("held.db", isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN EXCLUSIVE")
        for command in ("check", "create", "migrate"):
            result = run(command, "sqlite:///held.db?wait=0")
            assert result.code == 3
            assert "locked" in result.err


def test_a_store_in_memory_has_nothing_to_create_or_to_check(run: Run) -> None:
    for command in ("create", "migrate", "check"):
        result = run(command, "memory:")
        assert result.code == 0
        assert "a store in memory needs no file and no table" in result.out
    assert json.loads(run("create", "memory:", "--json").out) == {"dry_run": False, "steps": []}


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("", "store: must not be empty"),
        (" ", "store: must not be empty"),
        ("memory", "write memory: with a colon"),
        ("redis", "write redis://"),
        ("calls.db", "write sqlite:///calls.db, if a file is meant"),
        ("sqlite:///a#b.db", "%23 for @"),
        ("sqlite:///a.db#", "%23 for @"),
        ("sqlite:///:memory:", "needs the path of a file"),
        ("nosuch:x", "store 'nosuch:x': no store is called 'nosuch:'"),
    ],
)
def test_the_error_for_a_uri_that_names_no_store_advises_a_uri(
    run: Run, uri: str, says: str
) -> None:
    for opening in (open_store, open_schema):
        with pytest.raises(ConfigError) as refused:
            opening(uri)
        assert says in str(refused.value)
    result = run("create", uri)
    assert result.code == 2
    assert says in result.err
    assert files() == []
