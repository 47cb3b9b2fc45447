"""The figures of the benchmarks: how each run is kept, and how the chart draws the runs."""

from __future__ import annotations

from pathlib import Path

from benchmarks import Figure
from benchmarks.history import Measured, Run, keep, runs
from pictures.figures import chart


def test_a_run_is_appended_as_one_line_after_the_earlier_runs(tmp_path: Path) -> None:
    file = tmp_path / "figures.jsonl"
    for value in (0.5, 0.25):
        keep([("engine", Figure("bytes to claim", value, "x", at_most=0.6))], file)
    assert len(file.read_text().splitlines()) == 2
    kept = [figure for run in runs(file) for figure in run.figures]
    assert [figure.value for figure in kept] == [0.5, 0.25]
    assert kept[0] == Measured("engine", "bytes to claim", 0.5, "x", at_most=0.6)


def test_the_chart_shows_the_latest_run_of_each_benchmark_and_marks_missed_targets() -> None:
    def run(date: str, *figures: Measured) -> Run:
        return Run(date, "abc", "2 cores", list(figures))

    drawn = chart(
        [
            run("2026-01-01", Measured("a", "left out", 1, at_most=2), Measured("b", "b", 9)),
            run("2026-01-02", Measured("b", "kept", 1, at_least=2)),
            run("2026-01-03", Measured("a", "good", 1, at_most=2)),
        ]
    )
    assert "good" in drawn
    assert "kept" in drawn
    assert "left out" not in drawn
    assert drawn.count('class="bar short"') == 1
    assert drawn.count('class="bar"') == 1


def test_a_negative_cost_and_a_cost_of_0_are_drawn_as_reached_targets() -> None:
    figures = [Measured("a", "saved", value, at_most=0.3) for value in (-0.6, 0)]
    drawn = chart([Run("2026-01-01", "abc", "2 cores", figures)] * 2)
    assert drawn.count('class="bar"') == 2
