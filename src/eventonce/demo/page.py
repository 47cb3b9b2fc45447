"""The page at the end of the demo: its copies, and the result of every guard. The copies are
counted here, because the study counts with DuckDB, which is an extra."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import floor, log10

from eventonce.demo import DemoDelivery
from eventonce.study.arrivals import arrival
from eventonce.study.backtest import Result
from eventonce.study.diagnose import LATENESS_MARKS, Late
from eventonce.study.examples import told
from eventonce.study.over_time import BINS_PER_DECADE, OverTime, copies_in_steps, frame
from eventonce.study.page.backtested import backtest_page
from eventonce.study.page.diagnosis import (
    LATE_NOTE,
    TIMES_NOTE,
    by_cause,
    causes_over_time,
    lateness,
)
from eventonce.study.page.layout import Page, figure


def demo_page(results: Sequence[Result], delivered: Sequence[DemoDelivery]) -> Page:
    """Return the page of a demo. It shows values, because the events are simulated."""
    lines = {line for one in results for pair in one.examples for line in pair}
    events = {line: told(arrival(delivered[line - 1].line)) for line in lines}
    page = backtest_page(
        results,
        events,
        values=True,
        made="Made by eventonce demo, from simulated events. eventonce ran on SQLite, in a process "
        "that was really killed; the recipes were played on the same deliveries.",
    )
    causes = Counter(one.cause for one in delivered if one.cause)
    page.section(
        "Why the copies are there",
        by_cause(dict(causes.most_common()), {}),
        figure(causes_over_time(_over_time(delivered)), TIMES_NOTE),
    )
    return page.section("How late copies come", figure(lateness(_late(delivered)), LATE_NOTE))


def _over_time(delivered: Sequence[DemoDelivery]) -> OverTime:
    first, step, steps = frame(delivered[0].arrives, delivered[-1].arrives)
    copies = (((one.arrives - first) // step, one.cause, 1) for one in delivered if one.cause)
    return OverTime(first, step, (), copies_in_steps(copies, steps))


def _late(delivered: Sequence[DemoDelivery]) -> Late:
    gaps = [one.arrives - delivered[one.copy_of - 1].arrives for one in delivered if one.copy_of]
    marks = [-1, *(mark for mark, _ in LATENESS_MARKS), 1 << 62]
    names = [*(name for _, name in LATENESS_MARKS), "more"]
    histogram = {
        name: sum(low < gap <= high for gap in gaps)
        for name, low, high in zip(names, marks, marks[1:], strict=False)
    }
    bins = Counter(floor(log10(max(gap, 1)) * BINS_PER_DECADE) for gap in gaps)
    return Late(histogram, max(gaps), 0, 0, dict(sorted(bins.items())))
