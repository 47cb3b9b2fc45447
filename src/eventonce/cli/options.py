"""Options that commands share, and the file and environment that they fall back on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from eventonce import presets
from eventonce.config import DEFAULT_STORE, load
from eventonce.core.masking import masked
from eventonce.errors import ConfigError, StoreMismatch
from eventonce.rules import Ruleset
from eventonce.stores import adapter_of, open_schema, open_store

F = TypeVar("F", bound=Callable[..., Any])


def configured(*names: str, **attributes: Any) -> Callable[[F], F]:
    """An option that the environment may say too: `--store` is `EVENTONCE_STORE`.

    For configuration alone. An action or a confirmation is typed: a variable that somebody set
    for another command must neither answer a question nor choose where events are sent.
    """
    long = next(name for name in names if name.startswith("--"))
    twin = "EVENTONCE_" + long.removeprefix("--").replace("-", "_").upper()
    return click.option(*names, envvar=twin, show_envvar=True, **attributes)


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


config_option = configured(
    "-c",
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A TOML file with store, name, rules and [[rule]] tables; eventonce.toml if it is there.",
)
store_option = configured(
    "-s", "--store", metavar="URI", help="Where to remember: sqlite:///file.db, …"
)
name_option = configured("--name", help="The consumer's name: part of every key.")
rules_option = configured(
    "-r",
    "--rules",
    multiple=True,
    metavar="PRESET|FILE",
    shell_complete=_presets_and_files,
    help="A preset or a TOML file, instead of the file's rules; several are tried in turn. "
    "[default: auto]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


DEFAULT_NAME: Final = "default"
"""What a consumer on an embedded store is called that was given no name."""


def ruleset(config: Path | None, rules: Sequence[str], name: str | None) -> Ruleset:
    """The rules that options give; or else those of the file, its own first, then presets."""
    said = load(config)
    return Ruleset(
        presets.resolve(said.ruling(rules)),
        name=name or said.name or DEFAULT_NAME,
        secrets=[secret.encode() for secret in said.secrets],
    )


def opened(config: Path | None, store: str | None) -> Any:
    """The store that options and file name, to look at: nothing is made by opening it."""
    uri = store or load(config).store or DEFAULT_STORE
    if adapter_of(uri).schema:
        # This store is made, and brought up to date, by being opened.
        with closing(open_schema(uri)) as upkeep:
            try:
                steps = upkeep.migrate(dry_run=True)
            except StoreMismatch as error:
                raise ConfigError(f"{error}; --store names another") from error
        if steps:
            raise StoreMismatch(f"{masked(uri)}: {steps[0]}: eventonce store migrate {masked(uri)}")
    return open_store(uri)


def confirmed(question: str, *, yes: bool) -> bool:
    """Whether the person says so; UsageError where nobody is there to ask."""
    if yes:
        return True
    try:
        return click.confirm(question, err=True)
    except click.Abort as error:
        if isinstance(error.__context__, EOFError):
            click.echo(err=True)
            raise click.UsageError("nobody answered on standard input: --yes does") from None
        raise
