"""`eventonce show`: what the store knows of one event."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from eventonce.cli import FAILED
from eventonce.cli.options import (
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
from eventonce.envelope import read
from eventonce.ledger import Record


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
    """Show the record of a KEY in hexadecimal, or of the event in FILE (- is stdin)."""
    key = key_of(what, rules, name, config)
    shelf = opened(config, store)
    record = shelf.show(key)
    shelf.close()
    if record is None:
        click.echo("null" if as_json else f"{key.hex()}: nothing is known of it", err=not as_json)
        return FAILED
    if as_json:
        document = {"key": key.hex(), "is": standing(record), **_document(record)}
        click.echo(msgspec.json.encode(document).decode())
    else:
        click.echo(f"{key.hex()}: {standing(record)}\n{table(_rows(record), indent=2)}")
    return 0


def key_of(what: str, rules: tuple[str, ...], name: str | None, config: Path | None) -> bytes:
    """The key meant: given in hexadecimal, or that of the event in a file."""
    if what != "-" and not Path(what).exists():
        try:
            return bytes.fromhex(what)
        except ValueError as error:
            raise click.UsageError(
                f"{what!r} is neither a file nor a key in hexadecimal"
            ) from error
    with click.open_file(what, "rb") as stream:
        return ruleset(config, rules, name).plan(read(stream.read()), 1)[1].key


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
