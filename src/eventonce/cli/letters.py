"""`eventonce letters`: list, group, show, export, drop and redrive dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final

import click
import msgspec

from eventonce.aws.dlq import FoundLetter
from eventonce.cli import FAILED, Subcommands
from eventonce.cli.letter_options import Chosen, runners_of, selects
from eventonce.cli.options import (
    PrivateFile,
    confirmed,
    json_option,
    presets_option,
    rules_option,
    yes_option,
)
from eventonce.cli.output import (
    counted,
    echo_json,
    emit,
    one_line,
    printable,
    standard_output,
    table,
    wants_json,
    write_whole,
)
from eventonce.core.sealed import key_of_letter
from eventonce.core.status import EFFECTIVE
from eventonce.errors import ConfigError
from eventonce.letters import bulk
from eventonce.letters.bulk import Progress
from eventonce.letters.groups import Group, grouped
from eventonce.letters.runners import Runners
from eventonce.letters.selection import ALL_CONSUMERS
from eventonce.letters.sources import STORE, StoreLetterSource
from eventonce.sinks.json_lines import line_of
from eventonce.types import Job, Letter

LETTERS_HEAD: Final = ("id", "when", "status", "rule", "reason")
GROUPS_HEAD: Final = ("group", "letters", "last", "rules", "types", "reason")

SHORT_ID: Final = 12
"""Characters of an id that are listed, unless two dead letters need more to differ."""

NAMES_IN_GROUP: Final = 2
"""The most rules and types that the line of a group names."""

_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""The errors of an event that is not JSON; some events are dead letters for that reason."""

NO_GROUP: Final = (
    "no dead letters of this group; the id of a group is made with the first of `secrets`, and "
    "eventonce letters groups lists those of now"
)


@click.group(cls=Subcommands)
def letters() -> None:
    """Dead letters: the events that were given up, each complete and with its reason.

    They are in the store, or in a dead-letter queue (--from). They are selected by their IDS (the
    beginning of an id is enough), --status, --rule, --type, --reason, --group, --conversation,
    --since, --until and --name, and bounded by --limit.
    """


@letters.command("list")
@selects
@json_option
def list_letters(chosen: Chosen) -> int:
    """List dead letters, oldest first."""
    found: list[Letter] = []
    progress = Progress()
    with chosen.open() as place:
        for one in chosen.each(place, progress, ordered=True):
            if wants_json():
                echo_json(_document(one.letter))
            else:
                found.append(_without_event(one).letter)
    if found:
        click.echo(table(_rows(found), head=LETTERS_HEAD))
    elif not (progress.missed or progress.closed or wants_json()):
        click.echo(_nothing_selected(chosen))
    return chosen.end(None, progress)


@letters.command("groups")
@selects
@json_option
def group_letters(chosen: Chosen) -> int:
    """Count dead letters by their reasons, the most frequent first.

    Reasons that differ in numbers, ids and quoted values alone are one group: --group takes its
    id, to list, redrive, export or drop all of it.
    """
    progress = Progress()
    with chosen.open() as place:
        letters = (one.letter for one in chosen.each(place, progress))
        groups = grouped(letters, chosen.selection.group_of)
    if wants_json():
        for group in groups:
            echo_json(_group_document(group))
    elif groups:
        click.echo(table(list(map(_group_row, groups)), head=GROUPS_HEAD))
    elif not (progress.missed or progress.closed):
        click.echo(_nothing_selected(chosen))
    return chosen.end(None, progress)


@letters.command("show")
@selects
@json_option
def show_letters(chosen: Chosen) -> int:
    """Show dead letters completely, with their events."""
    progress, found = Progress(), False
    with chosen.open() as place:
        for one in chosen.each(place, progress, ordered=True):
            found = True
            if wants_json():
                echo_json(_document(one.letter) | {"event": _event(one.letter)})
            else:
                click.echo(f"{_page(one.letter)}\n")
    if not (found or progress.missed or progress.closed or wants_json()):
        click.echo(_nothing_selected(chosen), err=True)
    return chosen.end(None, progress) or (0 if found else FAILED)


