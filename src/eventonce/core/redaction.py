"""Redaction: the values that a rule names are removed from an event before it is stored."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from eventonce import envelope
from eventonce.envelope.captured import Arrived, bytes_of
from eventonce.envelope.jsontext import JSON_STRING, fields_or_none, string
from eventonce.envelope.reader import MAX_LAYERS
from eventonce.errors import EnvelopeError
from eventonce.rules import Ruleset
from eventonce.rules.expressions import parse_path
from eventonce.rules.readings import Steps
from eventonce.types import Event

REDACTED: Final = "[redacted]"

SHORTEST_VALUE: Final = 3
"""The fewest characters of a value that is looked for in a reason: any text has shorter ones."""

MOST_LISTS: Final = 8
"""The deepest nesting of lists that is searched: a deeper list is redacted as a whole."""

_WORD: Final = re.compile("[0-9A-Za-z]+")
"""A part of a value that is the same in every spelling of the value."""

SHORTEST_NUMBER: Final = 7
"""The fewest digits of a number that is looked for in any grouping: any text has shorter ones."""

LONGEST_NUMBER: Final = 24
"""The most digits of such a number: a longer one is no number of a person, and each length costs
another look at every digit of a text."""

_BETWEEN: Final = r"[\s()./\u2010-\u2015-]"
"""A character that groups the digits of a number."""

_GROUPS: Final = re.compile(rf"\+?[0-9](?:{_BETWEEN}{{0,2}}[0-9])*+")
"""A number in a text, with the characters that group its digits."""

_NUMBER: Final = re.compile(rf"\+?(?:[0-9]|{_BETWEEN})*")

_NO_VALUES: Final = (b"null", b"true", b"false")
_VALUE: Final = msgspec.Raw(msgspec.json.encode(REDACTED))
_encode: Final = msgspec.json.encode
_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def encode(event: Event, paths: Sequence[str]) -> bytes:
    """Return the bytes of the event to store, with `[redacted]` for the values at these paths."""
    return envelope.encode(redacted(event, paths))


def redacted(event: Event, paths: Sequence[str]) -> Event:
    """Return the event with `[redacted]` for the values at these paths."""
    edited = detail = bytes(event.detail_raw).strip()
    for steps in _steps(detail, paths):
        edited = _edited(edited, steps)
    if edited == detail:
        return event
    # `part` names the event within its request by the original content.
    return msgspec.structs.replace(
        event,
        raw=_replaced(event.raw, detail, edited),
        detail_raw=edited,
        envelope_raw=None
        if event.envelope_raw is None
        else _replaced(bytes(event.envelope_raw), detail, edited),
        _part=event.part,
        _detail=msgspec.UNSET,
    )


def without_values(text: str, event: Event, paths: Sequence[str]) -> str:
    """Return the text with `[redacted]` for the values that the event has at these paths."""
    detail = bytes(event.detail_raw)
    found = {value for steps in _steps(detail, paths) for value in _values(detail, steps)}
    # Only values that are in the text: a pattern of all values of a large event takes a second.
    near = (it for it in found if all(word in text for word in _WORD.findall(it)))
    values = {it: re.escape(it) for value in near for it in _spellings(value) if it in text}
    if values:
        # In one pass, the longest first: no value may match within another or in `[redacted]`.
        longest_first = sorted(values, key=len, reverse=True)
        text = re.sub("|".join(map(values.__getitem__, longest_first)), REDACTED, text)
    return _without_numbers(text, found)


def _without_numbers(text: str, values: Iterable[str]) -> str:
    """Return the text with `[redacted]` for these numbers in any grouping of their digits:
    `49170123456` also matches `+49 170 123-456`. A number within a longer one matches.

    The numbers of the text are found first, each once: a pattern for all numbers of a large event
    takes seconds, in which no other thread runs.
    """
    bare = (re.sub("[^0-9]", "", it) for it in values if _NUMBER.fullmatch(it))
    numbers = {it for it in bare if SHORTEST_NUMBER <= len(it) <= LONGEST_NUMBER}
    if not numbers:
        return text
    sizes = sorted({len(it) for it in numbers}, reverse=True)

    def edited(found: re.Match[str]) -> str:
        group = found[0]
        places = [place for place, it in enumerate(group) if it in "0123456789"]
        digits = "".join(group[place] for place in places)
        kept, end, first = [], 0, 0
        while first < len(digits):
            # At the end of the group a slice may be shorter.
            parts = (digits[first : first + it] for it in sizes)
            size = next((len(it) for it in parts if it in numbers), 0)
            if size:
                start = places[first] if first else 0
                kept += [group[end:start], REDACTED]
                end = places[first + size - 1] + 1
            first += size or 1
        return "".join([*kept, group[end:]])

    return _GROUPS.sub(edited, text)


def _spellings(value: str) -> set[str]:
    """Return the value in the forms that exceptions quote: unchanged, escaped by Python, JSON or a
    URL, or as a part of JSON that Python or JSON has escaped."""
    if value.isascii() and value.isalnum():
        return {value}
    from json import dumps  # noqa: PLC0415  slow to import, and few events fail
    from urllib.parse import quote, quote_plus  # noqa: PLC0415  likewise

    known = value.encode("utf-8", "backslashreplace").decode()
    plain = {value, known, _encode(known).decode()[1:-1], dumps(known)[1:-1]}
    return {
        *plain,
        *(it for text in plain for it in _quoted(text)),
        *(dumps(it)[1:-1] for it in plain),
        quote(known),
        quote(known, safe=""),
        quote_plus(known),
    }


def _quoted(text: str) -> Iterator[str]:
    """Yield the text as Python writes it between quotes, as `str` and as `bytes`. Python escapes a
    single quote only if the text also has a double one, as JSON around the text has."""
    for written in (text, f'"{text}'):
        start = len(written) - len(text) + 1
        yield repr(written)[start:-1]
        yield ascii(written)[start:-1]
        yield repr(written.encode("utf-8", "backslashreplace"))[start + 1 : -1]


def arrival(one: Arrived, rules: Ruleset) -> Arrived:
    """Return an arrival as a tap may store it. Input that is no event has no rule, and stays."""
    if not rules.redacts:
        return one
    parts = [one.body] if isinstance(one.body, Event) else envelope.elements(one.body)
    found = [_by_rule(part, rules) for part in parts]
    if not any(event is not None for event in found):
        return one
    if len(found) == 1:
        return one._replace(body=found[0] or one.body)
    texts = [bytes_of(event or part) for part, event in zip(parts, found, strict=True)]
    return one._replace(body=b"[" + b",".join(texts) + b"]")


def _by_rule(part: Any, rules: Ruleset) -> Event | None:
    """Return the redacted event; None if its rule redacts nothing, or if it is no event."""
    try:
        event = envelope.read(part, max_bytes=sys.maxsize)
    except EnvelopeError:
        return None
    paths = rules.redacted_in(event)
    return redacted(event, paths) if paths else None


def _steps(detail: bytes, paths: Sequence[str]) -> Iterator[Steps]:
    nested = "eventBody" in (fields_or_none(detail) or ())
    for text in paths:
        path = parse_path(text)
        yield ("eventBody", *path.steps) if path.root == "body" and nested else path.steps


def _edited(value: bytes, steps: Steps, lists: int = MOST_LISTS) -> bytes:
    """Return the JSON with the value at these steps redacted, in each item of a list; the rest
    stays as it was written."""
    value = value.strip()
    if not steps:
        return value if value == b"null" else bytes(_VALUE)
    fields = fields_or_none(value)
    if fields is not None:
        if steps[0] in fields:
            fields[steps[0]] = msgspec.Raw(_edited(bytes(fields[steps[0]]), steps[1:]))
            return _encode(fields)
        return value
    found = _items(value)
    if found is not None:
        if not lists:
            return bytes(_VALUE)
        return _encode([msgspec.Raw(_edited(bytes(item), steps, lists - 1)) for item in found])
    # A relay may have put the JSON into a string.
    text = _json_in(value)
    edited = text if text is None else _edited(text, steps)
    return value if edited is None or edited == text else _encode(edited.decode())


def _values(value: bytes, steps: Steps) -> Iterator[str]:
    """Yield the values at these steps, as plain text."""
    waiting = [(value, steps)]
    while waiting:
        value, steps = waiting.pop()
        value = value.strip()
        fields, found = fields_or_none(value), _items(value)
        if fields is not None:
            named = (
                list(fields.values())
                if not steps
                else [fields[it] for it in steps[:1] if it in fields]
            )
            if not steps:
                yield from filter(_is_content, fields)
            waiting += [(bytes(item), steps[1:]) for item in named]
        elif found is not None:
            waiting += [(bytes(item), steps) for item in found]
        else:
            text = _json_in(value)
            if text is not None:
                waiting.append((text, steps))
            if not steps and value not in _NO_VALUES:
                yield from (it for it in _written(value) if len(it) >= SHORTEST_VALUE)


def _is_content(name: str) -> bool:
    """Whether the name of a field within a redacted object may be a value itself, such as a number
    or a person's name. An identifier, such as `firstName`, is none, and a reason may need it."""
    return len(name) >= SHORTEST_VALUE and not (name.isascii() and name.isidentifier())


