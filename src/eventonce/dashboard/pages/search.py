"""The search for decisions, and the story of a conversation as a timeline."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from eventonce.clock import wall_clock
from eventonce.core.status import MEANINGS
from eventonce.dashboard.access import person_of
from eventonce.dashboard.context import SEARCH_WAIT, Context, context_of
from eventonce.dashboard.forms import FilterForm, typed
from eventonce.dashboard.layout import framed
from eventonce.dashboard.resources import NO_HISTORY
from eventonce.history import Decision, Search
from eventonce.history.digests import DIGEST
from eventonce.history.recorder import hidden_text
from eventonce.history.search import SAME_ID
from eventonce.history.story import LETTER_KEPT, NOTHING_FOUND, Chapter, lateness, moment, told
from eventonce.history.summary import GROUP_OF, GROUPS
from eventonce.history.winners import TOOK_EFFECT
from eventonce.markup import Html, counted, data, dotted, joined, tag
from eventonce.rules.instants import asked

CHOICES: Final[Mapping[str, Collection[str]]] = {"status": MEANINGS, "copies": SAME_ID}
"""The values of fields that have one of a list, or several, separated by commas."""

USUAL_DECISIONS: Final = 100
MOST_DECISIONS: Final = 1000
"""The most decisions on a page, and their usual number."""

FORM: Final = FilterForm(
    "/search",
    "Search",
    first=("conversation", "event", "reason", "status"),
    more=("subject", "type", "rule", "copies", "key", "consumer", "since", "until"),
    hints={
        "conversation": "the id of a call, a contact or a case",
        "event": "its transport id",
        "reason": "a part of it",
        "subject": "of a state: the whole text",
        "since": "10m, or 2026-11-16T08:00Z",
        "until": "1h, or 2026-11-16T09:00Z",
        "key": "hexadecimal",
    },
    choices=CHOICES,
)
GROUP_CLASSES: Final = {group: f"k{place}" for place, group in enumerate(GROUPS)}


class SearchQuery(msgspec.Struct, frozen=True):
    """The search of one request."""

    given: Mapping[str, str]
    """The fields that have a value, as they were typed."""
    search: Search
    limit: int
    fault: str = ""
    """The first field that is wrong, and why."""

    @property
    def one(self) -> bool:
        """Whether the search is about one conversation, event, subject or key; then its page is a
        story."""
        search = self.search
        return bool(search.conversation or search.id or search.subject or search.key)

    def options(self) -> list[str]:
        """Return the options of `eventonce history` for the same search."""
        return [
            *(
                f"--{'name' if name == 'consumer' else name}={value}"
                for name, value in self.given.items()
            ),
            f"--limit={self.limit}",
        ]


async def page(request: Request) -> Response:
    """Return the page with the form and its results; without fields, the latest decisions."""
    context, person = context_of(request), person_of(request)
    query = _query(request)
    command = context.resources.command("history", *query.options())
    if not context.resources.history:
        return await framed(request, "Search", tag("p", NO_HISTORY, class_="note"), command)
    form = FORM.filled(query.given, person.may_search)
    if query.fault:
        body = joined(form, tag("p", query.fault, class_="harm", role="alert"))
        return await framed(request, "Search", body, status=400)
    person.check_search(query.given)
    decisions, cut = await context.ask_history(lambda: _found(context, query), SEARCH_WAIT)
    found = [
        replace(one, reason=person.reason(one.reason), subject=person.subject(one.subject))
        for one in decisions
    ]
    by_id = query.search.conversation or query.search.id or query.search.subject
    hidden = await context.hidden.get() if found and by_id else 0
    results = _story(found, query.search, cut) if query.one else _decisions(found)
    more = f"The history may have more decisions: {hidden_text(hidden)}." if hidden else ""
    note = tag("p", more, class_="note") if more else None
    body = joined(form, _count_note(query, found), note, results)
    return await framed(request, _title(query), body, command)


def _query(request: Request) -> SearchQuery:
    """Return the search of a request."""
    params = request.query_params
    given = {name: value for name in (*FORM.first, *FORM.more) if (value := typed(params, name))}
    fields: dict[str, Any] = {}
    fault = ""
    for name, value in given.items():
        try:
            fields["id" if name == "event" else name] = _value(name, value)
        except ValueError as error:
            fault = fault or f"{name}: {error}"
    limit = params.get("limit", "")
    many = (
        min(MOST_DECISIONS, max(1, int(limit)))
        if limit.isdecimal() and len(limit) < 6
        else USUAL_DECISIONS
    )
    return SearchQuery(given, Search(**fields), many, fault)


def _value(name: str, value: str) -> Any:
    if name in ("since", "until"):
        return asked(value, wall_clock())
    if name == "key":
        try:
            return bytes.fromhex(value)
        except ValueError:
            raise ValueError(f"{value!r} is not hexadecimal") from None
    if name in CHOICES:
        several = dict.fromkeys(one.strip() for one in value.split(","))
        for one in several:
            if one not in CHOICES[name]:
                raise ValueError(f"{one!r} is unknown; choose from {', '.join(CHOICES[name])}")
        return ",".join(several)
    return value


def _found(context: Context, query: SearchQuery) -> tuple[list[Decision], int]:
    with context.resources.searching() as history:
        return history.story(query.search, query.limit, runs=query.one)


def _title(query: SearchQuery) -> str:
    if query.search.conversation:
        return f"Conversation {query.search.conversation[:60]}"
    if query.search.id:
        return f"Event {query.search.id[:60]}"
    if query.search.subject:
        return f"Subject {query.search.subject[:60]}"
    return "Search"


def _count_note(query: SearchQuery, found: Sequence[Decision]) -> Html:
    if not found:
        return tag("p", f"{NOTHING_FOUND[0].upper()}{NOTHING_FOUND[1:]}.", class_="note")
    many = counted(min(len(found), query.limit), "decision")
    if len(found) < query.limit:
        return tag("p", f"{many}.", class_="note")
    earlier = len(found) - query.limit
    runs = f", and {counted(earlier, 'run')} before them" if earlier else ""
    said = tag("span", f"The latest {many}{runs}. ")
    if query.limit == MOST_DECISIONS:
        return tag("p", said, "Name more fields to see older ones.", class_="note")
    more = urlencode({**query.given, "limit": MOST_DECISIONS})
    link = tag("a", f"Show {counted(MOST_DECISIONS, 'decision')}", href=f"/search?{more}")
    return tag("p", said, link, class_="note")


def _decisions(found: Sequence[Decision]) -> Html:
    """Return a table of decisions, the latest first."""
    if not found:
        return tag("div")
    states = any(one.subject for one in found)
    subject = ("subject",) if states else ()
    head = ("decided", "status", "type", "conversation", *subject, "rule", "reason")
    rows = [
        tag(
            "tr",
            tag("td", tag("time", moment(one.at)), _late(one), class_="when"),
            tag("td", _status(one)),
            tag("td", _event(one)),
            tag("td", _short("conversation", one.conversation), data_label="conversation"),
            tag("td", _short("subject", one.subject), data_label="subject") if states else None,
            tag("td", one.rule, data_label="rule"),
            tag("td", data(one.reason), _won(one), class_="soft"),
        )
        for one in reversed(found)
    ]
    made = tag(
        "table",
        tag("thead", tag("tr", *(tag("th", word, scope="col") for word in head))),
        tag("tbody", *rows),
        class_="labelled decisions",
    )
    return tag("div", made, class_="scroll", role="group", tabindex=0, aria_label="Decisions")


def _late(one: Decision) -> Html | None:
    late = lateness(one)
    return joined(tag("br"), late) if late else None


def _status(one: Decision) -> Html:
    key = GROUP_CLASSES[GROUP_OF[one.status]]
    return joined(tag("span", class_=f"dot {key}", aria_hidden="true"), one.status)


def _event(one: Decision) -> Html:
    name = dotted(one.type) if one.type else tag("span", "not an event")
    return link(name, event=one.id) if one.id else name


def _short(what: str, name: str) -> Html | None:
    """Return a link to all decisions about this conversation or subject."""
    if not name:
        return None
    short = name if len(name) <= 13 else f"{name[:12]}…"
    return link(data(short), title=name, **{what: name})


def _won(one: Decision) -> Html | None:
    """Return a link to the event that took effect before this one, if it has another id."""
    if one.winner is None or one.winner == one.id:
        return None
    effect = "the event that took effect"
    return joined(" · ", link(effect, event=one.winner, title=one.winner, class_="inline"))


def link(
    words: object, *, title: str | None = None, class_: str | None = None, **query: str
) -> Html:
    """Return a link to a search."""
    return tag("a", words, href=f"/search?{urlencode(query)}", title=title, class_=class_)


def _story(found: Sequence[Decision], search: Search, cut: int) -> Html:
    """Return the chapters as a timeline, each with its decisions in order. In a search for a
    conversation, all chapters are about that conversation."""
    days: list[str] = []
    parts: list[Html] = []
    for chapter in told(found, whole=search.whole, cut=cut):
        day = moment(chapter.first.at)[:10]
        if day not in days:
            days.append(day)
            parts.append(tag("li", tag("h2", day), class_="day"))
        parts.append(_chapter(chapter, search.conversation or chapter.first.conversation))
    return tag("ol", *parts, class_="story")


def _sentence(said: str, conversation: str, consumer: str) -> Html:
    """Return a sentence, with a link to the dead letter that it names. There is no link for a
    digest: dead letters are found only by the id itself."""
    told = said.removesuffix(LETTER_KEPT)
    if told == said or not conversation or DIGEST.fullmatch(conversation):
        return tag("p", data(said))
    fields = urlencode({"conversation": conversation, "consumer": consumer})
    return tag("p", data(told), "; ", tag("a", LETTER_KEPT[2:], href=f"/letters?{fields}"))


def _chapter(chapter: Chapter, conversation: str) -> Html:
    first = chapter.first
    # A run that took effect repairs the failures before it.
    ran = [at for at, one in enumerate(chapter.decisions) if one.status in TOOK_EFFECT]
    lasting = chapter.decisions[ran[-1] if ran else 0 :]
    worst = max((GROUP_OF[one.status] for one in lasting), key=_weight)
    marks = [
        tag("span", class_=f"dot {GROUP_CLASSES[GROUP_OF[one.status]]}", title=one.status)
        for one in chapter.decisions[:60]
    ]
    steps = [
        tag(
            "li",
            tag("time", moment(one.at)[11:]),
            tag("span", _status(one)),
            tag("span", _step(one), class_="soft"),
        )
        for one in chapter.decisions
    ]
    many = counted(len(chapter.decisions), "decision")
    return tag(
        "li",
        tag("time", moment(first.at)[11:], class_="when"),
        tag("span", class_=f"dot big {GROUP_CLASSES[worst]}", aria_hidden="true"),
        tag(
            "div",
            tag(
                "p",
                tag("b", dotted(first.type) if first.type else "not an event"),
                tag("span", *marks, class_="marks", aria_hidden="true"),
                class_="fact",
            ),
            *(_sentence(said, conversation, first.consumer) for said in chapter.sentences),
            tag(
                "details",
                tag("summary", many),
                tag("ol", *steps, class_="steps"),
                tag("p", _names(first), class_="soft"),
            ),
        ),
        class_="chapter",
    )


def _weight(group: str) -> int:
    return ("ignored", "copies", "ran", "not settled", "dead letters").index(group)


def _step(one: Decision) -> Html:
    parts: list[object] = []
    if one.attempt:
        parts.append(f"attempt {one.attempt} on {one.worker}")
    if one.reason:
        parts.append(data(one.reason))
    if one.channel:
        parts.append(f"through {one.channel}")
    if one.receives > 1:
        parts.append(f"received {one.receives} times")
    spread = [piece for part in parts for piece in (", ", part)][1:]
    about = link(data(one.id), event=one.id, class_="inline") if one.id else None
    return joined(*spread, _won(one), " · " if about else None, about)


def _names(first: Decision) -> Html:
    key = first.key.hex()
    return joined(
        f"consumer {first.consumer}, rule ",
        first.rule or "none",
        joined(", subject ", link(data(first.subject), subject=first.subject))
        if first.subject
        else None,
        joined(", key ", link(key, key=key)) if key else None,
    )