@letters.command("export")
@selects
@click.option(
    "-o",
    "--output",
    type=PrivateFile("wb"),
    default="-",
    show_default=False,
    help="A file instead of stdout.",
)
@click.option("--dry-run", is_flag=True, help="Only count whose events would be written.")
@json_option
def export_letters(chosen: Chosen, output: BinaryIO, *, dry_run: bool) -> int:
    """Write the events of dead letters as JSON Lines. The dead letters stay."""
    with chosen.open() as place:
        if dry_run:
            looking = Progress()
            for _ in bulk.export(chosen.batches(place, looking), looking):
                pass
            many, sealed = looking.counts["exported"], looking.counts[bulk.SEALED]
            text = f"{counted(many, 'dead letter')} would be exported"
            emit({"would_export": many, bulk.SEALED: sealed}, text)
            return chosen.end(place, looking)
        # Output on a terminal is already visible, so no progress is shown there.
        with chosen.acting("export", shown=not output.isatty()) as progress:
            output.writelines(bulk.export(chosen.batches(place, progress), progress))
        _tell("exported", progress.counts["exported"], err=True)
        return chosen.end(place, progress)


@letters.command("reseal")
@selects
@json_option
def reseal_letters(chosen: Chosen) -> int:
    """Encrypt dead letters of the store with the first of the sealing_keys.

    After a change of keys, and for dead letters from before the first key. A queue keeps its dead
    letters for two weeks at most, and is not read.
    """
    if chosen.source not in (None, STORE):
        raise ConfigError("--from: a queue is not sealed again")
    store = chosen.settings.open_store()
    with (
        StoreLetterSource(store, chosen.selection.consumer) as place,
        chosen.acting("reseal") as progress,
    ):
        bulk.reseal(store, chosen.batches(place, progress), progress)
        _tell("resealed", progress.counts["resealed"])
        return chosen.end(place, progress)


@letters.command("drop")
@selects
@click.option("--dry-run", is_flag=True, help="Only list which dead letters would be dropped.")
@yes_option
@json_option
def drop_letters(chosen: Chosen, *, dry_run: bool, yes: bool) -> int:
    """Delete dead letters for good."""
    looking = Progress()
    with chosen.open(to_change=not dry_run) as place:
        found = [_without_event(one) for one in chosen.each(place, looking)]
        if dry_run:
            _list_dropped(found)
            return chosen.end(place, looking)
        question = f"Drop {counted(len(found), 'dead letter')} for good?"
        if found and not confirmed(question, yes=yes):
            return FAILED
        with chosen.acting("drop") as progress:
            bulk.drop(place, bulk.batched(found, progress), progress)
        _tell("dropped", progress.done)
        progress.missed, progress.closed = looking.missed, looking.closed
        code = chosen.end(place, progress)
    return code or (FAILED if progress.done < len(found) else 0)


@letters.command("redrive")
@selects
@presets_option
@rules_option
@click.option(
    "--handler",
    metavar="MODULE:NAME",
    help="A handler or a Consumer of yours, instead of the file's sinks; - for stdout.",
)
@click.option("--dry-run", is_flag=True, help="Only list which dead letters would run.")
@json_option
def redrive_letters(
    chosen: Chosen,
    presets: tuple[str, ...],
    rules: tuple[str, ...],
    handler: str | None,
    *,
    dry_run: bool,
) -> int:
    """Run dead letters again, and drop those that are settled.

    An event that took effect meanwhile does not run again. With `--handler -` the events are
    written to stdout, for a program that is the handler. Ctrl-C stops after the batch under way.
    """
    settings = chosen.settings.also(presets=presets, rules=rules)
    nobody = handler is None and not settings.file.sink
    if nobody and not dry_run:
        raise ConfigError(NO_RUNNER)
    to_stdout = handler == TO_STDOUT
    with (
        runners_of(settings, handler, _to_stdout if to_stdout or nobody else None) as runners,
        chosen.open(to_change=not dry_run, own=runners.own) as place,
    ):
        if dry_run:
            looking = Progress()
            _foretell(runners, chosen.batches(place, looking, ordered=True))
            return chosen.end(place, looking)
        with chosen.acting("redrive", shown=not to_stdout) as progress:
            bulk.redrive(place, runners, chosen.batches(place, progress), progress)
        text = table(progress.counts.most_common()) or _nothing_selected(chosen)
        emit(progress.counts, text, err=True)
        code = chosen.end(place, progress)
    return code or (FAILED if progress.counts.keys() - EFFECTIVE else 0)


def _nothing_selected(chosen: Chosen) -> str:
    if chosen.selection.group:
        return NO_GROUP
    text = chosen.selection.text().removeprefix(ALL_CONSUMERS).lstrip()
    return f"no dead letters with {text}" if text else "no dead letters"


