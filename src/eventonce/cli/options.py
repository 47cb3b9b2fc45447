"""Options that commands share, each with its environment twin, and the file they fall back on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import click

from eventonce import presets
from eventonce.config import DEFAULT_STORE, load
from eventonce.errors import ConfigError
from eventonce.masking import masked, split
from eventonce.rules import Ruleset
from eventonce.stores import open_store

F = TypeVar("F", bound=Callable[..., Any])


def option(*names: str, **attributes: Any) -> Callable[[F], F]:
    """An option with its twin in the environment: `--max-bytes` is `EVENTONCE_MAX_BYTES`."""
    long = next(name for name in names if name.startswith("--")).split("/")[0]
    twin = "EVENTONCE_" + long.removeprefix("--").replace("-", "_").upper()
    return click.option(*names, envvar=twin, show_envvar=False, **attributes)


def _presets_and_files(
    ctx: click.Context,  # noqa: ARG001  click's signature
    param: click.Parameter,  # noqa: ARG001  likewise
    incomplete: str,
) -> list[Any]:
    """The presets that begin like this, or else whatever file the shell finds."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415  for a shell that asks

    found = [
        CompletionItem(name, help=line)
        for name, line in presets.names().items()
        if name.startswith(incomplete)
    ]
    return found or [CompletionItem(incomplete, type="file")]


config_option = option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A TOML file with store, name, rules and [[rule]] tables; eventonce.toml if it is there.",
)
store_option = option(
    "-s", "--store", metavar="URI", help="Where to remember: sqlite:///file.db, …"
)
name_option = option("--name", help="The consumer's name: part of every key.")
rules_option = option(
    "-r",
    "--rules",
    multiple=True,
    metavar="PRESET|FILE",
    shell_complete=_presets_and_files,
    help="A preset or a TOML file; several are tried in turn. [default: auto]",
)
json_option = option("--json", "as_json", is_flag=True, help="Print JSON.")


def ruleset(
    config: Path | None, rules: Sequence[str], name: str | None, default_name: str = "default"
) -> Ruleset:
    """The rules that options and file give: rules of one's own first, then presets."""
    said = load(config)
    return Ruleset(
        presets.resolve(said.ruling(rules)),
        name=name or said.name or default_name,
        secrets=[secret.encode() for secret in said.secrets],
    )


def opened(config: Path | None, store: str | None) -> Any:
    """The store that options and file name, to look at: one that is not there is not made."""
    uri = store or load(config).store or DEFAULT_STORE
    parts = split(uri)
    if parts.scheme == "sqlite" and not Path(unquote(parts.path.removeprefix("/"))).exists():
        raise ConfigError(f"store {masked(uri)!r}: there is no such file; --store names another")
    return open_store(uri)
