"""Every command line of the pages is accepted by eventonce: its commands and options exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from eventonce.cli import cli
from tests.docs.pages import DOCS, ROOT

PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted((DOCS / "stores").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"(?:^|\$ |\| )(eventonce [^|>&\n]*)", re.MULTILINE)


def lines_of(text: str) -> list[str]:
    """The command lines of the blocks of a page, and those between backquotes."""
    blocks = [body for language, body in BLOCK.findall(text) if language in ("", "sh", "console")]
    found = [line for body in blocks for line in LINE.findall(body.replace("\\\n", " "))]
    return found + re.findall(r"`(eventonce [a-z][^`|…]+)`", BLOCK.sub("", text))


def parse_line(line: str) -> None:
    """Raises if a command or an option of the line does not exist."""
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        found = command.get_command(context, name)
        if found is None:
            raise click.UsageError(f"there is no command {name!r}")
        command, context = found, click.Context(found, parent=context, info_name=name)
    if words:
        command.make_parser(context).parse_args(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_line_of_a_page_is_accepted(page: Path) -> None:
    faults = []
    for line in lines_of(page.read_text(encoding="utf-8")):
        try:
            parse_line(line)
        except click.BadOptionUsage:
            """In a sentence, an option may stand without its value."""
        except (click.UsageError, ValueError) as error:
            faults.append(f"{line}: {error}")
    assert not faults


def test_the_pages_have_command_lines() -> None:
    assert len({line for page in PAGES for line in lines_of(page.read_text())}) > 100


@pytest.mark.parametrize("line", ["eventonce fly", "eventonce run --wings", "eventonce store fly"])
def test_a_line_with_an_unknown_command_or_option_is_refused(line: str) -> None:
    with pytest.raises(click.UsageError):
        parse_line(line)
