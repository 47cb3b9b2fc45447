"""The page of a report: one file that needs no network and no script."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Final, Self

from eventonce.markup import THIN, Html, joined, number, tag
from eventonce.stores.sqlite.admin import make_private
from eventonce.study.page.plots import PAGE_PX, PHONE_PX, Plot, svg

ROWS_SHOWN: Final = 60
"""The most rows of a table that are shown; a capture may have thousands of types."""

UNKNOWN_AMOUNT: Final = "…"
"""The sign for an amount that is not known yet."""


class Page:
    """A page, filled section by section.

    `lead` is its first sentence, the summary, below the title; `made` names the command at the
    foot.
    """

    def __init__(self, title: str, lead: object, *, made: str) -> None:
        self._title = title
        self._lead = lead
        self._made = made
        self._sections: list[Html] = []

    def section(self, title: str, *parts: object) -> Self:
        """Add a section; text becomes a paragraph, and an empty part is skipped."""
        told = (part if isinstance(part, Html) else tag("p", part) for part in parts if part)
        name = f"s{len(self._sections) + 1}"
        heading = tag("h2", title, id=name)
        self._sections.append(tag("section", heading, *told, aria_labelledby=name))
        return self

    @property
    def sections(self) -> Html:
        """The sections alone, for another page."""
        return joined(*self._sections)

    def render(self) -> str:
        """Return the page as text."""
        look = style()
        digest = b64encode(sha256(look.encode()).digest()).decode()
        policy = (
            f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; "
            "form-action 'none'"
        )
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}"/>'),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("meta", name="referrer", content="no-referrer"),
            tag("link", rel="icon", href="data:,"),
            tag("title", self._title),
            Html(f"<style>{look}</style>"),
        )
        body = tag(
            "body",
            tag("a", "Skip to the report", href="#report", class_="skip"),
            tag("header", tag("p", self._title, class_="kicker"), tag("h1", self._lead)),
            tag("main", *self._sections, id="report", tabindex="-1"),
            tag("footer", tag("p", self._made)),
        )
        return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"

    def write(self, path: Path) -> None:
        """Write the page to a file, which may show values of events."""
        make_private(path)
        path.write_text(self.render(), encoding="utf-8")


@cache
def style() -> str:
    """Return the style of a page."""
    folder = files(__package__)
    return "".join(folder.joinpath(name).read_text("utf-8") for name in ("plot.css", "page.css"))


def figure(plot: Plot, caption: object = None) -> Html:
    """Return a plot for the width of a page and of a telephone, with its numbers below it."""
    numbers = tag("details", tag("summary", "The numbers"), table(plot.head, plot.rows, plot.title))
    return tag(
        "figure",
        svg(plot, PAGE_PX, "wide"),
        svg(plot, PHONE_PX, "narrow"),
        tag("figcaption", caption) if caption else None,
        numbers,
    )


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    caption: str = "",
    strong: Sequence[int] = (),
    *,
    labelled: bool = False,
) -> Html:
    """Return a table; the first cell names the row, and numbers are aligned right. If `labelled`,
    each cell has the name of its column, which a style can show beside it."""
    columns = list(zip(*rows, strict=True)) if rows else [() for _ in head]
    right = [all(_is_amount(cell) for cell in column) for column in columns]
    top = tag(
        "tr",
        *(
            # An empty cell is no header.
            tag("th", word, scope="col", class_=_aligned(numeric=numeric)) if word else tag("td")
            for word, numeric in zip(head, right, strict=True)
        ),
    )
    body = [
        tag(
            "tr",
            *_cells(row, right, head if labelled else ()),
            class_="strong" if place in strong else None,
        )
        for place, row in enumerate(rows[:ROWS_SHOWN])
    ]
    rest = len(rows) - ROWS_SHOWN
    more = tag("p", f"… and {number(rest)} more.", class_="note") if rest > 0 else None
    made = tag(
        "table",
        tag("caption", caption) if caption else None,
        tag("thead", top),
        tag("tbody", *body),
        class_="labelled" if labelled else None,
    )
    label = caption or ", ".join(filter(None, head))
    return joined(
        tag("div", made, class_="scroll", role="group", tabindex=0, aria_label=label), more
    )


def _cells(row: Sequence[object], right: Sequence[bool], head: Sequence[str]) -> list[Html]:
    shown = [number(cell) if isinstance(cell, int | float) else cell for cell in row]
    first, *rest = zip_longest(shown, right, head)
    return [
        tag("th", first[0], scope="row", class_=_aligned(numeric=first[1])),
        *(
            tag("td", cell, class_=_aligned(numeric=numeric), data_label=label)
            for cell, numeric, label in rest
        ),
    ]


def _is_amount(cell: object) -> bool:
    return (
        cell == UNKNOWN_AMOUNT
        or isinstance(cell, int | float)
        or (isinstance(cell, str) and cell.rstrip("%").replace(THIN, "").replace(".", "").isdigit())
    )


def _aligned(*, numeric: bool) -> str | None:
    return "n" if numeric else None


def entries(rows: Sequence[tuple[object, object, object]]) -> Html:
    """Return rows of a name, an amount and a text; on a telephone the text is below."""
    return tag(
        "dl",
        *(
            tag("div", tag("dt", name), tag("dd", much, class_="n"), tag("dd", about))
            for name, much, about in rows
        ),
    )


def listing(text: str) -> Html:
    """Return the lines of a file, unchanged."""
    return tag("pre", tag("code", text), tabindex=0)


def folded(summary: str, *parts: Html, opened: bool = False) -> Html:
    """Return parts that are shown when the reader opens them."""
    return tag("details", tag("summary", summary), *parts, open=opened)
