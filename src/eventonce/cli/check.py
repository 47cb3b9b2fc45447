"""`eventonce check`: a rule file is right, and still gives the keys it gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click
import msgspec

from eventonce.cli import FAILED
from eventonce.cli.options import json_option, name_option, option, ruleset
from eventonce.cli.table import table
from eventonce.config import meaning
from eventonce.envelope import read
from eventonce.errors import ConfigError, EnvelopeError
from eventonce.rules import Ruleset

NOTHING: Final = "nothing: run with --update"


class Expected(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One event and what the rules shall make of it."""

    event: Any = msgspec.UNSET
    """The event itself, or `file` instead."""
    file: str = ""
    """A file with the event, from where the list of expected keys stands."""
    rule: str = ""
    key: str = ""
    """The key in hexadecimal; "invalid" for an event that shall have none, "none" for one that runs
    at every delivery."""


@click.command()
@click.argument("config", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@option(
    "--expect",
    type=click.Path(dir_okay=False, path_type=Path),
    help='A JSON list of {"file" or "event", "rule", "key"}: fails if one is different now.',
)
@option("--update", is_flag=True, help="Write what the rules give now into the --expect file.")
@name_option
@json_option
def command(
    config: Path, name: str | None, expect: Path | None, *, update: bool, as_json: bool
) -> int:
    """Check CONFIG: every fault is named with its line, its field and what was expected. Nothing
    is connected to.

    With --expect, also that events of yours still have the rules and keys they had: a changed key
    runs everything once more.
    """
    meaning.check(config, name=name)
    rules = ruleset(config, (), name)
    if update and expect is None:
        raise ConfigError("--update needs --expect: the file to write")
    differences: list[tuple[str, str, str]] = []
    expected = _expected(expect) if expect else []
    for number, entry in enumerate(expected):
        rule, key = _found(entry, rules, expect)
        called = entry.file or f"event {number}"
        for field, wanted, got in (("rule", entry.rule, rule), ("key", entry.key, key)):
            if wanted != got:
                differences.append((f"{called}: {field}", wanted or NOTHING, got))
        entry.rule, entry.key = rule, key
    if update and expect:
        expect.write_bytes(msgspec.json.format(msgspec.json.encode(expected), indent=2) + b"\n")
        differences = []
    if as_json:
        fields = ("what", "expected", "found")
        found = [dict(zip(fields, row, strict=True)) for row in differences]
        document = {"rules": len(rules.rules), "events": len(expected), "differences": found}
        click.echo(msgspec.json.encode(document).decode())
    elif differences:
        click.echo(table(differences, head=("differs", "expected", "found")))
    else:
        click.echo(f"{config}: {len(rules.rules)} rules, {len(expected)} events as expected")
    return FAILED if differences else 0


def _expected(path: Path) -> list[Expected]:
    try:
        expected = msgspec.json.decode(path.read_bytes(), type=list[Expected])
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(
            f'{path}: {error}; expected a list of {{"file" or "event", "rule", "key"}}'
        ) from error
    for number, entry in enumerate(expected):
        if bool(entry.file) == (entry.event is not msgspec.UNSET):
            raise ConfigError(
                f'{path}: event {number}: expected a "file" or an "event", one of them'
            )
    return expected


def _found(entry: Expected, rules: Ruleset, beside: Path | None) -> tuple[str, str]:
    if entry.file:
        path = (beside or Path()).parent / entry.file
        try:
            source: Any = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
    else:
        source = entry.event
    try:
        found = rules.explain(read(source))
    except EnvelopeError:
        return "", "invalid"
    if found.key is None:
        return found.rule, "invalid" if found.missing else "none"
    return found.rule, found.key.hex()
