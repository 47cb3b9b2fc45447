"""A decision about one event: its outcome, its time, and the fields that people search by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, cast

import msgspec

from eventonce.core.reasons import AGAIN
from eventonce.core.redaction import REDACTED
from eventonce.core.status import Status
from eventonce.rules.instants import event_instant
from eventonce.rules.keys import hasher
from eventonce.types import Event, Outcome

CONVERSATION_FIELDS: Final = (
    *("conversationId", "contactId", "interactionId", "ContactId", "contactID"),
    *("conversation_id", "contact_id", "interaction_id", "interaction-id", "caseId"),
)
"""The names of the field with the id of a conversation, a contact or a call in events of contact
centres, in order: the first one that an event has counts."""

LONGEST_TEXT: Final = 400
"""The most characters of a text that are kept: a sender must not be able to fill the disk."""

LONG_ID_BYTES: Final = 16
"""Bytes of the digest that stands for the rest of a longer id; enough that no two ids share it."""

MOST_RECEIVES: Final = 2**31 - 1
"""The largest number that the column holds; the count comes from a server, and may be any."""

_NAMES: Final = tuple(f'"{name}"'.encode() for name in CONVERSATION_FIELDS)
_PLAIN: Final = re.compile(rb'\s*:\s*"([^"\\]++)"')
"""A text without escapes; nearly all texts are. The possessive `++` prevents backtracking."""
_OTHER: Final = re.compile(rb'\s*:\s*(?:("(?:[^"\\]++|\\.)++")|(-?\d++(?![\w.])))')
"""A text with escapes, or a number."""
_USUAL: Final = re.compile(
    rb'"%s"\s*+:\s*+(?:"(?!%s)([ !#-\[\]-~]{1,%d}+)"|(?=["\d-]))'
    % (CONVERSATION_FIELDS[0].encode(), re.escape(REDACTED).encode(), LONGEST_TEXT)
)
"""The first `conversationId` with a value; nearly all events have one. The group is the value, if
it is kept unchanged: printable ASCII, no escapes, not too long, not redacted. Any other text or
number matches without a group."""
_SNAPSHOT: Final = re.compile(r"v2\.(?:users|routing\.queues)\.\{id\}\.conversations(?:\.\w+)?")
"""Topics whose body is a conversation; its `id` is the id of the conversation."""


class Decision(msgspec.Struct, frozen=True, gc=False):
    """One decision about one event."""

    consumer: str
    worker: str
    """The name of the process that decided."""
    channel: str
    status: Status
    same_id: bool | None
    """For a copy: whether the event that took effect had the same transport id; None if unknown."""
    rule: str
    type: str
    source: str
    at: int
    """The time of the decision, in milliseconds."""
    reason: str
    id: str
    """The transport id of the event; empty if the event has none."""
    conversation: str
    key: bytes
    version: int | None
    """The version of the subject that the event has; None for a fact."""
    attempt: int
    """The number of the attempt, if a handler ran; otherwise 0."""
    took: int
    """Microseconds that the handler took."""
    receives: int
    """The number of times that the queue delivered the event; 0 if the transport does not count."""
    happened: int
    """The time of the event from its envelope, in milliseconds; 0 for none."""
    subject: str = ""
    """The subject of a state as one text; empty for a fact."""
    winner: str | None = None
    """For a copy: the transport id of the event that took effect; None if unknown."""


LOOKED_UP: Final = ("subject", "winner")
"""The fields that are not columns: they are looked up when a decision is read."""

Kind = tuple[str, str, str, str, bool | None, str, str, str]
"""The first fields of a decision, in order: those that many decisions have in common."""

Own = tuple[int, str, str, str, bytes | bytearray, int, int, int, int, int]
"""The other fields of a decision, as they are stored. For bytes and for None the driver of SQLite
looks for an adapter, which is slow: so the key is a bytearray, and the version of a fact is
NO_VERSION."""

NO_VERSION: Final = -(2**63)
"""The version of a fact in the tables; every version of a rule is greater (`MAX_ORDER`)."""


def decided(
    outcomes: Iterable[Outcome], at: int, consumer: str, worker: str, channel: str
) -> Iterator[tuple[Kind, Own]]:
    """Yield the fields of the decisions behind these outcomes. The fields of the kind are not made
    storable here: most kinds are known, and need it no second time."""
    usual = _USUAL.search
    for outcome in outcomes:
        event = outcome.event if outcome.event is not None else _NO_EVENT
        status, reason, id_ = outcome.status, outcome.reason, event.id
        if reason:
            # Most copies have this reason. `tables` puts it back when it reads the decision.
            again = status == "duplicate" and reason == AGAIN[outcome.same_id]
            reason = "" if again else storable(reason)
        # The same as `id_kept` and `conversation_of`, inlined because calls cost time here.
        if not (len(id_) <= LONGEST_TEXT and id_.isascii() and "\0" not in id_):
            id_ = id_kept(id_)
        found = usual(event.detail_raw)
        conversation = found[1].decode() if found and found[1] else _unusual(event)
        yield (
            (
                consumer,
                worker,
                event.channel or channel,
                status,
                outcome.same_id,
                outcome.rule,
                event.type,
                event.source,
            ),
            (
                at,
                reason,
                id_,
                conversation,
                bytearray(outcome.key),
                outcome.order if outcome.order is not None else NO_VERSION,
                outcome.attempt,
                int(outcome.took * 1_000_000),
                min(event.receives, MOST_RECEIVES) if event.receives else 0,
                (event_instant(event.time) or 0) if event.time else 0,
            ),
        )


SHORTEST_ID: Final = 4
"""The fewest characters of an id that can be told from other words and numbers."""


def id_pattern(ids: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern that matches these ids as whole words; None if all are too short."""
    named = sorted((it for it in ids if len(it) >= SHORTEST_ID), key=len, reverse=True)
    if not named:
        return None
    return re.compile(rf"(?<![0-9A-Za-z])(?:{'|'.join(map(re.escape, named))})(?![0-9A-Za-z])")


