"""`eventonce demo`: a morning of calls under the usual recipes, and under eventonce."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from eventonce import demo as played
from eventonce.cli import started_as
from eventonce.cli.options import json_option
from eventonce.cli.output import counted, echo_json, standard_output, table, write_whole
from eventonce.demo import worker


@click.command()
@click.option("--events", is_flag=True, help="Only print the events as they arrive, one a line.")
@json_option
def demo(*, events: bool, as_json: bool) -> None:
    """Play a morning of contact-centre calls against the usual recipes and against eventonce on
    SQLite, with copies, re-publishes, reorderings, an outage and a crash, as they really happen."""
    facts = played.facts()
    deliveries = played.deliveries(facts)
    if events:
        arrived = b"".join(delivery.event + b"\n" for delivery in deliveries)
        write_whole(standard_output(), arrived)
        return
    if not as_json:
        click.echo(_story(facts, deliveries))
    results = {recipe.name: played.effects(recipe, deliveries) for recipe in played.RECIPES}
    with TemporaryDirectory() as folder:
        ours, told, killed = worker.effects(deliveries, Path(folder) / "demo.db")
    results["eventonce"] = ours
    rows = [(name, *_judged(effects, len(facts))) for name, effects in results.items()]
    if as_json:
        fields = ("recipe", "once", "lost", "copies")
        document = {
            "facts": len(facts),
            "deliveries": len(deliveries),
            "killed": killed,
            "results": [dict(zip(fields, row, strict=True)) for row in rows],
        }
        echo_json(document)
        return
    click.echo(_comparison(rows))
    click.echo(_answers(told, killed))
    click.echo(f"\nNext, with these events or a capture of your own:\n\n{_next(started_as())}")


def _next(eventonce: str) -> str:
    rows = [
        (f"{eventonce} demo --events > capture.jsonl", "the events of this morning"),
        (f"head -1 capture.jsonl | {eventonce} explain -", "the rule and the key of an event"),
        (
            f"{eventonce} filter capture.jsonl > new.jsonl",
            "the new events; copies are counted",
        ),
        (f"{eventonce} init", "a commented eventonce.toml"),
    ]
    return table(rows, indent=2)


def _story(facts: Sequence[played.Fact], deliveries: Sequence[played.Delivery]) -> str:
    ways = Counter(delivery.how for delivery in deliveries)
    conversations = len({fact.body["conversationId"] for fact in facts})
    rows = [
        (ways["first"], "events, each of which must take effect once"),
        (ways["two rules"], "delivered twice in the same millisecond: two rules match"),
        (ways["second integration"], "published by a second integration, under another id"),
        (ways["redelivered"], "delivered again, seconds to minutes later"),
        (ways["re-published"], "published again by Genesys, up to four days later, under a new id"),
    ]
    return (
        f"A Monday morning: {conversations} calls are queued, rejected, answered and transferred.\n"
        f"{len(deliveries)} deliveries arrive, not in order:\n\n{table(rows, indent=2)}\n\n"
        "The store is unavailable for four of them, and one worker is killed during its work.\n"
    )


def _judged(effects: Mapping[int, int], facts: int) -> tuple[int, int, int]:
    once = sum(count == 1 for count in effects.values())
    lost = sum(not effects.get(fact) for fact in range(facts))
    copies = sum(count - 1 for count in effects.values() if count > 1)
    return once, lost, copies


def _comparison(rows: Sequence[tuple[str, int, int, int]]) -> str:
    head = ("how copies are recognised", "once", "lost", "copies run")
    lines = table(rows, head=head, indent=2).splitlines()
    return "\n".join([*lines[:-1], click.style(lines[-1], fg="green", bold=True)])


def _answers(told: Sequence[worker.EventReport], killed: int) -> str:
    reasons = Counter(
        (one.status, one.reason.partition(":")[0]) for one in told if one.status != "done"
    )
    rows = [(status, count, reason) for (status, reason), count in reasons.most_common()]
    killed_ = f"{counted(killed, 'worker')} really killed, after its write and before its commit"
    return (
        f"\nDeliveries that eventonce did not run, and why ({killed_}):\n\n{table(rows, indent=2)}"
    )
