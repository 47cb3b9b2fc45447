"""`eventonce check`: a rule file is right, and still gives the keys it gave."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from eventonce.cli import FAILED, MISUSED
from eventonce.cli.infra import plan_of
from eventonce.cli.options import json_option, name_option, ruleset
from eventonce.cli.table import counted, table
from eventonce.config import FILE, Config, Serve, load, patterns
from eventonce.config import checks as meaning
from eventonce.envelope import read
from eventonce.errors import ConfigError, EnvelopeError
from eventonce.infra.plan import Infra
from eventonce.rules import Ruleset
from eventonce.rules.tomltext import Place
from eventonce.worker.health import address

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
@click.argument(
    "config", default=FILE, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--expect",
    type=click.Path(dir_okay=False, path_type=Path),
    help='A JSON list of {"file" or "event", "rule", "key"}: fails if one is different now.',
)
@click.option(
    "--update", is_flag=True, help="Write what the rules give now into the --expect file."
)
@name_option
@json_option
def command(
    config: Path, name: str | None, expect: Path | None, *, update: bool, as_json: bool
) -> int:
    """Check CONFIG, eventonce.toml if none is given: every fault is named with its line, its field
    and what was expected. Nothing is connected to.

    With --expect, also that events of yours still have the rules and keys they had: a changed key
    runs everything once more.
    """
    if update and expect is None:
        raise click.UsageError("--update needs --expect: the file to write")
    try:
        meaning.check(config, name=name, also=_of_commands())
        _check_infra(load(config))
    except ConfigError as error:
        if as_json:
            click.echo(msgspec.json.encode({"faults": str(error).split("\n")}))
            return MISUSED
        raise
    rules = ruleset(config, (), name)
    warnings = patterns.unknown(load(config))
    for warning in warnings:
        click.echo(f"eventonce: warning: {config}: {warning}", err=True)
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
        document = {
            "faults": [],
            "rules": len(rules.rules),
            "events": len(expected),
            "differences": found,
            "warnings": warnings,
        }
        click.echo(msgspec.json.encode(document).decode())
    elif differences:
        click.echo(table(differences, head=("differs", "expected", "found")))
    else:
        said = f", {counted(len(expected), 'event')} as expected" if expect else ""
        click.echo(f"{config}: fine, {counted(len(rules.rules), 'rule')}{said}")
    return FAILED if differences else 0


def _of_commands() -> meaning.Checks:
    """What `run` and `serve` refuse beside the rest; the latter if its extra is installed."""
    checks: dict[Place, Callable[[Any], object]] = {
        ("worker", "health"): lambda place: address(str(place)) if place else None
    }
    from eventonce.web.authentication import SCHEMES, Authenticator  # noqa: PLC0415  slow to import

    def authenticator(field: str) -> Callable[[Any], object]:
        return lambda value: Authenticator(Serve(**{field: value}))

    fields = ["api_keys", "api_key_header", "users", *(scheme.setting for scheme in SCHEMES)]
    if find_spec("cryptography") is not None:
        fields.append("sns_topics")
    return checks | {("serve", field): authenticator(field) for field in fields}


def _check_infra(said: Config) -> None:
    """What every command of `infra` refuses, where the file has such a table."""
    if said.infra != Infra():
        plan_of(said, said.infra, matching=False)


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
