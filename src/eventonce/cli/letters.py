"""`eventonce letters`: list, show, export, drop and redrive dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any, BinaryIO, Final

import click
import msgspec

from eventonce.aws.dlq import Held
from eventonce.cli import FAILED, Subcommands
from eventonce.cli.letter_sources import (
    Queued,
    Runners,
    Stored,
    by_consumer,
    foreseen,
    open_letters,
)
from eventonce.cli.options import (
    Settings,
    confirmed,
    handler_option,
    instant,
    json_option,
    options,
    presets_option,
    rules_option,
    with_settings,
    yes_option,
)
from eventonce.cli.output import (
    counted,
    echo_json,
    emit,
    notice,
    one_line,
    printable,
    table,
)
from eventonce.core.status import DEAD_LETTERS, EFFECTIVE
from eventonce.sinks.json_lines import line_of
from eventonce.types import Letter

HEAD: Final = ("id", "when", "status", "rule", "reason")

SHORT_ID: Final = 12
"""Characters of an id that are listed, unless more are needed to tell two dead letters apart."""

_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""Errors of an event that is not JSON: some are dead letters for that very reason."""


# The dead letters that a command is for


class Selection(msgspec.Struct):
    """The dead letters that a command is for, and the ids that none of them has."""

    settings: Settings
    source: str | None
    ids: tuple[str, ...]
    status: str | None
    rule: str | None
    reason: str | None
    since: int | None
    until: int | None
    _met: set[str] = msgspec.field(default_factory=set)

    def open(self, *, to_run: bool = False) -> Stored | Queued:
        """The store or the queue that has them."""
        return open_letters(self.source, self.settings, to_run=to_run)

    def among(self, held: Iterable[Held]) -> Iterator[Held]:
        """The selected ones of these, in their order."""
        since, until = self.since or 0, 1 << 62 if self.until is None else self.until
        for one in held:
            letter = one.letter
            named = [begin for begin in self.ids if letter.id.startswith(begin)]
            self._met.update(named)
            if (
                (not self.ids or named)
                and self.status in (None, letter.status)
                and self.rule in (None, letter.rule)
                and (self.reason or "") in letter.reason
                and since <= letter.at < until
            ):
                yield one

    @property
    def missed(self) -> list[str]:
        """The ids that no dead letter begins with."""
        return [begin for begin in self.ids if begin not in self._met]

    def report_missed(self, *, as_json: bool) -> int:
        """Report each missed id; the exit code."""
        for begin in self.missed:
            notice(f"no dead letter has an id that begins with {begin!r}", as_json=as_json)
        return FAILED if self.missed else 0


def _selects(function: Any) -> Any:
    """Give a command the arguments and options of a `Selection`."""

    @wraps(function)
    def command(settings: Settings, **given: Any) -> Any:
        chosen = {name: given.pop(name) for name in Selection.__struct_fields__ if name in given}
        return function(Selection(settings, **chosen), **given)

    return options(
        click.argument("ids", nargs=-1),
        click.option(
            "--status",
            type=click.Choice(sorted(DEAD_LETTERS)),
            help="Only dead letters of this status.",
        ),
        click.option("--rule", help="Only dead letters of this rule."),
        click.option("--reason", help="Only dead letters whose reason contains this text."),
        click.option(
            "--since",
            callback=instant,
            metavar="TIME",
            help="Only dead letters since TIME (UTC), such as 2026-11-16T08:00Z or 7d.",
        ),
        click.option(
            "--until",
            callback=instant,
            metavar="TIME",
            help="Only dead letters before TIME (UTC).",
        ),
        click.option(
            "--from",
            "source",
            metavar="SOURCE",
            help="`store`, or a dead-letter queue of eventonce, EventBridge, Lambda or SQS: "
            "sqs://NAME.  [default: `letters` of the file, or else the store]",
        ),
        with_settings("name", "store", "config"),
    )(command)


# The commands


@click.group(cls=Subcommands)
def letters() -> None:
    """Dead letters: the events that were given up, each complete and with its reason.

    They are in the store, or in a dead-letter queue (--from). They are selected by their IDS (the
    beginning of an id is enough), --status, --rule, --reason, --since, --until and --name.
    """


@letters.command("list")
@_selects
@json_option
def list_letters(selection: Selection, *, as_json: bool) -> int:
    """List dead letters, oldest first."""
    found = []
    with selection.open() as source:
        for held in selection.among(source.all()):
            if as_json:
                echo_json(_document(held.letter))
            else:
                found.append(held.letter)
    if found:
        click.echo(table(_rows(found), head=HEAD))
    elif not selection.missed and not as_json:
        click.echo("no dead letters")
    return selection.report_missed(as_json=as_json)


@letters.command("show")
@_selects
@json_option
def show_letters(selection: Selection, *, as_json: bool) -> int:
    """Show dead letters completely, with their events."""
    with selection.open() as source:
        found = [held.letter for held in selection.among(source.all())]
    for letter in found:
        if as_json:
            echo_json(_document(letter) | {"event": _event(letter)})
        else:
            click.echo(f"{_page(letter)}\n")
    if not found and not selection.missed and not as_json:
        click.echo("no dead letters", err=True)
    return selection.report_missed(as_json=as_json) or (0 if found else FAILED)


