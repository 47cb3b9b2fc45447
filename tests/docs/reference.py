"""The option tables of docs/cli.md, made of click's own parameters, and those of docs/metrics.md.

`python -m tests.docs.reference` writes them into the pages; `test_cli_page.py` and
`test_metrics_page.py` compare.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from eventonce.cli import cli
from eventonce.cli.options import _OPTIONS
from eventonce.metrics import names

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
METRICS_PAGE = PAGE.with_name("metrics.md")

_BLOCK = re.compile(r"(<!-- options: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def commands(group: click.Group = cli, *before: str) -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, such as `letters list`; groups too."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield " ".join((*before, name)), command
        if isinstance(command, click.Group):
            yield from commands(command, *before, name)


def options_of(command: click.Command) -> list[click.Option]:
    return [param for param in command.params if isinstance(param, click.Option)]


def names_of(option: click.Option) -> str:
    """The option as it is typed, with the word for its value."""
    word = option.metavar or option.type.name.removesuffix(" range").upper()
    names = [*option.opts[:-1], option.opts[-1] + ("" if option.is_flag else f" {word}")]
    return ", ".join(f"`{name}`" for name in names)


def text_of(option: click.Option) -> str:
    """The option's help, its default and its environment variable."""
    text = (option.help or "").replace("  [default", " [default")
    if isinstance(option.type, click.Choice):
        text += f" One of {', '.join(f'`{choice}`' for choice in option.type.choices)}."
    shown = option.get_help_extra(click.Context(cli, **cli.context_settings)).get("default")
    if shown:
        text += f" [default: {shown}]"
    return text + (f" [environment: `{option.envvar}`]" if option.envvar else "")


def options_table(name: str) -> str:
    """The options of this command; of a group, those of all its commands with their names."""
    inner = [
        (one.rpartition(" ")[2], command)
        for one, command in commands()
        if f"{one} ".startswith(f"{name} ") and not isinstance(command, click.Group)
    ]
    rows: dict[str, list[str]] = {}
    also: dict[str, None] = {}
    known = {text_of(option) for option in shared()}
    for called, command in inner:
        for option in options_of(command):
            if text_of(option) in known:
                also[f"`{option.opts[-1]}`"] = None
            else:
                rows.setdefault(f"{names_of(option)} | {text_of(option)}", []).append(called)
    lines = ["| option | meaning |", "|---|---|"] if rows else []
    for row, of in rows.items():
        only = f" Only {', '.join(f'`{one}`' for one in of)}." if len(of) < len(inner) else ""
        lines.append(f"| {row}{only} |")
    if also:
        lines += ["", f"[Shared options](#shared-options): {', '.join(also)}."]
    return "\n".join(lines).strip() + "\n"


def shared() -> list[click.Option]:
    """The options that the page describes once, for all commands."""
    by_name = {option.name: option for option in options_of(dict(commands())["run"])}
    return [by_name[name] for name in (*_OPTIONS, "as_json")]


def shared_table() -> str:
    rows = [f"| {names_of(option)} | {text_of(option)} |" for option in shared()]
    return "\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n"


def written() -> str:
    """The page with its tables as the code has them now."""

    def block(found: re.Match[str]) -> str:
        table = shared_table() if found[2] == "shared" else options_table(found[2])
        return f"{found[1]}\n{table}\n{found[3]}"

    return _BLOCK.sub(block, PAGE.read_text(encoding="utf-8"))


def metrics_table() -> str:
    """The metrics, one row each."""
    lines = [
        "| metric | kind | in | labels | meaning | in CloudWatch |",
        "|---|---|---|---|---|---|",
    ]
    for one in names.METRICS:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        emf = f"`{one.emf}`" if one.emf else ""
        lines.append(
            f"| `{one.name}` | {one.kind} | {one.unit} | {labels} | {one.meaning} | {emf} |"
        )
    return "\n".join(lines) + "\n"


def causes_table() -> str:
    rows = [f"| `{cause}` | {meaning} |" for cause, meaning in names.CAUSES.items()]
    return "\n".join(["| cause | meaning |", "|---|---|", *rows]) + "\n"


def written_metrics() -> str:
    """The page of the metrics with its tables as the code has them now."""
    text = METRICS_PAGE.read_text(encoding="utf-8")
    for name, table in (("metrics", metrics_table()), ("causes", causes_table())):
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = block.sub(lambda found, table=table: f"{found[1]}\n{table}\n{found[2]}", text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
    METRICS_PAGE.write_text(written_metrics(), encoding="utf-8")
