"""docs/migrate.md on moving within eventonce, and back: each way has the results of its table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventonce import Consumer, Rule, presets
from eventonce.cli import main
from eventonce.config import load
from eventonce.stores.memory import MemoryStore
from eventonce.testing.harness import ManualClock
from tests.docs.moving import PAGE, A, B, C, D, Row, Work, expected_rows
from tests.servers.valkey import serving


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# --- within eventonce ---


def state(id: str, version: int) -> dict[str, Any]:
    detail = {"agent": "7", "version": version, "status": id}
    return {"id": id, "source": "s", "detail-type": "agent.status", "detail": detail}


def test_a_consumer_moves_to_another_store_and_asks_the_old_store() -> None:
    title = "From one store to another"
    work = Work()
    latest = Rule(
        name="agent", match="agent.status", subject=["detail.agent"], order="detail.version"
    )
    with Consumer(
        "memory:", name="crm-sync", rules=[latest, "genesys"], handler=lambda job: work(job.event)
    ) as consumer:
        consumer.process([A, state("two", 2)])
        scope: dict[str, Any] = {"consumer": consumer}
        exec(PAGE[title].blocks("python")[0], scope)
        with scope["new"] as new:
            row = Row(new, work)
            assert [row(A), row(C), row(C)] == expected_rows(title)
            assert row(state("one", 1)) == ["done", "no"]
            assert row(state("two", 2)) == ["done", "no"]
            assert row(state("three", 3)) == ["done", "yes"]
            assert new.observers == []


def test_dead_letters_can_be_exported() -> None:
    with Consumer("sqlite:///old.db", rules="genesys", handler=lambda _: None) as consumer:
        consumer.process([{"detail-type": "v2.detail.events.conversation.{id}.user.end"}])
        assert len(list(consumer.letters())) == 1
    with pytest.raises(SystemExit):
        main(["letters", "export", "--store", "sqlite:///old.db", "--output", "letters.jsonl"])
    assert len(Path("letters.jsonl").read_text().splitlines()) == 1


def test_a_copied_sqlite_file_has_the_records_of_the_original() -> None:
    with Consumer("sqlite:///one.db", rules="genesys", handler=lambda _: None) as consumer:
        consumer.process([A])
    Path("two.db").write_bytes(Path("one.db").read_bytes())
    with Consumer("sqlite:///two.db", rules="genesys", handler=lambda _: None) as consumer:
        assert consumer.process([A])[0].status == "duplicate"


MATCH = "v2.detail.events.conversation.*.user.end"


def outcomes(store: MemoryStore, rule: Rule, events: Sequence[dict[str, Any]]) -> list[str]:
    consumer = Consumer(store, name="crm-sync", rules=rule, handler=lambda _: None)
    return [consumer.process([event])[0].status for event in events]


def after(old_key: str) -> MemoryStore:
    """A store in which `a` was done by a rule with this key."""
    store = MemoryStore()
    assert outcomes(store, Rule(name="old", match=MATCH, key=[old_key]), [A]) == ["done"]
    return store


def shown_rule() -> Rule:
    Path("eventonce.toml").write_text(PAGE["From one rule to another"].blocks("toml")[0])
    (rule,) = load().rule
    return rule


def test_a_rule_with_also_finds_the_events_done_under_its_older_key() -> None:
    rule = shown_rule()
    without = msgspec.structs.replace(rule, also=())
    rows = zip(
        outcomes(after("id"), without, [A, B, C]),
        outcomes(after("id"), rule, [A, B, C]),
        strict=True,
    )
    assert [list(row) for row in rows] == expected_rows("From one rule to another")


def test_an_older_key_that_was_too_wide_still_merges_events() -> None:
    wide = msgspec.structs.replace(shown_rule(), also=[["body.conversationId"]])
    (row,) = expected_rows("From one rule to another", 1)
    assert outcomes(after("body.conversationId"), wide, [D]) == [row[0].split(":")[0]]


def test_also_finds_nothing_of_another_consumer_or_another_kind_of_rule() -> None:
    rule = shown_rule()
    renamed = Consumer(after("id"), name="other", rules=rule, handler=lambda _: None)
    assert renamed.process([A])[0].status == "done"
    latest = Rule(
        name="s", match=MATCH, subject=["body.sessionId"], order="body.eventTime", also=[["id"]]
    )
    assert outcomes(after("id"), latest, [A]) == ["done"]


# --- and back ---


def test_the_old_consumer_skips_the_events_whose_marks_were_written() -> None:
    title = "The way back"
    with serving() as node:
        cache, work = node.client(), Work()
        with Consumer(
            "memory:", name="crm-sync", rules="genesys", handler=lambda job: work(job.event)
        ) as consumer:
            exec(PAGE[title].blocks("python")[0], {"cache": cache, "consumer": consumer})
            (outcome,) = consumer.process([A])

        def old_consumer(event: dict[str, Any]) -> str:
            if not cache.set(f"event:{event['id']}", "1", nx=True, ex=300):
                return "skips"
            work(event)
            return "runs"

        assert [outcome.status, old_consumer(A)] == [row[1] for row in expected_rows(title)]
        assert work.done == ["a"]
        cache.close()


def test_a_rule_goes_back_with_the_newer_key_in_its_also() -> None:
    newer = msgspec.structs.replace(shown_rule(), also=())
    store = MemoryStore()
    assert outcomes(store, newer, [A]) == ["done"]
    older = Rule(name="old", match=MATCH, key=["id"], also=[list(newer.key)])
    assert outcomes(store, older, [A, B, C]) == ["duplicate", "duplicate", "done"]


def test_shadow_can_be_put_back_and_the_store_stays_up_to_date() -> None:
    def with_shadow(shadow: bool) -> Callable[[Any], str]:
        rules = [
            msgspec.structs.replace(rule, shadow=shadow) for rule in presets.resolve("genesys")
        ]
        consumer = Consumer(store, name="crm-sync", rules=rules, handler=lambda _: None)
        return lambda event: consumer.process([event])[0].status

    store = MemoryStore(clock=ManualClock())
    assert with_shadow(False)(A) == "done"
    shadow = with_shadow(True)
    assert [shadow(A), shadow(C)] == ["unguarded", "done"]
    assert with_shadow(False)(C) == "duplicate"
