"""`eventonce send`: send events to a bus, a queue or a receiver, several times if wanted."""

from __future__ import annotations

import math
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from eventonce.aws.eventbridge import Bus
from eventonce.aws.sessions import Access
from eventonce.aws.sqs import Queue
from eventonce.cli import FAILED
from eventonce.cli.options import (
    configured,
    endpoint_option,
    json_option,
    placed_uri,
    region_option,
)
from eventonce.cli.output import counted, emit, table, with_table
from eventonce.errors import ConfigError
from eventonce.sending import ReceiverClient, Summary, send_all, to_bus, to_queue
from eventonce.sources.inputs import standard_input

TARGETS: Final = ("bus", "queue", "url")

LONGEST_PAUSE: Final = 86_400.0
"""The most seconds between copies: a day is enough for a trial."""

_HEADER: Final = re.compile(
    r"\s*(?P<name>[A-Za-z0-9!#$%&'*+.^_`|~-]+)\s*:(?P<value>[\t\x20-\x7e\x80-\xff]*)"
)


class Header(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic of late
    """A header. The environment variable has one header a line, because headers contain spaces."""

    name = "header"
    envvar_list_splitter = "\n"


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--bus", metavar="NAME", help="Put the events on this EventBridge bus.")
@click.option(
    "--queue", metavar="URI", help="Send the events to this queue: sqs://NAME, or its URL."
)
@click.option("--url", help="Post the events to this receiver, one a request.")
@click.option("--copies", type=click.IntRange(1), default=1, help="How often each event is sent.")
@click.option(
    "--every",
    type=click.FloatRange(0, LONGEST_PAUSE),
    default=0.5,
    metavar="SECONDS",
    help="The pause before all events are sent once more.",
)
@click.option("--fresh", is_flag=True, help="Give copies new ids, as if they were published again.")
@click.option("--source", help="With --bus: the source, instead of the events' own.")
@click.option("--type", "type_", help="With --bus: the detail-type, instead of the events' own.")
@configured(
    "--header",
    "headers",
    type=Header(),
    multiple=True,
    metavar="NAME: VALUE",
    help="With --url: a header of each request; repeat the option for several.",
)
@region_option
@endpoint_option
@json_option
def send(file: str, *, copies: int, every: float, fresh: bool, **to: Any) -> int:
    """Send the events of FILE (one event, an array, or JSON Lines; - is stdin).

    Entries of PutEvents are sent as the events that EventBridge makes of them.
    Refused events are listed with the reason, and the exit code is 1.
    """
    if math.isnan(every):
        raise click.BadParameter("expected a number of seconds", param_hint="--every")
    target = _target(**_meant(to))
    summary = Summary()
    try:
        with _as_file(file) as path:
            send_all(target, path, summary, copies=copies, every=every, fresh=fresh)
    finally:
        target.close()
        _tell(summary)
    if not summary.events:
        raise ConfigError(f"{file}: the file has no events")
    return FAILED if summary.refused else 0


def _meant(to: dict[str, Any]) -> dict[str, Any]:
    """Check the options together, and return them. A header in the environment is no fault: it may
    be for another command."""
    context = click.get_current_context()

    def typed(parameter: str) -> bool:
        return context.get_parameter_source(parameter) is ParameterSource.COMMANDLINE

    chosen = [place for place in TARGETS if to[place] is not None]
    if len(chosen) != 1:
        number = "only one" if chosen else "one"
        raise click.UsageError(f"{number} of --bus, --queue and --url is needed")
    (place,) = chosen
    for beside, wanted in (("source", "bus"), ("type_", "bus"), ("headers", "url")):
        if typed(beside) and place != wanted:
            raise click.UsageError(f"--{beside.rstrip('_s')} needs --{wanted}")
    return to


def _target(
    *,
    bus: str | None,
    queue: str | None,
    url: str | None,
    source: str | None,
    type_: str | None,
    headers: Sequence[str],
    region: str | None,
    endpoint: str | None,
) -> Any:
    """Return the sender; it is imported only here, because each sender needs other libraries."""
    if bus is not None:
        there = Bus(bus, Access(region, endpoint), awaited=False)
        return to_bus(there, source=source, type=type_)
    if queue is not None:
        return to_queue(Queue.from_uri(placed_uri(queue, region, endpoint), awaited=False))
    return ReceiverClient(url or "", _headers(headers))


def _headers(texts: Sequence[str]) -> Mapping[str, str]:
    found = [_HEADER.fullmatch(text) for text in texts]
    if not all(found):
        # The header is not repeated: it may hold a secret.
        raise click.UsageError("--header: write NAME: VALUE, on one line and in plain characters")
    return {header["name"].lower(): header["value"].strip() for header in found if header}


@contextmanager
def _as_file(file: str) -> Iterator[Path]:
    """Yield the file; stdin is copied to a temporary one, so that it can be sent several times."""
    if file != "-":
        yield Path(file)
        return
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as kept:
        shutil.copyfileobj(standard_input(), kept)
        kept.flush()
        yield Path(kept.name)


def _tell(summary: Summary) -> None:
    text = (
        f"{counted(summary.events, 'event')}, "
        f"{counted(summary.copies, 'copy', 'copies')}: {summary.sent} accepted"
    )
    refused = f", {summary.refused} refused" if summary.refused else ""
    rows = [(it.number, it.copy, it.code, it.reason) for it in summary.refusals]
    left = summary.refused - len(rows)
    emit(
        summary,
        with_table(text + refused, summary.answers.most_common()),
        table(rows, head=("event", "copy", "code", "reason")) if rows else "",
        f"and {left} more" if left else "",
    )
