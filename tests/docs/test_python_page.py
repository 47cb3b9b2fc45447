"""docs/python.md is true: every argument, method and field is on it, and its code runs."""

from __future__ import annotations

import inspect
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import eventonce
from eventonce import Consumer, Event, Job, Letter, Outcome, Retry, Status, StoreUnavailable
from eventonce.stores.memory import MemoryStore
from eventonce.stores.sqlite.store import SQLiteTransaction
from eventonce.testing.factory import StoreFactory
from eventonce.types import FORM_NAMES
from tests.docs.pages import DOCS, broken_links, sections
from tests.docs.tables import plain, tables
from tests.rows.row import detail_event

PAGE = sections("python.md")
TEXT = (DOCS / "python.md").read_text(encoding="utf-8")
TABLES = tables("python.md")
WORDS = {11: "eleven", 12: "twelve", 13: "thirteen", 14: "fourteen", 15: "fifteen"}
EVENTS = [{**detail_event("user.end"), "id": name} for name in ("a", "b")]


class Crm:
    """The system that the handlers of the page call."""

    def __init__(self) -> None:
        self.closed: list[str] = []
        self.up = True
        self.known = True

    def close_call(self, _body: Any, *, idempotency_key: str) -> str:
        self.closed.append(idempotency_key)
        return "closed"

    def is_up(self) -> bool:
        return self.up

    def knows(self, _conversation: str) -> bool:
        return self.known

    def log(self, _body: Any) -> int:
        return 7


class Shown:
    """The page's own code, block by block, in one scope."""

    def __init__(self) -> None:
        self.crm = Crm()
        self.archived: list[Any] = []
        self.again: list[Any] = []

        async def archive(detail: Any) -> None:
            self.archived.append(detail)

        self.scope: dict[str, Any] = {
            "crm": self.crm,
            "events": EVENTS,
            "archive": archive,
            "bring_again": lambda *what: self.again.append(what),
        }
        exec(PAGE["An example"].blocks("python")[0], self.scope)

    def run(self, title: str, having: str = "") -> None:
        """Run the blocks of a section that have this text."""
        for block in PAGE[title].blocks("python"):
            if having in block:
                exec(block, self.scope)

    @property
    def consumer(self) -> Consumer:
        found: Consumer = self.scope["consumer"]
        return found


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shown]:
    monkeypatch.chdir(tmp_path)
    shown = Shown()
    yield shown
    shown.consumer.close()


# --- every name is on the page ---


def test_every_argument_of_a_consumer_is_described_with_its_default() -> None:
    (table,) = [table for table in TABLES if table.head[0] == "argument"]
    arguments = inspect.signature(Consumer).parameters
    assert {plain(row["argument"]) for row in table.rows} == set(arguments)
    for row in table.rows:
        said, default = row["unless you say"], arguments[plain(row["argument"])].default
        if said.startswith("`") and default is not None:
            assert json.loads(said.split("`")[1]) == default, row


def test_every_public_member_of_a_consumer_is_described() -> None:
    consumer = Consumer("memory:")
    for name in {*vars(Consumer), *vars(consumer)}:
        if not name.startswith("_"):
            assert re.search(rf"`{name}\b", TEXT), name
    for method in (Consumer.process, Consumer.process_async, Consumer.once):
        (heading,) = re.findall(rf"^### `{method.__name__}\((.*)\)`$", TEXT, re.MULTILINE)
        names = [name for name in inspect.signature(method).parameters if name != "self"]
        assert [part.split("=")[0] for part in heading.split(", ")] == names


@pytest.mark.parametrize(
    ("type_", "heading", "place"),
    [
        (Job, "field", 0),
        (Outcome, "field", 1),
        (Event, "field", 2),
        (Letter, "field of a `Letter`", 0),
    ],
)
def test_every_field_is_described(type_: type[msgspec.Struct], heading: str, place: int) -> None:
    table = [table for table in TABLES if table.head[0] == heading][place]
    names = {name for row in table.rows for name in re.findall(r"`(\w+)`", row[heading])}
    public = {name for name in type_.__struct_fields__ if not name.startswith("_")}
    public |= {name for name, it in vars(type_).items() if isinstance(it, property)}
    assert names == public


def test_every_exported_name_is_described_once() -> None:
    (table,) = [table for table in TABLES if table.section == "Names"]
    names = [name for row in table.rows for name in re.findall(r"`(\w+)`", row["name"])]
    assert sorted(names) == sorted(name for name in eventonce.__all__ if name[0] != "_")


def test_the_page_says_the_number_of_statuses() -> None:
    number = len(Status.__args__)  # type: ignore[attr-defined]
    for said in (f"one of {WORDS[number]}:", f"a literal of {WORDS[number]} texts"):
        assert said in TEXT, f"docs/python.md must say that a status is {said!r}"


@pytest.mark.parametrize("page", ["python.md", "rules.md"])
def test_the_page_names_every_form_of_an_envelope(page: str) -> None:
    (line,) = re.findall(
        r"^.*`form`.*: (`eventbridge`.*)$", (DOCS / page).read_text(), re.MULTILINE
    )
    missing = set(FORM_NAMES) - set(re.findall(r"`(\w+)`", line))
    assert not missing, f"docs/{page} does not name the form {missing}"


# --- the code runs ---