def without_ids(kind: Kind, *ids: str) -> Kind:
    """Return the kind without these ids of one event. A type or a source that names a call would
    make a kind of its own, and would stay when the call is forgotten."""
    *others, type_, source = kind
    if any(it and (it in type_ or it in source) for it in ids):
        pattern = id_pattern(ids)
        if pattern is not None:
            type_, source = pattern.sub("{id}", type_), pattern.sub("{id}", source)
    return cast("Kind", (*others, type_, source))


def storable(text: str) -> str:
    """Return the text as every database accepts it: PostgreSQL refuses NUL, and both databases
    refuse invalid UTF-8. One such event would block all events that are written with it."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text[:LONGEST_TEXT].replace("\0", "\ufffd")


def id_kept(text: str) -> str:
    """Return the id of an event or of a conversation as it is stored and searched for. An id with
    more than LONGEST_TEXT characters ends with a digest of the whole id, so that it can be found
    and no other id is taken for it."""
    if len(text) <= LONGEST_TEXT:
        return text if text.isascii() and "\0" not in text else storable(text)
    digest = hasher(LONG_ID_BYTES)(text.encode("utf-8", "replace")).hex()
    return f"{storable(text)[: LONGEST_TEXT - len(digest) - 1]}~{digest}"


_NO_EVENT: Final = Event(b"", b"")


def _text(escaped: bytes | None, number: bytes | None) -> str:
    """Return the text of a JSON string with escapes, or of a JSON number."""
    if escaped is None:
        return (number or b"").decode()
    with suppress(msgspec.DecodeError):
        return str(msgspec.json.decode(escaped))
    return escaped[1:-1].decode("utf-8", "replace")


def _named_in(text: bytes) -> str:
    for name in _NAMES:
        at = text.find(name)
        while at >= 0:
            found = _PLAIN.match(text, at + len(name))
            if found:
                return id_kept(found[1].decode("utf-8", "replace"))
            found = _OTHER.match(text, at + len(name))
            if found:
                return id_kept(_text(*found.groups()))
            at = text.find(name, at + 1)
    return ""


def conversation_of(event: Event) -> str:
    """Return the conversation of an event, as `id_kept` stores it; empty if the event names none.
    The text of the detail is searched, then the text of the whole event: to decode every event
    would cost more than the rest of its decision."""
    usual = _USUAL.search(event.detail_raw)
    return usual[1].decode() if usual and usual[1] else _unusual(event)


def _unusual(event: Event) -> str:
    """Return the conversation of an event in which `_USUAL` found no value to keep unchanged."""
    found = _named_in(event.raw)
    # A relay may have encoded the detail as a string, with its quotes escaped.
    if found or b'\\"' in event.raw:
        found = _named_in(bytes(event.detail_raw)) or found
    if found:
        # The rule of a dead letter redacts the id: the conversation is unknown.
        return "" if found == REDACTED else found
    if _SNAPSHOT.fullmatch(event.type):
        body = event.body
        if isinstance(body, dict) and isinstance(body.get("id"), str):
            return id_kept(body["id"])
    return ""
