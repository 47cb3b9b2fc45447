"""`eventonce forget`: drop what the store knows of an event, so that it may run again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click
import msgspec

from eventonce.cli import FAILED
from eventonce.cli.options import (
    config_option,
    confirmed,
    json_option,
    name_option,
    opened,
    rules_option,
    store_option,
    yes_option,
)
from eventonce.cli.show import key_of
from eventonce.cli.table import counted


@click.command()
@click.argument("what", nargs=-1, required=True, metavar="KEY|FILE…")
@store_option
@rules_option
@name_option
@config_option
@yes_option
@json_option
def command(
    what: tuple[str, ...],
    store: str | None,
    rules: tuple[str, ...],
    name: str | None,
    config: Path | None,
    *,
    yes: bool,
    as_json: bool,
) -> int:
    """Drop the records of these KEYs, or of the events in these FILEs.

    A copy that comes afterwards is new, and runs.
    """
    keys = list(dict.fromkeys(key_of(one, rules, name, config) for one in what))
    with closing(opened(config, store)) as shelf:
        records = counted(len(keys), "record")
        if not confirmed(f"Forget {records}? Copies will run again.", yes=yes):
            return FAILED
        forgotten = shelf.forget(keys)
    said = msgspec.json.encode({"forgotten": forgotten}).decode()
    click.echo(said if as_json else f"forgot {forgotten} of {records}")
    if forgotten < len(keys):
        click.echo(
            "the others are not there; eventonce show FILE looks under other names too", err=True
        )
    return 0 if forgotten == len(keys) else FAILED
