"""`eventonce store`: make, upgrade and verify the store itself."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from eventonce.cli import FAILED, Subcommands
from eventonce.cli.options import config_option, json_option
from eventonce.cli.table import table
from eventonce.config import DEFAULT_STORE, load
from eventonce.core.ports import Finding, StoreSchema
from eventonce.stores import open_schema

NOTHING_THERE: Final = (
    "it lives and ends with its process: nothing need be made, upgraded or checked"
)


@click.group(cls=Subcommands)
def command() -> None:
    """Make, upgrade and verify a store: the one URI names, or the file's, or the default."""


def _on_store(function: Any) -> Any:
    for decorate in (click.argument("uri", required=False), config_option, json_option):
        function = decorate(function)
    return function


def _opened(uri: str | None, config: Path | None) -> Any:
    return open_schema(load(config).store or DEFAULT_STORE if uri is None else uri)


@command.command("create")
@_on_store
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
def create(uri: str | None, config: Path | None, *, dry_run: bool, as_json: bool) -> None:
    """Make what the store needs: a file, a table, a schema. Nothing, where it is there already."""
    _keep_up(uri, config, "create", dry_run=dry_run, as_json=as_json)


@command.command("migrate")
@_on_store
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
def migrate(uri: str | None, config: Path | None, *, dry_run: bool, as_json: bool) -> None:
    """Bring an older store up to what this release works with."""
    _keep_up(uri, config, "migrate", dry_run=dry_run, as_json=as_json)


def _keep_up(
    uri: str | None, config: Path | None, what: str, *, dry_run: bool, as_json: bool
) -> None:
    with closing(_opened(uri, config)) as store:
        needed = isinstance(store, StoreSchema)
        steps: list[str] = getattr(store, what)(dry_run=dry_run) if needed else []
    if as_json:
        click.echo(msgspec.json.encode({"dry_run": dry_run, "steps": steps}).decode())
    elif steps:
        click.echo("\n".join(steps))
    else:
        all_there = "all that the store needs is there" if needed else NOTHING_THERE
        click.echo(f"nothing to do: {all_there}")


@command.command("check")
@_on_store
def check(uri: str | None, config: Path | None, *, as_json: bool) -> int:
    """Verify that the store is there, is of this release's format, and lets us work."""
    with closing(_opened(uri, config)) as store:
        needed = isinstance(store, StoreSchema)
        findings = store.check() if needed else [Finding(NOTHING_THERE, fine=True)]
    if as_json:
        click.echo(msgspec.json.encode(findings).decode())
    else:
        rows = [("ok" if found.fine else "NO", found.what, found.fix) for found in findings]
        click.echo(table(rows))
    return 0 if all(found.fine for found in findings) else FAILED
