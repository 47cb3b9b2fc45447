"""The tables of a page with their headings, each with the code blocks shown before it."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.docs.pages import sections

_PIECE = re.compile(
    r"^```(?P<language>\w+)\n(?P<block>[\s\S]*?)^```|(?P<table>(?:^\|.*\|\n)+)", re.MULTILINE
)


class Table(NamedTuple):
    """A table, and of each language the block that was shown last before it in its section."""

    section: str
    head: list[str]
    rows: list[dict[str, str]]
    above: dict[str, str]

    def __str__(self) -> str:
        return f"{self.section}: {', '.join(self.head)}"


def tables(page: str) -> list[Table]:
    """All tables of this page, in their order."""
    found = []
    for section in sections(page).values():
        above: dict[str, str] = {}
        for piece in _PIECE.finditer(section.text):
            if piece["language"]:
                above[piece["language"]] = piece["block"]
                continue
            head, _, *lines = piece["table"].splitlines()
            rows = [dict(zip(_cells(head), _cells(line), strict=True)) for line in lines]
            found.append(Table(section.title, _cells(head), rows, dict(above)))
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]


def plain(cell: str) -> str:
    """A cell without the quotes of code."""
    return cell.strip("`")


def word(cell: str) -> str:
    """The result that a cell names; the words after it only explain."""
    return re.split(r"[ :,]", cell)[0]
