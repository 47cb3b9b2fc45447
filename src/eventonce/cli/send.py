"""`eventonce send`: events put on a bus, a queue or a receiver, several times over."""

from __future__ import annotations

import math
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click
import msgspec
from click.core import ParameterSource

from eventonce.aws.eventbridge import Bus
from eventonce.aws.sessions import Access
from eventonce.aws.sqs import Queue
from eventonce.cli import FAILED
from eventonce.cli.options import configured, json_option
from eventonce.cli.table import counted, table
from eventonce.errors import ConfigError
from eventonce.sending import Receiver, Summary, send_all, to_bus, to_queue

PLACES: Final = ("bus", "queue", "url")

LONGEST: Final = 86_400.0
"""Seconds between copies: a day, beyond which nobody waits for a trial."""

_HEADER: Final = re.compile(
    r"\s*(?P<name>[A-Za-z0-9!#$%&'*+.^_`|~-]+)\s*:(?P<value>[\t\x20-\x7e\x80-\xff]*)"
)


class Header(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic of late
    """A header; several in the environment stand on lines of their own, as each has a space."""

    name = "header"
    envvar_list_splitter = "\n"


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--bus", metavar="NAME", help="Put the events on this EventBridge bus.")
@click.option("--queue", metavar="URI", help="Send them to this queue: sqs://NAME, or its URL.")
@click.option("--url", help="Post them to this receiver, one a request.")
@click.option(
    "--copies", type=click.IntRange(1), default=1, show_default=True, help="How often each is sent."
)
@click.option(
    "--every",
    type=click.FloatRange(0, LONGEST),
    default=0.5,
    show_default=True,
    metavar="SECONDS",
    help="The pause before all are sent once more.",
)
@click.option(
    "--fresh", is_flag=True, help="Give copies a new id, as if they were published again."
)
@click.option("--source", default="", help="With --bus: their source, instead of their own.")
@click.option(
    "--type", "type_", default="", help="With --bus: their detail-type, instead of their own."
)
@configured(
    "--header",
    "headers",
    type=Header(),
    multiple=True,
    metavar="NAME: VALUE",
    help="With --url: a header of each request; may be given several times.",
)
@click.option("--region", help="The AWS region; as boto3 finds it, if not given.")
@click.option("--endpoint", metavar="URL", help="Another endpoint, such as an emulator's.")
@json_option
def command(file: str, *, copies: int, every: float, fresh: bool, as_json: bool, **to: Any) -> int:
    """Send the events of FILE (one, an array, or JSON Lines; - is stdin) as often as you like.

    Entries of PutEvents are sent as the events that EventBridge makes of them.
    Says what was refused, and why; the exit code is 1 then.
    """
    if math.isnan(every):
        raise click.BadParameter("a number of seconds was expected", param_hint="--every")
    target = _target(**_meant(to))
    summary = Summary()
    try:
        with _named(file) as path:
            send_all(target, path, summary, copies=copies, every=every, fresh=fresh)
    finally:
        target.close()
        _tell(summary, as_json=as_json)
    if not summary.events:
        raise ConfigError(f"{file}: there is no event in it")
    return FAILED if summary.refused else 0


def _meant(to: dict[str, Any]) -> dict[str, Any]:
    """Where to, and what goes with it; a header in the environment may be for another run."""
    context = click.get_current_context()

    def typed(parameter: str) -> bool:
        return context.get_parameter_source(parameter) is ParameterSource.COMMANDLINE

    chosen = [place for place in PLACES if to[place] is not None]
    if len(chosen) != 1:
        raise click.UsageError("give one of --bus, --queue and --url")
    (place,) = chosen
    for beside, wanted in (("source", "bus"), ("type_", "bus"), ("headers", "url")):
        if typed(beside) and place != wanted:
            raise click.UsageError(f"--{beside.rstrip('_s')} goes with --{wanted} alone")
    return to


def _target(
    *,
    bus: str | None,
    queue: str | None,
    url: str | None,
    source: str,
    type_: str,
    headers: Sequence[str],
    region: str | None,
    endpoint: str | None,
) -> Any:
    """What sends."""
    if bus is not None:
        there = Bus(bus, Access(region, endpoint), awaited=False)
        return to_bus(there, source=source, type=type_)
    if queue is not None:
        return to_queue(Queue.from_uri(_reached(queue, region, endpoint), awaited=False))
    return Receiver(url or "", _headers(headers))


def _reached(queue: str, region: str | None, endpoint: str | None) -> str:
    """The URI with the options that it does not say itself."""
    given = {"region": region, "endpoint": endpoint}
    said = [
        f"{key}={quote(value)}" for key, value in given.items() if value and f"{key}=" not in queue
    ]
    return queue + (("&" if "?" in queue else "?") + "&".join(said) if said else "")


def _headers(texts: Sequence[str]) -> Mapping[str, str]:
    found = [_HEADER.fullmatch(text) for text in texts]
    if not all(found):
        # Not repeated: a header is where a secret stands.
        raise click.UsageError("--header: write NAME: VALUE, on one line and in plain letters")
    return {header["name"].lower(): header["value"].strip() for header in found if header}


@contextmanager
def _named(file: str) -> Iterator[Path]:
    """The file by its name; what comes from stdin is kept meanwhile, to be sent several times."""
    if file != "-":
        yield Path(file)
        return
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as kept:
        shutil.copyfileobj(sys.stdin.buffer, kept)
        kept.flush()
        yield Path(kept.name)


def _tell(summary: Summary, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(summary))
        return
    said = (
        f"{counted(summary.events, 'event')}, "
        f"{counted(summary.copies, 'copy', 'copies')}: {summary.sent} taken"
    )
    click.echo(f"{said}, {summary.refused} refused" if summary.refused else said)
    if summary.answers:
        click.echo(table(summary.answers.most_common(), indent=2))
    rows = [(it.number, it.copy, it.code, it.reason) for it in summary.refusals]
    if rows:
        click.echo(table(rows, head=("event", "copy", "code", "reason")))
        left = summary.refused - len(rows)
        if left:
            click.echo(f"and {left} more")
