"""The layout of a state machine: the five conditions of a record, and the paths of its arrows.

`fact` and `version` have the words on the arrows; a test compares both with the law.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pictures.svg import arrow, box, page, text

WIDTH: Final = 990
HEIGHT: Final = 560

NONE, HELD, FREE, DEAD, DONE = "none", "held", "free", "dead", "done"
PLACES: Final = {NONE: (80, 120), HELD: (440, 120), FREE: (440, 300), DEAD: (440, 470)}
DONE_AT: Final = (860, 300)


class Way(NamedTuple):
    """The path of an arrow, and the place of its words."""

    path: str
    x: float
    y: float
    anchor: str = "start"


WAYS: Final = {
    (NONE, HELD): Way("M96 120H344", 218, 106, "middle"),
    (HELD, HELD): Way("M415 93C395 40 485 40 465 93", 440, 40, "middle"),
    (HELD, FREE): Way("M415 148V271", 407, 210, "end"),
    (FREE, HELD): Way("M465 272V149", 473, 210),
    (FREE, DEAD): Way("M440 328V441", 448, 385),
    (HELD, DEAD): Way("M344 138C230 165 225 425 344 458", 266, 300),
    (DEAD, HELD): Way("M344 474C40 474 30 150 343 128", 124, 300),
    (HELD, DONE): Way("M536 112C700 112 830 160 850 271", 780, 150),
    (FREE, DONE): Way("M536 300H763", 650, 287, "middle"),
    (DEAD, DONE): Way("M536 470C700 470 830 440 850 329", 780, 455),
    (DONE, HELD): Way("M810 272C780 190 690 138 538 128", 772, 243, "end"),
    (DONE, DONE): Way("M890 328C880 385 950 375 930 329", 912, 392, "middle"),
}


def drawing(
    title: str,
    edges: Mapping[tuple[str, str], Sequence[str]],
    answers: Mapping[str, str],
    done: str,
    note: Sequence[str],
) -> str:
    """Return one machine: the words on its arrows, and the answers to other claims."""
    parts = [
        '<circle cx="80" cy="120" r="9" style="fill: var(--ink)"/>',
        text(80, 150, "no record", "small"),
        *(arrow(WAYS[edge].path) for edge in edges),
    ]
    colours = {HELD: "blue", FREE: "amber", DEAD: "red", DONE: "green"}
    for name, colour in colours.items():
        x, y = DONE_AT if name == DONE else PLACES[name]
        shown = done if name == DONE else name
        parts += [
            box(x, y, 190, 54, colour),
            text(x, y - 10, shown, "name"),
            text(x, y + 11, answers[name], "small"),
        ]
    parts += [
        text(WAYS[edge].x, WAYS[edge].y, words, "label", WAYS[edge].anchor)
        for edge, words in edges.items()
    ]
    parts.append(text(24, HEIGHT - 33, note, "small", "start"))
    return page(WIDTH, HEIGHT, title, parts)
