"""The history on SQLite and PostgreSQL: decisions are kept, found, counted and dropped in time."""

from __future__ import annotations

import gc
import json
import os
import re
import select
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from importlib.resources import files
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import ReferenceType, ref

import msgspec
import pytest

from eventonce import Consumer, Job, Reject, envelope, log
from eventonce.errors import ConfigError, StoreMismatch, StoreUnavailable
from eventonce.history import History, Search, recorder, sqlite
from eventonce.history import search as search_module
from eventonce.history import tables as tables_module
from eventonce.history.decision import (
    LONGEST_TEXT,
    NO_VERSION,
    Kind,
    Own,
    conversation_of,
    storable,
)
from eventonce.history.digests import Digests
from eventonce.history.story import told
from eventonce.history.tables import MINUTE
from eventonce.runtime import background
from eventonce.stores.sqlite import errors
from eventonce.types import Event, Status
from tests.helpers import PATIENCE, call, ruled, until
from tests.servers import free_port
from tests.servers.postgres import Cluster
from tests.servers.relay import relaying


def consumer(history: History, name: str = "crm", handler: Any = print, **rule: Any) -> Consumer:
    made = Consumer("memory:", name=name, rules=ruled(**rule), handler=handler)
    made.observers.append(history.observer(made, "sqs:calls"))
    return made


def exit_of(child: int) -> int:
    """The exit status of a child process; a child that does not end in time is killed."""
    ended: list[int] = []

    def has_ended() -> bool:
        process, status = os.waitpid(child, os.WNOHANG)
        ended.extend([status] if process else [])
        return bool(process)

    try:
        until(has_ended)
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    return ended[0]


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


