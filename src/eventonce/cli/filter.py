"""`eventonce filter`: the events that are new, out of a stream."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import IO, BinaryIO

import click
import msgspec

from eventonce.cli import FAILED
from eventonce.cli.options import (
    config_option,
    json_option,
    name_option,
    rules_option,
    ruleset,
)
from eventonce.cli.output import standard_output
from eventonce.cli.rejects import Rejects
from eventonce.cli.sieve import Sieve
from eventonce.cli.table import counted, table
from eventonce.config import load
from eventonce.core.masking import masked
from eventonce.core.reasons import AGAIN
from eventonce.core.status import COPIES
from eventonce.envelope import MAX_BYTES
from eventonce.errors import ConfigError
from eventonce.rules import Ruleset
from eventonce.sources.json_stream import Chunk, Long, Unreadable, chunks, inside
from eventonce.stores import open_store


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@rules_option
@click.option("-s", "--store", metavar="URI", help="Remember here over runs: sqlite:///seen.db, …")
@name_option
@config_option
@click.option(
    "--rejects", type=click.File("ab"), help="Append invalid input here, whole, with the reason."
)
@click.option(
    "--max-bytes",
    type=click.IntRange(1),
    default=MAX_BYTES,
    show_default=True,
    help="The bytes of the longest event accepted.",
)
@json_option
def command(
    files: tuple[str, ...],
    rules: tuple[str, ...],
    store: str | None,
    name: str | None,
    config: Path | None,
    rejects: BinaryIO | None,
    max_bytes: int,
    *,
    as_json: bool,
) -> int:
    """Read events from FILES, or from stdin, and write those that are new to stdout, one a line.

    They are JSON Lines, a JSON array, or documents one after the other, maybe compressed with gzip.
    Copies are dropped, whichever transport id they came with. A summary goes to stderr.

    Only --store makes it remember: the store of eventonce.toml or EVENTONCE_STORE is your
    consumer's, for which an event that was filtered would be done and never run. An event is
    marked done only after its line was written, so a filter that is killed and started again on
    the same store loses nothing.
    """
    chosen = ruleset(config, rules, name)
    if not as_json:
        click.echo(f"eventonce: {_memory(store, chosen, config)}", err=True)
        if not files and sys.stdin is not None and sys.stdin.isatty():
            click.echo("eventonce: reads what you type; Ctrl-D ends it", err=True)
    # Little that a filter makes is part of a cycle: looking for them is a tenth of its time.
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    opened = open_store(store or "memory:")
    sieve = Sieve(
        opened, chosen, standard_output(), max_bytes=max_bytes, remembers=store is not None
    )
    unread: list[str] = []
    with click.progressbar(
        length=max(1, sum(Path(file).stat().st_size for file in files if file != "-")),
        label="filter",
        file=sys.stderr,
        hidden=not (files and sys.stderr and sys.stderr.isatty()),
    ) as bar:
        refuse = Rejects(rejects, as_json=as_json, clear=not bar.hidden)
        for file in files or ["-"]:
            begun = bar.pos
            with click.open_file(file, "rb") as stream:
                try:
                    for chunk in chunks(stream, max_bytes):
                        _sift(chunk, sieve, refuse, "stdin" if file == "-" else file, max_bytes)
                        bar.update(begun + _position(stream) - bar.pos)
                except Unreadable as error:
                    unread.append(f"{file} cannot be read to its end: {error}")
    opened.close()
    refuse.close()
    click.echo(_summary_in_json(sieve, store) if as_json else _summary(sieve), err=True)
    if unread:
        raise ConfigError("; ".join(unread))
    return 0 if sieve.counts.keys() <= {"done", "ignored", *COPIES} else FAILED


def _sift(
    chunk: Chunk | Long,
    sieve: Sieve,
    refuse: Rejects,
    file: str,
    longest: int,
    *,
    may_be_batches: bool = True,
) -> None:
    if isinstance(chunk, Long):
        sieve.counts["invalid"] += 1
        refuse.add_long(f"{file}{chunk.place}", chunk, longest)
        return
    events = chunk.events if chunk.by_line else [_on_one_line(event) for event in chunk.events]
    plan = sieve.plan(events)
    refused = [events[one.at] for one in plan.refused]
    if may_be_batches and any(map(inside, refused)):
        for some in chunk.apart():
            _sift(some, sieve, refuse, file, longest, may_be_batches=False)
        return
    for one in sieve.sift(plan):
        refuse.add(f"{file}{chunk.place(one.at)}", one.status, one.reason, events[one.at])


def _on_one_line(event: bytes) -> bytes:
    if b"\n" not in event and b"\r" not in event:
        return event
    try:
        return msgspec.json.format(event, indent=-1)
    except (msgspec.DecodeError, RecursionError):
        # No event either, and refused: but not in lines that would be taken for others.
        return event.replace(b"\n", b" ").replace(b"\r", b" ")


def _position(stream: IO[bytes]) -> int:
    try:
        return stream.tell()
    except OSError:
        # A pipe, of which nobody knows the length either.
        return 0


def _memory(store: str | None, rules: Ruleset, config: Path | None) -> str:
    if store is not None:
        spans = {rule.remember for rule in rules.rules}
        most = "up to " if len(spans) > 1 else ""
        return f"remembers in {masked(store)} for {most}{_span(max(spans))}"
    theirs = load(config).store or os.environ.get("EVENTONCE_STORE", "")
    left = f"; {masked(theirs)} is not touched" if theirs else ""
    return f"remembers nothing beyond this run (--store URI does){left}"


def _span(milliseconds: int) -> str:
    for unit, size in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000)):
        if milliseconds % size == 0:
            return counted(milliseconds // size, unit)
    return f"{milliseconds / 1000:g} seconds"


def _causes(sieve: Sieve) -> dict[str, int]:
    """The duplicates by what their reason begins with: redelivery, re-publish."""
    return {AGAIN[cause].partition(":")[0]: many for cause, many in sieve.again.most_common()}


def _summary_in_json(sieve: Sieve, store: str | None) -> str:
    document = {
        "events": sieve.counts.total(),
        "statuses": sieve.counts,
        "duplicates": _causes(sieve),
        "store": store and masked(store),
    }
    return msgspec.json.encode(document).decode()


def _summary(sieve: Sieve) -> str:
    counts = sieve.counts
    causes = ", ".join(f"{many} {cause}" for cause, many in _causes(sieve).items())
    said = f"{counted(counts.total(), 'event')}, {counts['done']} new"
    rows = [
        (status, many, causes if status == "duplicate" else "")
        for status, many in counts.most_common()
    ]
    return f"{said}\n{table(rows, indent=2)}" if rows else said
