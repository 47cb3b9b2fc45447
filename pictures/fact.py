"""The state machine of a fact: the conditions of its record, by the law."""

from __future__ import annotations

from typing import Final

from pictures.machine import DEAD, DONE, FREE, HELD, NONE, drawing

EDGES: Final = {
    (NONE, HELD): ["claim → run, attempt 1"],
    (HELD, HELD): ["extend · the same claim again"],
    (HELD, FREE): ["release · return ·", "the lease ends"],
    (FREE, HELD): ["claim → run, attempt + 1", "redrive → run, attempt 1", "extend, late"],
    (FREE, DEAD): ["claim, attempts used up → dead", "bury, late"],
    (HELD, DEAD): ["bury"],
    (DEAD, HELD): ["redrive", "→ run, attempt 1"],
    (HELD, DONE): ["complete"],
    (FREE, DONE): ["complete, late"],
    (DEAD, DONE): ["complete, late"],
}
ANSWERS: Final = {
    HELD: "another claim: busy",
    FREE: "another claim: run",
    DEAD: "another claim: dead",
    DONE: "another claim: duplicate",
}
NOTE: Final = [
    "late: only the token of the latest run is believed, and it is believed after its lease too.",
    "A record that is free, dead or done is forgotten after remember: then there is no record.",
]


def draw() -> str:
    """Return the picture."""
    return drawing("The state machine of a fact", EDGES, ANSWERS, "done", NOTE)
