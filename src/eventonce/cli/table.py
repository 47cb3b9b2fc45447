"""Text for people: plain tables no wider than the terminal, counts, and one safe line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from shutil import get_terminal_size

import click


def table(rows: Sequence[Sequence[object]], *, head: Sequence[str] = (), indent: int = 0) -> str:
    """The rows under their head; on a terminal the last column is cut where it ends."""
    texts = [[one_line(str(cell)) for cell in row] for row in ([head, *rows] if head else rows)]
    if not texts:
        return ""
    widths = [max(len(row[place]) for row in texts) for place in range(len(texts[0]))]
    taken = indent + sum(widths[:-1]) + 2 * (len(widths) - 1)
    room = get_terminal_size().columns - taken if sys.stdout.isatty() else sys.maxsize
    lines = []
    for number, row in enumerate(texts):
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        last = row[-1] if len(row[-1]) <= max(room, 20) else row[-1][: max(room, 20) - 1] + "…"
        line = " " * indent + "  ".join([*cells, last]).rstrip()
        lines.append(click.style(line, bold=True) if head and number == 0 else line)
    return "\n".join(lines)


def counted(number: int, one: str, many: str = "") -> str:
    """`1 event`, `2 events`; `many` where it is not the one with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def one_line(text: str) -> str:
    """The text on one line, with nothing in it that a terminal would obey."""
    return text if text.isprintable() else printable(" ".join(text.split()))


def printable(text: str) -> str:
    """The text, line by line, with nothing in it that a terminal would obey."""
    lines = text.split("\n")
    return "\n".join(line if line.isprintable() else repr(line)[1:-1] for line in lines)
