"""`eventonce diagnose`: the copies, the fields and the rules of a capture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from textwrap import indent
from typing import Any, Final

import click
import msgspec

from eventonce import presets
from eventonce.cli.options import (
    CapturePath,
    Settings,
    html_option,
    json_option,
    values_option,
    with_settings,
)
from eventonce.cli.output import counted, emit, one_line, printable, table, wrapped
from eventonce.cli.report import (
    check_captures,
    check_no_pipe,
    first_sentence,
    made_by,
    studying,
    typed,
)
from eventonce.errors import ConfigError
from eventonce.rules import Ruleset
from eventonce.rules.instants import duration_text
from eventonce.sources.inputs import Place
from eventonce.stores.sqlite.admin import make_private
from eventonce.study.causes import REMEDIES
from eventonce.study.diagnose import Diagnosis, KindReport, diagnose, lines_of
from eventonce.study.examples import of_causes, read
from eventonce.study.findings import Finding
from eventonce.study.index import Index, Planned
from eventonce.study.page.diagnosis import (
    covering,
    diagnosis_page,
    place,
    repeats,
    sentence,
    untold,
)
from eventonce.study.proposals import toml
from eventonce.study.windows import PROPOSED_RULES, Windows

STATES_PRESET: Final = "genesys:latest"
"""The preset with versions of states: it finds states that are sent twice."""

FEW_WINDOWS: Final = (10_000, 300_000, 86_400_000, 8 * 86_400_000)
"""The windows that are shown for each rule, in milliseconds."""
TYPES_SHOWN: Final = 12
"""The most types that are shown; a page shows all."""
FIELDS_SHOWN: Final = 40
"""The most fields of a type that are shown."""
NO_PROPOSAL: Final = (
    "No rule is proposed, and {file} has none: a rule is proposed for a source that no rule in use "
    "knows, if the capture proves its key."
)
WIDTH: Final = 32
"""The length of the longest bar, in characters."""


@click.command()
@click.argument("captures", nargs=-1, required=True, type=CapturePath())
@click.option(
    "--lines",
    "lines_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write one JSON object a line of the capture here: of which line it is a copy, and why.",
)
@click.option(
    "--propose",
    "rules_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the proposed rules here, as TOML.",
)
@html_option
@values_option
@with_settings("presets", "rules", "config")
@json_option
def command(
    settings: Settings,
    captures: tuple[Place, ...],
    lines_file: Path | None,
    rules_file: Path | None,
    page_file: Path | None,
    *,
    values: bool,
) -> None:
    """Diagnose the events of CAPTURES (files, folders, s3://bucket/prefix): how many copies there
    are, of which cause, how late they come, which fields tell events apart, what is suspicious, and
    which rules would recognise what the rules in use do not.

    Nothing is changed: no store is opened, and the capture is only read.
    """
    check_captures(captures, lines_file, rules_file, page_file)
    check_no_pipe(captures)
    states = Ruleset(presets.load(STATES_PRESET).rules, name="study")
    planned = Planned(settings.file.ruleset("study"), states)
    with studying("diagnose") as told, Index(captures, planned, told) as index:
        index.build()
        found = diagnose(index)
        examples = of_causes(index) if page_file else []
        if lines_file:
            encode = msgspec.json.Encoder().encode
            make_private(lines_file)
            with lines_file.open("wb") as stream:
                stream.writelines(encode(line) + b"\n" for line in lines_of(index))
    if rules_file:
        rules_file.write_text(toml(found.proposals), encoding="utf-8")
    if page_file:
        events = read(index.capture, {at for one in examples for at in (one.line, one.beside)})
        diagnosis_page(found, examples, events, values=values, made=made_by(captures)).write(
            page_file
        )
    unproposed = rules_file and not found.proposals
    note = f"\n{wrapped(NO_PROPOSAL.format(file=rules_file))}" if unproposed else ""
    emit(_document(found), _report(found), note)
    if index.unread:
        raise ConfigError("; ".join(index.unread))


def _document(found: Diagnosis) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(found)
    for kind, report in zip(document["kinds"], found.kinds, strict=True):
        kind["fields"] = [{**field._asdict(), "role": field.role} for field in report.fields]
    for rule, proposal in zip(document["proposals"], found.proposals, strict=True):
        rule["bound"] = proposal.bound
    for rule, windows in zip(document["windows"], found.windows, strict=True):
        for shown, window in zip(rule["grid"], windows.grid, strict=True):
            shown["wrong"] = window.wrong
    return document


def _report(found: Diagnosis) -> str:
    parts = [first_sentence(sentence(found))]
    if found.copies:
        parts += [_causes(found), _lateness(found), _windows(found.windows)]
    if found.findings:
        parts.append(_titled("Worth a look", _findings(found.findings)))
    if found.proposals:
        rules = printable(toml(found.proposals)).rstrip()
        parts.append(_titled("Proposed rules", indent(rules, "  ")))
    if found.copies:
        parts.append(_types(found))
    maps = [_fields(kind) for kind in found.kinds[:3] if kind.fields and kind.copies]
    if maps:
        parts.append(_titled("Fields of the types with most copies", "\n\n".join(maps)))
    return "\n\n".join(parts)


def _causes(found: Diagnosis) -> str:
    rows: list[tuple[object, ...]] = []
    for cause, number in found.causes.items():
        rows += [(number, cause, REMEDIES[cause]), ("", "", typed(place(found.where[cause])))]
    return _titled("Copies by cause", table(rows, indent=2, wrap=True))


def _types(found: Diagnosis) -> str:
    kinds = [kind for kind in found.kinds if kind.copies]
    rows = [(kind.copies, kind.events, kind.type, _top_cause(kind)) for kind in kinds[:TYPES_SHOWN]]
    head = ("copies", "events", "type", "mostly")
    text = table(rows, head=head, indent=2)
    return _titled("Types with copies", f"{text}{_more(len(kinds), TYPES_SHOWN, 'type', 2)}")


def _more(number: int, shown: int, of_what: str, indent: int) -> str:
    """Return a line about the rows that are not shown."""
    if number <= shown:
        return ""
    rest = counted(number - shown, of_what)
    return f"\n{' ' * indent}… and {rest} more: --html and --json have them all"


def _top_cause(kind: KindReport) -> str:
    cause, copies = next(iter(kind.causes.items()))
    return cause if copies == kind.copies else f"{cause} ({copies:,})"


def _lateness(found: Diagnosis) -> str:
    late = found.late
    most = max(late.histogram.values(), default=0) or 1
    rows = [
        (f"up to {mark}" if mark != "more" else "later", number, "▇" * -(-number * WIDTH // most))
        for mark, number in late.histogram.items()
    ]
    texts = [table(rows, indent=2), wrapped(typed(covering(late)), 2)] if late.bins else []
    if untold(found):
        texts.append(wrapped(typed(untold(found)), 2))
    return _titled("How late copies come", "\n".join(texts))


def _windows(found: Sequence[Windows]) -> str:
    """Return the effect of windows: for all rules together, and for rules that drop genuine
    events."""
    whole, *others = found
    rows = [
        (
            duration_text(window.length),
            f"{window.share:.1%}",
            f"{window.wrong:,.0f}"
            if window.repeats is not None
            else f"{window.differing:,} or more",
            "not known" if window.at_most is None else f"{window.at_most:,.0f}",
        )
        for window in whole.grid
    ]
    head: tuple[str, ...] = ("window", "copies dropped", "genuine events dropped", "at most (95 %)")
    texts = [table(rows, head=head, indent=2)]
    rules = [
        (*(f"{window.wrong:.0f}" for window in one.grid if window.length in FEW_WINDOWS), one.rule)
        for one in others
        if one.rule == PROPOSED_RULES or one.grid[-1].wrong
    ]
    if rules:
        head = (*map(duration_text, FEW_WINDOWS), "genuine events dropped, by rule")
        texts.append(table(rules, head=head, indent=2))
    texts.append(wrapped(typed(repeats(whole)), 2))
    return _titled("What windows would do", "\n".join(texts))


def _findings(found: Sequence[Finding]) -> str:
    texts = []
    for text, some in groupby(found, key=lambda finding: finding.text):
        rows = [(one.count, one.type, f"line {one.lines[0]}" if one.lines else "") for one in some]
        more = _more(len(rows), TYPES_SHOWN, "type", 4)
        texts.append(f"{wrapped(text, 2)}\n{table(rows[:TYPES_SHOWN], indent=4)}{more}")
    return "\n\n".join(texts)


def _fields(kind: KindReport) -> str:
    rows = [
        (field.role, field.path, "-" if field.m is None else f"{field.m:.2f}", f"{field.u:.4f}")
        for field in kind.fields
    ]
    head = ("role", "field", "m: copies agree", "u: others agree")
    more = _more(len(rows), FIELDS_SHOWN, "field", 4)
    return f"  {one_line(kind.type)}\n{table(rows[:FIELDS_SHOWN], head=head, indent=4)}{more}"


def _titled(title: str, text: str) -> str:
    return f"{click.style(title, bold=True)}\n{text}"
