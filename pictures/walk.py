"""The way of one event: the result of each step, and where the event can leave."""

from __future__ import annotations

from typing import Final, NamedTuple

from pictures.svg import LINE, arrow, box, page, text

WIDTH: Final = 1110
HEIGHT: Final = 396
MIDDLE: Final = 214
STEP: Final = 183
WIDE: Final = 124
HIGH: Final = 72


class Stop(NamedTuple):
    """One step: its work, its result for the next step, and the events that leave here."""

    name: str
    work: list[str]
    gives: str
    ends: list[tuple[str, list[str]]]
    """A colour, the reason why an event leaves, and its status."""


STOPS: Final = (
    Stop("read", ["open the", "envelope"], "Event", [("red", ["no event", "→ dead letter"])]),
    Stop("plan", ["find rule,", "key, handler"], "Plan", [("red", ["invalid", "→ dead letter"])]),
    Stop(
        "claim",
        ["ask for the", "lease"],
        "Run",
        [
            ("green", ["duplicate, stale,", "unchanged", "→ acknowledged"]),
            ("amber", ["busy", "→ comes again"]),
        ],
    ),
    Stop(
        "run",
        ["call your", "handler"],
        "result",
        [("amber", ["failed", "→ comes again"]), ("red", ["last attempt", "→ dead letter"])],
    ),
    Stop("settle", ["prove the", "token"], "Outcome", [("amber", ["fenced", "→ comes again"])]),
    Stop("acknowledge", ["the transport", "may forget"], "", []),
)


def draw() -> str:
    """Return the picture."""
    first = _at(0) - WIDE / 2
    parts = [arrow(f"M14 {MIDDLE}H{first - 2:g}"), text(30, MIDDLE - 13, "bytes", "label")]
    for place, stop in enumerate(STOPS):
        x = _at(place)
        asks = stop.name in ("claim", "settle")
        if stop.gives:
            parts += [
                arrow(f"M{x + WIDE / 2:g} {MIDDLE}H{x + STEP - WIDE / 2 - 2:g}"),
                text(x + STEP / 2, MIDDLE - 13, stop.gives, "label"),
            ]
        parts += _ends(x, stop)
        if asks:
            y = MIDDLE - HIGH / 2
            parts.append(f'<path class="arrow both" d="M{x:g} {y - 2:g}V92"/>')
        parts += [
            box(x, MIDDLE, WIDE, HIGH, "blue" if asks else ""),
            text(x, MIDDLE - 19, stop.name, "name"),
            text(x, MIDDLE + 13, stop.work, "small"),
        ]
    left, right = _at(2) - WIDE / 2, _at(4) + WIDE / 2
    middle = (left + right) / 2
    parts += [
        box(middle, 60, right - left, 58, "blue"),
        text(middle, 50, "store", "name"),
        text(middle, 70, "one call for all events that ask at that moment", "small"),
    ]
    return page(
        WIDTH,
        HEIGHT,
        "The walk of one event: read, plan, claim, run, settle, acknowledge",
        parts,
        look=".both { marker-start: url(#head); } .leaf { fill: var(--edge); }",
    )


def _ends(x: float, stop: Stop) -> list[str]:
    """Return the exits below a step."""
    parts: list[str] = []
    below = MIDDLE + HIGH / 2
    side = x - WIDE / 2 + 12
    y = below
    for colour, words in stop.ends:
        y += 38 if y == below else 32
        y += LINE * (len(words) - 2) / 2
        parts += [
            f'<path class="box {colour}" style="fill: none" d="M{side:g} {below:g}V{y:g}h14"/>',
            f'<circle class="leaf {colour}" cx="{side + 14:g}" cy="{y:g}" r="4"/>',
            text(side + 24, y, words, "label", "start"),
        ]
        y += LINE * len(words) / 2
    return parts


def _at(place: int) -> float:
    return 118 + STEP * place
