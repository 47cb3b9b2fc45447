"""A page of the docs as the tests read it: its sections, and their code blocks and tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
_TABLE = re.compile(r"(?:^\|.*\|\n)+", re.MULTILINE)


class Section(NamedTuple):
    """The text between one heading of the second level and the next."""

    title: str
    text: str

    def blocks(self, language: str) -> list[str]:
        return [body for name, body in _BLOCK.findall(self.text) if name == language]

    def tables(self) -> list[list[list[str]]]:
        """The cells of each table, without its heading."""
        prose = _BLOCK.sub("", self.text)
        return [
            [[cell.strip() for cell in row.strip("|").split("|")] for row in table.split("\n")[2:]]
            for table in (found.strip() for found in _TABLE.findall(prose))
        ]


def sections(page: str) -> dict[str, Section]:
    """The sections of this page by their titles."""
    text = (DOCS / page).read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return {
        title: Section(title, body) for title, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def anchors(page: Path) -> set[str]:
    """The names that links to headings of this page may use."""
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """The broken links of this page, to other pages or to headings."""
    broken = []
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        other = page.parent / path if path else page
        if "://" in target:
            continue
        if not other.exists() or (anchor and anchor not in anchors(other)):
            broken.append(target)
    return broken
