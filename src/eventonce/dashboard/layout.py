"""The frame of every page: the health, where to go, and the command that says the same."""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

import eventonce
from eventonce.dashboard.assets import SCRIPTS, STYLE, asset
from eventonce.dashboard.context import context_of
from eventonce.dashboard.snapshots import Snapshot
from eventonce.markup import Html, lead, tag
from eventonce.study.page import layout

NAVIGATION: Final = {
    "/": "Overview",
    "/search": "Search",
    "/letters": "Dead letters",
    "/workers": "Workers",
    "/store": "Store",
    "/shadow": "Shadow",
}
"""The pages that every page leads to, by their paths."""

HTMX: Final = {
    "includeIndicatorStyles": False,
    "allowEval": False,
    "allowScriptTags": False,
    "selfRequestsOnly": True,
    "historyCacheSize": 0,
}
"""The settings of htmx: nothing inline, nothing evaluated, nothing kept in the browser."""


class View(NamedTuple):
    """The content of one page."""

    title: str
    body: Html
    command: str = ""
    """The command line that says the same; empty for none."""
    live: str = ""
    """The path of the events that keep the parts with `sse-swap` up to date; empty for none."""


async def framed(request: Request, view: View, *, status: int = 200) -> Response:
    """The page of a view."""
    context = context_of(request)
    snapshot = await context.snapshots.latest()
    nonce = request.state.nonce
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="htmx-config", content=msgspec.json.encode(HTMX).decode()),
        tag("link", rel="icon", href="data:,"),
        tag("link", rel="stylesheet", href=asset(STYLE).path),
        tag("title", f"{view.title} · eventonce"),
        *(tag("script", src=asset(name).path, nonce=nonce, defer=True) for name in SCRIPTS),
    )
    path = request.url.path
    links = [
        tag("li", tag("a", name, href=to, aria_current=_current(path, to)))
        for to, name in NAVIGATION.items()
    ]
    name = context.resources.name
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag(
            "header",
            tag("p", tag("b", "eventonce"), f" {name}" if name else None, class_="brand"),
            tag("nav", tag("ul", *links), aria_label="Pages"),
            tag("div", health(snapshot), class_="health", sse_swap="health"),
            # Told by a screen reader when it changes, as the numbers of the sentence always do.
            tag("p", snapshot.health.state, class_="unseen", role="status", sse_swap="state"),
            class_="top",
        ),
        tag(
            "main",
            tag("h1", view.title),
            command_line(view.command),
            view.body,
            id="content",
            tabindex="-1",
        ),
        tag("footer", tag("p", f"eventonce {eventonce.__version__}. All times are UTC.")),
        hx_ext="sse" if view.live else None,
        sse_connect=view.live or None,
    )
    page = f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"
    return HTMLResponse(page, status)


def health(snapshot: Snapshot) -> Html:
    """The sentence on top of every page."""
    return tag(
        "p",
        lead(snapshot.health.sentence),
        id="health",
        class_="harm" if snapshot.health.harm else None,
    )


def command_line(command: str) -> Html | None:
    """A command with a button that copies it; the button needs a script, and is shown by it."""
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
"""A table; on a telephone each row is a block of its own, with the names of the columns in it."""


def section(title: str, *parts: Html | None) -> Html:
    """A part of a page under a heading."""
    return tag("section", tag("h2", title), *parts)


def _current(path: str, to: str) -> str | None:
    inside = path == to or (to != "/" and path.startswith(f"{to}/"))
    return "page" if inside else None
