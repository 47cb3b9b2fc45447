"""Plain tables for people: columns as wide as they need, no wider than the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from shutil import get_terminal_size

import click


def table(rows: Sequence[Sequence[object]], *, head: Sequence[str] = (), indent: int = 0) -> str:
    """The rows under their head, the last column cut where the terminal ends."""
    texts = [[str(cell) for cell in row] for row in ([head, *rows] if head else rows)]
    if not texts:
        return ""
    widths = [max(len(row[place]) for row in texts) for place in range(len(texts[0]))]
    room = get_terminal_size((100, 24)).columns - indent - sum(widths[:-1]) - 2 * (len(widths) - 1)
    lines = []
    for number, row in enumerate(texts):
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        last = row[-1] if len(row[-1]) <= max(room, 20) else row[-1][: max(room, 20) - 1] + "…"
        line = " " * indent + "  ".join([*cells, last]).rstrip()
        lines.append(click.style(line, bold=True) if head and number == 0 else line)
    return "\n".join(lines)
