"""The overview: the rates of events now, and their outcomes in a range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from eventonce.dashboard.context import Context, context_of
from eventonce.dashboard.event_stream import stream
from eventonce.dashboard.layout import framed, live_parts, section, table
from eventonce.dashboard.pages.search import link
from eventonce.dashboard.resources import NO_HISTORY
from eventonce.dashboard.snapshots import LIVE_RANGE, RANGES, Past, Range, Snapshot
from eventonce.history.search import SAME_ID
from eventonce.history.summary import CAUSES, GROUP_OF, GROUPS, Busy
from eventonce.markup import Html, dotted, joined, number, share, tag
from eventonce.study.page.layout import UNKNOWN_AMOUNT

GROUP_STATUSES: Final = {
    group: ",".join(status for status, its in GROUP_OF.items() if its == group) for group in GROUPS
}
"""The statuses of each group, as in a link to the search."""


async def page(request: Request) -> Response:
    """Return the overview."""
    context = context_of(request)
    resources = context.resources
    if not resources.history:
        body = tag("p", NO_HISTORY, class_="note")
        return await framed(request, "Overview", body, resources.command("stats"))
    range_ = _range(request)
    paused = request.query_params.get("live") == "off"
    snapshot = await context.snapshots.latest.get()
    past = await context.snapshots.past[range_.name].get()
    live_at = f"/live/overview?{urlencode({'range': range_.name})}"
    body = joined(
        _choices(range_, paused=paused),
        _plot(range_),
        live_parts(_parts(snapshot, past, range_)),
    )
    command = resources.command("history", "--totals", "--since", range_.name)
    return await framed(request, "Overview", body, command, live="" if paused else live_at)


async def rates(request: Request) -> Response:
    """Return the points of the plot for its script: the times in seconds, then the rates of each
    group."""
    context = context_of(request)
    range_ = _range(request)
    past = await context.snapshots.past[range_.name].get()
    points = context.snapshots.plotted(range_, past)
    columns: list[list[float]] = [[at / 1000 for at, _ in points]]
    columns += [[round(one[group], 3) for _, one in points] for group in GROUPS]
    return Response(msgspec.json.encode(columns), media_type="application/json")


async def live(request: Request) -> Response:
    """Stream the parts of the page, and the newest point of its plot."""
    return stream(request, partial(_streamed, context_of(request), _range(request)))


async def _streamed(context: Context, range_: Range) -> Mapping[str, str]:
    snapshot = await context.snapshots.latest.get()
    past = await context.snapshots.past[range_.name].get()
    told: dict[str, str] = dict(_parts(snapshot, past, range_))
    at, rates_ = context.snapshots.plotted(range_, past)[-1]
    point = [at / 1000, *(round(rates_[group], 3) for group in GROUPS)]
    told["rates"] = msgspec.json.encode(point).decode()
    return told


def _range(request: Request) -> Range:
    return RANGES.get(request.query_params.get("range", ""), LIVE_RANGE)


def _choices(range_: Range, *, paused: bool) -> Html:
    links = [
        tag(
            "li",
            tag(
                "a",
                one.words,
                href="/" if one is LIVE_RANGE else f"/?range={one.name}",
                aria_current="true" if one is range_ else None,
            ),
        )
        for one in RANGES.values()
    ]
    asked = {} if range_ is LIVE_RANGE else {"range": range_.name}
    asked |= {} if paused else {"live": "off"}
    other = tag("a", "Go on" if paused else "Pause", href=f"/?{urlencode(asked)}", id="pause")
    return tag(
        "div",
        tag("ul", *links, aria_label="The last", class_="choices"),
        other,
        class_="bar",
    )


def _plot(range_: Range) -> Html:
    return tag(
        "figure",
        tag(
            "div",
            tag("p", "The plot needs a script; its numbers are below.", class_="note"),
            id="plot",
            role="img",
            aria_label=f"Events a second by outcome in the last {range_.words}",
            data_from=f"/rates?range={range_.name}",
            data_span=range_.span // 1000,
            data_names=msgspec.json.encode(list(GROUPS)).decode(),
            data_part="rates",
        ),
        class_="plot",
    )


def _parts(snapshot: Snapshot, past: Past, range_: Range) -> dict[str, Html]:
    """Return the live parts, by the names of their events."""
    since = range_.name
    return {
        "outcomes": _outcomes(snapshot, past, range_, since),
        "causes": _causes(past, since),
        "types": _busiest("Busiest types", "type", past.summary.types, since),
        "rules": _busiest("Busiest rules", "rule", past.summary.rules, since),
    }


def _outcomes(snapshot: Snapshot, past: Past, range_: Range, since: str) -> Html:
    total = past.summary.events
    rows = []
    for place, (group, words) in enumerate(GROUPS.items()):
        many = past.summary.groups[group]
        name = group.capitalize()
        rows.append(
            (
                joined(
                    tag("span", class_=f"key k{place}", aria_hidden="true"),
                    link(name, status=GROUP_STATUSES[group], since=since) if many else name,
                ),
                f"{snapshot.rates[group]:.1f}" if snapshot.rates is not None else UNKNOWN_AMOUNT,
                number(many),
                share(many, total),
                tag("span", words, class_="soft"),
            )
        )
    head = ("outcome", "a second, now", f"in the last {range_.words}", "share", "which means")
    return section("Outcomes", table(head, rows))


def _causes(past: Past, since: str) -> Html:
    copies = past.summary.groups["copies"]
    if not copies:
        return section("Copies, by cause", tag("p", "No copies came.", class_="note"))
    rows = [
        (
            link(words, **_cause(status, same), since=since),
            number(many),
            share(many, copies),
        )
        for (status, same), words in CAUSES.items()
        if (many := past.summary.causes.get((status, same), 0))
    ]
    return section("Copies, by cause", table(("cause", "copies", "share"), rows))


def _cause(status: str, same: int) -> dict[str, str]:
    """Return the field of a search for this cause."""
    if status != "duplicate":
        return {"status": status}
    (words,) = [words for words, value in SAME_ID.items() if value == same]
    return {"copies": words}


def _busiest(title: str, field: str, busy: Sequence[Busy], since: str) -> Html:
    if not busy:
        return section(title, tag("p", "Nothing was decided.", class_="note"))
    rows = [
        (
            link(dotted(one.name), **{field: one.name}, since=since)
            if one.name
            else tag("span", f"no {field}", class_="soft"),
            number(one.events),
            share(one.copies, one.events),
            number(one.unsettled),
            number(one.letters),
            f"{one.took:.1f}",
        )
        for one in busy
    ]
    head = (field, "events", "copies", "not settled", "dead letters", "ms a run")
    return section(title, table(head, rows))
