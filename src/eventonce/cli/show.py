"""`eventonce show`: what the store knows of one event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import click
import msgspec

from eventonce.cli import FAILED
from eventonce.cli.options import (
    DEFAULT_NAME,
    config_option,
    json_option,
    name_option,
    opened,
    rules_option,
    ruleset,
    store_option,
)
from eventonce.cli.table import table
from eventonce.clock import wall_clock
from eventonce.config import load
from eventonce.core.ledger import Record
from eventonce.core.ports import StoreAdmin
from eventonce.envelope import read
from eventonce.types import Event


@click.command()
@click.argument("what", metavar="KEY|FILE")
@store_option
@rules_option
@name_option
@config_option
@json_option
def command(
    what: str,
    store: str | None,
    rules: tuple[str, ...],
    name: str | None,
    config: Path | None,
    *,
    as_json: bool,
) -> int:
    """Show the record of a KEY in hexadecimal, or of the event in FILE (- is stdin).

    A name is part of every key, and a store keeps no list of names: an event is looked for under
    --name or the file's name, then under the names that have dead letters, and `default`.
    """
    event = event_in(what)
    given = _key(what) if event is None else b""
    tried: list[str] = []
    with closing(opened(config, store)) as shelf:
        named = _names(name or load(config).name, shelf) if event is not None else [""]
        for called in named:
            key = _keyed(event, rules, called, config) if event is not None else given
            record = shelf.show(key)
            tried += [called] if called else []
            if record is not None:
                break
    if record is None:
        return _unknown(key, tried, as_json=as_json)
    if len(tried) > 1 and not as_json:
        click.echo(f"eventonce: found {_under(tried[-1:])}, not {_under(tried[:1])}", err=True)
    if as_json:
        whose = {"name": tried[-1]} if tried else {}
        document = {"key": key.hex(), **whose, "is": standing(record), **_document(record)}
        click.echo(msgspec.json.encode(document).decode())
    else:
        under = f" {_under(tried[-1:])}" if tried else ""
        click.echo(f"{key.hex()}: {standing(record)}{under}\n{table(_rows(record), indent=2)}")
    return 0


def _names(own: str, shelf: StoreAdmin) -> Iterator[str]:
    """The names that can be known, one's own first: the others are looked up if that is needed."""
    seen: set[str] = set()
    others = (letter.consumer for letter in shelf.letters())
    for called in chain([own or DEFAULT_NAME, DEFAULT_NAME], others):
        if called not in seen:
            seen.add(called)
            yield called


def _unknown(key: bytes, tried: Sequence[str], *, as_json: bool) -> int:
    if as_json:
        click.echo("null")
    elif tried:
        click.echo(
            f"nothing is known of it {_under(tried)}; if its consumer has another name, "
            "give it: --name NAME",
            err=True,
        )
    else:
        click.echo(f"{key.hex()}: nothing is known of it", err=True)
    return FAILED


def _under(names: Sequence[str]) -> str:
    return f"under the {'name' if len(names) == 1 else 'names'} {', '.join(map(repr, names))}"


def event_in(what: str) -> Event | None:
    """The event in this file; None where it is no file, but a key."""
    if what != "-" and not Path(what).exists():
        return None
    with click.open_file(what, "rb") as stream:
        return read(stream.read())


def _key(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise click.UsageError(f"{text!r} is neither a file nor a key in hexadecimal") from error


def key_of(what: str, rules: tuple[str, ...], name: str | None, config: Path | None) -> bytes:
    """The key meant: given in hexadecimal, or that of the event in a file."""
    event = event_in(what)
    return _key(what) if event is None else _keyed(event, rules, name, config)


def _keyed(event: Event, rules: tuple[str, ...], name: str | None, config: Path | None) -> bytes:
    return ruleset(config, rules, name).plan(event, 1)[1].key


def standing(record: Record) -> str:
    """What the record comes to, in a word or two."""
    if wall_clock() < record.held_until:
        return "running"
    if record.done:
        return "done"
    if record.dead:
        return "given up"
    return "tried and not settled"


def _document(record: Record) -> dict[str, Any]:
    document = msgspec.to_builtins(record, builtin_types=(bytes,))
    return {name: _plain(value) for name, value in document.items() if value}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _rows(record: Record) -> list[tuple[str, object]]:
    rows = []
    for name, value in _document(record).items():
        is_time = name in ("expires", "held_until", "at") and value
        rows.append((name, _instant(value) if is_time else value))
    return rows


def _instant(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
