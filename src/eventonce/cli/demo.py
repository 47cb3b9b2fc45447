"""`eventonce demo`: a morning of calls under the usual recipes, and under eventonce."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from eventonce.cli import started_as
from eventonce.cli.options import json_option
from eventonce.cli.output import counted, echo_json, standard_output, table, write_whole
from eventonce.demo import morning, recipes, worker
from eventonce.demo.morning import Delivery, Fact


@click.command()
@click.option("--events", is_flag=True, help="Only print what arrives, one event a line.")
@json_option
def demo(*, events: bool, as_json: bool) -> None:
    """Play a morning of contact-centre calls, with the copies, re-publishes, reorderings, an outage
    and a crash that really happen, against the usual recipes and against eventonce on SQLite."""
    facts = morning.facts()
    deliveries = morning.deliveries(facts)
    if events:
        arrived = b"".join(delivery.event + b"\n" for delivery in deliveries)
        write_whole(standard_output(), arrived)
        return
    if not as_json:
        click.echo(_story(facts, deliveries))
    results = {recipe.name: recipes.effects(recipe, deliveries) for recipe in recipes.RECIPES}
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
    click.echo(f"\nWhat to type next, or with a capture of your own:\n\n{_next(started_as())}")


def _next(eventonce: str) -> str:
    rows = [
        (f"{eventonce} demo --events > capture.jsonl", "what arrived this morning"),
        (f"head -1 capture.jsonl | {eventonce} explain -", "its rule, and what its key is made of"),
        (f"{eventonce} filter capture.jsonl > new.jsonl", "drop the copies, and count why"),
        (f"{eventonce} init", "a commented eventonce.toml"),
    ]
    return table(rows, indent=2)


def _story(facts: Sequence[Fact], deliveries: Sequence[Delivery]) -> str:
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
        f"A Monday morning: {conversations} calls, queued, rejected, answered and transferred.\n"
        f"{len(deliveries)} deliveries arrive, not in order:\n\n{table(rows, indent=2)}\n\n"
        "For four of them the store is away, and one worker is killed in the middle of its work.\n"
    )


def _judged(effects: Mapping[int, int], facts: int) -> tuple[int, int, int]:
    once = sum(count == 1 for count in effects.values())
    lost = sum(not effects.get(fact) for fact in range(facts))
    copies = sum(count - 1 for count in effects.values() if count > 1)
    return once, lost, copies


def _comparison(rows: Sequence[tuple[str, int, int, int]]) -> str:
    head = ("what remembers", "once", "lost", "copies let through")
    lines = table(rows, head=head, indent=2).splitlines()
    return "\n".join([*lines[:-1], click.style(lines[-1], fg="green", bold=True)])


def _answers(told: Sequence[worker.EventReport], killed: int) -> str:
    reasons = Counter(
        (one.status, one.reason.partition(":")[0]) for one in told if one.status != "done"
    )
    rows = [(status, count, reason) for (status, reason), count in reasons.most_common()]
    dead = f"{counted(killed, 'worker')} really killed, after its write and before its commit"
    return f"\nWhat eventonce said of what it did not run ({dead}):\n\n{table(rows, indent=2)}"
