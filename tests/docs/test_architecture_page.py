"""docs/architecture.md is true: its files and names exist, and every package is a room of it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.pages import DOCS

SOURCE = Path(__file__).parents[2] / "src" / "eventonce"
TEXT = (DOCS / "architecture.md").read_text(encoding="utf-8")


def test_every_file_on_the_page_exists() -> None:
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py)`", TEXT))
    assert len(named) > 15
    inside = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    assert {name for name in named if "/" in name} <= inside
    assert {Path(name).name for name in named} <= {Path(name).name for name in inside}


def test_every_package_is_a_room_of_the_page() -> None:
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert rooms <= set(re.findall(r"`([a-z]+)/", TEXT))


def test_every_table_that_takes_a_line_is_where_the_page_says() -> None:
    found = re.findall(r"`(_?[A-Z_]{4,})`(?: or `([A-Z_]+)`)? of `([a-z_/]+\.py)`", TEXT)
    assert len(found) >= 6
    for first, second, file in found:
        for name in filter(None, (first, second)):
            assert re.search(rf"^{name}\b", (SOURCE / file).read_text(), re.MULTILINE), name
