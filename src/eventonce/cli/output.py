"""The output of commands: tables no wider than the terminal, JSON, and events."""

from __future__ import annotations

import errno
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, BinaryIO, Final, TextIO

import click
import msgspec

from eventonce.core.ports import Finding
from eventonce.errors import ConfigError
from eventonce.log import on_one_line

JSON_WANTED: Final = "eventonce.json"
"""The name under which the context of a command keeps whether it was given `--json`."""

CLEAR_LINE: Final = "\r\x1b[K"
"""The characters that clear the line of a progress bar."""


def table(
    rows: Sequence[Sequence[object]],
    *,
    head: Sequence[str] = (),
    indent: int = 0,
    wrap: bool = False,
) -> str:
    """Return a table of rows and their head; numbers are aligned to the right. On a terminal the
    last column is cut or wrapped at the edge of the screen."""
    if not rows:
        return one_line("  ".join(head))
    columns = zip(*rows, strict=True)
    counts = [all(type(cell) is int or cell == "" for cell in column) for column in columns]
    texts = [[_cell(cell) for cell in row] for row in ([head, *rows] if head else rows)]
    widths = [max(len(row[place]) for row in texts) for place in range(len(texts[0]))]
    taken = indent + sum(widths[:-1]) + 2 * (len(widths) - 1)
    room = max(get_terminal_size().columns - taken, 20) if on_terminal(sys.stdout) else sys.maxsize
    lines = []
    for number, row in enumerate(texts):
        *cells, last = (
            cell.rjust(width) if count else cell.ljust(width)
            for cell, width, count in zip(row, widths, counts, strict=True)
        )
        last = last.rstrip()
        if len(last) > room and wrap:
            last = f"\n{' ' * taken}".join(_parted(last, room))
        elif len(last) > room:
            last = last[: room - 1] + "…"
        line = " " * indent + "  ".join([*cells, last]).rstrip()
        lines.append(click.style(line, bold=True) if head and number == 0 else line)
    return "\n".join(lines)


def _cell(cell: object) -> str:
    return f"{cell:,}" if type(cell) is int else one_line(str(cell))


def _parted(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)


def wrapped(text: str, indent: int = 0) -> str:
    """Return a paragraph no wider than the terminal; in a file it is one line."""
    pad = " " * indent
    if not on_terminal(sys.stdout):
        return pad + one_line(text)
    room = max(get_terminal_size().columns - indent, 20)
    return "\n".join(pad + line for line in _parted(one_line(text), room))


def with_table(text: str, rows: Sequence[Sequence[object]]) -> str:
    """Return the text, and below it the rows, if there are any."""
    return f"{text}\n{table(rows, indent=2)}" if rows else text


def counted(number: int, one: str, many: str = "") -> str:
    """Return `1 event` or `2 events`; `many` is a plural that is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def one_line(text: str) -> str:
    """Return the text on one line, without control characters for the terminal."""
    return text if text.isprintable() else printable(" ".join(text.split()))


def printable(text: str) -> str:
    """Return the text with its lines, without control characters for the terminal."""
    return "\n".join(map(on_one_line, text.split("\n")))


def finding_text(one: Finding) -> str:
    """Return the result of a check, and its remedy on a line of its own."""
    label = "?" if one.unchecked else one.state if one.fine else one.state.upper()
    said = f"not checked: {one.what}" if one.unchecked else one.what
    fix = f"\n{'':<9}{one_line(one.fix)}" if one.fix else ""
    return f"{label:<9}{one_line(said)}{fix}"


def echo_json(document: Any, *, err: bool = False) -> None:
    """Print one JSON document on a line."""
    click.echo(msgspec.json.encode(document).decode(), err=err)


def wants_json() -> bool:
    """Whether the command was given `--json`, whose option keeps it in the context."""
    context = click.get_current_context(silent=True)
    return context is not None and context.meta.get(JSON_WANTED, False)


def emit(document: Any, *texts: str, err: bool = False) -> None:
    """Print a result: the document with `--json`, otherwise the texts that are not empty."""
    if wants_json():
        echo_json(document, err=err)
    else:
        click.echo("\n".join(filter(None, texts)), err=err)


def notice(text: str) -> None:
    """Print a message to stderr; with `--json`, an object with the field `error`."""
    emit({"error": text}, f"eventonce: {text}", err=True)


def remark(text: str) -> None:
    """Print a message to stderr, for people alone: the output with `--json` does not need it."""
    click.echo(f"eventonce: {text}", err=True)


def check_files(captures: Sequence[Path | str], *written: Path | None) -> None:
    """Refuse a capture that is named twice (its events would all be copies), a file to write that
    is, or is in, a capture (it would be emptied before it is read), a file to write that is named
    twice, and a file without a folder."""
    read = [it if isinstance(it, str) else it.resolve() for it in captures]
    twice = [place for place, it in zip(captures, read, strict=True) if read.count(it) > 1]
    if twice:
        raise ConfigError(f"{twice[0]} is named twice: name each capture once")
    folders = [it for it in read if isinstance(it, Path)]
    for file in written:
        if file is not None and any(file.resolve().is_relative_to(it) for it in folders):
            raise ConfigError(f"{file} belongs to the capture that is read: name another file")
        if file is not None and not file.resolve().parent.is_dir():
            raise ConfigError(f"{file} cannot be written: its folder does not exist; create it")
    # A device such as /dev/null can be named twice.
    files = [it.resolve() for it in written if it is not None and (it.is_file() or not it.exists())]
    for file in files:
        if files.count(file) > 1:
            raise ConfigError(f"{file} would be written twice: name a file for each option")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a file, which gets its name when it is complete: an interrupted
    command leaves the previous file, or none."""
    if path.exists() and not path.is_file():
        yield path
        return
    file = path.resolve()
    unfinished = file.with_name(f".unfinished-{file.name}")
    try:
        yield unfinished
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def on_terminal(stream: TextIO | None) -> bool:
    """Whether this stream is a terminal. A standard stream is None if the caller closed it."""
    return stream is not None and stream.isatty()


@contextmanager
def progress(label: str, *, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal; the caller says how much is done, and of how much."""
    if not (shown and on_terminal(sys.stderr)):
        yield lambda _done, _whole: None
        return
    with click.progressbar(length=1_000, label=label, file=sys.stderr) as bar:
        yield lambda done, whole: bar.update(1_000 * min(done, whole) // max(1, whole) - bar.pos)


def overwrite(text: str) -> None:
    """Show this text in place of the one before, on a line of the terminal."""
    click.echo(f"\r{text}\x1b[K", err=True, nl=False)


def standard_output() -> BinaryIO:
    """Return the stream that events are written to."""
    if sys.stdout is None:
        raise ConfigError("standard output is closed: events cannot be written")
    return sys.stdout.buffer


def write_whole(out: BinaryIO, data: bytes) -> None:
    """Write all of the data and flush. Under `python -u` the stream is the raw file, whose `write`
    may write only a part, or nothing if it would block, without an error."""
    rest = memoryview(data)
    while rest:
        taken = out.write(rest)
        if not taken:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        rest = rest[taken:]
    out.flush()
