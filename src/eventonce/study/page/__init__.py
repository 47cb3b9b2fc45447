"""The pages of the study's reports: `Page`, the parts of its sections, and the plots."""

from __future__ import annotations

from eventonce.markup import Html, counted, data, joined, number, share, tag
from eventonce.study.page import plots
from eventonce.study.page.layout import Page, figure, folded, listing, table
from eventonce.study.page.pairs import Pair, side_by_side
from eventonce.study.page.scales import duration

__all__ = [
    "Html",
    "Page",
    "Pair",
    "counted",
    "data",
    "duration",
    "figure",
    "folded",
    "joined",
    "listing",
    "number",
    "plots",
    "share",
    "side_by_side",
    "table",
    "tag",
]
