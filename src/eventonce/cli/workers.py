"""`eventonce workers`: the workers of the last hour, and the leases that they hold now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click
import msgspec

from eventonce.cli import FAILED
from eventonce.cli.history_options import history_option, history_to_read
from eventonce.cli.options import Settings, json_option, with_settings
from eventonce.cli.output import emit, notice, table, wrapped
from eventonce.clock import wall_clock
from eventonce.history.leases import Lease, WorkerState
from eventonce.history.story import moment
from eventonce.history.workers import Worker, ago, condition, notes, read_workers

NO_WORKER: Final = "decided anything in the last hour, and none reports that it runs"


@click.command()
@history_option
@with_settings("name", "config")
@json_option
def workers(settings: Settings, uri: str | None) -> int:
    """List the workers of the last hour, and the leases that they hold.

    The numbers of events and of dead letters count deliveries: an event that is delivered again
    counts again.

    A worker is heard of every few seconds. One that was killed is not heard of any more; its
    leases end by themselves, and other workers take over.
    """
    now = wall_clock()
    with history_to_read(settings.file, uri) as opened:
        wanted = settings.given_name
        found = [it for it in read_workers(opened, now) if wanted in (None, it.consumer)]
    emit([_document(one, now) for one in found], _text(found, now))
    if not found:
        whose = "" if wanted is None else f" of the consumer {wanted!r}"
        notice(f"no worker{whose} has {NO_WORKER}")
    return 0 if found else FAILED


def _document(one: Worker, now: int) -> dict[str, object]:
    return {
        "worker": one.name,
        "consumer": one.consumer,
        "channels": one.channels,
        "events": one.events,
        "not_settled": one.groups.get("not settled", 0),
        "dead_letters": one.groups.get("dead letters", 0),
        "last_decision": one.last or None,
        "heard_of": one.told or None,
        "processes": [_process(state, now) for state in one.states],
    }


def _process(state: WorkerState, now: int) -> dict[str, object]:
    load = state.load
    return {
        "process": state.process,
        "channel": state.channel,
        "started": state.started,
        "heard_of": state.told,
        "stale": state.is_stale(now),
        "in_flight": load.in_flight,
        "running": load.running,
        "held": load.held,
        "leases": [{**msgspec.structs.asdict(it), "ends": it.ends or None} for it in load.leases],
    }


def _text(found: Sequence[Worker], now: int) -> str:
    if not found:
        return ""
    head = (
        *("worker", "consumer", "channel", "heard of", "events", "not settled", "dead letters"),
        *("last decision", "in flight", "leases"),
    )
    rows = [
        (
            one.name,
            one.consumer,
            ", ".join(one.channels) or "unknown",
            ago(now - one.told) if one.told else "unknown",
            one.events,
            one.groups.get("not settled", 0),
            one.groups.get("dead letters", 0),
            moment(one.last)[11:16] if one.last else "none",
            "" if one.in_flight is None else one.in_flight,
            "" if one.held is None else one.held,
        )
        for one in found
    ]
    states = [state for one in found for state in one.states]
    leases = [_row(state.worker, it, now) for state in states for it in state.load.leases]
    parts = [table(rows, head=head)]
    if leases:
        titles = ("leases of", "event", "rule", "attempt", "runs for", "renewed", "lease", "key")
        parts.append(table(leases, head=(*titles, "")))
    parts += [wrapped(note) for state in states for note in notes(state, now)]
    return "\n\n".join(parts)


def _row(worker: str, lease: Lease, now: int) -> tuple[object, ...]:
    return (
        worker,
        lease.type or "no type",
        lease.rule,
        lease.attempt,
        f"{max(0, now - lease.started) / 1000:.0f} s" if lease.started else "waits",
        ago(now - lease.renewed) if lease.renewed else "not held",
        f"{lease.lasts / 1000:g} s",
        lease.key,
        condition(lease),
    )
