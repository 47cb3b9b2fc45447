"""One dead letter, with its event."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from eventonce.core.sealed import key_of_letter
from eventonce.dashboard.access import Person, person_of
from eventonce.dashboard.context import Context, context_of
from eventonce.dashboard.layout import framed, section
from eventonce.dashboard.letter_query import LetterQuery
from eventonce.dashboard.pages.letters import (
    LETTERS_WAIT,
    chosen_in,
    offers,
    when,
)
from eventonce.dashboard.pages.search import link
from eventonce.history.decision import conversation_of
from eventonce.letters import bulk
from eventonce.letters.selection import event_of
from eventonce.markup import counted, data, dotted, joined, number, tag
from eventonce.study.page.layout import listing
from eventonce.study.page.pairs import masked
from eventonce.types import Letter

LONGEST_EVENT: Final = 50_000
"""The most characters of an event that are shown; `export` writes the whole event."""


_NAME: Final = re.compile(r"[A-Za-z_$@-](?:[A-Za-z_$:.-]|[0-9]{1,2}(?![0-9]))*")
"""The name of a field. A telephone number, an address or a person's name does not match, if an
event uses it as the name of a field."""


async def page(request: Request) -> Response:
    """Return the page of one dead letter, with its event."""
    context, person = context_of(request), person_of(request)
    chosen = chosen_in(request, request.query_params)
    if not chosen.selection.ids:
        raise HTTPException(400, "The link names no dead letter")
    letter = await context.ask_letters(lambda: _letter(context, chosen), LETTERS_WAIT)
    if letter is None:
        raise HTTPException(404, "This dead letter is gone: it was redriven or dropped")
    event = event_of(letter)
    conversation = conversation_of(event) if event is not None else ""
    story = link(data(conversation), conversation=conversation) if conversation else "none"
    group = chosen.selection.group_of(letter.reason)
    alike = {"id": None, "consumer": letter.consumer, "group": group}
    facts: list[tuple[str, object]] = [
        ("reason", data(person.reason(letter.reason))),
        ("group", tag("a", group, href=chosen.link("/letters", **alike))),
        ("given up", when(letter.at)),
        ("status", letter.status),
        ("attempts", number(letter.attempt)),
        ("type", dotted(event.type) if event is not None and event.type else "none"),
        ("rule", dotted(letter.rule) if letter.rule else "none"),
        ("consumer", letter.consumer),
        ("conversation", story),
        ("key", tag("code", letter.key.hex()) if letter.key else "none"),
        ("id", tag("code", letter.id)),
    ]
    rows = [tag("tr", tag("th", name, scope="row"), tag("td", told)) for name, told in facts]
    note = None
    if not person.sees_values:
        note = tag("p", "Only operators see values.", class_="note")
    body = joined(
        offers(context, person, chosen, 1),
        tag("table", tag("tbody", *rows), class_="letter"),
        section("Event", note, listing(shown_event(letter, person))),
    )
    command = chosen.command("show")
    return await framed(request, "Dead letter", body, command)


def _letter(context: Context, chosen: LetterQuery) -> Letter | None:
    (id_,) = chosen.selection.ids
    if not chosen.from_queue:
        found: Letter | None = context.resources.store.letter(id_)
        return found
    with chosen.place(to_change=False) as place:
        for batch in bulk.selected(place, chosen.selection, bulk.Progress(), 1):
            return batch[0].letter
    return None


def shown_event(letter: Letter, person: Person) -> str:
    """Return the event as this person may see it."""
    if key_of_letter(letter):
        return f"sealed, {counted(len(letter.event), 'byte')}: the reason names the key"
    try:
        raw = letter.event
        if not person.sees_values:
            raw = msgspec.json.encode(_veiled(letter, msgspec.json.decode(raw)))
        return _cut(msgspec.json.format(raw, indent=2).decode(errors="replace"))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        if not person.sees_values:
            return f"not JSON, {counted(len(letter.event), 'byte')}"
        return _cut(letter.event.decode(errors="replace"))


def _cut(text: str) -> str:
    if len(text) <= LONGEST_EVENT:
        return text
    return f"{text[:LONGEST_EVENT]}\n… ({number(len(text))} characters; export has all of it)"


def _veiled(letter: Letter, event: Any) -> Any:
    """Return the event with the kinds of its values instead of the values. Type, source and time
    of the envelope stay: they say nothing about a person."""
    read = event_of(letter)
    shown = {read.type, read.source, read.time} if read is not None else set()
    if not isinstance(event, dict):
        return _masked(event)
    hidden: dict[str, Any] = _masked(event)
    return hidden | {
        name: value
        for name, value in event.items()
        if name in hidden and isinstance(value, str) and value in shown
    }


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name if _NAME.fullmatch(name) else f"[name {at}, {masked(name)}]": _masked(inner)
            for at, (name, inner) in enumerate(value.items(), 1)
        }
    if isinstance(value, list):
        return [_masked(inner) for inner in value]
    return f"[{masked(value)}]"
