"""The page of the store: its latency and its size."""

from __future__ import annotations

from functools import partial
from math import log10
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from eventonce.dashboard.context import Context, context_of
from eventonce.dashboard.event_stream import stream
from eventonce.dashboard.layout import framed, live_parts, spark
from eventonce.dashboard.snapshots import STORE_INTERVAL, StoreSnapshot
from eventonce.history.story import moment
from eventonce.markup import THIN, Html, joined, number, tag
from eventonce.study.page.layout import entries

BYTE_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")


async def page(request: Request) -> Response:
    """Return the page: the store now, and its latency in the last minutes."""
    context = context_of(request)
    body = live_parts(await _parts(context))
    return await framed(
        request, "Store", body, context.resources.command("stats"), live="/live/store"
    )


async def live(request: Request) -> Response:
    """Stream the same facts."""
    return stream(request, partial(_parts, context_of(request)))


async def _parts(context: Context) -> dict[str, Html]:
    snapshot = await context.snapshots.store.get()
    if snapshot.fault:
        return {"store": tag("p", snapshot.fault, class_="harm", role="alert")}
    facts = _facts(snapshot, list(context.snapshots.store_snapshots))
    return {"store": tag("div", facts, class_="facts")}


def _facts(snapshot: StoreSnapshot, before: list[StoreSnapshot]) -> Html:
    known = [one.latency for one in before if one.latency is not None]
    stats = snapshot.stats
    rows: list[tuple[object, object, object]] = [
        (
            "Latency",
            f"{snapshot.latency:.1f}{THIN}ms" if snapshot.latency is not None else "unknown",
            tag(
                "div",
                f"One claim that writes nothing, every {STORE_INTERVAL:g} seconds while a page is "
                "open.",
                spark(known, f"from {min(known):.1f} to {max(known):.1f} ms", wide=480)
                if len(known) > 1
                else None,
            ),
        )
    ]
    if stats is not None:
        size = size_of(stats.bytes) if stats.bytes is not None else "unknown"
        rows += [
            ("Records", number(stats.records), "Keys that the store remembers."),
            (
                "Dead letters",
                number(stats.letters),
                joined(
                    "Events that were given up, kept for a redrive: ",
                    tag("a", "look at them", href="/letters"),
                    ".",
                ),
            ),
            ("Size", size, "On disk or in memory, if the store knows it."),
            ("Seen", moment(snapshot.at)[11:19], "When the store was last asked."),
        ]
    return entries(rows)


def size_of(octets: int) -> str:
    """Return a number of bytes as people read it."""
    unit = min(len(BYTE_UNITS) - 1, int(log10(max(1, octets)) // 3))
    return f"{octets / 1000**unit:.3g}{THIN}{BYTE_UNITS[unit]}"