@letters.command("export")
@_selects
@click.option(
    "-o", "--output", type=click.File("wb"), default="-", help="A file instead of stdout."
)
@json_option
def export_letters(selection: Selection, output: BinaryIO, *, as_json: bool) -> int:
    """Write the events of dead letters as JSON Lines. The dead letters stay."""
    count = 0
    with selection.open() as source:
        for held in selection.among(source.all()):
            output.write(line_of(held.letter.event))
            count += 1
    _tell("exported", count, as_json=as_json, err=True)
    return selection.report_missed(as_json=as_json)


@letters.command("drop")
@_selects
@yes_option
@json_option
def drop_letters(selection: Selection, *, yes: bool, as_json: bool) -> int:
    """Delete dead letters for good."""
    with selection.open(to_run=True) as source:
        found = list(selection.among(source.all()))
        question = f"Drop {counted(len(found), 'dead letter')} for good?"
        if found and not confirmed(question, yes=yes):
            return FAILED
        dropped = source.drop(found)
    _tell("dropped", dropped, as_json=as_json)
    return selection.report_missed(as_json=as_json) or (FAILED if dropped < len(found) else 0)


@letters.command("redrive")
@_selects
@presets_option
@rules_option
@handler_option
@click.option("--dry-run", is_flag=True, help="Only list which dead letters would run.")
@json_option
def redrive_letters(
    selection: Selection,
    presets: tuple[str, ...],
    rules: tuple[str, ...],
    handler: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Run dead letters again, and drop those that are settled.

    An event that took effect meanwhile does not run again. Without --handler and without a
    [[sink]] in the file, the events are written to stdout.
    """
    runners = Runners(handler, selection.settings.also(presets=presets, rules=rules))
    if runners.to_stdout and not dry_run and not as_json:
        notice("no --handler and no [[sink]]: the events are written to stdout")
    statuses: Counter[str] = Counter()
    with (
        runners,
        open_letters(
            selection.source, selection.settings, to_run=not dry_run, own=runners.own
        ) as source,
    ):
        if dry_run:
            _foretell(runners, list(selection.among(source.all())), as_json=as_json)
            return selection.report_missed(as_json=as_json)
        for some in source.read():
            for consumer, held in by_consumer(list(selection.among(some))).items():
                outcomes = source.run_again(runners.of(consumer), held)
                statuses.update(outcome.status for outcome in outcomes)
    text = table(statuses.most_common()) or "no dead letters"
    emit(statuses, text, as_json=as_json, err=True)
    return selection.report_missed(as_json=as_json) or (
        FAILED if statuses.keys() - EFFECTIVE else 0
    )


def _foretell(runners: Runners, found: list[Held], *, as_json: bool) -> None:
    foretold = [(held.letter, *foreseen(runners.of(held.letter.consumer), held)) for held in found]
    would_run = sum(kind == "run" for _, kind, _ in foretold)
    if as_json:
        documents = [
            _document(letter) | {"would": kind, "why": why} for letter, kind, why in foretold
        ]
        echo_json({"would_run": would_run, "letters": documents})
        return
    click.echo(f"{counted(would_run, 'dead letter')} would run again")
    rows = [
        (*first, kind, why or reason)
        for (*first, reason), (_, kind, why) in zip(
            _rows([letter for letter, _, _ in foretold]), foretold, strict=True
        )
    ]
    if rows:
        click.echo(table(rows, head=(*HEAD[:-1], "would", HEAD[-1])))


def _tell(verb: str, count: int, *, as_json: bool, err: bool = False) -> None:
    emit({verb: count}, f"{verb} {counted(count, 'dead letter')}", as_json=as_json, err=err)


# A dead letter as text and as JSON


def _rows(found: Sequence[Letter]) -> list[tuple[str, ...]]:
    """A row for each. The versions of one subject have ids that begin alike."""
    ids = {letter.id for letter in found}
    short = SHORT_ID
    while len({name[:short] for name in ids}) < len(ids):
        short += 1
    return [
        (letter.id[:short], _when(letter), letter.status, letter.rule, letter.reason)
        for letter in found
    ]


def _page(letter: Letter) -> str:
    """All fields and the event, for people."""
    fields = [
        f"{name:<10}{one_line(str(value))}" for name, value in _document(letter).items() if value
    ]
    try:
        event = msgspec.json.format(letter.event, indent=2)
    except _UNREADABLE:
        event = letter.event
    return "\n".join([*fields, printable(event.decode(errors="replace"))])


def _document(letter: Letter) -> dict[str, Any]:
    """All fields but the event, for machines."""
    return {
        "id": letter.id,
        "when": _when(letter),
        "consumer": letter.consumer,
        "status": letter.status,
        "reason": letter.reason,
        "rule": letter.rule,
        "key": letter.key.hex(),
        "attempt": letter.attempt,
    }


def _event(letter: Letter) -> Any:
    try:
        return msgspec.json.decode(letter.event)
    except _UNREADABLE:
        return letter.event.decode(errors="replace")


def _when(letter: Letter) -> str:
    return datetime.fromtimestamp(letter.at / 1000, UTC).isoformat(timespec="seconds")
