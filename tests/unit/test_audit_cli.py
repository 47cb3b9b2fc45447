"""`eventonce audit`: each action of a person is printed once, from its two lines in the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eventonce.audit import BEGUN, NO_AUDIT, Audit
from eventonce.cli.audit import NOT_ENDED
from eventonce.stores.sqlite import SQLiteStore
from tests.helpers import Run, audit_of, write_lines
from tests.unit.test_letters_selection import letter

FILE = Path("audit.jsonl")


@pytest.fixture
def run(run: Run) -> Run:
    """The command line in a folder whose settings name an audit."""
    Path("eventonce.toml").write_text(
        f'store = "sqlite:///store.db"\nname = "crm"\naudit = "{FILE}"\n'
    )
    store = SQLiteStore("store.db")
    store.put_letters([letter(number) for number in range(5)])
    store.close()
    return run


def begin(id_: str, ended: str = BEGUN, **counts: int) -> None:
    Audit(str(FILE)).record(
        "redrive", id=id_, who="anna", via="cli", selection="", counts=counts, ended=ended
    )


def test_an_action_is_printed_once_with_its_end(run: Run) -> None:
    run("letters", "export", "--reason", "no customer", "-o", "out.jsonl")
    (line,) = audit_of(FILE)
    told = run("audit")
    assert told.code == 0
    head, which, end = told.out.splitlines()
    assert head.endswith(f"  export by {line['who']} (cli), {line['id']}")
    assert which == "  --name=crm '--reason=no customer'"
    assert end.startswith("  5 exported; finished, 2")
    assert "its begin" not in end
    (document,) = run("audit", "--json").documents
    assert document == {
        "id": line["id"],
        "began": json.loads(FILE.read_text().splitlines()[0])["time"],
        "who": line["who"],
        "via": "cli",
        "action": "export",
        "selection": line["selection"],
        "counts": {"exported": 5},
        "ended": "finished",
        "ended_at": line["time"],
    }


def test_an_action_without_an_end_is_printed_as_under_way_or_killed(run: Run) -> None:
    begin("aaaa")
    begin("bbbb")
    begin("bbbb", "stopped", done=3)
    told = run("audit")
    assert told.out.count(NOT_ENDED) == 1
    assert "  all\n  3 done; stopped, " in told.out
    assert [one["ended"] for one in run("audit", "--json").documents] == [None, "stopped"]


def test_an_action_whose_begin_is_in_another_file_is_printed_with_a_note(run: Run) -> None:
    begin("aaaa", "the store is away")
    end = run("audit").out.splitlines()[-1]
    assert end.startswith("  nothing; the store is away, 2")
    assert end.endswith("; the line of its begin is not in this file")


def test_actions_are_selected_by_id_and_by_the_time_of_their_begin(run: Run) -> None:
    for id_ in ("aaaa", "abbb", "cccc"):
        begin(id_)
    lines = [json.loads(line) for line in FILE.read_text().splitlines()]
    for hour, line in enumerate(lines, 8):
        line["time"] = f"2023-11-16T{hour:02}:00:00.000Z"
    write_lines(FILE, *lines)

    def found(*words: str) -> list[str]:
        return [one["id"] for one in run("audit", *words, "--json").documents]

    assert found("a") == ["aaaa", "abbb"]
    assert found("aa", "c") == ["aaaa", "cccc"]
    assert found("--since", "2023-11-16T09:00Z") == ["abbb", "cccc"]
    assert found("--until", "2023-11-16T09:00Z") == ["aaaa"]
    assert run("audit", "--since", "2024-01-01").out == "no actions\n"
    missed = run("audit", "aa", "nobody")
    assert (missed.code, "no action has an id that begins with 'nobody'" in missed.err) == (1, True)
    assert run("audit", "").code == 2


def test_broken_lines_are_counted_and_the_action_around_them_is_printed(run: Run) -> None:
    begin("aaaa")
    with FILE.open("a") as file:
        file.write('{"time":"2026-11-16T08\n\n"no line"\n')
        file.write(f'{{"more":{"[" * 50_000}{"]" * 50_000}}}\n')
    begin("aaaa", "finished", done=1)
    told = run("audit")
    assert (told.code, "1 done; finished" in told.out) == (1, True)
    assert "3 lines of audit.jsonl not read, cut off or broken" in told.err


def test_control_characters_of_a_field_are_not_printed_to_the_terminal(run: Run) -> None:
    begin("aaaa")
    FILE.write_text(FILE.read_text().replace("anna", "an\\nna\\u001b[31m"))
    told = run("audit").out
    assert len(told.splitlines()) == 3
    assert "\x1b" not in told


def test_a_missing_audit_file_and_a_missing_audit_setting_are_explained(run: Run) -> None:
    early = run("audit")
    assert (early.code, "audit.jsonl does not exist yet: no action began" in early.err) == (1, True)
    assert not FILE.exists(), "a look makes no file"
    Path("eventonce.toml").unlink()
    without = run("audit")
    assert (without.code, NO_AUDIT in without.err) == (2, True)
    begin("aaaa")
    assert "redrive by anna" in run("audit", "--from", FILE).out
