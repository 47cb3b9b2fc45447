"""docs/recipes.md is true: its snippets run, and each row of its tables shows the true result."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from eventonce import Consumer, Rule
from eventonce.config import load
from eventonce.stores.dynamodb import DynamoDBStore
from eventonce.stores.memory import MemoryStore
from eventonce.testing.harness import ManualClock
from tests.docs.arrivals import CASES, A, Arrival, B, Case, agent_leaves
from tests.docs.pages import DOCS, broken_links, sections
from tests.docs.timeline import Cache, Down, Killed, Observed, Table, Timeline
from tests.servers.aws import REGION, emulated

PAGE = sections("recipes.md")
SHOWN = PAGE["How to read it"].blocks("python")[0]
PRESETS = ["genesys", "relayed"]
NOTHING = "\N{EN DASH}"


def recipe_of(case: Case) -> str:
    """The snippet of a table: the last snippet before the table that receives events."""
    text = PAGE[case.section].text
    table = [found.start() for found in re.finditer(r"^\| after", text, re.MULTILINE)][case.table]
    snippets: list[str] = re.findall(r"```python\n(.*?)```", text[:table], re.DOTALL)
    return next(snippet for snippet in reversed(snippets) if "def receive" in snippet)


def under_the_recipe(case: Case, rows: Sequence[Sequence[str]]) -> list[str]:
    timeline = Timeline()
    shared = {
        "cache": Cache(timeline),
        "table": Table(timeline),
        "now": lambda: timeline.clock() / 1000,
        "work": timeline.work,
        "receive": timeline.work,
    }
    process: dict[str, Any] = {}

    def start() -> None:
        process.clear()
        process.update(shared)
        exec(recipe_of(case), process)

    def deliver(arrival: Arrival) -> str:
        if arrival.restarted:
            start()
        depth = len(timeline.at_hand)
        try:
            if "receive_all" in process:
                process["receive_all"]([arrival.event])
            else:
                process["receive"](arrival.event)
        except Killed:
            return "dies"
        except (Down, KeyError, ValueError):
            return "fails"
        return "runs" if depth in timeline.ran else "fails" if depth in timeline.failed else "skips"

    start()
    return timeline.deliver_all(case, rows, deliver)


def consumer_of(case: Case, under: str, timeline: Timeline, folder: Path) -> Consumer:
    if under == "shown":
        scope: dict[str, Any] = {"work": timeline.work}
        exec(SHOWN, scope)
        shown: Consumer = scope["consumer"]
    else:
        file = folder / "eventonce.toml"
        file.write_text(PAGE[case.section].blocks("toml")[-1])
        said = replace(load(file), presets=PRESETS)
        shown = said.consumer(store="memory:", name="crm-sync")
        shown.on()(lambda job: timeline.work(job.event))
    shown.close()
    return shown.over(Observed(timeline), clock=timeline.clock)


def under_eventonce(
    case: Case, rows: Sequence[Sequence[str]], under: str, folder: Path
) -> list[str]:
    timeline = Timeline()
    consumer = consumer_of(case, under, timeline, folder)

    def deliver(arrival: Arrival) -> str:
        try:
            (outcome,) = consumer.process([arrival.event])
        except Killed:
            return "dies"
        assert (outcome.status in ("conflict", "invalid", "dead")) == any(
            letter.reason == outcome.reason for letter in consumer.letters()
        )
        return outcome.status

    return timeline.deliver_all(case, rows, deliver)


def rows_of(case: Case) -> list[list[str]]:
    return [rows for rows in PAGE[case.section].tables() if rows[0][0] == "0s"][case.table]


def words(cells: Sequence[str]) -> list[str]:
    """The first word of each cell, which is the result; the words after it only explain."""
    return [re.split(r"[ :,]", cell)[0] for cell in cells]


def named(case: Case) -> str:
    return f"{case.section} {case.table}"


@pytest.mark.parametrize("case", CASES, ids=named)
def test_the_recipe_has_the_results_that_its_table_shows(case: Case) -> None:
    rows = rows_of(case)
    said = words([row[2] for row in rows])
    happened = under_the_recipe(case, rows)
    # An acknowledged event does not come again.
    assert [
        told if told == NOTHING else word for told, word in zip(said, happened, strict=True)
    ] == said


@pytest.mark.parametrize(
    ("case", "under"),
    [(case, under) for case in CASES for under in case.under],
    ids=lambda it: named(it) if isinstance(it, Case) else it,
)
def test_eventonce_has_the_results_that_the_table_shows(
    case: Case, under: str, tmp_path: Path
) -> None:
    rows = rows_of(case)
    assert under_eventonce(case, rows, under, tmp_path) == words([row[3] for row in rows])


def test_every_table_is_played_and_every_row_names_its_arrival() -> None:
    played = {(case.section, case.table) for case in CASES}
    shown = {
        (title, place)
        for title, section in PAGE.items()
        for place, _ in enumerate(rows for rows in section.tables() if rows[0][0] == "0s")
    }
    assert played == shown
    for case in CASES:
        labels = [re.match(r"`(\w+)`", row[1]) for row in rows_of(case)]
        assert [label and label[1] for label in labels] == [one.label for one in case.arrivals]


def test_a_row_that_says_lost_is_skipped_and_was_no_copy() -> None:
    for case in CASES:
        for _, what, recipe, status in rows_of(case):
            if "**lost**" in recipe:
                assert words([recipe])[0] in ("skips", "fails"), what
                assert status not in ("duplicate", "stale", "unchanged"), what
            if re.search(r"\*\*(again|too)\*\*", recipe):
                assert words([recipe]) == ["runs"], what


def test_every_rule_shown_is_a_rule_and_the_table_of_the_tutorial_opens(tmp_path: Path) -> None:
    file = tmp_path / "eventonce.toml"
    with emulated():
        for section in PAGE.values():
            for text in section.blocks("toml"):
                file.write_text(text)
                assert load(file).rule
        file.write_text(PAGE["A hash of the detail"].blocks("toml")[0])
        with load(file).consumer() as consumer:
            assert isinstance(consumer.store, DynamoDBStore)
            assert consumer.name == "crm-sync"


def test_a_table_with_other_names_opens() -> None:
    import boto3

    with emulated():
        client = boto3.client("dynamodb", region_name=REGION)
        scope: dict[str, Any] = {"client": client}
        exec(PAGE["A hash of the detail"].blocks("python")[-1], scope)
    assert scope["store"]._table.layout.key == "pk"
    assert scope["store"]._table.layout.expiry == "ttl"


def test_the_transport_id_alone_finds_a_redelivery_for_days_and_no_second_publish() -> None:
    scope: dict[str, Any] = {"work": lambda _: None}
    exec(SHOWN + PAGE["event.id for five minutes"].blocks("python")[-1], scope)
    clock = ManualClock()
    shown: Consumer = scope["consumer"]
    shown.on()(lambda _: None)
    shown.close()
    consumer = shown.over(MemoryStore(clock=clock), clock=clock)
    assert consumer.process([A.event])[0].status == "done"
    clock.advance(9 * 86_400)
    assert [it.status for it in consumer.process([A.event, B.event])] == ["duplicate", "done"]


def test_another_field_beside_the_id_makes_no_difference() -> None:
    detail = {**A.event["detail"], "interactionId": "i-1"}
    first, second = ({**event, "detail": detail} for event in (A.event, B.event))
    for key in (["id"], ["id", "detail.interactionId"]):
        rules = Rule(name="id", key=key)
        with Consumer("memory:", rules=rules, handler=lambda _: None) as consumer:
            outcomes = consumer.process([first, first, second])
        assert [it.status for it in outcomes] == ["done", "duplicate", "done"], key


def test_a_rule_may_let_an_event_run_while_the_store_is_away(tmp_path: Path) -> None:
    case = Case("An error is a copy", 0, [])
    timeline = Timeline()
    consumer = consumer_of(case, "toml", timeline, tmp_path)
    event = {**agent_leaves("a"), "detail-type": "v2.detail.events.conversation.{id}.user.start"}
    timeline.at_hand.append(Arrival("a", event, store_away=True))
    assert consumer.process([event])[0].status == "unguarded"


def test_the_lambda_handler_raises_until_every_event_is_settled() -> None:
    timeline = Timeline()
    (snippet,) = PAGE["Log it and answer 200"].blocks("python")[1:]
    consumer = consumer_of(CASES[0], "shown", timeline, Path())
    scope: dict[str, Any] = {"consumer": consumer}
    exec(snippet, scope)
    timeline.at_hand.append(Arrival("a", A.event, crm_down=True))
    with pytest.raises(Exception, match="1 events not settled"):
        scope["handler"]([A.event], None)
    timeline.at_hand[-1] = A
    assert scope["handler"]([A.event], None)["statusCode"] == 200


def test_no_link_is_broken() -> None:
    assert broken_links(DOCS / "recipes.md") == []
