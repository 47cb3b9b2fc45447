"""A decision: what was decided about one event when, and everything people look it up by."""

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

CONVERSATION: Final = (
    *("conversationId", "contactId", "interactionId", "ContactId", "contactID"),
    *("conversation_id", "contact_id", "interaction_id", "interaction-id", "caseId"),
)
"""The fields of a conversation, a contact or a call in the events of contact centres, by which its
story is found; the first of them that an event has counts."""

LONGEST: Final = 400
"""Characters of a text that are kept: what a sender writes must not fill the disk."""

LONG_BYTES: Final = 16
"""Of the digest that stands for the rest of a longer id: two ids never share one."""

MOST_RECEIVES: Final = 2**31 - 1
"""The largest number of a column; a queue's count is what its server says."""

_NAMES: Final = tuple(f'"{name}"'.encode() for name in CONVERSATION)
_PLAIN: Final = re.compile(rb'\s*:\s*"([^"\\]++)"')
"""A text without escapes, which nearly all are. Nothing is read twice, however long it is."""
_OTHER: Final = re.compile(rb'\s*:\s*(?:("(?:[^"\\]++|\\.)++")|(-?\d++(?![\w.])))')
"""A text with escapes, or a number."""
_USUAL: Final = re.compile(
    rb'"%s"\s*+:\s*+(?:"(?!%s)([ !#-\[\]-~]{1,%d}+)"|(?=["\d-]))'
    % (CONVERSATION[0].encode(), re.escape(REDACTED).encode(), LONGEST)
)
"""The first `conversationId` with a value, which nearly all events have. Its group is the value, if
that is kept as it stands: printable ASCII, no escapes, not too long, not redacted. Before any other
text or number it matches without a group."""
_SNAPSHOT: Final = re.compile(r"v2\.(?:users|routing\.queues)\.\{id\}\.conversations(?:\.\w+)?")
"""Topics whose body is the conversation itself, and has its id as `id`."""


class Decision(msgspec.Struct, frozen=True, gc=False):
    """One decision about one event."""

    consumer: str
    worker: str
    """The process that decided."""
    channel: str
    status: Status
    same_id: bool | None
    """Of a copy: whether the event that took effect had the same transport id; None for unknown."""
    rule: str
    type: str
    source: str
    at: int
    """When it was decided, in milliseconds."""
    reason: str
    id: str
    """The transport id of the event, empty if it has none."""
    conversation: str
    key: bytes
    version: int | None
    """The version that the event has of its subject; None for a fact."""
    attempt: int
    """Which attempt this was, where a handler ran; else 0."""
    took: int
    """Microseconds that the handler took."""
    receives: int
    """How often the queue had delivered the event; 0 where nobody counts."""
    happened: int
    """The time of the event as its envelope has it, in milliseconds; 0 for none."""
    subject: str = ""
    """The subject of a state in one text; empty for a fact."""
    winner: str | None = None
    """Of a copy: the transport id of the event that took effect; None where it is not known."""


FOUND: Final = ("subject", "winner")
"""The fields that are no columns of a decision: they are found when it is read."""

Kind = tuple[str, str, str, str, bool | None, str, str, str]
"""The fields of a decision that it has in common with many others: the first ones, in order."""

Own = tuple[int, str, str, str, bytes | bytearray, int, int, int, int, int]
"""The fields that are its own, as they are kept. For bytes and for None the driver of SQLite looks
for an adapter, which costs more than the rest of the value: so the key is a bytearray, and the
version of a fact is NO_VERSION."""

NO_VERSION: Final = -(2**63)
"""Stands for no version; every version of a rule is greater (`MAX_ORDER`)."""


def decided(
    outcomes: Iterable[Outcome], at: int, consumer: str, worker: str, channel: str
) -> Iterator[tuple[Kind, Own]]:
    """The decisions behind these outcomes, as their fields; those of a kind as they came, for most
    are known and need not be made storable again."""
    usual = _USUAL.search
    for outcome in outcomes:
        event = outcome.event if outcome.event is not None else _NO_EVENT
        status, reason, id_ = outcome.status, outcome.reason, event.id
        if reason:
            # Most copies have this one: what is told again when it is read need not be kept.
            again = status == "duplicate" and reason == AGAIN[outcome.same_id]
            reason = "" if again else storable(reason)
        # As `id_kept` and `conversation_of` do it, without the calls.
        if not (len(id_) <= LONGEST and id_.isascii() and "\0" not in id_):
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


SHORT: Final = 4
"""Characters of an id that is told from other words and numbers."""


def id_pattern(ids: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern of these ids as whole words; None where all of them are too short."""
    named = sorted((it for it in ids if len(it) >= SHORT), key=len, reverse=True)
    if not named:
        return None
    return re.compile(rf"(?<![0-9A-Za-z])(?:{'|'.join(map(re.escape, named))})(?![0-9A-Za-z])")


def without_ids(kind: Kind, *ids: str) -> Kind:
    """The kind without these ids of one event: a type or a source that names a call would be of no
    other, and would stay when the call is forgotten."""
    *others, type_, source = kind
    if any(it and (it in type_ or it in source) for it in ids):
        pattern = id_pattern(ids)
        if pattern is not None:
            type_, source = pattern.sub("{id}", type_), pattern.sub("{id}", source)
    return cast("Kind", (*others, type_, source))


def storable(text: str) -> str:
    """The text as every database takes it: PostgreSQL refuses NUL, and both refuse what is no
    UTF-8; one such event would hold up all the others that are written with it."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text[:LONGEST].replace("\0", "\ufffd")


def id_kept(text: str) -> str:
    """The id of an event or of a conversation as it is kept, and looked for. Of one with more than
    LONGEST characters the end is a digest of all of it: whoever has the id finds it, and no other
    is taken for it."""
    if len(text) <= LONGEST:
        return text if text.isascii() and "\0" not in text else storable(text)
    digest = hasher(LONG_BYTES)(text.encode("utf-8", "replace")).hex()
    return f"{storable(text)[: LONGEST - len(digest) - 1]}~{digest}"


_NO_EVENT: Final = Event(b"", b"")


def _text(escaped: bytes | None, number: bytes | None) -> str:
    """The text of a string with escapes, or of a number, in JSON."""
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
    """The conversation that an event belongs to, as `id_kept` has it; empty where the event names
    none. Looked for in the text of its detail, and then of all of it: to unpack every event would
    cost more than all else that is kept of it."""
    usual = _USUAL.search(event.detail_raw)
    return usual[1].decode() if usual and usual[1] else _unusual(event)


def _unusual(event: Event) -> str:
    """The same where `_USUAL` has found no text that is kept as it stands."""
    found = _named_in(event.raw)
    # A relay may have put the detail into a string.
    if found or b'\\"' in event.raw:
        found = _named_in(bytes(event.detail_raw)) or found
    if found:
        # A dead letter of a rule that redacts the id names none.
        return "" if found == REDACTED else found
    if _SNAPSHOT.fullmatch(event.type):
        body = event.body
        if isinstance(body, dict) and isinstance(body.get("id"), str):
            return id_kept(body["id"])
    return ""
