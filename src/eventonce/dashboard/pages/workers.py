"""The page of the workers of the last hour and their leases: the leases of this process as they are
now, those of other processes as last reported."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from eventonce.clock import wall_clock
from eventonce.dashboard.blocking_calls import Unavailable
from eventonce.dashboard.context import Context, context_of
from eventonce.dashboard.event_stream import stream
from eventonce.dashboard.layout import framed, live_parts, section, spark, table
from eventonce.dashboard.resources import Resources
from eventonce.history.leases import Lease, Watched, WorkerState, process_name
from eventonce.history.story import moment
from eventonce.history.workers import Worker, ago, condition, notes
from eventonce.markup import Html, counted, data, dotted, joined, number, tag
from eventonce.study.page.layout import UNKNOWN_AMOUNT


async def page(request: Request) -> Response:
    """Return the page of workers and leases."""
    context = context_of(request)
    body = live_parts(await _parts(context))
    command = context.resources.command("workers")
    return await framed(request, "Workers", body, command, live="/live/workers")


async def live(request: Request) -> Response:
    """Stream the same tables."""
    return stream(request, partial(_parts, context_of(request)))


async def _parts(context: Context) -> dict[str, Html]:
    now, resources = wall_clock(), context.resources
    try:
        workers = _with_own(resources, await context.snapshots.workers.get(), now)
        seen = _workers_table(workers, now)
    except Unavailable as error:
        workers = _with_own(resources, [], now)
        seen = tag("p", str(error), class_="note")
    return {
        "workers": section("In the last hour", seen),
        "leases": section("Leases", _leases(resources, workers, now)),
    }


def _with_own(resources: Resources, workers: list[Worker], now: int) -> list[Worker]:
    """The workers, with the state of this process as it is now, not as it was last reported."""
    own = resources.consumer
    if own is None:
        return workers
    state = resources.state() if resources.state is not None else {}
    load = replace(Watched(own.runtime.gate.held, None).load(), in_flight=state.get("in_flight"))
    process = process_name()
    found, mine = [], [WorkerState(process, own.name, "", process, now, now, load)]
    for worker in workers:
        states = [it for it in worker.states if (it.process, it.consumer) != (process, own.name)]
        if len(states) < len(worker.states):
            states, mine = [*(replace(it, worker=worker.name) for it in mine), *states], []
        found.append(replace(worker, states=tuple(states)))
    return [*found, *(Worker.idle(it) for it in mine)]


def _workers_table(workers: list[Worker], now: int) -> Html:
    if not workers:
        return tag("p", "No worker has decided anything.", class_="note")
    rows = [
        (
            data(one.name),
            data(one.consumer),
            data(", ".join(one.channels) or "unknown"),
            _unbroken(ago(now - one.told)) if one.told else "unknown",
            # Without the current minute, which is not over.
            spark(one.minutes[:-1], f"at most {counted(max(one.minutes), 'event')} a minute"),
            number(one.events),
            number(one.groups.get("not settled", 0)),
            number(one.groups.get("dead letters", 0)),
            moment(one.last)[11:16] if one.last else "none",
            UNKNOWN_AMOUNT if one.in_flight is None else number(one.in_flight),
            UNKNOWN_AMOUNT if one.held is None else number(one.held),
        )
        for one in workers
    ]
    head = (
        *("worker", "consumer", "channel", "heard of", "events a minute", "events"),
        *("not settled", "dead letters", "last decision", "in flight", "leases"),
    )
    return table(head, rows)


def _leases(resources: Resources, workers: list[Worker], now: int) -> Html:
    states = [state for worker in workers for state in worker.states]
    state = resources.state
    said: list[Html | None] = [_state_note(state()) if state is not None else None]
    said += [tag("p", note, class_="note") for state in states for note in notes(state, now)]
    rows = [_row(state.worker, lease, now) for state in states for lease in state.load.leases]
    if not rows:
        none = "No lease is held." if states else "No process reports its leases."
        return joined(*said, tag("p", none, class_="note"))
    head = ("worker", "event", "rule", "attempt", "runs for", "renewed", "lease", "key", "")
    return joined(*said, table(head, rows))


def _state_note(state: Mapping[str, object]) -> Html | None:
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


def _row(worker: str, lease: Lease, now: int) -> tuple[object, ...]:
    told = condition(lease)
    return (
        data(worker),
        dotted(lease.type) if lease.type else "no type",
        lease.rule,
        lease.attempt,
        _unbroken(f"{max(0, now - lease.started) / 1000:.0f} s") if lease.started else "waits",
        _unbroken(ago(now - lease.renewed)) if lease.renewed else "not held",
        _unbroken(f"{lease.lasts / 1000:g} s"),
        tag("a", lease.key, href=f"/search?key={lease.key}") if lease.key else "none",
        tag("span", told, class_="harm") if told else "",
    )


def _unbroken(text: str) -> str:
    """Return the text without a place where a line may end."""
    return text.replace(" ", "\u00a0")
