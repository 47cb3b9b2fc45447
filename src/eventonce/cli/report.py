"""The parts that the commands of the study share: the check of the captures, the progress, the end
by a signal, and words of the reports."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from eventonce.cli.output import check_files, notice, progress, wants_json, wrapped
from eventonce.cli.signals import ended_after
from eventonce.errors import ConfigError
from eventonce.markup import HYPHEN, THIN, Sentence
from eventonce.sources.inputs import Place, inputs, remove_copies
from eventonce.study.scratch import remove_open


def first_sentence(sentence: Sentence) -> str:
    """Return the first sentence of a report."""
    plain = "".join(word if isinstance(word, str) else word.text for word in sentence)
    return click.style(wrapped(typed(plain)), bold=True)


def typed(text: str) -> str:
    """Return a text of a page with plain spaces and hyphens."""
    spaced = text.replace(f"{THIN}%", " %").replace(THIN, ",").replace("\u00a0", " ")
    return spaced.replace(HYPHEN, "-")


def check_captures(captures: Sequence[Place], *written: Path | None) -> None:
    """Refuse files that contradict each other, and print which files of folders, and objects of
    prefixes, are not read."""
    check_files(captures, *written)
    passed_over = inputs(captures)[1]
    if passed_over:
        notice(passed_over)


def check_no_pipe(captures: Sequence[Place]) -> None:
    """Refuse a pipe: values are not kept, and the lines that are shown are read a second time."""
    for one in captures:
        if "://" not in str(one) and Path(one).is_fifo():
            raise ConfigError(f"{one} is a pipe, which cannot be read twice: write it to a file")


@contextmanager
def studying(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of a study; SIGTERM or Ctrl-C ends it, without its temporary files."""
    with ended_after(_end), progress(label) as told:
        yield told


def _end(number: int) -> None:
    remove_open()
    remove_copies()
    if sys.stderr is None:
        return
    said = "\x1b[?25h\n" if sys.stderr.isatty() else ""  # the bar has hidden the cursor
    if number == signal.SIGINT:
        said += '{"error":"interrupted"}\n' if wants_json() else "eventonce: interrupted\n"
    # Not through the stream, which may be in the midst of a write.
    os.write(sys.stderr.fileno(), said.encode())


def made_by(captures: Sequence[Path | str]) -> str:
    """Return the line about the origin of a page: the command, and the names of the captures."""
    # Without the options of a bucket, which do not concern readers of the page.
    shown = [it.partition("?")[0] if isinstance(it, str) else it.name or str(it) for it in captures]
    names = ", ".join(shown[:3])
    more = f" and {len(captures) - 3} more" if len(captures) > 3 else ""
    return f"Made by {click.get_current_context().command_path} of {names}{more}."
