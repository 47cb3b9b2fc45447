"""`eventonce shadow report`: what rules in shadow mode would have done, and when to switch on."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from eventonce.cli import FAILED, Subcommands
from eventonce.cli.options import CapturePath, Settings, html_option, json_option, with_settings
from eventonce.cli.output import counted, emit, table
from eventonce.cli.report import check_captures, studying, typed
from eventonce.config import Config
from eventonce.errors import ConfigError
from eventonce.rules.instants import duration_text
from eventonce.runtime.shadow import NO_RECORD, NO_RECORD_YET
from eventonce.sources.files import Capture
from eventonce.sources.inputs import Place
from eventonce.study.page.shadowed import changes, shadow_page
from eventonce.study.shadow import ShadowReport, shadow_report


@click.group(cls=Subcommands)
def shadow() -> None:
    """Report on rules in shadow mode."""


@shadow.command()
@click.argument("records", nargs=-1, type=CapturePath())
@html_option
@with_settings("config")
@json_option
def report(settings: Settings, records: tuple[Place, ...], page_file: Path | None) -> int:
    """Say what rules in shadow mode would have dropped, by the RECORDS that `shadow_log` names:
    files, folders or s3://bucket/prefix, those of all workers together; or exports of the log of a
    function. Without RECORDS it is the record that `shadow_log` of the file names.

    The exit code is 0 if it is safe to switch on, and 1 if there is not enough yet.
    """
    records = records or (_record_of(settings.file),)
    check_captures(records, page_file)
    unread: list[str] = []
    with studying("shadow") as told:
        found = shadow_report(Capture(records, unread=unread, progress=told))
    if page_file is not None:
        shadow_page(found).write(page_file)
    document = {**msgspec.to_builtins(found), "safe": found.safe}
    emit(document, _text(found))
    if unread:
        raise ConfigError("; ".join(unread))
    return 0 if found.safe else FAILED


def _record_of(file: Config) -> Path:
    if not file.shadow_log:
        raise ConfigError(NO_RECORD)
    path = Path(file.shadow_log)
    if not path.exists():
        raise ConfigError(NO_RECORD_YET.format(path=path))
    return path


def _text(found: ShadowReport) -> str:
    rows = [(one.count, one.type, one.rule, one.why) for one in found.by_type]
    events, drops = counted(found.events, "event"), counted(found.drops, "shadow drop")
    lines = [f"{verdict(found)}\n", f"{events} in {span(found.span)}, {drops}"]
    if rows:
        lines.append(table(rows, head=("drops", "type", "rule", "why"), indent=2))
    facts = [
        ("longest gap", span(found.longest_gap)),
        ("remembered", span(found.remember)),
        ("other content", found.differing),
        ("not compared", f"{found.unmatched}, whose original is not in the record"),
        *((f"would be {kind}", _held_back(kind, many)) for kind, many in found.held_back.items()),
    ]
    if found.broken:
        facts.append(
            ("not read", f"{counted(found.broken, 'line')} of the record, cut off or broken")
        )
    lines += ["", table(facts, indent=2)]
    lines += ["", *map(typed, changes(found))] if found.changed else []
    if found.examples:
        lines += ["", "Drops with another content"]
        lines.append(table(found.examples, head=("original", "drop"), indent=2))
    if found.guard is not None:
        lines += ["", "Beside your guard", table(found.guard.rows, indent=2)]
    return "\n".join(lines)


def _held_back(kind: str, many: int) -> str:
    return f"{many}, which came while their original ran" if kind == "busy" else str(many)


def verdict(found: ShadowReport) -> str:
    """Return whether it is safe to leave shadow mode, and if not, why."""
    if found.safe:
        return "Safe to switch on: take `shadow` out of the rules."
    why = "".join(f"\n  - {one}" for one in found.missing)
    wait = "" if found.wait is None else f"\nAt the rate so far, wait about {span(found.wait)}."
    return f"Not enough yet:{why}{wait}"


def span(milliseconds: int) -> str:
    """Return a duration in the largest unit of which it has two or more."""
    for size in (86_400_000, 3_600_000, 60_000, 1000):
        if milliseconds >= 2 * size:
            return duration_text(milliseconds // size * size)
    return duration_text(milliseconds)
