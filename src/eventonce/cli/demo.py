"""`eventonce demo`: a morning of calls under the usual recipes, and under eventonce."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import msgspec

from eventonce.cli.options import json_option
from eventonce.cli.table import table
from eventonce.demo import morning, recipes, worker
from eventonce.demo.morning import Delivery, Fact


@click.command()
@json_option
def command(*, as_json: bool) -> None:
    """Play a morning of contact-centre calls, with the copies, re-publishes, reorderings, an outage
    and a crash that really happen, against the usual recipes and against eventonce on SQLite."""
    facts = morning.facts()
    deliveries = morning.deliveries(facts)
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
        click.echo(msgspec.json.encode(document).decode())
        return
    click.echo(_comparison(rows))
    click.echo(_answers(told, killed))
    click.echo(NEXT)


NEXT = """
What to type next, with an event of your own in event.json:

  eventonce explain event.json                  which rule takes it, and what its key is made of
  eventonce filter capture.jsonl > new.jsonl    drop the copies from a capture
  eventonce init                                a commented eventonce.toml
"""


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


def _answers(told: Sequence[worker.Told], killed: int) -> str:
    reasons = Counter(
        (one.status, one.reason.partition(":")[0]) for one in told if one.status != "done"
    )
    rows = [(status, count, reason) for (status, reason), count in reasons.most_common()]
    return (
        f"\nWhat eventonce said of what it did not run ({killed} worker was really killed, after "
        f"its write and before its commit):\n\n{table(rows, indent=2)}"
    )
