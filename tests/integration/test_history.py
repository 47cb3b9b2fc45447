"""The history on SQLite and PostgreSQL: decisions are kept, found and counted."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from eventonce import Job
from eventonce.errors import ConfigError, StoreMismatch, StoreUnavailable
from eventonce.history import History, Search, recorder
from eventonce.history import search as search_module
from eventonce.history import tables as tables_module
from eventonce.history.decision import (
    NO_VERSION,
    Kind,
    Own,
)
from eventonce.history.story import told
from eventonce.history.tables import MINUTE
from eventonce.runtime import background
from eventonce.types import Status
from tests.helpers import call
from tests.integration.histories import consumer
from tests.servers.postgres import Cluster


def test_decisions_are_kept_and_found(history: History) -> None:
    def fails_once(job: Job) -> None:
        if job.attempt == 1:
            raise ValueError("no line")

    crm = consumer(history, handler=fails_once)
    billing = consumer(history, "billing", handler=lambda _: None)
    spoken = call(1, conversationId="c-1")
    crm.process([spoken])
    crm.process([spoken, call(2, conversationId="c-2"), b"no event"])
    crm.process([spoken, call(1, id="again", conversationId="c-1")])
    billing.process([spoken])
    history.flush()

    found = history.find(Search(conversation="c-1"))
    assert [(one.consumer, one.status, one.attempt) for one in found] == [
        ("crm", "failed", 1),
        ("crm", "done", 2),
        ("crm", "duplicate", 0),
        ("crm", "duplicate", 0),
        ("billing", "done", 1),
    ]
    assert [one.same_id for one in found] == [None, None, True, False, None]
    assert {(one.worker, one.channel, one.rule, one.type) for one in found} == {
        ("w1", "sqs:calls", "call", "call")
    }
    crm_chapter, billing_chapter = told(found)
    failed, ran, copies = crm_chapter.sentences
    assert failed.startswith("failed once, at ")
    assert failed.endswith(": ValueError: no line")
    assert " as attempt 2 of event id-1 on worker w1" in ran
    assert copies.startswith("2 copies since, the last at ")
    assert copies.endswith(
        "; 1 under the same transport id: delivered again; "
        "1 under another transport id: published again"
    )
    assert billing_chapter.sentences[0].startswith("ran at ")

    assert len(history.find(Search(key=found[0].key, consumer="crm"))) == 4
    assert [one.id for one in history.find(Search(status="failed", since=found[0].at))] == [
        "id-1",
        "id-2",
    ]
    assert history.find(Search(status="failed", until=found[0].at)) == []
    assert history.consumers() == ["billing", "crm"]
    assert [one.status for one in history.find(Search(reason="no line"), limit=1)] == ["failed"]
    assert history.find(Search(reason="no%line")) == []
    (invalid,) = history.find(Search(status="invalid"))
    assert (invalid.key, invalid.type, invalid.conversation) == (b"", "", "")
    by_id = [history.find(Search(copies=one)) for one in ("same", "other", "unknown", "same,other")]
    assert [[one.id for one in some] for some in by_id] == [
        ["id-1"],
        ["again"],
        [],
        ["id-1", "again"],
    ]
    assert history.find(Search(copies="same", status="done")) == []
    several = [history.find(Search(status=some)) for some in ("failed,invalid", "invalid,done")]
    assert [[one.status for one in some] for some in several] == [
        ["failed", "failed", "invalid"],
        ["done", "invalid", "done"],
    ]


def test_an_id_that_looks_like_a_digest_is_found_and_not_counted_as_hidden(
    history: History,
) -> None:
    """Any sender may choose such an id."""
    looks = "#" + "0123456789abcdef" * 2
    crm = consumer(history, handler=lambda _: None)
    crm.process([call(1, id=looks, conversationId=looks), call(2, conversationId="#")])
    history.flush()
    assert history.hidden("conversation", "c-1") == history.hidden("id", "c-1") == 0
    for search in (Search(conversation=looks), Search(id=looks)):
        assert [one.key for one in history.find(search)]
    assert len(history.find(Search(conversation="#"))) == 1
    assert history.forget(looks) == 1


def test_the_latest_decisions_of_a_reason_are_counted(history: History) -> None:
    assert history.count_lately("dead", "again", 0) == 0

    def decided(minute: int, status: Status = "dead", reason: str = "again") -> tuple[Kind, Own]:
        kind: Kind = ("crm", "w1", "sqs:calls", status, None, "call", "call", "shop")
        return kind, (minute * MINUTE, reason, "", "", b"", NO_VERSION, 0, 0, 0, 0)

    others = [decided(90, reason="given up"), decided(90, "failed")]
    with history._tables() as tables:
        tables.add([*map(decided, range(100)), *others])
    for minute in (0, 1, 42, 98, 99, 100):
        assert history.count_lately("dead", "again", minute * MINUTE) == 100 - minute
    with history._tables() as tables:
        tables.drop(60 * MINUTE, 1000, 1000)
    assert history.count_lately("dead", "again", 0) == 40


def test_all_decisions_of_an_event_are_found_by_the_id_of_any_of_its_copies(
    history: History,
) -> None:
    of_states = {"key": (), "subject": ["detail.subject"], "order": "detail.version"}
    for name, rule in (("crm", {}), ("states", of_states)):
        consumer(history, name, handler=lambda _: None, **rule).process(
            [
                call(1, subject="s-1", version=1),
                call(1, id="again", subject="s-1", version=1),
                call(2, id="another", subject="s-1", version=2),
                b'{"id": "again"',
            ]
        )
    history.flush()
    both = history.find(Search(id="id-1"))
    assert history.find(Search(id="again")) == both
    assert [(one.consumer, one.status, one.id) for one in both] == [
        ("crm", "done", "id-1"),
        ("crm", "duplicate", "again"),
        ("states", "done", "id-1"),
        ("states", "duplicate", "again"),
    ]
    assert [one.version for one in both] == [None, None, 1, 1], "a fact has none"
    assert history.find(Search(id="again", status="done", consumer="crm")) == both[:1]
    assert history.find(Search(id="again", key=both[0].key)) == both[:2]
    assert history.find(Search(id="again", key=both[0].key[:1])) == []
    assert history.find(Search(id="again"), limit=1) == both[-1:]


def test_a_limit_hides_copies_of_an_event_but_not_its_run(history: History) -> None:
    crm = consumer(history, handler=lambda _: None)
    for number in (1, 2):
        crm.process([call(number, conversationId="c")])
    crm.process([call(1, id=f"copy-{number}", conversationId="c") for number in range(8)])
    history.flush()
    search = Search(conversation="c")
    latest = history.find(search, 4)
    assert {one.status for one in latest} == {"duplicate"}
    found, cut = history.story(search, 4)
    assert [one.id for one in found] == ["id-1", *(one.id for one in latest)]
    assert cut == latest[0].at
    (chapter,) = told(found, cut=cut)
    ran, copies = chapter.sentences
    assert ran.startswith("ran at ")
    assert copies.startswith("4 or more copies since, the last at ")
    every, cut = history.story(search, 10)
    assert (len(every), cut) == (10, every[0].at), "each run is there once"
    assert history.story(search, 11) == (every, 0)
    copies_only, _ = history.story(Search(status="duplicate"), 4)
    assert [one.id for one in copies_only] == [one.id for one in latest], "a run does not match"
    key = latest[0].key.hex()
    (without,) = told(latest)
    (said,) = without.sentences
    assert said.endswith(
        f"the run before is not shown here: eventonce history --key {key} "
        "shows it, if it is still kept"
    )
    (lost,) = told(latest, whole=True)
    assert lost.sentences[0].endswith("; the history does not have the run before")


def test_an_id_that_many_events_share_finds_all_of_them(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "MOST_OF_AN_ID", 2)
    crm = consumer(history, handler=lambda _: None)
    crm.process([call(1, id="same"), call(2, id="same"), call(3, id="same"), call(3, id="again")])
    history.flush()
    assert [one.id for one in history.find(Search(id="same"))] == ["same"] * 3 + ["again"]


def test_decisions_that_are_written_together_are_kept_in_their_order_all_or_none(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "WRITE_INTERVAL", 3600)
    many = 203
    consumer(history, handler=lambda _: None).process([call(number) for number in range(many)])
    with history._tables() as tables:
        run_many = tables._driver.run_many

    def fails_at_the_end(*_: Any) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(tables._driver, "run_many", fails_at_the_end)
    history.flush()
    assert history.find(Search()) == []
    monkeypatch.setattr(tables._driver, "run_many", run_many)
    history.flush()
    ids = [f"id-{number}" for number in range(many)]
    assert [one.id for one in history.find(Search())] == ids
    assert [one.id for one in history.find(Search(id="id-71"))] == ["id-71"]


def test_decisions_are_counted_by_minute(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise a minute, or a day, may end between the two batches.
    monkeypatch.setattr(recorder, "wall_clock", lambda: 1_800_000_000_000)
    made = consumer(history, handler=lambda _: None)
    made.process([call(number % 3) for number in range(10)])
    history.flush()
    made.process([call(0)])
    history.flush()
    (first, *_) = history.find(Search())
    counts = history.counts(first.at, first.at + 1)
    by_status = {kind[3]: events for _, kind, events, _ in counts}
    later = history.counts(first.at, first.at + 2 * tables_module.MINUTE)
    assert by_status["done"] == 3
    assert sum(events for _, _, events, _ in later) == 11
    assert history.counts(0, first.at - 2 * tables_module.MINUTE) == []
    day = 24 * 60 * tables_module.MINUTE
    (found,) = {
        (begin % day, kind, events)
        for begin, kind, events, _ in history.counts(first.at - day, first.at + day, ["rule"], day)
    }
    assert found == (0, (first.rule,), 11)
    with pytest.raises(ValueError, match="fields must be among"):
        history.counts(0, 1, ["reason"])


def test_many_threads_create_a_history_at_once(uri: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: History(uri), range(8)))
    for one in made:
        one.close()


@pytest.mark.parametrize("look", [False, True])
def test_tables_of_another_version_are_refused(
    uri: str, monkeypatch: pytest.MonkeyPatch, look: bool
) -> None:
    with History(uri):
        pass
    monkeypatch.setattr(tables_module, "LAST_INDEX", "eventonce_history_reason_5")
    with (
        pytest.raises(StoreMismatch, match=r"history .*another version of eventonce.* delete"),
        History(uri, look=look) as history,
    ):
        history.find(Search())


def test_a_history_whose_tables_exist_needs_no_right_to_create_them(cluster: Cluster) -> None:
    cluster.execute("DROP SCHEMA IF EXISTS eventonce CASCADE", "DROP ROLE IF EXISTS clerk")
    with History(cluster.uri()) as history:
        consumer(history, handler=lambda _: None).process([call(1)])
    cluster.execute(
        "CREATE ROLE clerk LOGIN",
        "GRANT USAGE ON SCHEMA eventonce TO clerk",
        "GRANT SELECT ON ALL TABLES IN SCHEMA eventonce TO clerk",
    )
    with History(cluster.uri(user="clerk"), look=True) as reader:
        assert len(reader.find(Search())) == 1
        with pytest.raises(StoreUnavailable, match="permission denied"):
            reader.try_to_write()
        assert (reader.span(), reader.hidden("conversation", "c")) == (1, 0)
    cluster.execute(
        "GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA eventonce TO clerk",
    )
    with History(cluster.uri(user="clerk")) as writer:
        writer.try_to_write()
        consumer(writer, handler=lambda _: None).process([call(2)])
        writer.flush()
        assert len(writer.find(Search())) == 2
    cluster.execute("DROP SCHEMA eventonce CASCADE", "DROP ROLE clerk")


def test_each_right_that_a_writer_lacks_is_found(cluster: Cluster) -> None:
    cluster.execute("DROP SCHEMA IF EXISTS eventonce CASCADE", "DROP ROLE IF EXISTS clerk")
    with History(cluster.uri()):
        pass
    cluster.execute(
        "CREATE ROLE clerk LOGIN",
        "GRANT USAGE ON SCHEMA eventonce TO clerk",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA eventonce TO clerk",
    )
    schema = files("eventonce.history").joinpath("schema.sql").read_text()
    tables = re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", schema)
    assert len(tables) == 5
    with History(cluster.uri(user="clerk"), look=True) as writer:
        for table, right in product(tables, ("SELECT", "INSERT", "UPDATE", "DELETE")):
            cluster.execute(f"REVOKE {right} ON eventonce.{table} FROM clerk")
            if (table, right) == ("eventonce_history", "UPDATE"):
                # A decision never changes.
                writer.try_to_write()
            else:
                with pytest.raises(StoreUnavailable, match=f"permission denied .* {table}"):
                    writer.try_to_write()
            cluster.execute(f"GRANT {right} ON eventonce.{table} TO clerk")
        writer.try_to_write()
    cluster.execute("DROP SCHEMA eventonce CASCADE", "DROP ROLE clerk")


def test_decisions_of_every_segment_are_found(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_module, "SEGMENT_BITS", 2)
    with History(uri) as history:
        made = consumer(history, handler=lambda _: None)
        for number in range(0, 40, 3):
            made.process([call(at) for at in range(number, number + 3)])
            history.flush()
        with history._tables() as found:
            found.drop(0, 30, 1000)
        for number in range(12, 42):
            (one,) = history.find(Search(id=f"id-{number}"))
            assert [two.id for two in history.find(Search(key=one.key))] == [one.id]
        assert history.find(Search(id="id-3")) == []


def test_an_empty_batch_leaves_no_decision_to_write(history: History) -> None:
    with history._background.writing:
        consumer(history, handler=lambda _: None).process([])
        assert history._background._waiting == []


def test_a_search_in_a_history_that_does_not_exist_is_an_error(cluster: Cluster) -> None:
    cluster.execute("DROP SCHEMA IF EXISTS eventonce CASCADE")
    with (
        History(cluster.uri(), look=True) as history,
        pytest.raises(ConfigError, match="there is no history"),
    ):
        history.find(Search())


def test_the_uri_of_a_history_file_is_parsed_like_the_uri_of_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with History("sqlite:///of%20calls.db?wait=1") as history:
        made = consumer(history, handler=lambda _: None)
        monkeypatch.chdir("/")
        made.process([call(1)])
    assert (tmp_path / "of calls.db").exists()


def test_a_deletion_that_is_interrupted_deletes_nothing(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    consumer(history, handler=lambda _: None).process([call(1, conversationId="c")])
    history.flush()
    with monkeypatch.context() as patch:
        patch.setattr(history._connection._opened.subjects, "drop", interrupt)
        with pytest.raises(KeyboardInterrupt):
            history.forget("c")
    assert [one.id for one in history.find(Search())] == ["id-1"]
    assert history.forget("c") == 1


@pytest.mark.parametrize(
    ("search", "index"),
    [
        (Search(conversation="c"), "conversation"),
        (Search(id="e"), "id"),
        (Search(id="id-1"), "id"),
        (Search(id="id-1"), "key"),
        (Search(key=b"k"), "key"),
        (Search(status="dead"), "reason_4"),
        (Search(status="dead,invalid"), "reason_4"),
    ],
)
def test_a_search_uses_an_index_and_scans_no_table(
    tmp_path: Path, search: Search, index: str
) -> None:
    with History(f"sqlite:///{tmp_path}/history.db") as history:
        consumer(history, handler=lambda _: None).process([call(1)])
    with History(f"sqlite:///{tmp_path}/history.db") as history, history._tables() as tables:
        asked: list[tuple[str, Any]] = []
        rows = tables._driver.rows
        tables._driver.rows = lambda query, values=(): (  # type: ignore[method-assign]
            asked.append((query, values)) or rows(query, values)  # type: ignore[func-returns-value]
        )
        tables.find(search, 10)
        asked_for_runs = len(asked)
        tables.runs(search, [b"k"])
        plans = [str(rows(f"EXPLAIN QUERY PLAN {query}", values)) for query, values in asked]
    assert f"INDEX eventonce_history_{index} " in plans[asked_for_runs - 1]
    assert not [plan for plan in plans if "SCAN eventonce_history" in plan]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("redis://127.0.0.1", "expected sqlite:///PATH or postgresql://"),
        ("sqlite:///", "the path of a file is missing"),
        ("history.db", "expected sqlite:///PATH or postgresql://"),
        ("sqlite:////no/such/folder/h.db", "there is no folder"),
    ],
)
def test_a_wrong_uri_is_reported(wrong: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        History(wrong)
