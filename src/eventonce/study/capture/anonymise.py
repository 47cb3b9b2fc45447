"""Anonymised captures: personal values replaced by keyed digests of the same shape.

Every value counts as personal unless it is known to be harmless. Copies stay copies, different
events stay different, times and small numbers stay as they are: so every count of the study stays
the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from math import copysign, inf
from operator import add
from sys import float_info
from typing import Any, Final

import msgspec

from eventonce.envelope.captured import own_line
from eventonce.study.arrivals import arrival
from eventonce.study.capture.cipher import Cipher
from eventonce.types import Event

FIRST_TIME: Final = 1_420_070_400
LAST_TIME: Final = 2_000_000_000
"""The seconds of 2015 and 2033: an instant outside is not the time of an event, but a birthday or a
telephone number."""

NANOSECOND_DIGITS: Final = 19
"""The digits of an instant in nanoseconds."""

SMALL_NUMBERS: Final = 1_000
"""Whole numbers below this are counts, priorities and versions: they identify nobody."""

KNOWN: Final = frozenset(
    """
    detail-type source region specversion type topicname content-type ce-type ce-source
    ce-specversion replay-name version kind eventtype eventobject mediatype direction
    disconnecttype purpose state status phase stage step provider flowtype flowversion acdoutcome
    exitreason flowoutcomevalue metric recordingstate systempresence action level entitytype
    servicename language datacontenttype messagetype routingstatus reason
    """.split()  # noqa: SIM905  words
)
"""Fields that tell events apart, or have a few known values: kept if the value is one word; only
ids in it are replaced."""

CHANNEL_NAME: Final = "channel of the line"
WHOLE_VALUE: Final = "all of it"

_WORD: Final = re.compile(r"[A-Za-z0-9_.:/{}-]{1,128}")
_WORDS: Final = re.compile(r"[A-Za-z0-9_.:/{} -]{1,128}")
"""The type of an event, which may have several words."""
_NAME: Final = re.compile(r"@?[A-Za-z0-9_.:/$#{}-]{1,128}")
"""The name of a field; any other may be the name of a person, in a map by names."""
_BEGIN: Final = r"(?:(?<![A-Za-z])|(?<=[a-z0-9])(?=[A-Z]))"
"""The start of a word in a name: `account` has no `count`, and `contacts` no `ts`."""
_COUNTED: Final = re.compile(
    _BEGIN
    + r"(?i:duration|counts?|version|sequence|seq|revision|priority|attempts?|(re)?tries|size"
    r"|length|offset|index|score|percent|position|total|confidence|ms|seconds|millis)"
    r"(?i:ms|seconds|number|no)?(?![a-z])"
)
_TIMED: Final = re.compile(
    _BEGIN + r"(?i:time|timestamp|date|datetime|at|ts|when|since|until|expires?|expiry|created"
    r"|changed|modified|updated|sent|start(ed)?|end(ed)?|emitted|occurred)(?![a-z])|time(stamp)?$"
)
_UUID: Final = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_LONG_HEX: Final = r"(?<![0-9A-Za-z])(?=[0-9]*[a-fA-F])[0-9a-fA-F]{16,}(?![0-9A-Za-z])"
_IDS: Final = re.compile(rf"({_UUID}|{_LONG_HEX})|([0-9]{{7,}})")
_HEX: Final = re.compile(r"(?=[^a-f]*[a-f])(?=[^0-9]*[0-9])[0-9a-f]{8,}(?:-[0-9a-f]{4,})*")
_MAIL: Final = re.compile(r"[^\s@]+@[^\s@]+")
_SCHEME: Final = re.compile(r"(?:tel|sip|sips|mailto|https?|urn):/{0,2}")
_ISO_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?")


class Anonymiser:
    """Replaces values of lines, and remembers the fields that it did not change."""

    def __init__(self, key: bytes) -> None:
        self.fields: dict[str, dict[str, set[bool]]] = {}
        """By type and field: whether its value was replaced; both, if only sometimes."""
        self._cipher = Cipher(key)
        # Most values, and all names of fields, are frequent.
        self._text = lru_cache(maxsize=1 << 16)(self._new_text)
        self._known = lru_cache(maxsize=1 << 16)(self._ids)
        self._key = lru_cache(maxsize=1 << 12)(self._new_key)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the key."""
        return self._cipher.fingerprint

    def left(self, type: str) -> list[str]:
        """Return the fields of a type with values that were not changed."""
        return [field or WHOLE_VALUE for field, told in self.fields[type].items() if False in told]

    def replaced(self, type: str) -> list[str]:
        """Return the fields of a type with values that were replaced."""
        return [field or WHOLE_VALUE for field, told in self.fields[type].items() if True in told]

    def __call__(self, raw: bytes) -> bytes:
        """Return the line with its personal values replaced."""
        event = arrival(raw).event
        kind = event.type if isinstance(event, Event) else "no event"
        told = self.fields.setdefault(kind or "no type", {})
        line = own_line(raw)
        if line is None:
            return self._event(raw, told)
        if line.event_base64:
            line.event_base64 = self._cipher.text(line.event_base64)
        else:
            line.event = msgspec.Raw(self._event(bytes(line.event), told))
        line.id = self._text(line.id, "id")
        line.channel = self._known(line.channel)
        told[CHANNEL_NAME] = {False}
        return msgspec.json.encode(line)

    def _event(self, body: bytes, told: dict[str, set[bool]]) -> bytes:
        try:
            return _written(self._walk(json.loads(body), "", "", told))
        except (ValueError, RecursionError):
            # Not JSON, or nested too deep: treated as a text.
            told.setdefault("", set()).add(True)
            return _written(self._cipher.text(body.decode("utf-8", "replace")))

    def _walk(self, value: Any, name: str, path: str, told: dict[str, set[bool]]) -> Any:
        if isinstance(value, dict):
            return {
                self._key(key): self._walk(inner, key, _below(path, key), told)
                for key, inner in value.items()
            }
        if isinstance(value, list):
            return [self._walk(inner, name, f"{path}[]", told) for inner in value]
        found: Any
        if isinstance(value, str):
            nested = _nested(value)
            if nested is not None:
                with suppress(RecursionError):
                    new = self._walk(nested, name, path, told)
                    return json.dumps(new, ensure_ascii=False, separators=_separators(value))
            if _is_known(value, name, path):
                found = self._known(value)
                # Only ids in it are replaced.
                told.setdefault(path, set()).add(False)
            else:
                found = self._text(value, name)
        elif isinstance(value, bool) or value is None:
            found = value
        else:
            found = self._number(value, name)
        told.setdefault(path, set()).add(found != value)
        return found

    def _new_key(self, key: str) -> str:
        return self._ids(key, str if _NAME.fullmatch(key) else self._cipher.text)

    def _new_text(self, text: str, name: str) -> str:
        if not text or _is_time(text, name):
            return text
        if text.isascii() and text.isdecimal():
            return self._cipher.number(text)
        if _HEX.fullmatch(text):
            return self._cipher.hexadecimal(text)
        scheme = _SCHEME.match(text)
        begin = scheme.end() if scheme else 0
        kept = text[:begin]
        if _MAIL.fullmatch(text[begin:]):
            return kept + self._mail(text[begin:])
        return kept + self._ids(text[begin:], self._cipher.text)

    def _mail(self, text: str) -> str:
        """Return a mail address with all but the last part of its domain replaced."""
        before, dot, last = text.rpartition(".")
        if "@" not in before:
            return self._cipher.text(text)
        return f"{self._cipher.text(before)}{dot}{last}"

    def _ids(self, text: str, others: Callable[[str], str] = str) -> str:
        """Return the text with its ids replaced as everywhere; `others` replaces the rest as a
        whole: word by word, a sentence could be guessed."""
        if "\0" in text:
            return self._cipher.text(text)
        found = list(_IDS.finditer(text))
        ids = [
            self._cipher.hexadecimal(one[1]) if one[1] else self._cipher.number(one[2])
            for one in found
        ]
        rest = others(_IDS.sub("\0", text)).split("\0")
        return "".join(map(add, rest, [*ids, ""]))

    def _number(self, value: float, name: str) -> float:
        if abs(value) < SMALL_NUMBERS and (isinstance(value, int) or abs(value) <= 1):
            return value
        if _COUNTED.search(name) or _is_instant(value, name):
            return value
        if abs(value) == inf:
            # A number beyond a float, which JSON cannot write.
            return copysign(float_info.max, value)
        sign, digits = ("-", f"{value}"[1:]) if value < 0 else ("", f"{value}")
        if isinstance(value, int):
            return int(sign + self._cipher.number(digits))
        whole, dot, part = digits.partition(".")
        if not dot or not part.isdecimal():
            return value
        # A fraction without zeros at its end can be written in one way only.
        fraction = part if part == "0" else self._cipher.number(part[::-1])[::-1]
        return float(f"{sign}{self._cipher.number(whole)}.{fraction}")