def test_the_example_closes_the_call_once(shown: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(shown.crm.closed) == 1
    assert shown.again == []
    assert shown.consumer.process(EVENTS[0])[0].result == "closed"


def test_a_file_makes_a_consumer(shown: Shown) -> None:
    Path("eventonce.toml").write_text('[[sink]]\nto = "file:calls.jsonl"\n')
    shown.run("The consumer")
    assert len(Path("calls.jsonl").read_text().splitlines()) == 1


def test_handlers_retry_reject_and_leave_results(shown: Shown) -> None:
    shown.run("Handlers")
    process = shown.consumer.process
    call = detail_event("acd.end")
    shown.crm.up = False
    (failed,) = process([call])
    assert (failed.status, failed.reason) == ("failed", "Retry: the CRM is down")
    shown.crm.up = True
    (done, copy) = process([call, call])
    assert (done.result, copy.status, copy.result) == ({"ticket": 7}, "duplicate", {"ticket": 7})
    shown.crm.known = False
    (dead,) = process([detail_event("acd.end", sessionId="another")])
    assert (dead.status, dead.reason) == ("dead", "rejected by the handler: no such call")
    assert process([detail_event("customer.end")])[0].status == "done"
    assert len(shown.archived) == 1


def test_events_are_given_in_three_ways(shown: Shown) -> None:
    shown.run("Giving it events", "asyncio")
    assert shown.scope["statuses"] == ["duplicate", "duplicate"]
    shown.scope["event"] = detail_event("user.end", sessionId="another")
    shown.run("Giving it events", "once(")
    assert shown.scope["acknowledged"]
    shown.run("Giving it events", "once(")
    assert (shown.scope["job"].run, shown.scope["job"].result) == (False, 7)


@pytest.mark.parametrize("failing", ["handler", "completion"])
def test_rows_written_through_the_connection_commit_with_the_completion(
    shown: Shown, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    calls = [
        {"id": name, "detail-type": "call.ended", "detail": {"call": name}}
        for name in ("1", "2", "1")
    ]
    seen: list[Any] = []

    def fail(*_: object) -> None:
        raise StoreUnavailable("the disk is away")

    def failing_once(handler: Any) -> Any:
        """The first run for the call 2 fails, after its row was written."""

        def around(job: Job) -> None:
            handler(job)
            seen.append(rows())
            if (job.event.id, job.attempt) == ("2", 1):
                if failing == "handler":
                    raise Retry
                patch.setattr(SQLiteTransaction, "settle", fail)

        return around

    with Consumer("sqlite:///sql.db") as consumer, closing(sqlite3.connect("sql.db")) as beside:

        def rows() -> list[Any]:
            return beside.execute("SELECT id FROM calls ORDER BY id").fetchall()

        beside.execute("CREATE TABLE calls (id)")
        shown.scope["from_sql"] = consumer
        shown.run("Giving it events", "from_sql")
        consumer.runtime.wrap(failing_once)
        with monkeypatch.context() as patch:
            statuses = [outcome.status for call in calls for outcome in consumer.process(call)]
        assert statuses == ["done", "failed", "duplicate"]
        assert (seen, rows()) == ([[], [("1",)]], [("1",)])
        assert [outcome.status for outcome in consumer.process(calls[1])] == ["done"]
        assert rows() == [("1",), ("2",)]


def test_dead_letters_are_listed_and_run_again(
    shown: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    shown.run("Handlers")
    shown.crm.known = False
    shown.consumer.process([detail_event("acd.end"), b"no event"])
    shown.crm.known = True
    capsys.readouterr()
    shown.run("Dead letters")
    assert "dead genesys.session rejected by the handler: no such call" in capsys.readouterr().out
    assert [outcome.status for outcome in shown.scope["outcomes"]] == ["done"]
    assert [letter.status for letter in shown.consumer.letters()] == ["invalid"]


def test_the_observers_count_and_log_the_outcomes(
    shown: Shown, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "eventonce.outcomes")
    shown.run("Observers")
    assert "Counter({'duplicate': 2})" in capsys.readouterr().out
    assert len(caplog.records) == 2


def test_a_handler_is_wrapped_and_a_consumer_is_made_over_another_store(shown: Shown) -> None:
    with Consumer("memory:", name="plain", rules="genesys", handler=lambda _: None) as plain_one:
        shown.scope.update(plain=plain_one, times=[])
        shown.run("Around handlers, over another store")
        plain_one.process(EVENTS)
    assert len(shown.scope["times"]) == 1
    elsewhere = shown.scope["elsewhere"]
    assert [outcome.status for outcome in elsewhere.process(EVENTS)] == ["done", "duplicate"]
    assert isinstance(elsewhere.store, MemoryStore)


def test_the_fixture_and_the_contract_run_as_shown(pytester: pytest.Pytester) -> None:
    fixture, contract = PAGE["Testing"].blocks("python")
    pytester.makepyfile(
        test_fixture=f"""
class Crm:
    closed = []
crm = Crm()
event = {EVENTS[0]!r}
seen = set()
def wrap_up(job):
    if job.effect_id not in seen:
        seen.add(job.effect_id)
        crm.closed.append("call-1")
"""
        + fixture,
        test_contract="from eventonce.stores.sqlite import SQLiteStore as MyStore\n" + contract,
    )
    ran = pytester.runpytest("-p", "no:cacheprovider", "-k", "copy_and_a_crash or in_the_order")
    ran.assert_outcomes(passed=2, deselected=ran.parseoutcomes()["deselected"])


def test_no_link_is_broken() -> None:
    assert broken_links(DOCS / "python.md") == []


def test_every_field_of_the_contracts_factory_is_on_the_page_with_its_default() -> None:
    (rows,) = [table.rows for table in TABLES if table.head == ["field", "default", "meaning"]]
    told = {plain(row["field"]): plain(row["default"]) for row in rows}
    fields = msgspec.structs.fields(StoreFactory)
    assert list(told) == [field.name for field in fields]
    for field in fields[1:]:
        assert told[field.name] == repr(field.default)
