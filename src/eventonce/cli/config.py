"""`eventonce init` writes an eventonce.toml, and `eventonce check` checks one."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from eventonce import presets
from eventonce.cli import FAILED, MISUSED, started_as
from eventonce.cli.checks import checks_of_file, warnings_of
from eventonce.cli.infra import placed_topology
from eventonce.cli.options import json_option, name_option
from eventonce.cli.output import counted, echo_json, emit, remark, table, wants_json
from eventonce.config import DEFAULT_FILE, DEFAULT_STORE, Config, checks, load, resolved
from eventonce.doctor.patterns import UnknownPattern, globs_meet
from eventonce.envelope import read
from eventonce.envelope.topics import templates
from eventonce.errors import ConfigError, EnvelopeError, unreadable
from eventonce.infra.topology import Infra
from eventonce.rules import Ruleset
from eventonce.rules.rule import glob
from eventonce.rules.tomltext import meant

NOTHING_EXPECTED: Final = "nothing: run with --update"


# eventonce init


@click.command()
@click.argument("file", default=DEFAULT_FILE, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "-p",
    "--presets",
    "named",
    multiple=True,
    metavar="NAME",
    default=[presets.AUTO],
    help="A preset for the source of your events; repeat the option for several.",
)
@click.option("-s", "--store", default=DEFAULT_STORE, metavar="URI", help="The store.")
@click.option(
    "--name", default="my-consumer", help="The consumer's name, which is part of every key."
)
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@json_option
def init(file: Path, named: Sequence[str], store: str, name: str, *, force: bool) -> None:
    """Write FILE with every setting and every field of a rule explained."""
    for preset in named:
        resolved("presets", preset)
    template = files("eventonce.cli").joinpath("eventonce.toml").read_text(encoding="utf-8")
    known = "\n".join(f"#   {name:<18} {line}" for name, line in presets.names().items())
    values = {'"{store}"': store, '"{name}"': name, '["{preset}"]': list(named)}
    text = template.replace("#   {presets}", known)
    for place, value in values.items():
        text = text.replace(place, msgspec.json.encode(value).decode())
    try:
        with file.open("w" if force else "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{file} exists already; --force overwrites it") from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
    text = f"wrote {file}; try: {started_as()} check {file}"
    emit({"wrote": str(file)}, text)


# eventonce check

patterns_option = click.option(
    "--handler", metavar="MODULE:NAME", help="A module whose @consumer.on patterns are checked too."
)


class Expected(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One event, and the rule and key that it must have."""

    event: Any = msgspec.UNSET
    """The event itself, or `file` instead."""
    file: str = ""
    """A file with the event, relative to the list of expected keys."""
    rule: str = ""
    key: str = ""
    """The key in hexadecimal; "invalid" if the event has no key, "none" if it runs at every
    delivery."""


@click.command()
@click.argument(
    "config", default=DEFAULT_FILE, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--expect",
    type=click.Path(dir_okay=False, path_type=Path),
    help='A JSON list of {"file" or "event", "rule", "key"}: fail if a rule or a key differs.',
)
@click.option(
    "--update", is_flag=True, help="Write the rules and keys of today into the --expect file."
)
@patterns_option
@name_option
@json_option
def check(
    config: Path, name: str | None, expect: Path | None, handler: str | None, *, update: bool
) -> int:
    """Check CONFIG, and name every fault with its line, its field and the expected value.

    Nothing is connected to, and no code of yours is run: with --handler, the patterns of
    `@consumer.on("…")` are read from the module's source.

    With --expect, the rules and keys of your events are compared too: an event whose key changes
    runs once more.
    """
    if update and expect is None:
        raise click.UsageError("--update needs --expect, the file to write")
    try:
        file = checks.check(config, name=name, also=checks_of_file())
        if expect is not None:
            # Keys depend on the secrets, and only the service may have them.
            file = load(config)
        if file.infra != Infra():
            # For faults of the table that are in no single field.
            placed_topology(file, file.infra, matching=False)
    except ConfigError as error:
        if wants_json():
            echo_json({"faults": str(error).split("\n")})
            return MISUSED
        raise
    warnings = [
        f"{it}. This is right for a type of your own; a misspelt pattern matches nothing"
        for it in unknown_patterns(file, handler)
    ]
    warnings += unread_patterns(handler)
    warnings += warnings_of(file)
    for warning in warnings:
        remark(f"warning: {config}: {warning}")
    rules = file.ruleset(name or "")
    differences: list[tuple[str, str, str]] = []
    expected = _expected(expect) if expect else []
    for number, entry in enumerate(expected):
        rule, key = _found(entry, rules, expect)
        called = entry.file or f"event {number}"
        for field, wanted, got in (("rule", entry.rule, rule), ("key", entry.key, key)):
            if wanted != got:
                differences.append((f"{called}: {field}", wanted or NOTHING_EXPECTED, got))
        entry.rule, entry.key = rule, key
    if update and expect:
        expect.write_bytes(msgspec.json.format(msgspec.json.encode(expected), indent=2) + b"\n")
        differences = []
    fields = ("what", "expected", "found")
    document = {
        "faults": [],
        "rules": len(rules.rules),
        "events": len(expected),
        "differences": [dict(zip(fields, row, strict=True)) for row in differences],
        "warnings": warnings,
    }
    as_expected = f", {counted(len(expected), 'event')} as expected" if expect else ""
    text = f"{config}: no faults, {counted(len(rules.rules), 'rule')}{as_expected}"
    if differences:
        text = table(differences, head=("differs", "expected", "found"))
    emit(document, text)
    return FAILED if differences else 0


