"""The state machine of a state: the conditions of a subject's record, version by version."""

from __future__ import annotations

from typing import Final

from pictures.machine import DEAD, DONE, FREE, HELD, NONE, drawing

EDGES: Final = {
    (NONE, HELD): ["claim → run, attempt 1"],
    (HELD, HELD): ["extend · the same claim again"],
    (HELD, FREE): ["release · return ·", "the lease ends"],
    (FREE, HELD): [
        "claim → run, attempt + 1",
        "newer, tie, redrive",
        "→ run, attempt 1",
        "extend, late",
    ],
    (FREE, DEAD): ["claim, attempts used up → dead", "bury, late"],
    (HELD, DEAD): ["bury"],
    (DEAD, HELD): ["newer, tie, redrive", "→ run, attempt 1"],
    (HELD, DONE): ["complete"],
    (FREE, DONE): ["complete, late"],
    (DEAD, DONE): ["complete, late"],
    (DONE, HELD): ["newer, tie", "→ run, attempt 1"],
    (DONE, DONE): ["newer, the same state", "→ unchanged"],
}
ANSWERS: Final = {
    HELD: "another claim: busy",
    FREE: "older claim: busy, then dead",
    DEAD: "older claim: dead",
    DONE: "older claim: stale",
}
NOTE: Final = [
    "claim: the version tried last. tie: another version with the same order.",
    "In every condition a version older than the applied one is stale, and its copy a duplicate.",
]


def draw() -> str:
    """Return the picture."""
    return drawing("The state machine of a state", EDGES, ANSWERS, "applied", NOTE)
