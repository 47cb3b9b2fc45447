"""Pages of the study: the content of an event is shown as text, and never becomes markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from eventonce.markup import data, number, share
from eventonce.study.page import plots
from eventonce.study.page.layout import Page, figure, table
from eventonce.study.page.pairs import Pair, side_by_side
from eventonce.study.page.scatter import Point, scatter

HOSTILE = (
    "<script>alert(1)</script>",
    "</style></title></svg><img src=x onerror=alert(1)>",
    "\" onload=\"alert(1)' onclick='alert(1)",
    "]]>--><!--",
    "&lt;b&gt;",
    "\u202egnp.exe",
    "שלום עולם",
    "\x00\x1b[31m\ud800",
)


class Reader(HTMLParser):
    """The elements and attributes of a page, as a browser would find them."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: Page) -> Reader:
    reader = Reader()
    reader.feed(page.render())
    return reader


def hostile(text: str) -> Page:
    """A page that has this text in every place that takes text."""
    fields = {"detail.same": text, text: "a", "detail.other": text}
    pair = Pair(text, (text, fields), (text, {**fields, text: text}))
    drawn = [
        plots.bars(text, text, [(text, (1, 2), True)], (text, text)),
        plots.timelines(text, text, {text: [1, 2]}, 0, 1_000, text),
        plots.histogram(text, text, [(1, 2, 3)], [(2, text)], [3, 0], (1, 10)),
        plots.curves(text, text, [plots.Curve(text, [(1, 1)], "harm")], [(1, text)], (1, 10)),
        scatter(text, text, [Point(text, 0.1, 1, "")], (text, text), [], 0.01),
    ]
    return Page(text, text, made=text).section(
        text,
        text,
        table([text], [[text], [data(text)]], text),
        side_by_side(pair, values=True),
        *(figure(plot, text) for plot in drawn),
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_an_event_becomes_markup(text: str) -> None:
    plain, page = read(hostile("plain")), hostile(text)
    found = read(page)
    assert found.elements == plain.elements
    assert found.attributes == plain.attributes
    assert not found.elements & {"script", "img", "b"}
    assert not [name for name in found.attributes if name.startswith("on") or name == "style"]
    page.render().encode()
    assert "\u202e" not in page.render()


def test_a_long_value_is_cut_and_its_length_is_shown() -> None:
    shown = data("x" * 100_000)
    assert len(shown) < 400
    assert "100\u202f000 characters" in shown


def test_values_are_masked_unless_they_are_requested() -> None:
    one = {"detail.caller": "+49 170 1234567", "detail.age": 41, "detail.vip": True}
    pair = Pair("", ("line 1", one), ("line 2", {**one, "detail.caller": "+49 170 7654321"}))
    masked, shown = (side_by_side(pair, values=values) for values in (False, True))
    for secret in ("170", "41", "True"):
        assert secret not in masked
        assert secret in shown
    assert "text, 15\u00a0characters" in masked
    told = masked.replace("<wbr/>", "")
    rows = re.findall('<tr class="(.*?)"><th scope="row"><bdi>(.*?)</bdi>', told)
    assert rows == [("differs", "detail.caller"), ("same", "detail.age"), ("same", "detail.vip")]


def test_the_policy_of_a_page_allows_only_its_own_style() -> None:
    import base64
    import hashlib

    page = Page("title", "lead", made="").render()
    (style,) = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = re.findall('Content-Security-Policy" content="(.*?)"', page)
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert "url(" not in style
    assert "http" not in style


def test_every_plot_has_its_numbers_as_a_table() -> None:
    plot = plots.bars(
        "Guards",
        "Two guards.",
        [("ours", (0, 0), True), ("theirs", (7, 1_234), False)],
        ("lost", "copies run"),
    )
    shown = figure(plot)
    assert shown.count("<table>") == 1
    assert '<th scope="row">theirs</th>' in shown
    assert shown.count('role="img"') == 2
    assert number(1_234) in shown


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        (0, 5, "0"),
        (5, 5, "100"),
        (1, 3, "33.3"),
        (1, 10**6, "under 0.1"),
        (99_999, 10**5, "over 99.9"),
    ],
)
def test_a_share_is_never_rounded_to_0_or_100_percent(part: int, whole: int, shown: str) -> None:
    assert share(part, whole) == f"{shown}\u202f%"