def _written(value: bytes) -> set[str]:
    """Return the texts of a string or a number, as the event and as Python write it."""
    texts = {_text_of(value)}
    if value.startswith(b'"'):
        texts.add(value[1:-1].decode(errors="replace"))
    else:
        with suppress(ValueError):
            number = msgspec.json.decode(value)
            texts.add(str(number))
            if isinstance(number, float) and number.is_integer():
                texts.add(str(int(number)))
    return texts


def _items(value: bytes) -> list[msgspec.Raw] | None:
    """Return the items of an array; None for any other value."""
    try:
        return _array(value)
    except (ValueError, RecursionError):
        return None


def _text_of(value: bytes) -> str:
    """Return the text of a string, or a number as it was written."""
    try:
        return string(msgspec.Raw(value)) or value.decode()
    except ValueError:
        return value.decode(errors="replace")


def _json_in(value: bytes) -> bytes | None:
    """Return the JSON object or array in a string, without the spaces around it."""
    if not value.startswith(b'"'):
        return None
    text = _text_of(value).strip().encode("utf-8", "surrogatepass")
    return text if fields_or_none(text) is not None or _items(text) is not None else None


def _replaced(value: bytes, old: bytes, new: bytes, layers: int = MAX_LAYERS) -> bytes:
    """Return the JSON with the old detail replaced by the new one. The detail is an object with at
    least one field, so its bytes cannot be within a JSON string; if a relay put the detail into a
    string, the string is decoded first."""
    if old in value:
        return _as_read(value.replace(old, new))
    if not layers:
        return value

    def inside(found: re.Match[bytes]) -> bytes:
        text = _json_in(found[0]) if len(found[0]) > len(old) else None
        edited = text if text is None else _replaced(text, old, new, layers - 1)
        return found[0] if edited is None or edited == text else _encode(edited.decode())

    edited = JSON_STRING.sub(inside, value)
    return value if edited == value else _as_read(edited)


def _as_read(value: bytes) -> bytes:
    """Return the object with only the last of several members of one name, which is the one that
    was read: an earlier one may still have the redacted value."""
    fields = fields_or_none(value)
    return value if fields is None else _encode(fields)
