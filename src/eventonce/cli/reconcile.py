"""`eventonce reconcile`: which expected events never arrived."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import msgspec

from eventonce.cli import FAILED
from eventonce.cli.options import CapturePath, Settings, html_option, json_option, with_settings
from eventonce.cli.output import counted, emit, table, wrapped
from eventonce.cli.report import (
    check_captures,
    check_no_pipe,
    first_sentence,
    made_by,
    studying,
    typed,
)
from eventonce.errors import ConfigError
from eventonce.sinks.json_lines import line_of
from eventonce.sources.inputs import Place
from eventonce.stores.sqlite.admin import make_private
from eventonce.study.page.reconciled import UNTYPED, keyless, neither, reconciled_page, sentence
from eventonce.study.reconcile import Reconciled, by_fields, by_rules, reconcile

_capture = CapturePath()


@click.command()
@click.argument("expected", type=_capture)
@click.argument("seen", type=_capture)
@click.option(
    "--by",
    "paths",
    multiple=True,
    metavar="PATH",
    help="Compare by this field, such as detail.conversationId, instead of the key of the rules: "
    "for a list whose events have another form. Repeat the option for several.",
)
@click.option(
    "--missing",
    "missing_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the events that never arrived here, one a line.",
)
@html_option
@with_settings("presets", "rules", "config")
@json_option
def command(
    settings: Settings,
    expected: Place,
    seen: Place,
    paths: tuple[str, ...],
    missing_file: Path | None,
    page_file: Path | None,
) -> int:
    """Say which events of EXPECTED (an export, an archive, a second capture) are not in SEEN, by
    their keys; copies count once.

    If both are captures of one bus, the number of events that neither saw is estimated. The exit
    code is 1 if events are missing.
    """
    for captures in ([expected], [seen]):
        check_captures(captures, missing_file, page_file)
    key_of = by_fields(paths) if paths else by_rules(settings.file.ruleset("study"))
    if missing_file:
        check_no_pipe([expected])
        make_private(missing_file)
    opened = missing_file.open("wb") if missing_file else nullcontext()
    unread: list[str] = []
    with studying("reconcile") as told, opened as out:
        write = None if out is None else lambda raw: out.write(line_of(raw))
        found = reconcile([expected], [seen], key_of, write, unread, told)
    if page_file:
        reconciled_page(found, made=made_by([expected, seen])).write(page_file)
    document: dict[str, Any] = msgspec.to_builtins(found)
    document |= {"missing": found.missing, "neither": found.neither}
    emit(document, _report(found))
    if unread:
        raise ConfigError("; ".join(unread))
    return FAILED if found.missing else 0


def _report(found: Reconciled) -> str:
    lines = [
        first_sentence(sentence(found)),
        f"{counted(found.seen, 'event')} seen, {found.both:,} in both.",
    ]
    if found.types:
        rows = [(number, kind or UNTYPED) for kind, number in found.types.items()]
        lines.append(table(rows, indent=2))
    if found.keyless:
        lines.append(typed(keyless(found)))
    if neither(found):
        lines.append(wrapped(typed(neither(found))))
    return "\n".join(lines)
