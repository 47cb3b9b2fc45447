"""`eventonce forget`: drop what the store knows of an event, so that it may run again."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from eventonce.cli import FAILED
from eventonce.cli.options import (
    config_option,
    json_option,
    name_option,
    opened,
    option,
    rules_option,
    store_option,
)
from eventonce.cli.show import key_of


@click.command()
@click.argument("what", nargs=-1, required=True, metavar="KEY|FILE…")
@store_option
@rules_option
@name_option
@config_option
@option("--yes", is_flag=True, help="Do not ask.")
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
    keys = [key_of(one, rules, name, config) for one in what]
    question = f"Forget {len(keys)} records? Their copies will run again"
    if not yes and not click.confirm(question, err=True):
        return FAILED
    shelf = opened(config, store)
    forgotten = shelf.forget(keys)
    shelf.close()
    said = msgspec.json.encode({"forgotten": forgotten}).decode()
    click.echo(said if as_json else f"forgot {forgotten} of {len(keys)}")
    return 0 if forgotten == len(keys) else FAILED