def _written(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        # Half a surrogate pair, which only an escape can write.
        return json.dumps(value, separators=(",", ":")).encode()


@lru_cache(maxsize=1 << 12)
def _below(path: str, key: str) -> str:
    shown = _IDS.sub("*", key) if _NAME.fullmatch(key) else "*"
    return f"{path}.{shown}" if path else shown


def _nested(text: str) -> Any:
    """Return the object or list in this text, if it is JSON; None for any other text."""
    if text[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _separators(text: str) -> tuple[str, str]:
    return (", ", ": ") if '": ' in text else (",", ":")


def _is_known(text: str, name: str, path: str) -> bool:
    words = _WORDS if name == "detail-type" or path == "type" else _WORD
    return name.lower() in KNOWN and words.fullmatch(text) is not None and not _is_time(text, name)


def _is_time(text: str, name: str) -> bool:
    if text.isdecimal():
        timed = len(text) <= NANOSECOND_DIGITS and _is_instant(int(text), name)
        return timed and bool(_TIMED.search(name))
    if not _ISO_TIME.fullmatch(text):
        return False
    try:
        return FIRST_TIME <= datetime.fromisoformat(text).timestamp() < LAST_TIME
    except (ValueError, OverflowError):
        return False


def _is_instant(value: float, name: str) -> bool:
    """Return whether this is a time in seconds, or in smaller units. Seconds look like a telephone
    number, and need a name that says so."""
    if FIRST_TIME <= value < LAST_TIME:
        return bool(_TIMED.search(name))
    if value >= 10**NANOSECOND_DIGITS:
        return False
    return any(FIRST_TIME <= value / unit < LAST_TIME for unit in (10**3, 10**6, 10**9))
