"""`eventonce filter`: the events that are new, out of a stream."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from eventonce.cli import FAILED
from eventonce.cli.lines import Chunk, chunks
from eventonce.cli.options import (
    config_option,
    json_option,
    name_option,
    option,
    rules_option,
    ruleset,
    store_option,
)
from eventonce.cli.output import standard_output
from eventonce.cli.sieve import COPIES, Refused, Sieve
from eventonce.cli.table import table
from eventonce.config import load
from eventonce.envelope import MAX_BYTES
from eventonce.stores import open_store


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@rules_option
@store_option
@name_option
@config_option
@option("--rejects", type=click.File("ab"), help="Append lines that are no events, with why.")
@option("--max-bytes", default=MAX_BYTES, show_default=True, help="The longest event accepted.")
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
    """Read JSON Lines from FILES, or from stdin, and write the events that are new to stdout.

    Copies are dropped, whichever transport id they came with. A summary goes to stderr. Lines are
    settled only after they were flushed, so a filter that is killed and started again on the same
    store loses nothing.
    """
    uri = store or load(config).store
    if not uri and not as_json:
        click.echo("eventonce: no --store: nothing is remembered after this run", err=True)
    # Little that a filter makes is part of a cycle: looking for them is a tenth of its time.
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    opened = open_store(uri or "memory:")
    sieve = Sieve(
        opened,
        ruleset(config, rules, name),
        standard_output(),
        max_bytes=max_bytes,
        remembers=bool(uri),
    )
    with click.progressbar(
        length=max(1, sum(Path(name).stat().st_size for name in files if name != "-")),
        label="filter",
        file=sys.stderr,
        hidden=not (files and sys.stderr and sys.stderr.isatty()),
    ) as bar:
        for chunk in chunks(files, max_bytes):
            for refused in sieve.sift(sieve.plan(chunk.lines)):
                _reject(chunk, refused, rejects, as_json=as_json)
            bar.update(sum(map(len, chunk.lines)) + len(chunk.lines))
    opened.close()
    click.echo(_summary(sieve.counts, as_json=as_json), err=True)
    return 0 if sieve.counts.keys() <= {"done", "ignored", *COPIES} else FAILED


def _reject(chunk: Chunk, refused: Refused, rejects: BinaryIO | None, *, as_json: bool) -> None:
    place = f"{chunk.file}:{chunk.first + refused.at}"
    text = chunk.lines[refused.at].decode(errors="backslashreplace")
    entry = {"place": place, "status": refused.status, "reason": refused.reason, "event": text}
    if rejects is not None:
        rejects.write(msgspec.json.encode(entry) + b"\n")
        rejects.flush()
    elif as_json:
        click.echo(msgspec.json.encode(entry), err=True)
    else:
        # Nobody keeps it otherwise, so it is all said here.
        click.echo(f"{place}: {refused.status}: {refused.reason}\n  {text}", err=True)


def _summary(counts: Counter[str], *, as_json: bool) -> str:
    if as_json:
        return msgspec.json.encode(counts).decode()
    total = sum(counts.values())
    rows = [(status, count) for status, count in counts.most_common()]
    return f"{total} events, {counts['done']} new\n{table(rows, indent=2)}"
