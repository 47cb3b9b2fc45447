"""Files with events, ids or reasons in them: only their owner may read them, whatever the umask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE

import pytest

from eventonce import Job, Reject
from eventonce.stores.sqlite import SQLiteStore
from tests.helpers import Run, call, write_lines

TOML = """
store = "sqlite:///store.db"
name = "crm"
shadow_log = "shadow.jsonl"
audit = "audit.jsonl"
[history]
store = "sqlite:///history.db"
[[rule]]
name = "call"
match = "call"
key = ["detail.call"]
shadow = true
[[sink]]
to = "tests.unit.test_private_files:refused"
"""


def refused(job: Job) -> None:
    if job.event.detail["call"] == 2:
        raise Reject("no such customer")


@pytest.fixture(autouse=True)
def open_to_all() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes() -> dict[str, int]:
    made = [path for path in Path().iterdir() if path.name not in ("eventonce.toml", "c.jsonl")]
    return {path.name: S_IMODE(path.stat().st_mode) for path in made}


def test_files_that_commands_write_are_for_their_owner_alone(run: Run) -> None:
    Path("eventonce.toml").write_text(TOML)
    write_lines(Path("c.jsonl"), *(call(it).decode() for it in (1, 1, 2)), "no event")
    assert run("run", "--from", "c.jsonl").code == 1
    store = SQLiteStore("store.db")
    assert run("letters", "export", "-o", "letters.jsonl").code == 0
    assert run("letters", "drop", "--yes").code == 0
    run("filter", "c.jsonl", "--rejects", "rejects.jsonl", "--copies", "copies.jsonl")
    run("diagnose", "c.jsonl", "--lines", "lines.jsonl", "--html", "page.html")
    write_lines(Path("seen.jsonl"), call(1).decode())
    Path("seen.jsonl").chmod(0o600)
    run("reconcile", "c.jsonl", "seen.jsonl", "--missing", "missing.jsonl")
    run("capture", "--from", "c.jsonl", "-o", "capture.jsonl")
    found = modes()
    assert {*found} >= {
        *("store.db", "store.db-wal", "history.db", "audit.jsonl", "shadow.jsonl"),
        *("letters.jsonl", "rejects.jsonl", "copies.jsonl", "lines.jsonl", "page.html"),
        *("missing.jsonl", "capture.jsonl"),
    }
    assert set(found.values()) == {0o600}, found
    store.close()


def test_an_existing_file_keeps_its_permissions_and_a_failed_export_makes_no_file(
    run: Run,
) -> None:
    Path("eventonce.toml").write_text(TOML)
    write_lines(Path("c.jsonl"), call(1).decode())
    run("run", "--from", "c.jsonl")
    Path("letters.jsonl").touch(0o644)
    run("letters", "export", "-o", "letters.jsonl")
    assert modes()["letters.jsonl"] == 0o644
    assert run("letters", "export", "--store", "sqlite:///none.db", "-o", "none.jsonl").code
    assert not Path("none.jsonl").exists()
