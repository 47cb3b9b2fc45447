"""`eventonce sweep`: drop expired records, in small steps beside the work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click
import msgspec

from eventonce.cli.options import config_option, json_option, opened, store_option
from eventonce.cli.table import counted

STEP: Final = 10_000
"""Records looked at between two looks at the progress bar."""


@click.command()
@store_option
@config_option
@json_option
def command(store: str | None, config: Path | None, *, as_json: bool) -> None:
    """Look at every record once and drop what has expired.

    Safe beside running consumers. Stores whose server expires records by itself need none of it.
    """
    shelf = opened(config, store)
    records = shelf.stats().records
    swept = 0
    with click.progressbar(
        range(0, max(records, 1), STEP),
        label="sweep",
        file=sys.stderr,
        hidden=not sys.stderr.isatty(),
    ) as steps:
        for _ in steps:
            swept += shelf.sweep(STEP)
    shelf.close()
    said = msgspec.json.encode({"looked_at": records, "swept": swept}).decode()
    click.echo(said if as_json else f"swept {swept} of {counted(records, 'record')}")
