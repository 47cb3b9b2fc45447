"""The captures of the plots in docs/study.md and the README, simulated as by their commands; and
the style of a plot."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from eventonce import presets
from eventonce.cli.diagnose import STATES_PRESET
from eventonce.rules import Ruleset
from eventonce.study.backtest import Result, backtest
from eventonce.study.diagnose import Diagnosis, diagnose
from eventonce.study.guards import RECIPES, RulesGuard
from eventonce.study.index import Index, Planned
from eventonce.study.page.layout import plot_style
from eventonce.study.page.plots import PAGE_PX, Plot, whole
from eventonce.study.simulate import Scenario, capture

EVENTS: Final = 20_000


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
        return backtest([path], [*guards, *RECIPES], truth)


def _rules(preset: str) -> Ruleset:
    return Ruleset(presets.resolve([preset]), name="study")


def paper(plot: Plot) -> str:
    """Return the plot as a picture."""
    return whole(plot, PAGE_PX, plot_style())
