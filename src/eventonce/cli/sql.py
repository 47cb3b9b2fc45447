"""`eventonce sql`: the rules as a query, for events that lie in a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from eventonce.cli.options import presets_option
from eventonce.presets import resolve
from eventonce.study.sql import lines_of, query
from eventonce.study.sql.dialects import DIALECTS
from eventonce.study.sql.statement import Relation


@click.command("sql")
@click.argument("rules", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@presets_option
@click.option(
    "--dialect",
    type=click.Choice(list(DIALECTS)),
    default="duckdb",
    help="Whose SQL. The queries for DuckDB and Spark are tested; those for the others are parsed.",
)
@click.option(
    "--table", default="events", help="The table or view of events, or SQL that stands in FROM."
)
@click.option(
    "--column",
    default="event",
    help="The column with the JSON of an event, as text, or SQL that gives it.",
)
@click.option(
    "--arrived",
    default="",
    show_default=False,
    metavar="COLUMN",
    help="The column with the time of arrival in milliseconds, or SQL that gives it.  [default: "
    "`arrived` of a captured line]",
)
@click.option(
    "--keep",
    multiple=True,
    metavar="COLUMN",
    help="A column of the table that the result has too; repeat the option for several.",
)
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    help="A file of JSON Lines in place of a table; only for DuckDB.",
)
@click.option(
    "--view",
    default="",
    show_default=False,
    metavar="NAME",
    help="Print a CREATE VIEW of this name.",
)
def sql(
    rules: tuple[str, ...],
    presets: tuple[str, ...],
    dialect: str,
    file: Path | None,
    view: str,
    **relation: Any,
) -> None:
    """Print the RULES, TOML files of [[rule]] tables, as a query over a table of events.

    Two rows of the table have the same key there if and only if the two events have the same key
    in production. Name the presets that production has after its own rules, too: an event that no
    rule takes goes by its transport id.
    """
    if not rules and not presets:
        raise click.UsageError("name a file of rules, or --presets NAME")
    chosen = resolve([*rules, *presets])
    if file is not None:
        if dialect != "duckdb":
            raise click.UsageError("--file is for DuckDB: others read tables")
        source = lines_of(str(file))
    else:
        source = Relation(**relation)
    click.echo(query(chosen, dialect, source, view))