TO_STDOUT: Final = "-"

NO_RUNNER: Final = (
    "letters redrive: no sink and no handler: write a [[sink]] table into eventonce.toml, name a "
    "handler with --handler MODULE:NAME, or have them written to stdout with --handler -"
)


def _to_stdout(job: Job) -> None:
    write_whole(standard_output(), line_of(job.event.raw))


def _foretell(runners: Runners, batches: bulk.Batches) -> None:
    foretold = [
        (_without_event(one.found).letter, one.would, one.why)
        for one in bulk.foretell(runners, batches)
    ]
    would_run = sum(would == "run" for _, would, _ in foretold)
    documents = [
        _document(letter) | {"would": would, "why": why} for letter, would, why in foretold
    ]
    rows = [
        (*first, would, why or reason)
        for (*first, reason), (_, would, why) in zip(
            _rows([letter for letter, _, _ in foretold]), foretold, strict=True
        )
    ]
    emit(
        {"would_run": would_run, "letters": documents},
        f"{counted(would_run, 'dead letter')} would run again",
        table(rows, head=(*LETTERS_HEAD[:-1], "would", LETTERS_HEAD[-1])) if rows else "",
    )


def _list_dropped(found: list[FoundLetter]) -> None:
    letters = [one.letter for one in found]
    emit(
        {"would_drop": len(letters), "letters": list(map(_document, letters))},
        f"{counted(len(letters), 'dead letter')} would be dropped",
        table(_rows(letters), head=LETTERS_HEAD) if letters else "",
    )


def _without_event(found: FoundLetter) -> FoundLetter:
    """Return the dead letter without its event, so that a long list fits into memory."""
    return found._replace(letter=msgspec.structs.replace(found.letter, event=b""))


def _tell(verb: str, count: int, *, err: bool = False) -> None:
    emit({verb: count}, f"{verb} {counted(count, 'dead letter')}", err=err)


# Dead letters as text and as JSON


def _rows(found: Sequence[Letter]) -> list[tuple[str, ...]]:
    """Return a row for each dead letter. Ids are shown longer if needed, because the versions of
    one subject have ids with the same beginning."""
    ids = {letter.id for letter in found}
    short = SHORT_ID
    while len({name[:short] for name in ids}) < len(ids):
        short += 1
    return [
        (letter.id[:short], _when(letter.at), letter.status, letter.rule, letter.reason)
        for letter in found
    ]


def _page(letter: Letter) -> str:
    """Return all fields and the event as text."""
    fields = [
        f"{name:<10}{one_line(str(value))}" for name, value in _document(letter).items() if value
    ]
    if key_of_letter(letter):
        return "\n".join(fields)
    try:
        event = msgspec.json.format(letter.event, indent=2)
    except _UNREADABLE:
        event = letter.event
    return "\n".join([*fields, printable(event.decode(errors="replace"))])


def _document(letter: Letter) -> dict[str, Any]:
    """Return all fields except the event, for JSON."""
    return {
        "id": letter.id,
        "when": _when(letter.at),
        "consumer": letter.consumer,
        "status": letter.status,
        "reason": letter.reason,
        "rule": letter.rule,
        "key": letter.key.hex(),
        "attempt": letter.attempt,
    }


def _event(letter: Letter) -> Any:
    """Return the event, for JSON; its text if it is not JSON, None if it is sealed."""
    if key_of_letter(letter):
        return None
    try:
        return msgspec.json.decode(letter.event)
    except _UNREADABLE:
        return letter.event.decode(errors="replace")


def _group_row(group: Group) -> tuple[object, ...]:
    """Return the line of a group."""
    last = _when(group.last)
    return (group.id, group.count, last, _named(group.rules), _named(group.types), group.reason)


def _group_document(group: Group) -> dict[str, Any]:
    """Return a group, for JSON."""
    moments = {"first": _when(group.first), "last": _when(group.last)}
    return msgspec.structs.asdict(group) | moments


def _when(at: int) -> str:
    """Return a time, in a form that `--since` accepts."""
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="seconds")


def _named(counts: Any) -> str:
    names = [name or "none" for name, _ in counts.most_common(NAMES_IN_GROUP)]
    return ", ".join([*names, *(["…"] if len(counts) > NAMES_IN_GROUP else [])])
