"""Draws the pictures named on the command line, or all of them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

NAMES = (
    *("fact", "version", "walk", "demo", "figures"),
    *("causes", "lateness", "windows", "fields", "guards"),
)
FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"


def drawn(name: str) -> str:
    """Return the picture, drawn now."""
    picture: str = importlib.import_module(f"pictures.{name}").draw()
    return picture


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for one in sys.argv[1:] or NAMES:
        (FOLDER / f"{one}.svg").write_text(drawn(one))
