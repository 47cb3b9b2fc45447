"""The captures of the plots in docs/study.md and the README, simulated as by their commands; and
the style of a plot."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from eventonce import presets
from eventonce.cli.diagnose import STATES_PRESET
from eventonce.markup import Html, joined, tag
from eventonce.rules import Ruleset
from eventonce.sources.files import Capture
from eventonce.study.backtest import Result, backtest
from eventonce.study.diagnose import Diagnosis, diagnose
from eventonce.study.guards import RECIPES, RulesGuard
from eventonce.study.index import Index, Planned
from eventonce.study.page.plots import PAGE_PX, Drawn, Plot, svg, text
from eventonce.study.simulate import Scenario, capture

EVENTS: Final = 20_000
MARGIN_PX: Final = 24
TITLE_PX: Final = 26
"""The space around a plot, and for its title, in pixels."""


@cache
def diagnosis() -> Diagnosis:
    """`eventonce simulate --source genesys --source unknown --events 20000`, diagnosed."""
    planned = Planned(_rules("auto"), _rules(STATES_PRESET))
    with TemporaryDirectory() as folder:
        path = Path(folder, "capture.jsonl")
        scenario = Scenario(EVENTS, sources=("genesys", "unknown"))
        path.write_bytes(b"".join(line.text for line in capture(scenario)))
        with Index([path], planned) as index:
            index.build(processes=1)
            return diagnose(index)


@cache
def results() -> list[Result]:
    """`eventonce simulate --events 20000`, and the results of the guards of the README."""
    guards = [
        RulesGuard(f"eventonce {name}", _rules(name)) for name in ("genesys:latest", "genesys")
    ]
    with TemporaryDirectory() as folder:
        path, truth = Path(folder, "capture.jsonl"), Path(folder, "truth.jsonl")
        lines = list(capture(Scenario(EVENTS)))
        path.write_bytes(b"".join(line.text for line in lines))
        facts = (msgspec.json.encode({"fact": line.fact}) + b"\n" for line in lines)
        truth.write_bytes(b"".join(facts))
        return backtest(Capture([path]), [*guards, *RECIPES], truth)


def _rules(preset: str) -> Ruleset:
    return Ruleset(presets.resolve([preset]), name="study")


def paper(plot: Plot) -> str:
    """Return the plot as the text of an SVG file, with a background."""
    height, parts = plot.draw(PAGE_PX)
    style = files("eventonce.study.page").joinpath("plot.css").read_text("utf-8")
    background = tag("rect", width="100%", height="100%", rx=10, class_="paper")
    moved = tag("g", *parts, transform=f"translate({MARGIN_PX} {MARGIN_PX + TITLE_PX})")
    head = text(MARGIN_PX, MARGIN_PX + 8, plot.title, "title")
    shown: list[Html] = [Html(f"<style>{style}</style>"), background, head, moved]

    def draw(_: int) -> Drawn:
        return height + 2 * MARGIN_PX + TITLE_PX, shown

    return joined(svg(plot._replace(draw=draw), PAGE_PX + 2 * MARGIN_PX), Html("\n"))
