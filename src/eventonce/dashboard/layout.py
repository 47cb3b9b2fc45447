"""The frame of every page (health, navigation, command), and the elements that pages share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

import eventonce
from eventonce.dashboard.assets import SCRIPTS, STYLE, asset
from eventonce.dashboard.context import context_of
from eventonce.dashboard.snapshots import Snapshot
from eventonce.markup import Html, joined, lead, tag
from eventonce.study.page import layout

NAVIGATION: Final = {
    "/": "Overview",
    "/search": "Search",
    "/letters": "Dead letters",
    "/workers": "Workers",
    "/store": "Store",
    "/shadow": "Shadow",
}
"""The pages in the navigation, by their paths."""

SPARK_WIDTH: Final = 160  # pixels
SPARK_HEIGHT: Final = 24  # pixels


async def framed(
    request: Request,
    title: str,
    body: Html,
    command: str = "",
    *,
    live: str = "/live",
    status: int = 200,
) -> Response:
    """Return the whole page with this content. `command` is the command line with the same result,
    empty for none; `live` is the path of the events that keep the parts with `data-part` up to
    date, empty for none."""
    context = context_of(request)
    snapshot = await context.snapshots.latest.get()
    nonce = request.state.nonce
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("link", rel="stylesheet", href=asset(STYLE).path),
        tag("title", f"{title} · eventonce"),
        *(tag("script", src=asset(name).path, nonce=nonce, defer=True) for name in SCRIPTS),
    )
    path = request.url.path
    links = [
        tag("li", tag("a", name, href=to, aria_current=_current(path, to)))
        for to, name in NAVIGATION.items()
    ]
    name = context.resources.name
    whole = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag(
            "header",
            tag("p", tag("b", "eventonce"), f" {name}" if name else None, class_="brand"),
            tag("nav", tag("ul", *links), aria_label="Pages"),
            tag("div", health(snapshot), class_="health", data_part="health"),
            # For screen readers, which read it when it changes; the sentence changes too often.
            tag("p", snapshot.health.state, class_="unseen", role="status", data_part="state"),
            class_="top",
        ),
        tag(
            "main",
            tag("h1", title),
            command_line(command),
            body,
            id="content",
            tabindex="-1",
        ),
        tag("footer", tag("p", f"eventonce {eventonce.__version__}. All times are UTC.")),
        data_live=live or None,
    )
    page = f"<!doctype html>\n{tag('html', head, whole, lang='en')}\n"
    return HTMLResponse(page, status)


def live_parts(parts: Mapping[str, Html]) -> Html:
    """Return the live parts of a page; the stream of the page has events of the same names."""
    return joined(*(tag("div", markup, data_part=name) for name, markup in parts.items()))


def health(snapshot: Snapshot) -> Html:
    """Return the sentence at the top of every page."""
    return tag(
        "p",
        lead(snapshot.health.sentence),
        id="health",
        class_="harm" if snapshot.health.harm else None,
    )


def command_line(command: str) -> Html | None:
    """Return a command with a button that copies it; a script shows the button."""
    if not command:
        return None
    return tag(
        "div",
        tag("code", command, id="command"),
        tag("button", "Copy", type="button", data_copy="command", hidden=True),
        class_="command",
        role="group",
        aria_label="The same on the command line",
    )


table: Final = partial(layout.table, labelled=True)
"""Return a table; on a small screen each row is a block with the names of the columns in it."""


def section(title: str, *parts: Html | None) -> Html:
    """Return a part of a page with a heading."""
    return tag("section", tag("h2", title), *parts)


def spark(values: Sequence[float], said: str, *, wide: int = SPARK_WIDTH) -> Html:
    """Return a small line plot from the oldest value to the newest; `said` is its text for screen
    readers, and `wide` its width in pixels."""
    top = max(values, default=0) or 1
    step = wide / max(1, len(values) - 1)
    way = " ".join(
        f"{'L' if place else 'M'}{place * step:.1f} "
        f"{SPARK_HEIGHT - 1 - (SPARK_HEIGHT - 3) * value / top:.1f}"
        for place, value in enumerate(values)
    )
    return tag(
        "svg",
        tag("path", d=way, class_="line accent"),
        viewBox=f"0 0 {wide} {SPARK_HEIGHT}",
        width=wide,
        height=SPARK_HEIGHT,
        role="img",
        aria_label=said,
        class_="spark",
    )


def _current(path: str, to: str) -> str | None:
    inside = path == to or (to != "/" and path.startswith(f"{to}/"))
    return "page" if inside else None
