"""Options that commands share, each with its environment twin, and the file they fall back on."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import click
import msgspec

from eventonce import presets
from eventonce.errors import ConfigError
from eventonce.rules import Rule, Ruleset, parse_rules
from eventonce.stores import open_store

F = TypeVar("F", bound=Callable[..., Any])

FILE: Final = Path("eventonce.toml")
"""Read where it stands, if no other is named."""

DEFAULT_STORE: Final = "sqlite:///eventonce.db"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `eventonce.toml` says outside its rules."""

    store: str = ""
    name: str = ""
    rules: str | list[str] = "auto"
    secrets: list[str] = []
    rule: list[Any] = []


def option(*names: str, **attributes: Any) -> Callable[[F], F]:
    """An option with its twin in the environment: `--max-bytes` is `EVENTONCE_MAX_BYTES`."""
    long = next(name for name in names if name.startswith("--")).split("/")[0]
    twin = "EVENTONCE_" + long.removeprefix("--").replace("-", "_").upper()
    return click.option(*names, envvar=twin, show_envvar=False, **attributes)


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
    help="A preset or a TOML file; several are tried in turn. [default: auto]",
)
json_option = option("--json", "as_json", is_flag=True, help="Print JSON.")


def settings(config: Path | None) -> tuple[Settings, list[Rule]]:
    """What the file says, and its own rules; nothing if there is no file and none was named."""
    if config is None:
        if not FILE.exists():
            return Settings(), []
        config = FILE
    try:
        text = config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{config} cannot be read: {error}") from error
    own = parse_rules(text, name=str(config))
    try:
        return msgspec.convert(tomllib.loads(text), Settings), own
    except msgspec.ValidationError as error:
        raise ConfigError(f"{config}: {error}") from error


def ruleset(
    config: Path | None, rules: Sequence[str], name: str | None, default_name: str = "default"
) -> Ruleset:
    """The rules that options and file give: rules of one's own first, then presets."""
    said, own = settings(config)
    chosen = list(rules) or ([said.rules] if isinstance(said.rules, str) else said.rules)
    return Ruleset(
        [*own, *presets.resolve(chosen)],
        name=name or said.name or default_name,
        secrets=[secret.encode() for secret in said.secrets],
    )


def opened(config: Path | None, store: str | None) -> Any:
    """The store that options and file name, to look at: one that is not there is not made."""
    said, _ = settings(config)
    uri = store or said.store or DEFAULT_STORE
    parts = urlsplit(uri)
    if parts.scheme == "sqlite" and not Path(unquote(parts.path.removeprefix("/"))).exists():
        raise ConfigError(f"store {uri!r}: there is no such file")
    return open_store(uri)
