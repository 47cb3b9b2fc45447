"""The reports of the study on the command line: the first sentence, and the line about the
origin of a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from eventonce.cli.output import notice, wrapped
from eventonce.markup import HYPHEN, THIN, Sentence
from eventonce.sources.inputs import Place, inputs


def first_sentence(sentence: Sentence) -> str:
    """Return the first sentence of a report."""
    plain = "".join(word if isinstance(word, str) else word.text for word in sentence)
    return click.style(wrapped(typed(plain)), bold=True)


def typed(text: str) -> str:
    """Return a text of a page with plain spaces and hyphens."""
    spaced = text.replace(f"{THIN}%", " %").replace(THIN, ",").replace("\u00a0", " ")
    return spaced.replace(HYPHEN, "-")


def say_passed_over(captures: Sequence[Place]) -> None:
    """Print which files of folders, and objects of prefixes, are not read."""
    passed_over = inputs(captures)[1]
    if passed_over:
        notice(passed_over)


def made_by(captures: Sequence[Path | str]) -> str:
    """Return the line about the origin of a page: the command, and the names of the captures."""
    # Without the options of a bucket, which do not concern readers of the page.
    shown = [it.partition("?")[0] if isinstance(it, str) else it.name or str(it) for it in captures]
    names = ", ".join(shown[:3])
    more = f" and {len(captures) - 3} more" if len(captures) > 3 else ""
    return f"Made by {click.get_current_context().command_path} of {names}{more}."
