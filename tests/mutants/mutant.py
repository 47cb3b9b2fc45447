"""One planted breakage."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A text in a file, what to put in its place, and which tests must then fail."""

    name: str
    """The breakage as a sentence: what the code does once it is planted."""
    file: str
    old: str
    """Must occur in the file exactly once."""
    new: str
    red: tuple[str, ...]
    """What pytest is asked to run; all must be green without the breakage, and one red with it."""


def planted(mutant: Mutant, text: str) -> str:
    """The text with the breakage in it."""
    found = text.count(mutant.old)
    if found != 1:
        raise ValueError(f"{mutant.name}: its text occurs {found} times in {mutant.file}, not once")
    return text.replace(mutant.old, mutant.new)
