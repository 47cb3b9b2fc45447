"""`eventonce init`: a commented eventonce.toml to start from."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import click

from eventonce import presets
from eventonce.cli import started_as
from eventonce.cli.options import json_option
from eventonce.config import DEFAULT_STORE, FILE
from eventonce.errors import ConfigError


@click.command()
@click.argument("file", default=FILE, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--preset",
    default="auto",
    show_default=True,
    help="The preset of the source your events come from.",
)
@click.option(
    "-s",
    "--store",
    default=DEFAULT_STORE,
    show_default=True,
    metavar="URI",
    help="Where to remember.",
)
@click.option(
    "--name",
    default="my-consumer",
    show_default=True,
    help="The consumer's name: part of every key.",
)
@click.option("--force", is_flag=True, help="Overwrite FILE if it is there.")
@json_option
def command(file: Path, preset: str, store: str, name: str, *, force: bool, as_json: bool) -> None:
    """Write FILE, with every field of a rule shown and explained."""
    presets.resolve(preset)
    template = files("eventonce.cli").joinpath("eventonce.toml").read_text(encoding="utf-8")
    known = "\n".join(f"#   {name:<18} {line}" for name, line in presets.names().items())
    text = (
        template.replace('"{store}"', json.dumps(store))
        .replace('"{name}"', json.dumps(name))
        .replace('"{preset}"', json.dumps(preset))
        .replace("#   {presets}", known)
    )
    try:
        with file.open("w" if force else "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{file} is there already; --force overwrites it") from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
    said = json.dumps({"wrote": str(file)})
    click.echo(said if as_json else f"wrote {file}; try: {started_as()} check {file}")
