"""The workers: those that the history has seen in the last hour, and the leases of this process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from eventonce.core.plan import Run
from eventonce.dashboard.blocking_calls import Unavailable
from eventonce.dashboard.context import Context, context_of
from eventonce.dashboard.event_stream import stream
from eventonce.dashboard.layout import View, framed, section, table
from eventonce.dashboard.snapshots import WorkerSnapshot
from eventonce.dashboard.spark import spark
from eventonce.history.story import moment
from eventonce.markup import Html, counted, data, dotted, joined, number, tag
from eventonce.runtime.gate import is_overdue

ELSEWHERE: Final = (
    "A lease is known to the process that holds it: start `eventonce run` or `eventonce serve` "
    "with --dashboard to see its leases."
)


async def page(request: Request) -> Response:
    """The workers and their leases."""
    context = context_of(request)
    parts = await _parts(context)
    body = joined(*(tag("div", markup, sse_swap=name) for name, markup in parts.items()))
    command = context.resources.command("history", "--totals", "--since", "1h")
    return await framed(request, View("Workers", body, command, live="/live/workers"))


async def live(request: Request) -> Response:
    """The same, kept up to date."""
    context = context_of(request)

    async def parts() -> Mapping[str, str]:
        return await _parts(context)

    return stream(request, parts)


async def _parts(context: Context) -> dict[str, Html]:
    try:
        seen = _seen(await context.snapshots.workers())
    except Unavailable as error:
        seen = tag("p", str(error), class_="note")
    return {
        "workers": section("In the last hour", seen),
        "leases": section("Leases of this process", _leases(context)),
    }


def _seen(workers: list[WorkerSnapshot]) -> Html:
    if not workers:
        return tag("p", "No worker has decided anything.", class_="note")
    rows = [
        (
            data(one.name),
            data(", ".join(one.consumers)),
            data(", ".join(filter(None, one.channels)) or "unknown"),
            # Without the minute of now, which is not over.
            spark(one.minutes[:-1], f"at most {counted(max(one.minutes), 'event')} a minute"),
            number(sum(one.minutes)),
            number(one.groups.get("not settled", 0)),
            number(one.groups.get("dead letters", 0)),
            moment(one.last)[11:16],
        )
        for one in workers
    ]
    head = (
        *("worker", "consumer", "channel", "events a minute", "events", "not settled"),
        *("dead letters", "last decision"),
    )
    return table(head, rows)


def _leases(context: Context) -> Html:
    consumer = context.resources.consumer
    if consumer is None:
        return tag("p", ELSEWHERE, class_="note")
    now = time.monotonic()
    held = sorted(consumer.runtime.gate.held(), key=lambda run: run.started or now)
    said = [_said(context.resources.state() if context.resources.state is not None else {})]
    if not held:
        return joined(*said, tag("p", "No lease is held.", class_="note"))
    head = ("event", "rule", "attempt", "runs for", "renewed", "lease", "")
    rows = [_row(run, now) for run in held]
    return joined(*said, table(head, rows))


def _said(state: Mapping[str, object]) -> Html | None:
    if not state:
        return None
    queue = state.get("queue")
    away = isinstance(queue, dict) and queue.get("why")
    oldest = f", the longest for {state['oldest_seconds']} seconds" if state["running"] else ""
    return tag(
        "p",
        f"{state['in_flight']} received and not acknowledged yet, {state['running']} of them run"
        f"{oldest}.",
        f" The queue does not answer: {away}" if away else None,
        class_="note",
    )


def _row(run: Run, now: float) -> tuple[object, ...]:
    state = "lost to another run" if run.lost else "overdue" if is_overdue(run, now) else ""
    return (
        dotted(run.plan.event.type) if run.plan.event.type else "no type",
        run.plan.rule.name,
        run.attempt,
        f"{now - run.started:.0f} s" if run.started else "waits",
        f"{now - run.renewed:.0f} s ago" if run.renewed else "not held",
        f"{run.claim.lease / 1000:g} s",
        tag("span", state, class_="harm") if state else "",
    )