def test_decisions_beyond_the_age_or_the_number_limit_are_dropped(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_800_000_000_000
    monkeypatch.setattr(recorder, "wall_clock", lambda: now)
    monkeypatch.setattr(recorder, "TIDY_STEP", 4)
    with History(uri, keep="1d", most=5, worker="old") as old:
        consumer(old, handler=lambda _: None).process([call(n) for n in range(10)])
        old.flush()
        # A step drops at most `TIDY_STEP` decisions, and `tidy` takes as many steps as it needs.
        assert old.tidy() == 5
        assert [one.id for one in old.find(Search())] == [f"id-{n}" for n in range(5, 10)]
    now += 2 * 86_400_000
    with History(uri, keep="1d", worker="new") as new:
        consumer(new, "b", handler=lambda _: None).process([call(11)])
        new.flush()
        assert new.tidy() == 5
        assert [one.id for one in new.find(Search())] == ["id-11"]
        # The counts of dropped decisions, and the kinds that no decision has, are dropped, too.
        assert [kind[0] for _, kind, _, _ in new.counts(0, now + 120_000)] == ["b"]
        with new._tables() as tables:
            rows = tables._driver.rows("SELECT consumer FROM eventonce_history_kinds")
            tables._driver.commit()
        assert rows == [("b",)]


def test_a_decision_dated_in_the_future_does_not_keep_later_decisions_for_longer(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_900_000_000_000
    monkeypatch.setattr(recorder, "wall_clock", lambda: now)
    monkeypatch.setattr(recorder, "TIDY_STEP", 2)
    with History(uri, keep="1d") as history:
        made = consumer(history, handler=lambda _: None)
        made.process([call(0)])
        now -= 100_000_000_000
        made.process([call(n) for n in range(1, 9)])
        history.flush()
        now += 2 * 86_400_000
        made.process([call(9)])
        history.flush()
        assert history.tidy() == 8
        assert {one.id for one in history.find(Search())} == {"id-0", "id-9"}
        assert len(history.counts(now - 60_000, now + 60_000)) == 1


def test_an_idle_worker_uses_no_kind_that_was_dropped_meanwhile(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, running = 1_800_000_000_000, 1000.0
    monkeypatch.setattr(recorder, "wall_clock", lambda: now)
    monkeypatch.setattr(tables_module, "monotonic", lambda: running)
    with History(uri, keep="10m", worker="idle") as idle, History(uri, keep="10m") as busy:
        some = consumer(idle, handler=lambda _: None)
        some.process([call(1)])
        idle.flush()
        now += 2 * tables_module.UNUSED_KIND_AGE
        running += 2 * tables_module.UNUSED_KIND_AGE / 1000
        consumer(busy, handler=lambda _: None).process([call(2)])
        busy.flush()
        assert busy.tidy() == 1
        some.process([call(3)])
        idle.flush()
        assert [one.id for one in idle.find(Search())] == ["id-2", "id-3"]


def test_decisions_to_drop_are_found_without_a_scan_of_the_table(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path}/history.db") as history:
        consumer(history, handler=lambda _: None).process([call(1)])
        history.flush()
        with history._tables() as tables:
            asked: list[tuple[str, Any]] = []
            rows = tables._driver.rows
            tables._driver.rows = lambda query, values=(): (  # type: ignore[method-assign]
                asked.append((query, values)) or rows(query, values)  # type: ignore[func-returns-value]
            )
            tables.drop(0, 10, 10)
            plans = [str(rows(f"EXPLAIN QUERY PLAN {query}", values)) for query, values in asked]
    assert plans
    assert not [plan for plan in plans if "SCAN eventonce_history" in plan]


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


def test_decisions_written_after_a_drop_of_all_decisions_are_found(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # PostgreSQL continues its numbers, far from the segment in which an empty history begins.
    monkeypatch.setattr(tables_module, "SEGMENT_BITS", 0)
    with History(uri) as history:
        made = consumer(history, handler=lambda _: None)
        made.process([call(at) for at in range(200)])
        history.flush()
        with history._tables() as tables:
            assert tables.drop(2**60, 1, 1000) == (200, None)
        made.process([call(900, conversationId="c-1")])
        history.flush()
        assert [one.id for one in history.find(Search(id="id-900"))] == ["id-900"]
        assert history.forget("c-1") == 1


def test_a_conversation_is_forgotten(history: History) -> None:
    made = consumer(history, handler=lambda _: None)
    made.process([call(n, conversationId=f"c-{n % 2}") for n in range(4)])
    history.flush()
    assert history.forget("c-1") == 2
    assert {one.conversation for one in history.find(Search())} == {"c-0"}
    assert history.forget("c-1") == 0
    made.process([call(9)])
    history.flush()
    assert history.forget("") == 0, "what belongs to no conversation stays"


SECRETS = (b"the secret in use, new", b"the secret before it")


@pytest.mark.parametrize("secrets", [(), SECRETS])
def test_an_id_in_the_type_or_the_source_is_not_kept(
    tmp_path: Path, secrets: tuple[bytes, ...]
) -> None:
    def fails(job: Job) -> None:
        raise Reject(f"{'x' * 370} {job.event.detail['conversationId']} {job.event.id}")

    with History(f"sqlite:///{tmp_path}/history.db", secrets=secrets) as history:
        made = consumer(history, handler=fails)
        for name in ("badc0de0-1", "badc0de0-2"):
            event = {
                "id": f"id-of-{name}",
                "detail-type": f"call.{name}/id-of-{name}",
                "source": f"/calls/{name}",
                "detail": {"call": name, "conversationId": name},
            }
            made.process([json.dumps(event).encode()])
        history.flush()
        assert {(one.type, one.source) for one in history.find(Search())} == {
            ("call.{id}/{id}", "/calls/{id}")
        }
        if secrets:
            assert not any("badc" in one.reason for one in history.find(Search()))
        assert history.forget("badc0de0-1") == history.forget("badc0de0-2") == 1
        history.scrub()
    assert b"badc0de0" not in (tmp_path / "history.db").read_bytes()


def test_an_id_that_is_a_word_of_a_type_changes_no_other_event(history: History) -> None:
    made = consumer(history, handler=lambda _: None)
    kept = {"order": "{id}/paid", "id-2": "order/paid", "id-3": "order/paid", "paid": "order/{id}"}
    for names in (("order", "id-2"), ("id-3", "paid")):
        events = [
            {"id": name, "detail-type": "order/paid", "detail": {"call": name}} for name in names
        ]
        made.process([json.dumps(one).encode() for one in events])
        history.flush()
    assert {one.id: one.type for one in history.find(Search())} == kept
    counted: Counter[str] = Counter()
    for _, kind, many, _ in history.counts(0, 2**42):
        counted[kind[-2]] += many
    assert counted == Counter(kept.values())


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("no c-4711 here", "no DIGEST here"),
        ("no xc-4711 here", "no xc-4711 here"),
        ("." * 397 + "c-4711", "." * 397 + "c-4"),
        ("." * 395 + "c-4711", "." * 395),
        ("." * 394 + "c-4711", "." * 394 + "DIGEST"[:6]),
        ("HTTP 401", "HTTP 401"),
    ],
)
def test_an_id_in_a_reason_becomes_its_digest_or_is_removed_where_the_reason_was_cut(
    reason: str, kept: str
) -> None:
    digests = Digests(SECRETS)
    kind: Kind = ("crm", "w1", "", "dead", None, "call", "call", "")
    own: Own = (0, storable(reason), "1", "c-4711", b"", NO_VERSION, 0, 0, 0, 0)
    _, (_, found, _, digest, *_) = digests.kept(kind, own)
    assert found == kept.replace("DIGEST", digest)[:LONGEST_TEXT]


def test_with_a_secret_ids_are_kept_as_digests_and_found_by_value(uri: str) -> None:
    def decided(number: int, *secrets: bytes) -> None:
        with History(uri, secrets=secrets) as writing:
            consumer(writing).process([call(number, id="order-4711", conversationId="4930901820")])

    decided(1)
    decided(2, SECRETS[1])
    decided(3, *SECRETS)
    with History(uri, look=True) as clear:
        kept = clear.find(Search())
    assert [it.conversation == "4930901820" for it in kept] == [True, False, False]
    assert len({it.conversation for it in kept} | {it.id for it in kept}) == 6
    assert all(it.id.startswith("#") and it.conversation.startswith("#") for it in kept[1:])
    with History(uri, secrets=SECRETS) as history:
        for search in (Search(conversation="4930901820"), Search(id="order-4711")):
            assert [it.key for it in history.find(search)] == [it.key for it in kept]
            assert history.find(msgspec.structs.replace(search, type="none")) == []
        # The digest that another command showed finds the decision, too.
        assert history.find(Search(conversation=kept[2].conversation)) == [kept[2]]
        assert history.find(Search(conversation="493090182")) == []
        assert history.forget("4930901820") == 3
        assert history.find(Search()) == []


def test_a_file_with_digests_holds_no_id(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/history.db"
    with History(uri, secrets=SECRETS) as history:
        consumer(history).process([call(1, id="order-4711", conversationId="4930901820")])
        history.flush()
        found = b"".join(it.read_bytes() for it in tmp_path.iterdir())
    assert b"order-4711" not in found
    assert b"4930901820" not in found
    assert b"sqs:calls" in found


def test_a_search_by_id_without_the_secrets_is_an_error_and_not_an_empty_result(uri: str) -> None:
    with History(uri, secrets=SECRETS) as history:
        consumer(history).process([call(1, conversationId="c-1")])
    with History(uri, look=True) as history:
        for asked in (Search(conversation="c-1"), Search(id="id-1")):
            with pytest.raises(ConfigError, match=r"1 decision cannot be found by an id"):
                history.find(asked)
        with pytest.raises(ConfigError, match=r"1 decision cannot be found by an id"):
            history.forget("c-1")
        (decision,) = history.find(Search())
        assert history.find(Search(conversation=decision.conversation)) == [decision]
        assert history.find(Search(status="dead")) == []
        assert history.forget(decision.conversation) == 1
        assert history.find(Search(conversation="c-1")) == []


def test_decisions_under_a_secret_that_is_not_given_are_counted(uri: str) -> None:
    """A wrong secret finds as little as no secret."""
    for number, used in enumerate(((), SECRETS[1:], SECRETS[:1], SECRETS[:1])):
        with History(uri, secrets=used) as writing:
            consumer(writing).process([call(number, id="e-1", conversationId="c-1")])
    given: dict[tuple[bytes, ...], int] = {
        SECRETS: 0,
        SECRETS[:1]: 1,
        SECRETS[1:]: 2,
        (b"a secret that nobody had",): 3,
        (): 3,
    }
    for secrets, hidden in given.items():
        with History(uri, look=True, secrets=secrets) as history:
            assert history.hidden("conversation", "c-1") == hidden
            assert history.hidden("id", "e-1") == hidden
            for search in (Search(conversation="c-1"), Search(id="e-1")):
                assert len(history.find(search)) == 4 - hidden
            if hidden:
                with pytest.raises(ConfigError, match=f"{hidden} decision"):
                    history.find(Search(conversation="c-2"))
                with pytest.raises(ConfigError, match=f"{hidden} decision"):
                    history.forget("c-1")
            assert history.find(Search(conversation="c-2"), partly=True) == []
    with History(uri, look=True, secrets=SECRETS) as history:
        digest = history.find(Search(conversation="c-1"))[-1].conversation
        assert history.hidden("conversation", digest) == 2, "in clear, and under another secret"
    with History(uri, look=True, secrets=SECRETS[:1]) as history:
        assert history.forget("c-1", partly=True) == 3


def test_digests_under_one_secret_share_a_prefix_and_differ_after_it(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path}/history.db", secrets=SECRETS) as history:
        consumer(history).process([call(1, id="a", conversationId="b"), call(2, id="c")])
        history.flush()
        names = [it for one in history.find(Search()) for it in (one.id, one.conversation) if it]
    assert len({name[:7] for name in names}) == 1
    assert len({name[7:] for name in names}) == len(names) == 3


def test_the_digests_of_an_event_id_and_an_equal_conversation_id_differ(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path}/history.db", secrets=SECRETS) as history:
        consumer(history).process([call(1, id="same", conversationId="same")])
        history.flush()
        (decision,) = history.find(Search(id="same", conversation="same"))
        assert decision.id != decision.conversation


def test_an_empty_id_and_an_absent_conversation_have_no_digest(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path}/history.db", secrets=SECRETS) as history:
        consumer(history).process([call(1, id="")])
        history.flush()
        (decision,) = history.find(Search())
        assert (decision.id, decision.conversation) == ("", "")
        assert history.forget("") == 0


def test_no_text_of_a_sender_keeps_other_decisions_from_being_written(history: History) -> None:
    made = Consumer("memory:", name="crm", handler=lambda _: None)
    made.observers.append(history.observer(made))
    odd = {"id": "a\0b", "detail-type": "t\0", "source": "s\0", "detail": {"contactId": "%' ü"}}
    long = {"id": "x" * 1_000_000, "detail-type": "t", "source": "s", "detail": {}}
    lone = b'{"id": "lone", "detail-type": "t", "source": "\\ud800", "detail": {}}'
    queued = Event(call(2), call(2), type="call", id="id-2", receives=2**40)
    made.process([odd, long, lone, queued, call(1)])
    history.flush()
    assert len(history.find(Search())) == 5
    assert [one.type for one in history.find(Search(id="a\0b"))] == ["t\ufffd"]
    assert [one.id for one in history.find(Search(conversation="%' ü"))] == ["a\ufffdb"]
    assert len(history.find(Search(id="x" * 1_000_000))) == 1
    assert history.find(Search(reason="\ud800\0")) == []


def test_decisions_that_the_database_refuses_are_left_out_and_logged(
    history: History, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = consumer(history, handler=lambda _: None)

    def refuse(*_: object) -> None:
        raise history._connection._module.DataError("too odd")

    with monkeypatch.context() as patched:
        patched.setattr(tables_module.Tables, "add", refuse)
        made.process([call(1)])
        history.flush()
    assert "1 events are left out: history " in caplog.text
    made.process([call(2)])
    history.flush()
    assert [one.id for one in history.find(Search())] == ["id-2"]


def test_ever_new_types_do_not_fill_the_disk(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_module, "MOST_KINDS", 3)
    made = Consumer("memory:", handler=lambda _: None)
    made.observers.append(history.observer(made))
    made.process([call(n, type=f"type-{n}", text="x" * 999) for n in range(6)])
    made.process([call(7, type="t" * 999)])
    history.flush()
    found = history.find(Search())
    assert [one.type for one in found[:3]] == ["type-0", "type-1", "type-2"]
    assert {one.type for one in found[3:]} == {""}
    assert all(len(one.reason) <= LONGEST_TEXT for one in found)


@pytest.mark.parametrize(
    ("written", "conversation"),
    [
        ('"c-1"', "c-1"),
        (r'"\u00fcn\"i\\"', 'ün"i\\'),
        ('"it\'s 100% ü"', "it's 100% ü"),
        (f'"{"x" * 201}"', "x" * 201),
        (f'"{"x" * 400}"', "x" * 400),
        ('"' + r"\u00e9" * 60 + '"', "é" * 60),
        ('"' + r"\u00e9" * 400 + '"', "é" * 400),
        ("1" * 40, "1" * 40),
        (r'"\ud800"', r"\ud800"),
        ("4711", "4711"),
        ("-5", "-5"),
        ("1.5", ""),
        ("1e5", ""),
        ("null", ""),
        ('""', ""),
        ('null}, "to": {"NAME": "c-2"', "c-2"),
        ('"", "to": {"NAME": "c-2"}', "c-2"),
        ('12, "to": {"NAME": "c-2"}', "12"),
        ('"[redacted]"', ""),
        ('"[redacted]", "to": {"NAME": "c-2"}', ""),
        ('"[redacted"', "[redacted"),
        ('"a\\u0000b"', "a\ufffdb"),
        (f'"{"x" * LONGEST_TEXT}"', "x" * LONGEST_TEXT),
    ],
)
@pytest.mark.parametrize("name", ["conversationId", "contactId"])
def test_the_conversation_is_read_from_the_detail_of_an_event(
    written: str, conversation: str, name: str
) -> None:
    raw = f'{{"detail": {{"{name}" : {written.replace("NAME", name)}, "n": 1}}}}'.encode()
    assert conversation_of(Event(raw, raw)) == conversation


LONG_IDS = ["x" * 401, "x" * 402, "é" * 100_000, "x" * 400 + "y"]


def test_a_long_id_is_found_and_not_confused_with_another_long_id(uri: str) -> None:
    with History(uri, secrets=SECRETS if uri.startswith("sqlite") else ()) as history:
        made = consumer(history, handler=lambda _: None)
        made.process([call(at, id=f"{it}.", conversationId=it) for at, it in enumerate(LONG_IDS)])
        history.flush()
        for number, name in enumerate(LONG_IDS):
            (found,) = history.find(Search(conversation=name))
            assert history.find(Search(id=f"{name}.")) == [found]
            assert len(found.conversation) <= LONGEST_TEXT
            # Also by the shortened text that is shown.
            assert history.find(Search(conversation=found.conversation)) == [found]
            assert history.forget(name) == 1
            assert len(history.find(Search())) == len(LONG_IDS) - number - 1
    assert conversation_of(envelope.read(call(1, conversationId="x" * 401))).startswith("x" * 367)


def test_the_conversation_of_an_event_that_a_relay_put_into_a_string_is_found() -> None:
    detail = json.dumps({"note": 'a "word"', "conversationId": 'c-"1"'})
    relayed = {"id": "e", "detail-type": "call", "detail": detail}
    on_bus = {"SystemMetadata": {"aws:EventId": "e"}, "Data": detail}
    for one in (relayed, on_bus):
        assert conversation_of(envelope.read(json.dumps(one))) == 'c-"1"'


@pytest.mark.parametrize(
    ("detail", "conversation"),
    [
        ({"conversationId": "c-1"}, "c-1"),
        ({"conversationId": "é-1"}, "é-1"),
        ({"conversationId": 12}, "12"),
        ({"conversationId": "[redacted]"}, ""),
        ({"contactId": "c-1"}, "c-1"),
        ({"note": 'a "word"'}, "outside"),
    ],
)
@pytest.mark.parametrize("relayed", [False, True])
def test_a_conversation_in_the_detail_comes_before_a_conversation_in_the_envelope(
    detail: dict[str, Any], conversation: str, relayed: bool
) -> None:
    event: dict[str, Any] = {"id": "e", "detail-type": "call", "conversationId": "outside"}
    event["detail"] = json.dumps(detail) if relayed else detail
    assert conversation_of(envelope.read(json.dumps(event))) == conversation


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


def test_a_removed_history_file_is_created_again_and_the_removal_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uri = f"sqlite:///{tmp_path}/history.db"
    with History(uri) as history:
        made = consumer(history, handler=lambda _: None)
        made.process([call(1)])
        history.flush()
        for one in tmp_path.glob("history.db*"):
            one.unlink()
        made.process([call(2)])
        history.flush()
        with History(uri, look=True) as reader:
            assert [one.id for one in reader.find(Search())] == ["id-2"]
    assert caplog.text.count("the file was removed or replaced") == 1


@pytest.mark.parametrize(
    "instead", ["nothing", "a file", "a folder", "no database", "another version"]
)
def test_decisions_wait_while_the_folder_of_the_history_is_missing_or_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, instead: str
) -> None:
    monkeypatch.setattr(background, "WRITE_INTERVAL", 3600)
    monkeypatch.setattr(log, "SECOND_LINE", 3600)
    folder, away = tmp_path / "kept", tmp_path / "away"
    folder.mkdir()
    path = folder / "history.db"
    with History(f"sqlite:///{path}") as history:
        made = consumer(history, handler=lambda _: None)
        made.process([call(1)])
        history.flush()
        folder.rename(away)
        if instead == "a file":
            folder.touch()
        elif instead == "a folder":
            path.mkdir(parents=True)
        elif instead != "nothing":
            folder.mkdir()
            with closing(sqlite3.connect(path)) as other:
                other.execute("CREATE TABLE eventonce_history (x)")
        if instead == "no database":
            path.write_text("not a database, and long enough to be seen as none" * 200)
        for number in (2, 3):
            made.process([call(number)])
            history.flush()
        assert history.dropped == 0
        assert sum("events are not written yet" in line for line in caplog.messages) == 1
        if folder.exists():
            folder.rename(tmp_path / "wrong")
        away.rename(folder)
        history.flush()
        assert [one.id for one in history.find(Search())] == ["id-1", "id-2", "id-3"]


def test_the_uri_of_a_history_file_is_parsed_like_the_uri_of_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with History("sqlite:///of%20calls.db?wait=1") as history:
        made = consumer(history, handler=lambda _: None)
        monkeypatch.chdir("/")
        made.process([call(1)])
    assert (tmp_path / "of calls.db").exists()


def test_an_interrupted_write_is_repeated_and_stored_once(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    made = consumer(history, handler=lambda _: None)
    # The thread of the history waits meanwhile.
    with history._background.writing:
        made.process([call(1)])
        with monkeypatch.context() as patch:
            patch.setattr(history._connection._opened._driver, "commit", interrupt)
            with pytest.raises(KeyboardInterrupt):
                history.flush()
        history.flush()
    assert [one.id for one in history.find(Search())] == ["id-1"]
    assert history._background._size == 0


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


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A history of one decision, in a file that its reader may not write, even as root."""
    path = tmp_path / "history.db"
    with History(f"sqlite:///{path}") as history:
        consumer(history).process([call(1)])
    monkeypatch.setattr(sqlite, "may", lambda path, how: how != os.W_OK and errors.may(path, how))
    return path


def test_a_reader_without_write_permission_creates_no_file(read_only: Path) -> None:
    with History(f"sqlite:///{read_only}", look=True) as reader:
        assert len(reader.find(Search())) == 1
        assert list(read_only.parent.iterdir()) == [read_only]


@pytest.mark.parametrize(
    "writing", [True, False], ids=["while the writer is open", "after the writer has closed"]
)
def test_a_reader_without_write_permission_sees_decisions_that_are_written_later(
    read_only: Path, *, writing: bool
) -> None:
    uri = f"sqlite:///{read_only}"
    os.utime(read_only, (1, 1))
    with History(uri, look=True) as reader:
        assert len(reader.find(Search())) == 1
        with History(uri) as history:
            consumer(history).process([call(2)])
            history.flush()
            if writing:
                assert len(reader.find(Search())) == 2
        assert len(reader.find(Search())) == 2


def test_a_leftover_write_ahead_log_that_is_not_read_is_reported(
    read_only: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read_only.with_name("history.db-wal").write_bytes(b"left")
    with History(f"sqlite:///{read_only}", look=True) as reader:
        assert len(reader.find(Search())) == 1
    assert "the file is read without its log, so the newest decisions are missing" in caplog.text
    assert not read_only.with_name("history.db-shm").exists()


def test_a_history_that_cannot_be_written_logs_the_file_without_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, index = tmp_path / "history.db", tmp_path / "history.db-shm"
    History(f"sqlite:///{path}").close()
    index.touch()
    may = errors.may
    monkeypatch.setattr(
        errors, "may", lambda path, how: (path != index or how == os.F_OK) and may(path, how)
    )
    History(f"sqlite:///{path}").close()
    assert f"no permission to read and write {index}" in caplog.text


def test_a_history_opened_for_reading_changes_nothing_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE mine (x)")
    before = path.read_bytes()
    with (
        History(f"sqlite:///{path}", look=True) as history,
        pytest.raises(ConfigError, match="there is no history"),
    ):
        history.find(Search())
    assert path.read_bytes() == before
    for look in (True, False):
        with pytest.raises(ConfigError, match="the path is a folder; name a file"):
            History(f"sqlite:///{tmp_path}", look=look)


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


def test_decisions_wait_for_a_history_that_is_away_and_are_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SECOND_LINE", 3600)
    path = tmp_path / "history.db"
    with History(f"sqlite:///{path}") as history:
        made = consumer(history, handler=lambda _: None)
        with history._tables() as tables:
            tables._driver.run("DROP TABLE eventonce_history")
            tables._driver.commit()
        assert made.process([call(1)])[0].status == "done"
        history.flush()
        history.flush()
        told = [line for line in caplog.messages if line.startswith("history: ")]
        assert [line.partition(" yet")[0] for line in told] == ["history: 1 events are not written"]
        with history._tables() as tables:
            # Before the thread of the history can write again, and log that.
            caplog.set_level("INFO")
            tables.make()
        history.flush()
        history.flush()
        assert caplog.text.count("history: written again, after ") == 1
        assert [one.id for one in history.find(Search())] == ["id-1"]


def test_written_decisions_are_not_written_again_when_old_decisions_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(recorder, "TIDY_INTERVAL", -1)
    monkeypatch.setattr(tables_module.Tables, "drop", fail)
    with History(f"sqlite:///{tmp_path}/history.db") as history:
        consumer(history, handler=lambda _: None).process([call(1)])
        history.flush()
        history.flush()
        assert len(history.find(Search())) == 1
    assert "old decisions are not deleted yet" in caplog.text


def dropped_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [line for line in caplog.messages if "decisions were lost" in line]
    assert all("too many others waited to be written" in it for it in said)
    return [line.partition(":")[2].split()[0] for line in said]


def test_decisions_that_come_faster_than_they_are_written_are_left_out_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder, "MOST_WAITING", 5)
    monkeypatch.setattr(background, "WRITE_INTERVAL", 3600)
    with History(f"sqlite:///{tmp_path}/history.db") as history:
        made = consumer(history, handler=lambda _: None)
        for number in range(3):
            made.process([call(10 * number + n) for n in range(3)])
        history.flush()
        assert history.dropped == 6
        assert len(history.find(Search())) == 3
        made.process([call(99)])
        history.flush()
    assert dropped_lines(caplog) == ["6"]


def test_decisions_left_out_while_writes_fail_are_logged_soon_and_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder, "MOST_WAITING", 2)
    monkeypatch.setattr(background, "WRITE_INTERVAL", 3600)
    monkeypatch.setattr(log, "SECOND_LINE", 3600)

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("away")

    with History(f"sqlite:///{tmp_path}/history.db") as history:
        made = consumer(history, handler=lambda _: None)
        with monkeypatch.context() as patch:
            patch.setattr(tables_module.Tables, "add", fail)
            for number in range(10):
                made.process([call(number)])
                history.flush()
                history._after_turn()
            assert dropped_lines(caplog) == ["1"]
            history._after_turn()
            assert dropped_lines(caplog) == ["1"]
        history.flush()
        history._after_turn()
        assert dropped_lines(caplog) == ["1", "7"]
        assert history.dropped == 8


def test_the_background_thread_logs_decisions_that_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder, "MOST_WAITING", 0)
    monkeypatch.setattr(background, "WRITE_INTERVAL", 0.01)
    with History(f"sqlite:///{tmp_path}/history.db") as history:
        history.keep_up()
        consumer(history, handler=lambda _: None).process([call(1)])
        until(lambda: dropped_lines(caplog) == ["1"])


def test_large_events_that_wait_do_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "MOST_WAITING", 50)
    monkeypatch.setattr(background, "WRITE_INTERVAL", 3600)
    with History(f"sqlite:///{tmp_path}/history.db") as history:
        made = consumer(history, handler=lambda _: None)
        for number in range(5):
            made.process([call(number, text="x" * 24 * recorder.DECISION_BYTES)])
        history.flush()
        assert (len(history.find(Search())), history.dropped) == (2, 3)
        made.process([call(9)])
    assert history.dropped == 3, "there is room again"


def test_a_waiting_decision_holds_neither_a_traceback_nor_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of waiting decisions does not count the memory of a traceback or a result."""

    class Large:
        """A value whose deletion can be observed."""

    held: list[ReferenceType[Large]] = []

    def fails(job: Job) -> list[str]:
        large = Large()
        held.append(ref(large))
        if job.event.detail["call"] == 1:
            raise ValueError("no line")
        return ["a result"]

    monkeypatch.setattr(background, "WRITE_INTERVAL", 3600)
    with History(f"sqlite:///{tmp_path}/history.db") as history:
        consumer(history, handler=fails).process([call(1), call(2)])
        gc.collect()
        assert [one() for one in held] == [None, None]
        ((outcomes, *_),) = history._background._waiting
        assert [one.result for one in outcomes] == [None, None]
        history.flush()
        assert {one.reason[-7:] for one in history.find(Search())} == {"no line", ""}


def test_only_the_owner_may_read_and_write_the_history_file(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    History(f"sqlite:///{path}").close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_child_of_a_fork_keeps_its_decisions(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/history.db"
    with History(uri) as history:
        made = consumer(history, handler=lambda _: None)
        made.process([call(1)])
        child = os.fork()
        if not child:
            made.process([call(2)])
            history.flush()
            os._exit(0)
        assert exit_of(child) == 0
        history.flush()
        found = history.find(Search())
        assert sorted(one.id for one in found) == ["id-1", "id-2"]
        assert len({one.worker for one in found}) == 2


def test_a_child_loses_no_decision_when_its_parent_closes_the_history(uri: str) -> None:
    history = History(uri)
    made = consumer(history, handler=lambda _: None)
    wrote, closed = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        made.process([call(1)])
        history.flush()
        os.write(wrote[1], b"x")
        os.read(closed[0], 1)
        made.process([call(2)])
        history.flush()
        os._exit(0)
    assert select.select([wrote[0]], [], [], PATIENCE)[0]
    history.close()
    os.write(closed[1], b"x")
    assert exit_of(child) == 0
    for end in (*wrote, *closed):
        os.close(end)
    with History(uri, look=True) as reader:
        assert [one.id for one in reader.find(Search())] == ["id-1", "id-2"]


def test_a_fork_during_a_write_blocks_neither_the_parent_nor_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "FORK_WAIT", 0.05)
    with History(f"sqlite:///{tmp_path}/history.db") as history:
        made = consumer(history, handler=lambda _: None)
        held, over = threading.Event(), threading.Event()

        def hold() -> None:
            with history._tables():
                held.set()
                assert over.wait(PATIENCE)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(PATIENCE)
        child = os.fork()
        if not child:
            made.process([call(2)])
            history.close()
            os._exit(0)
        try:
            assert exit_of(child) == 0
        finally:
            over.set()
            thread.join(PATIENCE)
        assert [one.id for one in history.find(Search())] == ["id-2"]


def test_two_flushes_at_once_count_the_waiting_decisions_once(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path}/history.db") as history:
        consumer(history, handler=lambda _: None).process([call(1)])
        with history._tables():
            both = [threading.Thread(target=history.flush) for _ in range(2)]
            for one in both:
                one.start()
            # Nothing shows that both threads wait; where they do not, the test passes as well.
            time.sleep(0.05)
        for one in both:
            one.join()
        assert history._background._size == 0
        assert len(history.find(Search())) == 1


def test_a_silent_database_does_not_keep_a_process_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "CLOSE_WAIT", 0.05)
    history = History(f"sqlite:///{tmp_path}/history.db")
    made = consumer(history, handler=lambda _: None)
    in_write, over = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        in_write.set()
        assert over.wait(PATIENCE)
        raise ValueError("nobody hears of it")

    monkeypatch.setattr(history._connection._opened, "add", hang)
    made.process([call(1)])
    thread = history._background._thread
    assert thread is not None
    try:
        assert in_write.wait(PATIENCE)
        made.process([call(2), call(3)])
        history.close()
        line = "history: 3 events are left out: the last write does not end"
        assert [it.getMessage() for it in caplog.records] == [line]
        assert history.dropped == 3, "in the write, and after it"
        made.process([call(4)])
        assert history.dropped == 4, "what comes after the end is left out"
    finally:
        over.set()
        thread.join(PATIENCE)
    history.close()
    assert history.dropped == 4, "each is counted once"


@pytest.mark.parametrize("midst", [False, True], ids=["before a write", "during a write"])
def test_a_silent_server_is_disconnected_and_the_decisions_wait(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    midst: bool,
) -> None:
    cluster.execute("DROP SCHEMA IF EXISTS eventonce CASCADE")
    monkeypatch.setattr(background, "WRITE_INTERVAL", 3600)
    with (
        relaying(cluster.port) as relay,
        History(f"postgresql://postgres@127.0.0.1:{relay.port}/postgres") as history,
    ):
        consumer(history, handler=lambda _: None).process([call(1)])
        driver: Any = history._connection._opened._driver
        run_many, address = driver.run_many, driver._address

        def write_into_silence(*args: Any) -> None:
            relay.silence()
            driver._connection.timeout = 0.1
            run_many(*args)

        with monkeypatch.context() as patch:
            if midst:
                patch.setattr(driver, "run_many", write_into_silence)
            else:
                relay.silence()
                options = msgspec.structs.replace(address.options, timeout=0.1)
                patch.setattr(driver, "_address", msgspec.structs.replace(address, options=options))
            silent = driver._connection
            history.flush()
        assert silent.closed
        told = [line for line in caplog.messages if line.startswith("history: ")]
        assert len(told) == 1
        assert told[0].startswith("history: 1 events are not written yet: ")
        assert told[0].endswith("no answer within 0.1 s")
        history.flush()
        assert [one.id for one in history.find(Search())] == ["id-1"]


def test_a_silent_history_does_not_hold_up_an_invocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "WRITE_INTERVAL", 3600)
    monkeypatch.setattr(recorder, "FLUSH_WAIT", 0.05)
    with History(f"sqlite:///{tmp_path}/history.db") as history, ThreadPoolExecutor() as pool:
        made = consumer(history, handler=lambda _: None)
        with history._tables():
            made.process([call(1)])
            pool.submit(made.runtime.flush).result(PATIENCE)
            first = history._background._flushing
            # A flush during that write does not wait.
            monkeypatch.setattr(recorder, "FLUSH_WAIT", 2 * PATIENCE)
            made.process([call(2)])
            pool.submit(made.runtime.flush).result(PATIENCE)
            assert history._background._flushing is first
        assert first is not None
        first.join(PATIENCE)
        made.process([call(3)])
        made.runtime.flush()
        assert [one.id for one in history.find(Search())] == ["id-1", "id-2", "id-3"]


def test_decisions_that_are_not_written_at_the_end_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = History(f"sqlite:///{tmp_path}/history.db")
    with history._tables() as tables:
        tables._driver.run("DROP TABLE eventonce_history")
        tables._driver.commit()
    consumer(history, handler=lambda _: None).process([call(1)])
    history.close()
    assert "history: 1 events are left out" in caplog.text
    assert history.dropped == 1


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


def test_a_file_that_is_not_a_database_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.write_text("not a database, and long enough to be seen as none" * 20)
    with pytest.raises(ConfigError, match="not a database"):
        History(f"sqlite:///{path}")


def test_a_fork_waits_for_the_end_of_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "FORK_WAIT", PATIENCE)
    uri = f"sqlite:///{tmp_path}/history.db"
    with History(uri) as history:
        made = consumer(history, handler=lambda _: None)
        within, go_on, forked = threading.Event(), threading.Event(), threading.Event()

        def write() -> None:
            with history._tables() as tables:
                tables._driver.run("DELETE FROM eventonce_history")
                within.set()
                assert go_on.wait(PATIENCE)
                tables._driver.commit()

        def fork() -> None:
            child = os.fork()
            if not child:
                made.process([call(2)])
                history.flush()
                os._exit(int(history.dropped))
            forked.set()
            codes.append(exit_of(child))

        codes: list[int] = []
        threads = [threading.Thread(target=write), threading.Thread(target=fork)]
        threads[0].start()
        assert within.wait(PATIENCE)
        threads[1].start()
        assert not forked.wait(0.1)
        go_on.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert codes == [0]
        assert [one.id for one in history.find(Search())] == ["id-2"]


def test_a_worker_begins_although_its_history_is_away(caplog: pytest.LogCaptureFixture) -> None:
    with History(f"postgresql://127.0.0.1:{free_port()}/nothing") as history:
        assert "decisions wait in memory for the database" in caplog.text
        assert consumer(history, handler=lambda _: None).process([call(1)])[0].status == "done"
        history.flush()
        history.keep_up()
        history._tidy_if_due()
        assert len(caplog.records) == 1, "one line says all"
    assert history.dropped == 1
    assert [it.getMessage() for it in caplog.records[1:]] == [
        "history: 1 events are left out: they could not be written"
    ]


NOBODY = 65534


@contextmanager
def without_rights() -> Iterator[None]:
    """Run the block as an ordinary user, because root may write to any folder."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that other users may read but not write, with a history of one decision."""
    # Otherwise the background thread could write while the process has other rights.
    monkeypatch.setattr(background, "WRITE_INTERVAL", 3600.0)
    with TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        with History(f"sqlite:///{path}/history.db") as history:
            consumer(history, handler=lambda _: None).process([call(1)])
        (path / "history.db").chmod(0o444)
        path.chmod(0o555)
        yield path
        path.chmod(0o755)


def test_a_history_in_a_read_only_folder_is_read(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with without_rights(), History(f"sqlite:///{folder}/history.db", look=True) as history:
        assert [one.id for one in history.find(Search())] == ["id-1"]
        assert history.consumers() == ["crm"]
        assert caplog.text == "", "it has all that there is"
        with pytest.raises(StoreUnavailable, match="no permission to write in the directory"):
            history.forget("c")
    assert [it.name for it in folder.iterdir()] == ["history.db"]


def test_decisions_in_a_log_that_cannot_be_read_are_reported_as_missing(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A writer is active, and the reader may read only the database file."""
    folder.chmod(0o755)
    (folder / "history.db").chmod(0o644)
    with History(f"sqlite:///{folder}/history.db") as writing:
        consumer(writing, handler=lambda _: None).process([call(2)])
        writing.flush()
        for name in ("history.db-wal", "history.db-shm"):
            (folder / name).chmod(0)
        folder.chmod(0o555)
        with without_rights(), History(f"sqlite:///{folder}/history.db", look=True) as history:
            for _ in range(2):
                assert [one.id for one in history.find(Search())] == ["id-1"]
        (line,) = [it.getMessage() for it in caplog.records]
        said = f"the newest decisions are missing; no permission to write in the directory {folder}"
        assert said in line
        assert ("give this one the permission" if os.geteuid() == 0 else "chmod u+rwx") in line
        folder.chmod(0o755)


def test_a_reader_of_a_read_only_file_sees_decisions_that_are_written_later(folder: Path) -> None:
    """A dashboard keeps its history open for days."""
    uri = f"sqlite:///{folder}/history.db"
    with History(uri, look=True) as history:
        with without_rights():
            assert len(history.find(Search())) == 1
        folder.chmod(0o755)
        (folder / "history.db").chmod(0o644)
        with History(uri) as writing:
            consumer(writing, handler=lambda _: None).process([call(2)])
        folder.chmod(0o555)
        with without_rights():
            assert len(history.find(Search())) == 2


@pytest.mark.parametrize("there", [True, False])
def test_a_worker_begins_although_its_history_may_not_be_written(
    folder: Path, caplog: pytest.LogCaptureFixture, there: bool
) -> None:
    uri = f"sqlite:///{folder}/{'history' if there else 'other'}.db"
    with without_rights():
        history = History(uri)
        assert consumer(history, handler=lambda _: None).process([call(2)])[0].status == "done"
        history.flush()
        history._tidy_if_due()
        (line,) = [it.getMessage() for it in caplog.records]
        assert line.startswith("history: decisions wait in memory for the database: ")
        assert f"no permission to write in the directory {folder}" in line
    # The permission is given while the worker runs.
    folder.chmod(0o777)
    if there:
        (folder / "history.db").chmod(0o666)
    with without_rights():
        history.flush()
        assert [one.id for one in history.find(Search())][-1] == "id-2"
        history.close()
    assert history.dropped == 0


def test_a_file_without_write_permission_is_named_in_the_log(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.chmod(0o777)
    with without_rights(), History(f"sqlite:///{folder}/history.db") as history:
        consumer(history, handler=lambda _: None).process([call(2)])
        history.flush()
        assert history.dropped == 0
    assert history.dropped == 1
    assert "no permission to read and write this file; " in caplog.text


def test_a_right_to_write_that_is_given_later_is_used(folder: Path) -> None:
    folder.chmod(0o777)
    with without_rights():
        history = History(f"sqlite:///{folder}/history.db")
        consumer(history, handler=lambda _: None).process([call(2)])
        history.flush()
        assert [it.name for it in folder.iterdir()] == ["history.db"], (
            "no log that nobody may write"
        )
    (folder / "history.db").chmod(0o666)
    with without_rights():
        history.flush()
        assert len(history.find(Search())) == 2
        history.close()
    assert history.dropped == 0
