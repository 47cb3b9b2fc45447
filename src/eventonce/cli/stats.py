"""`eventonce stats`: how full a store is, and what its letters are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click
import msgspec

from eventonce.cli.options import config_option, json_option, opened, store_option
from eventonce.cli.table import table


@click.command()
@store_option
@config_option
@json_option
def command(store: str | None, config: Path | None, *, as_json: bool) -> None:
    """Show how many records and dead letters the store holds, and why the latter are there."""
    shelf = opened(config, store)
    found = shelf.stats()
    reasons = Counter((letter.consumer, letter.status, letter.rule) for letter in shelf.letters())
    shelf.close()
    if as_json:
        letters = [
            {"consumer": consumer, "status": status, "rule": rule, "count": count}
            for (consumer, status, rule), count in reasons.most_common()
        ]
        document = {**msgspec.to_builtins(found), "by_reason": letters}
        click.echo(msgspec.json.encode(document).decode())
        return
    rows: list[tuple[str, object]] = [("records", found.records), ("letters", found.letters)]
    if found.bytes is not None:
        rows.append(("bytes", found.bytes))
    click.echo(table(rows))
    if reasons:
        head = ("consumer", "status", "rule", "letters")
        counted = [(*name, count) for name, count in reasons.most_common()]
        click.echo("\n" + table(counted, head=head))
