"""`eventonce demo`: a day of calls under the usual recipes, and under eventonce."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Final

import click

from eventonce import demo as played
from eventonce.cli import started_as
from eventonce.cli.options import json_option
from eventonce.cli.output import (
    counted,
    echo_json,
    standard_output,
    table,
    wants_json,
    wrapped,
    write_whole,
)
from eventonce.cli.signals import ended_by_signals, wait_for_signal
from eventonce.demo import worker
from eventonce.demo.page import demo_page
from eventonce.study.backtest import Result
from eventonce.study.causes import Cause
from eventonce.study.guards import RECIPES
from eventonce.study.page.layout import Page

CAUSE_WORDS: Final[Mapping[Cause, str]] = {
    "overlapping-rules": "delivered twice at once: two rules match",
    "redelivery": "delivered again by the queue, half a minute or five minutes later",
    "target-retry": "delivered again after an error of the target, minutes to hours later",
    "second-integration": "published by a second integration, under another id",
    "cross-region": "forwarded from another region, under another id",
    "replay": "replayed from an archive",
    "re-publish": "published again by Genesys, up to four days later, under a new id",
}
PAGE_FILE: Final = Path("eventonce-demo.html")


@click.command()
@click.option("--events", is_flag=True, help="Only print the events as they arrive, one a line.")
@click.option(
    "--html",
    "page_file",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help=f"Write the page here.  [default: {PAGE_FILE}; none with --json]",
)
@click.option(
    "--dashboard",
    "listen",
    is_flag=False,
    flag_value="0",
    metavar="[HOST:]PORT",
    help="Play the day slowly, and show it live in a browser; without a port on a free one.",
)
@json_option
def demo(*, events: bool, page_file: Path | None, listen: str | None) -> None:
    """Play a day of contact-centre calls against the usual recipes and against eventonce on
    SQLite, with copies, re-publishes, reorderings, an outage and a crash, as they really happen;
    and write a page about it."""
    if listen is not None:
        _watched(listen)
        return
    deliveries = played.deliveries()
    if events:
        arrived = b"".join(delivery.line + b"\n" for delivery in deliveries)
        write_whole(standard_output(), arrived)
        return
    if not wants_json():
        click.echo(_story(deliveries))
    results = [played.judged(recipe, deliveries) for recipe in RECIPES]
    with TemporaryDirectory() as folder:
        ours, told, killed = worker.effects(deliveries, Path(folder) / "demo.db")
    ran = [one for one in told if one.status == "done"]
    dropped = dict(enumerate(one.status for one in told if one.status == "duplicate"))
    assert len(ran) == sum(ours.values()), "every effect is one outcome"
    results.append(played.counted("eventonce", deliveries, ours, dropped))
    written = None
    if page_file or not wants_json():
        page = demo_page([results[-1], *results[:-1]], deliveries)
        written = _written(page, page_file)
    if wants_json():
        document = {
            "facts": len({delivery.fact for delivery in deliveries}),
            "deliveries": len(deliveries),
            "killed": killed,
            "results": [
                {"recipe": one.guard, "lost": one.lost, "copies": one.let_through}
                for one in results
            ],
        }
        echo_json(document)
        return
    click.echo(_comparison(results))
    click.echo(_answers(told, killed))
    click.echo(f"\nNext, with these events or a capture of your own:\n\n{_next(started_as())}")
    click.echo(f"\nThe same as a page, with plots: {click.style(str(written), bold=True)}")


def _watched(listen: str) -> None:
    """Run the worker of the demo until Ctrl-C, with its dashboard."""
    # The dashboard is an extra; the rest of the demo does not need it.
    from eventonce.dashboard import dashboard, server  # noqa: PLC0415
    from eventonce.demo import live  # noqa: PLC0415

    ended = threading.Event()
    with (
        TemporaryDirectory(prefix="eventonce-demo-") as folder,
        live.playing(Path(folder)) as playing,
    ):
        app = dashboard(playing.resources)

        def stop(why: str) -> None:
            ended.set()
            playing.worker.stop(why)

        with (
            server.listen(listen) as listening,
            server.serving(app, listening),
            ended_by_signals(stop),
        ):
            click.echo(_guide(server.link_of(app, listening)))
            playing.worker.run()
            # A worker that has ended is no fault here: the pages stay for whoever looks at them.
            playing.resources.state = None
            if not ended.is_set():
                click.echo("The day is over. The dashboard stays until Ctrl-C.")
            wait_for_signal(ended)


def _guide(link: str) -> str:
    rows = [
        ("Overview", "rates by outcome, live; a part of the CRM fails, and works again later"),
        ("Search", "choose a conversation: the outcome of each event, and of its copies"),
        ("Dead letters", "more than a hundred for one reason: redrive them by filter"),
    ]
    return (
        f"A worker plays the day slowly, with its copies:\n\n  {link}\n\n"
        f"{table(rows, indent=2, wrap=True)}\n\nCtrl-C ends it, and deletes its files."
    )


def _written(page: Page, file: Path | None) -> Path:
    """Write the page, and return its file: a temporary one, if this folder is not writable."""
    try:
        page.write(file or PAGE_FILE)
    except OSError:
        if file:
            raise
        file = Path(mkdtemp(prefix="eventonce-"), PAGE_FILE)
        page.write(file)
    return file or PAGE_FILE


def _next(eventonce: str) -> str:
    rows = [
        (f"{eventonce} demo --events > capture.jsonl", "the events of this day"),
        (f"head -1 capture.jsonl | {eventonce} explain -", "the rule and the key of an event"),
        (f"{eventonce} filter capture.jsonl > new.jsonl", "the new events; copies are counted"),
        (f"{eventonce} init", "a commented eventonce.toml"),
    ]
    return table(rows, indent=2, wrap=True)


def _story(deliveries: Sequence[played.DemoDelivery]) -> str:
    ways = Counter(delivery.cause for delivery in deliveries)
    rows = [
        (ways[None], "events, each of which must take effect once"),
        *((ways[cause], words) for cause, words in CAUSE_WORDS.items() if ways[cause]),
    ]
    trouble = (
        f"The store is unavailable for {played.OUTAGE_DELIVERIES} of them, and one worker is "
        "killed during its work."
    )
    return (
        f"A Monday of a contact centre: {len(deliveries)} deliveries arrive, not in order:\n\n"
        f"{table(rows, indent=2)}\n\n{wrapped(trouble)}\n"
    )


def _comparison(results: Sequence[Result]) -> str:
    head = ("how copies are recognised", "lost", "copies run")
    rows = [(one.guard, one.lost, one.let_through) for one in results]
    lines = table(rows, head=head, indent=2).splitlines()
    return "\n".join([*lines[:-1], click.style(lines[-1], fg="green", bold=True)])


def _answers(told: Sequence[worker.OutcomeLine], killed: int) -> str:
    reasons = Counter(
        (one.status, one.reason.partition(":")[0]) for one in told if one.status != "done"
    )
    rows = [(status, count, reason) for (status, reason), count in reasons.most_common()]
    killed_ = f"{counted(killed, 'worker')} really killed, after its write and before its commit"
    heading = wrapped(f"Deliveries that eventonce did not run, and why ({killed_}):")
    return f"\n{heading}\n\n{table(rows, indent=2)}"
