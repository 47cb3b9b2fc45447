"""`eventonce letters`: the events that were given up, to look at, take out and run again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from eventonce.aws.dlq import Held
from eventonce.cli import FAILED, Subcommands
from eventonce.cli.letter_filter import Choice, chosen_by
from eventonce.cli.letter_format import HEAD, document, line, page, rows_of, whole
from eventonce.cli.letter_sources import Queued, Stored, opened_place
from eventonce.cli.options import confirmed, json_option, rules_option, yes_option
from eventonce.cli.redrive import Runners, by_consumer, foreseen
from eventonce.cli.table import counted, table
from eventonce.config import load
from eventonce.core.status import EFFECTIVE


@click.group(cls=Subcommands)
def command() -> None:
    """The events that were given up, each whole and with its reason.

    They are in the store, or in a dead-letter queue: --from. They are chosen by id (or its
    beginning), --status, --rule, --reason, --since, --until and --name.
    """


def _opened(
    place: str | None,
    store: str | None,
    config: Path | None,
    name: str | None,
    *,
    to_run: bool = False,
) -> Stored | Queued:
    return opened_place(place, load(config), store, config, name, to_run=to_run)


@command.command("list")
@chosen_by
@json_option
def list_letters(
    place: str | None,
    store: str | None,
    config: Path | None,
    name: str | None,
    *,
    as_json: bool,
    **choice: Any,
) -> int:
    """List dead letters, oldest first."""
    found = []
    meant = Choice(**choice)
    with _opened(place, store, config, name) as letters:
        for held in meant.among(letters.all()):
            if as_json:
                click.echo(msgspec.json.encode(document(held.letter)))
            else:
                found.append(held.letter)
    if found:
        click.echo(table(rows_of(found), head=HEAD))
    elif not meant.missed and not as_json:
        click.echo("no dead letters")
    return _missed(meant, as_json=as_json)


@command.command("show")
@chosen_by
@json_option
def show_letters(
    place: str | None,
    store: str | None,
    config: Path | None,
    name: str | None,
    *,
    as_json: bool,
    **choice: Any,
) -> int:
    """Show dead letters whole, with their events."""
    meant = Choice(**choice)
    with _opened(place, store, config, name) as letters:
        found = [held.letter for held in meant.among(letters.all())]
    for letter in found:
        click.echo(msgspec.json.encode(whole(letter)) if as_json else f"{page(letter)}\n")
    if not found and not meant.missed and not as_json:
        click.echo("no dead letters", err=True)
    return _missed(meant, as_json=as_json) or (0 if found else FAILED)


@command.command("export")
@chosen_by
@click.option(
    "-o", "--output", type=click.File("wb"), default="-", help="A file instead of stdout."
)
@json_option
def export_letters(
    place: str | None,
    store: str | None,
    config: Path | None,
    name: str | None,
    output: BinaryIO,
    *,
    as_json: bool,
    **choice: Any,
) -> int:
    """Write the events of dead letters as JSON Lines; the letters stay."""
    count = 0
    meant = Choice(**choice)
    with _opened(place, store, config, name) as letters:
        for held in meant.among(letters.all()):
            output.write(line(held.letter))
            count += 1
    _tell("exported", count, as_json=as_json, err=True)
    return _missed(meant, as_json=as_json)


@command.command("drop")
@chosen_by
@yes_option
@json_option
def drop_letters(
    place: str | None,
    store: str | None,
    config: Path | None,
    name: str | None,
    *,
    yes: bool,
    as_json: bool,
    **choice: Any,
) -> int:
    """Drop dead letters for good."""
    meant = Choice(**choice)
    with _opened(place, store, config, name, to_run=True) as letters:
        found = list(meant.among(letters.all()))
        question = f"Drop {counted(len(found), 'dead letter')} for good?"
        if found and not confirmed(question, yes=yes):
            return FAILED
        dropped = letters.drop(found)
    _tell("dropped", dropped, as_json=as_json)
    return _missed(meant, as_json=as_json) or (FAILED if dropped < len(found) else 0)


@command.command("redrive")
@chosen_by
@rules_option
@click.option(
    "--handler",
    metavar="MODULE:NAME",
    help="A handler or a Consumer of yours; without it the file's sinks, or else stdout.",
)
@click.option("--dry-run", is_flag=True, help="Only list what would run.")
@json_option
def redrive_letters(
    place: str | None,
    store: str | None,
    config: Path | None,
    name: str | None,
    rules: tuple[str, ...],
    handler: str | None,
    *,
    dry_run: bool,
    as_json: bool,
    **choice: Any,
) -> int:
    """Run dead letters again; what is settled by it is dropped.

    An event that took effect meanwhile is not run again.
    """
    runners = Runners(handler, load(config), rules, config, store)
    if runners.to_stdout and not dry_run and not as_json:
        click.echo("eventonce: no --handler and no [[sink]]: the events go to stdout", err=True)
    meant = Choice(**choice)
    statuses: Counter[str] = Counter()
    with (
        runners,
        opened_place(
            place, runners.said, store, config, name, to_run=not dry_run, own=runners.own
        ) as letters,
    ):
        if dry_run:
            _foretell(runners, list(meant.among(letters.all())), as_json=as_json)
            return _missed(meant, as_json=as_json)
        for some in letters.read():
            for consumer, held in by_consumer(list(meant.among(some))).items():
                outcomes = letters.run_again(runners.of(consumer), held)
                statuses.update(outcome.status for outcome in outcomes)
    said = msgspec.json.encode(statuses).decode()
    click.echo(said if as_json else table(statuses.most_common()) or "no dead letters", err=True)
    return _missed(meant, as_json=as_json) or (FAILED if statuses.keys() - EFFECTIVE else 0)


def _foretell(runners: Runners, found: list[Held], *, as_json: bool) -> None:
    foretold = [(held.letter, *foreseen(runners.of(held.letter.consumer), held)) for held in found]
    would_run = sum(kind == "run" for _, kind, _ in foretold)
    if as_json:
        documents = [
            document(letter) | {"would": kind, "why": why} for letter, kind, why in foretold
        ]
        click.echo(msgspec.json.encode({"would_run": would_run, "letters": documents}).decode())
        return
    click.echo(f"{counted(would_run, 'dead letter')} would run again")
    rows = [
        (*first, kind, why or reason)
        for (*first, reason), (_, kind, why) in zip(
            rows_of([letter for letter, _, _ in foretold]), foretold, strict=True
        )
    ]
    if rows:
        click.echo(table(rows, head=(*HEAD[:-1], "would", HEAD[-1])))


def _tell(what: str, count: int, *, as_json: bool, err: bool = False) -> None:
    said = msgspec.json.encode({what: count}).decode()
    click.echo(said if as_json else f"{what} {counted(count, 'dead letter')}", err=err)


def _missed(meant: Choice, *, as_json: bool) -> int:
    """The exit code: ids that no dead letter here begins with are said."""
    for begin in meant.missed:
        said = f"no dead letter's id begins with {begin!r} here"
        in_json = msgspec.json.encode({"error": said}).decode()
        click.echo(in_json if as_json else f"eventonce: {said}", err=True)
    return FAILED if meant.missed else 0
