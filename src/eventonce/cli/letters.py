"""`eventonce letters`: the events that were given up, to look at, take out and run again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from eventonce.cli import FAILED
from eventonce.cli.options import (
    config_option,
    json_option,
    name_option,
    opened,
    option,
    rules_option,
    ruleset,
    store_option,
)
from eventonce.cli.output import standard_output, write_whole
from eventonce.cli.table import table
from eventonce.config import load
from eventonce.consumer import Consumer
from eventonce.sinks import imported
from eventonce.types import Job, Letter


@click.group()
def command() -> None:
    """The events that were given up, each whole and with its reason.

    Letters are chosen by id (or its beginning), --status, --rule, --reason and --since.
    """


def _chosen_by(function: Any) -> Any:
    for decorate in (
        click.argument("ids", nargs=-1),
        option("--status", help="Only letters of this status: dead, conflict, invalid."),
        option("--rule", help="Only letters of this rule."),
        option("--reason", help="Only letters whose reason holds this text."),
        option("--since", type=click.DateTime(), help="Only letters since this time (UTC)."),
        name_option,
        store_option,
        config_option,
    ):
        function = decorate(function)
    return function


class Choice(msgspec.Struct, frozen=True):
    """Which letters are meant."""

    ids: tuple[str, ...]
    status: str | None
    rule: str | None
    reason: str | None
    since: datetime | None

    def among(self, letters: Iterator[Letter]) -> Iterator[Letter]:
        """The letters meant, in their order."""
        since = self.since.replace(tzinfo=UTC).timestamp() * 1000 if self.since else 0
        for letter in letters:
            if (
                (not self.ids or letter.id.startswith(self.ids))
                and self.status in (None, letter.status)
                and self.rule in (None, letter.rule)
                and (self.reason or "") in letter.reason
                and letter.at >= since
            ):
                yield letter


@command.command("list")
@_chosen_by
@json_option
def list_letters(
    store: str | None, config: Path | None, name: str | None, *, as_json: bool, **choice: Any
) -> None:
    """List letters, oldest first."""
    shelf = opened(config, store)
    rows = []
    for letter in Choice(**choice).among(shelf.letters(_meant(name, config))):
        if as_json:
            click.echo(msgspec.json.encode(_document(letter)))
        else:
            rows.append((letter.id[:12], _when(letter), letter.status, letter.rule, letter.reason))
    shelf.close()
    if rows:
        click.echo(table(rows, head=("id", "when", "status", "rule", "reason")))
    elif not as_json:
        click.echo("no letters")


@command.command("show")
@_chosen_by
@json_option
def show_letters(
    store: str | None, config: Path | None, name: str | None, *, as_json: bool, **choice: Any
) -> int:
    """Show letters whole, with their events."""
    shelf = opened(config, store)
    found = list(Choice(**choice).among(shelf.letters(_meant(name, config))))
    shelf.close()
    for letter in found:
        if as_json:
            click.echo(msgspec.json.encode(_document(letter) | {"event": _event(letter)}))
        else:
            rows = [(key, value) for key, value in _document(letter).items() if value]
            click.echo(f"{table(rows)}\n{_pretty(letter)}\n")
    return 0 if found else FAILED


@command.command("export")
@_chosen_by
@option("-o", "--output", type=click.File("wb"), default="-", help="A file instead of stdout.")
def export_letters(
    store: str | None, config: Path | None, name: str | None, output: BinaryIO, **choice: Any
) -> None:
    """Write the events of letters as JSON Lines; the letters stay where they are."""
    shelf = opened(config, store)
    output.writelines(
        letter.event.replace(b"\n", b" ") + b"\n"
        for letter in Choice(**choice).among(shelf.letters(_meant(name, config)))
    )
    shelf.close()


@command.command("drop")
@_chosen_by
@option("--yes", is_flag=True, help="Do not ask.")
@json_option
def drop_letters(
    store: str | None,
    config: Path | None,
    name: str | None,
    *,
    yes: bool,
    as_json: bool,
    **choice: Any,
) -> int:
    """Drop letters for good."""
    shelf = opened(config, store)
    ids = [one.id for one in Choice(**choice).among(shelf.letters(_meant(name, config)))]
    if ids and not yes and not click.confirm(f"Drop {len(ids)} letters for good?", err=True):
        return FAILED
    dropped = shelf.drop_letters(ids)
    shelf.close()
    said = msgspec.json.encode({"dropped": dropped}).decode()
    click.echo(said if as_json else f"dropped {dropped} letters")
    return 0


@command.command("redrive")
@_chosen_by
@rules_option
@option(
    "--handler",
    metavar="MODULE:NAME",
    help="A handler or a Consumer of yours; without it the events are written to stdout.",
)
@option("--dry-run", is_flag=True, help="Only say which letters would run.")
@json_option
def redrive_letters(
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
    """Run letters again; those that are settled by it are dropped.

    An event that took effect meanwhile is not run again.
    """
    shelf = opened(config, store)
    found = list(Choice(**choice).among(shelf.letters(_meant(name, config))))
    if dry_run:
        counted = msgspec.json.encode({"would_run": len(found)}).decode()
        click.echo(counted if as_json else f"{len(found)} letters would run again")
        return 0
    statuses: Counter[str] = Counter()
    for consumer, letters in _by_consumer(found):
        runner = _runner(shelf, consumer, handler, config, rules)
        statuses.update(outcome.status for outcome in runner.redrive(letters))
    shelf.close()
    counted = msgspec.json.encode(statuses).decode()
    click.echo(counted if as_json else table(statuses.most_common()) or "no letters", err=True)
    return FAILED if statuses.keys() - {"done", "duplicate", "stale", "unchanged"} else 0


def _meant(name: str | None, config: Path | None) -> str | None:
    """The consumer whose letters are meant: the one named, or the file's; None for all."""
    return name or load(config).name or None


def _by_consumer(letters: Sequence[Letter]) -> Iterator[tuple[str, list[Letter]]]:
    for consumer in dict.fromkeys(letter.consumer for letter in letters):
        yield consumer, [letter for letter in letters if letter.consumer == consumer]


def _runner(
    shelf: Any, name: str, handler: str | None, config: Path | None, rules: tuple[str, ...]
) -> Consumer:
    target = _to_stdout if handler is None else imported(handler)
    if isinstance(target, Consumer):
        return target
    chosen = ruleset(config, rules, name)
    consumer = Consumer(shelf, name=name, rules=(), handler=target)
    consumer.rules = chosen
    return consumer


def _to_stdout(job: Job) -> None:
    write_whole(standard_output(), job.event.raw.replace(b"\n", b" ") + b"\n")


def _document(letter: Letter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "when": _when(letter),
        "consumer": letter.consumer,
        "status": letter.status,
        "reason": letter.reason,
        "rule": letter.rule,
        "key": letter.key.hex(),
    }


def _when(letter: Letter) -> str:
    return datetime.fromtimestamp(letter.at / 1000, UTC).isoformat(timespec="seconds")


def _event(letter: Letter) -> Any:
    try:
        return msgspec.json.decode(letter.event)
    except (msgspec.MsgspecError, ValueError):
        return letter.event.decode(errors="replace")


def _pretty(letter: Letter) -> str:
    try:
        return msgspec.json.format(letter.event, indent=2).decode()
    except (msgspec.MsgspecError, ValueError):
        return letter.event.decode(errors="replace")
