"""`eventonce audit`: the actions of people on dead letters and conversations, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from eventonce.audit import NO_AUDIT, Line, Recorded, recorded
from eventonce.cli import FAILED
from eventonce.cli.options import Settings, filled, instant, json_option, with_settings
from eventonce.cli.output import counted, echo_json, notice, one_line, wants_json
from eventonce.errors import ConfigError
from eventonce.rules.instants import event_instant

NOT_ENDED: Final = (
    "not ended: it still runs, or its process was killed; its work until then is done"
)


@click.command()
@click.argument("ids", nargs=-1, callback=filled)
@click.option(
    "--from",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The audit.  [default: `audit` of eventonce.toml]",
)
@click.option(
    "--since", callback=instant, metavar="TIME", help="Only actions that began since TIME (UTC)."
)
@click.option(
    "--until", callback=instant, metavar="TIME", help="Only actions that began before TIME (UTC)."
)
@with_settings("config")
@json_option
def audit(
    settings: Settings,
    ids: tuple[str, ...],
    file: Path | None,
    since: int | None,
    until: int | None,
) -> int:
    """Tell who acted on dead letters, or erased a conversation: when, what, which, how many, and
    how it ended.

    All actions of the file are told, in the order in which they began; or those whose ids begin
    with one of IDS.
    """
    named = file or settings.file.audit
    if not named:
        raise ConfigError(NO_AUDIT)
    path = Path(named)
    if not path.exists():
        notice(f"{path} does not exist yet: no action began")
        return FAILED
    actions, broken = recorded(path)
    found = [
        one
        for one in actions
        if (not ids or one.first.id.startswith(ids)) and _between(one, since, until)
    ]
    if wants_json():
        for one in found:
            echo_json(_document(one))
    else:
        click.echo("\n".join(map(_text, found)) or "no actions")
    missed = [begin for begin in ids if not any(it.first.id.startswith(begin) for it in actions)]
    for begin in missed:
        notice(f"no action has an id that begins with {begin!r}")
    if broken:
        lines = counted(broken, "line")
        notice(f"{lines} of {path} not read, cut off or broken")
    return FAILED if missed or broken else 0


def _between(one: Recorded, since: int | None, until: int | None) -> bool:
    at = event_instant(one.first.time) or 0
    return (since is None or since <= at) and (until is None or at < until)


def _document(one: Recorded) -> dict[str, Any]:
    first, last = one.first, one.last
    return {
        "id": first.id,
        "began": first.time,
        "who": first.who,
        "via": first.via,
        "action": first.action,
        "selection": first.selection,
        "counts": last.counts if last is not None else {},
        "ended": last.ended if last is not None else None,
        "ended_at": last.time if last is not None else None,
    }


def _text(one: Recorded) -> str:
    first = one.first
    lines = [
        f"{_moment(first)}  {first.action} by {first.who} ({first.via}), {first.id}",
        first.selection or "all",
        _end(one),
    ]
    return "\n  ".join(map(one_line, lines))


def _end(one: Recorded) -> str:
    if one.last is None:
        return NOT_ENDED
    said = ", ".join(f"{many:,} {name}" for name, many in one.last.counts.items())
    whole = one.last is not one.first
    begin = "" if whole else "; the line of its begin is not in this file"
    return f"{said or 'nothing'}; {one.last.ended}, {_moment(one.last)}{begin}"


def _moment(line: Line) -> str:
    return line.time[:19].replace("T", " ")