def _expected(path: Path) -> list[Expected]:
    try:
        expected = msgspec.json.decode(path.read_bytes(), type=list[Expected])
    except OSError as error:
        raise unreadable(path, error) from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(
            f'{path}: {error}; expected a list of {{"file" or "event", "rule", "key"}}'
        ) from error
    for number, entry in enumerate(expected):
        if bool(entry.file) == (entry.event is not msgspec.UNSET):
            raise ConfigError(f'{path}: event {number}: expected either a "file" or an "event"')
    return expected


def _found(entry: Expected, rules: Ruleset, beside: Path | None) -> tuple[str, str]:
    """Return the rule and the key that the event has now."""
    source = entry.event
    if entry.file:
        path = (beside or Path()).parent / entry.file
        try:
            source = path.read_bytes()
        except OSError as error:
            raise unreadable(path, error) from error
    try:
        found = rules.explain(read(source))
    except EnvelopeError:
        return "", "invalid"
    if found.key is None:
        return found.rule, "invalid" if found.missing else "none"
    return found.rule, found.key.hex()


# Patterns that match no known event type

GENESYS_V2: Final = "v2."
"""The beginning of every Genesys topic. All topics are known, so a pattern must match one of them;
for other types it is enough to overlap with a pattern of a preset."""


def unknown_patterns(file: Config, handler: str | None) -> list[UnknownPattern]:
    """Return a warning for each pattern that matches no known type: a type of the user, or a
    mistake."""
    return [
        UnknownPattern(place, pattern, meant(pattern, templates()))
        for place, pattern in (*_patterns(file), *_in_source(handler))
        if pattern is not None and not _is_known(pattern)
    ]


def unread_patterns(handler: str | None) -> list[str]:
    """Return a warning for each decorator whose pattern cannot be read without running the
    code."""
    return [
        f"{place}: the pattern cannot be checked, because it is not a text in this module"
        for place, pattern in _in_source(handler)
        if pattern is None
    ]


def _patterns(file: Config) -> Iterator[tuple[str, str]]:
    for sink in file.sink:
        yield "sink.match", sink.match
    for rule in file.rule:
        for pattern in rule.match.type:
            yield f"rule {rule.name}: match", pattern


def _in_source(handler: str | None) -> Iterator[tuple[str, str | None]]:
    """Return the patterns of `x.on("…")` in the module's source, which is parsed and not run; None
    for a pattern that cannot be read."""
    if handler is None:
        return
    module = handler.partition(":")[0]
    file = module.replace(".", "/")
    paths = [
        Path(at, end) for at in ("", *sys.path) for end in (f"{file}.py", f"{file}/__init__.py")
    ]
    path = next(filter(Path.is_file, paths), None)
    if path is None:
        raise ConfigError(f"--handler: {handler}: there is no source of a module {module}")
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise ConfigError(f"--handler: {path}:{error.lineno}: {error.msg}") from error
    named = _named_texts(tree)
    decorators = [it for node in ast.walk(tree) for it in getattr(node, "decorator_list", ())]
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="on"), args=args, keywords=keywords):
                place = f"{path}:{node.lineno}: on"
            case _:
                continue
        match args:
            case [ast.Constant(value=str(pattern)), *_]:
                yield place, pattern
            case [ast.Name(id=name), *_] if name in named:
                yield place, named[name]
            case _ if node in decorators and (args or keywords):
                # A call of `on` that is no decorator may belong to any library.
                yield place, None


def _named_texts(tree: ast.Module) -> dict[str, str]:
    """Return the constants of the module that are texts."""
    found = {}
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text)))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(text)))
            ):
                found[name] = text
    return found


def _is_known(pattern: str) -> bool:
    if any(map(glob(pattern).fullmatch, templates())):
        return True
    return not pattern.startswith(GENESYS_V2) and any(globs_meet(pattern, one) for one in _globs())


@cache
def _globs() -> frozenset[str]:
    """Return the patterns of all presets, except Genesys topics."""
    return frozenset(
        pattern
        for name in presets.names()
        for rule in presets.load(name).rules
        for pattern in rule.match.type
        if not pattern.startswith(GENESYS_V2)
    )
