"""The page of dead letters: a filter, the groups by reason, and the latest ones."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from eventonce.core.status import DEAD_LETTERS
from eventonce.dashboard.access import Person, person_of
from eventonce.dashboard.actions import NO_RUNNERS
from eventonce.dashboard.context import Context, context_of
from eventonce.dashboard.forms import FilterForm
from eventonce.dashboard.layout import framed, section, table
from eventonce.dashboard.letter_query import QUEUE, LetterQuery
from eventonce.history.story import moment
from eventonce.letters import bulk
from eventonce.letters.groups import Group, grouped
from eventonce.letters.selection import event_of
from eventonce.markup import Html, counted, data, dotted, joined, number, tag
from eventonce.types import Letter

MOST_READ: Final = 100_000
"""The most dead letters that a page reads: more would take too long."""

LETTERS_WAIT: Final = 20.0
"""Seconds that a page waits for them."""

MOST_LISTED: Final = 50
"""The most dead letters that are listed; an action is on the whole selection."""

MOST_GROUPS: Final = 60

FILTER: Final = FilterForm(
    "/letters",
    "Filter",
    first=("reason", "type", "conversation", "status"),
    more=("rule", "consumer", "since", "until"),
    hints={
        "reason": "a part of it",
        "conversation": "the id of a call, a contact or a case",
        "since": "7d, or 2026-11-16T08:00Z",
        "until": "1h, or 2026-11-16T09:00Z",
    },
    choices={"status": sorted(DEAD_LETTERS)},
    kept=("group", "from"),
)

QUEUE_NOTE: Final = (
    "Reading the queue counts as a receive of each message, and hides it from other readers for up "
    "to half a minute."
)


class Found(NamedTuple):
    """The dead letters that the page shows."""

    groups: list[Group]
    latest: list[Letter]
    total: int
    more: bool
    """Whether there are more than were read."""
    closed: int
    """The number of sealed dead letters that cannot be opened and might match the filter."""


async def page(request: Request) -> Response:
    """Return the page with the groups and the latest of the selected dead letters."""
    context, person = context_of(request), person_of(request)
    chosen = chosen_in(request, request.query_params)
    command = chosen.command("groups")
    begun = _under_way(context)
    if context.resources.letters and "from" not in chosen.fields:
        body = joined(begun, _places(context, chosen))
        return await framed(request, "Dead letters", body, command)
    found = await context.ask_letters(lambda: _found(chosen), LETTERS_WAIT)
    many = joined(tag("b", counted(found.total, "dead letter")), _more(found), ".")
    body = joined(
        begun,
        _places(context, chosen) if context.resources.letters else None,
        FILTER.filled(
            chosen.fields, person.may_search, {"consumer": chosen.selection.consumer or ""}
        ),
        tag("p", many, id="count"),
        unopened(found.closed),
        offers(context, person, chosen, found.total),
        _groups(chosen, person, found.groups),
        _latest(chosen, person, found),
    )
    return await framed(request, "Dead letters", body, command)


def when(at: int) -> str:
    """Return a time, to the second."""
    return moment(at)[:-4]


def chosen_in(request: Request, given: Mapping[str, str]) -> LetterQuery:
    """Return the selection that these fields of a query or a form name."""
    person = person_of(request)
    person.check_search(given)
    chosen = LetterQuery(given, context_of(request).resources)
    if chosen.from_queue:
        person.check_queue()
    return chosen


def _found(chosen: LetterQuery) -> Found:
    latest: deque[Letter] = deque(maxlen=MOST_LISTED)
    seen: Counter[str] = Counter()
    progress = bulk.Progress()

    def looked_at() -> Any:
        batches = bulk.selected(place, chosen.selection, progress, MOST_READ + 1)
        for batch in batches:
            for each in batch:
                seen["all"] += 1
                if seen["all"] <= MOST_READ:
                    latest.append(each.letter)
                    yield each.letter

    with chosen.place(to_change=False) as place:
        groups = grouped(looked_at(), chosen.selection.group_of)
    total = min(seen["all"], MOST_READ)
    newest = sorted(latest, key=lambda letter: letter.at, reverse=True)
    return Found(groups, newest, total, seen["all"] > MOST_READ, progress.closed)


def unopened(closed: int) -> Html | None:
    """Return a warning about sealed dead letters that might match the filter."""
    if not closed:
        return None
    were = "was" if closed == 1 else "were"
    said = (
        f"{counted(closed, 'dead letter')} more could not be opened, and {were} not compared with "
        "the filter. The reasons name the missing keys."
    )
    return tag("p", said, " ", tag("a", "All dead letters", href="/letters"), class_="harm")


def _more(found: Found) -> str:
    return " at least; only the oldest of them were read" if found.more else ""


def _under_way(context: Context) -> Html | None:
    """Return links to the actions that run; if none does, to the last one."""
    latest = context.actions.latest()
    going = [action for action in latest if not action.ended]
    if not latest:
        return None
    words = "Under way: " if going else "Last action: "
    states = [
        joined(
            tag("a", action.kind.capitalize(), href=f"/actions/{action.id}"),
            f" by {action.who}: {action.state}. ",
        )
        for action in going or latest[:1]
    ]
    return tag("p", words, *states, tag("a", "All actions", href="/actions"), class_="note")


def _places(context: Context, chosen: LetterQuery) -> Html:
    """Return the links to the store and to the queue."""
    here = chosen.fields.get("from")
    links = [
        tag(
            "li",
            tag(
                "a",
                words,
                href=chosen.link("/letters", **{"from": name}),
                aria_current="true" if here == name else None,
            ),
        )
        for name, words in (("store", "Those in the store"), (QUEUE, "Read the queue"))
    ]
    said = f"New dead letters go to {context.resources.letters}. {QUEUE_NOTE}"
    return tag("div", tag("ul", *links, class_="choices"), tag("p", said, class_="note"))


def offers(context: Context, person: Person, chosen: LetterQuery, total: int) -> Html | None:
    """Return the links to the actions on the selection, for operators."""
    if not person.may_act:
        return tag("p", "You may look and not act.", class_="note")
    if not total:
        return None
    kinds = (
        ["drop", "export"] if context.resources.runners is None else ["redrive", "drop", "export"]
    )
    links = [
        tag("a", f"{kind.capitalize()} …", href=chosen.link(f"/letters/{kind}"), class_="button")
        for kind in kinds
    ]
    missing = None
    if context.resources.runners is None:
        missing = tag("p", "To redrive: ", NO_RUNNERS, class_="note")
    return joined(tag("div", *links, class_="offers"), missing)


def _groups(chosen: LetterQuery, person: Person, groups: list[Group]) -> Html | None:
    if not groups:
        return None
    if "group" in chosen.fields:
        told = person.reason(groups[0].reason)
        leave = tag("a", "Leave the group", href=chosen.link("/letters", group=None))
        return section("Group", tag("p", data(told), " ", leave))
    rows = [
        (
            _reason(chosen, person, group),
            group.count,
            when(group.last),
            _named(group.types),
            _named(group.rules),
        )
        for group in groups[:MOST_GROUPS]
    ]
    head = ("reason", "dead letters", "last", "types", "rules")
    rest = len(groups) - MOST_GROUPS
    more = f"… and {counted(rest, 'reason')} more; a filter shows them." if rest > 0 else ""
    return section("By reason", table(head, rows), tag("p", more) if more else None)


def _reason(chosen: LetterQuery, person: Person, group: Group) -> Html:
    told = data(person.reason(group.reason))
    return tag("a", told, href=chosen.link("/letters", group=group.id)) if group.id else told


def _named(counts: Counter[str]) -> Html:
    """Return the most frequent name, and the number of others."""
    ((first, _),) = counts.most_common(1)
    others = f" and {number(len(counts) - 1)} more" if len(counts) > 1 else None
    return joined(dotted(first) if first else "none", tag("span", others, class_="soft"))


def _latest(chosen: LetterQuery, person: Person, found: Found) -> Html | None:
    if not found.latest:
        told = chosen.fields and not found.closed
        return tag("p", "There are none.", class_="note") if told else None
    rows = [
        (
            tag("a", when(letter.at), href=_link_to(letter, chosen)),
            letter.status,
            dotted(event.type) if (event := event_of(letter)) is not None else "none",
            dotted(letter.rule),
            data(person.reason(letter.reason)),
        )
        for letter in found.latest
    ]
    title = "Latest" if found.total > len(rows) else "All of them"
    head = ("given up", "status", "type", "rule", "reason")
    return section(title, table(head, rows))


def _link_to(letter: Letter, chosen: LetterQuery) -> str:
    """Return the link to one dead letter by its id, because its reason and time may change."""
    place = {"from": chosen.fields["from"]} if "from" in chosen.fields else {}
    fields = {"id": letter.id, "consumer": letter.consumer, **place}
    return f"/letters/one?{urlencode(fields)}"
