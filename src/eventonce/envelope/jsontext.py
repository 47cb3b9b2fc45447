"""JSON as bytes: encoded from the input, checked for faults that a decoder accepts, and split level
by level.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Final

import msgspec

from eventonce.errors import EnvelopeError

MAX_DEPTH: Final = 768
"""The most levels of nesting: far more than real events have, and within Python's stack of 1000."""

SHALLOW_BYTES: Final = 2 * MAX_DEPTH
"""Bytes of JSON that cannot be nested too deep, because a level takes two bytes."""

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
"""The mark that Windows writes before UTF-8; it is no part of the JSON."""

JSON_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
"""A string of JSON, as it is written."""

_LEVELS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\]]', re.DOTALL)
_STEPS: Final = bytes.maketrans(b"{[}]", b"\x01\x01\xff\xff")
_NO_STEPS: Final = bytes(byte for byte in range(256) if byte not in b"{[}]")

_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_HALF: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")


def as_bytes(source: object, max_bytes: int) -> bytes:
    """Return the input as JSON; EnvelopeError if that is not possible."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        if memoryview(source).nbytes > max_bytes:
            raise too_large(memoryview(source).nbytes, max_bytes)
        return bytes(source)
    if isinstance(source, str):
        try:
            return source.encode()
        except UnicodeEncodeError as error:
            reason = f"half a surrogate pair at character {error.start}: not valid text"
            raise EnvelopeError(reason, place=f"character {error.start}") from None
    if not isinstance(source, (Mapping, list, tuple)):
        raise EnvelopeError(f"expected bytes, text or a dict, not {type(source).__name__}")
    return _encoded(source)


def _encoded(source: object) -> bytes:
    try:
        raw = _encoder.encode(source)
        if b"null" in raw:
            # The encoder writes NaN as null, which is another value.
            _check_finite(source)
    except EnvelopeError:
        raise
    except RecursionError:
        raise _too_deep(_culprit(source)) from None
    except Exception as error:  # noqa: BLE001  a mapping of the caller may raise any exception
        reason = f"cannot be written as JSON: {error}"
        raise EnvelopeError(reason, place=_culprit(source)) from None
    return raw


def _culprit(source: Any) -> str:
    """Return the field or the item that cannot be encoded; empty if it is not found."""
    place = ""
    try:
        for name in source if isinstance(source, Mapping) else range(len(source)):
            place = str(name) if isinstance(source, Mapping) else f"[{name}]"
            _encoder.encode(source[name])
    except Exception:  # noqa: BLE001  as above
        return place
    return ""


def _plain(value: Any) -> Any:
    """Return the JSON form of a value that the encoder does not know."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"there is no JSON for {type(value).__name__}")


_encoder: Final = msgspec.json.Encoder(decimal_format="number", enc_hook=_plain)


def _check_finite(value: Any, place: str = "") -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise EnvelopeError(
            f"{place or 'the event'} is {value}, which JSON does not have", place=place
        )
    if isinstance(value, Mapping):
        for name, item in value.items():
            _check_finite(item, f"{place}.{name}" if place else str(name))
    elif isinstance(value, (list, tuple, set, frozenset)):
        for number, item in enumerate(value):
            _check_finite(item, f"{place}[{number}]")


def too_large(size: int, max_bytes: int) -> EnvelopeError:
    """Return the error about an event beyond the limit; its place is the first byte too many."""
    reason = f"too large: {size} bytes, and the limit is {max_bytes}"
    return EnvelopeError(reason, place=f"byte {max_bytes}")


def within(place: str, error: EnvelopeError) -> EnvelopeError:
    """Return the same error with the place seen from outside the element."""
    inner = error.place
    if inner.startswith(("byte ", "character ")):
        inner = f" {inner}"
    elif inner and not inner.startswith("["):
        inner = f".{inner}"
    return EnvelopeError(f"{place}: {error}", place=f"{place}{inner}".strip()) if place else error


def is_text(raw: bytes) -> bool:
    """Whether these bytes are UTF-8: the decoder checks only the strings that it decodes."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_shallow(raw: bytes) -> bool:
    """Whether this JSON is nested no deeper than the limit, so that recursion cannot fail."""
    size = len(raw)
    if size <= SHALLOW_BYTES:
        return True
    # There are no more levels than opening brackets, and a level of objects takes five bytes.
    lists = _count(raw, b"[")
    if lists + size // 5 <= MAX_DEPTH or lists + _count(raw, b"{") <= MAX_DEPTH:
        return True
    steps = JSON_STRING.sub(b"", raw).translate(_STEPS, _NO_STEPS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) <= MAX_DEPTH


def _count(raw: bytes, bracket: bytes) -> int:
    # Quicker than bytes.count.
    return len(raw) - len(raw.replace(bracket, b""))


def check(raw: bytes) -> None:
    """Raise EnvelopeError, with place and reason, for bytes that are not accepted as JSON."""
    try:
        _syntax(raw)
    except (ValueError, RecursionError) as error:
        raise _complaint(raw, error) from None
    if not is_text(raw):
        raise _complaint(raw, None)
    if not is_shallow(raw):
        raise _too_deep(_deep(raw))


def is_json(raw: bytes) -> bool:
    """Whether these bytes are a JSON value that `check` accepts."""
    try:
        check(raw)
    except EnvelopeError:
        return False
    return True


def is_object(raw: bytes) -> bool:
    """Whether these bytes are such a value, and an object."""
    return raw.lstrip().startswith(b"{") and is_json(raw)


_syntax: Final = msgspec.json.Decoder(msgspec.Raw).decode


def _complaint(raw: bytes, error: Exception | None) -> EnvelopeError:
    if isinstance(error, RecursionError):
        return _too_deep(_deep(raw))
    try:
        text = raw.decode()
    except UnicodeDecodeError as undecodable:
        place = f"byte {undecodable.start}"
        return EnvelopeError(f"not UTF-8 at {place}: {undecodable.reason}", place=place)
    if not text.strip():
        return EnvelopeError("not JSON: the input is empty", place="byte 0")
    half = _HALF.search(raw)
    import json  # noqa: PLC0415  slow to import, and only an error message needs it

    # The standard library names the exact place, but accepts the faults of the two branches below.
    try:
        json.loads(text)
    except json.JSONDecodeError as fault:
        offset, reason = len(text[: fault.pos].encode()), fault.msg
    except (ValueError, RecursionError):
        offset, reason = 0, str(error)
    else:
        if half:
            offset, reason = half.start(), "half a surrogate pair, which is not valid text"
        else:
            offset, reason = _place(str(error)), "NaN and Infinity are no JSON numbers"
    return EnvelopeError(f"not JSON at byte {offset}: {reason}", place=f"byte {offset}")


def _too_deep(place: str) -> EnvelopeError:
    return EnvelopeError(f"nested deeper than {MAX_DEPTH} levels", place=place)


def _deep(raw: bytes) -> str:
    """Return the place where the first level beyond the limit opens."""
    depth = 0
    for found in _LEVELS.finditer(raw):
        depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(found[0], 0)
        if depth > MAX_DEPTH:
            return f"byte {found.start()}"
    return ""


def _place(reason: str) -> int:
    where = _BYTE.search(reason)
    return int(where[1]) if where else 0


_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_text: Final = msgspec.json.Decoder(str).decode


def top_level(raw: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """Return the fields of an object, each still JSON."""
    try:
        return _fields(raw)
    except msgspec.ValidationError:
        start = len(bytes(raw)) - len(bytes(raw).lstrip())
        reason = "expected a JSON object, as every event is one"
        raise EnvelopeError(reason, place=f"byte {start}") from None
    except (ValueError, RecursionError) as error:
        raise _complaint(bytes(raw), error) from None


def fields_or_none(raw: bytes) -> dict[str, msgspec.Raw] | None:
    """Return the same, or None for bytes that are no object: for callers that need no reason."""
    try:
        return _fields(raw)
    except (ValueError, RecursionError):
        return None


def items(raw: bytes | msgspec.Raw) -> list[msgspec.Raw]:
    """Return the items of an array, each still JSON."""
    try:
        return _items(raw)
    except (ValueError, RecursionError) as error:
        raise _complaint(bytes(raw), error) from None


def begins(raw: bytes | msgspec.Raw, mark: bytes) -> bool:
    """Whether this JSON is an object (`{`), an array (`[`) or a string (`"`)."""
    return bytes(memoryview(raw)[:1]) == mark


def string(value: object) -> str:
    """Return a string, given as JSON or as `str`; an integer as its digits; else empty."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, msgspec.Raw):
        return ""
    if begins(value, b'"'):
        return _text(value)
    text = bytes(value).decode()
    return text if text.removeprefix("-").isdigit() else ""


def members(value: object) -> dict[str, Any]:
    """Return the fields of an object, given as JSON or as a mapping; else an empty dict."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (bytes, msgspec.Raw)) and begins(value, b"{"):
        return top_level(value)
    return {}


def elements(value: object) -> list[Any] | None:
    """Return the items of an array, given as JSON or as a list; else None."""
    if isinstance(value, msgspec.Raw):
        value = items(value) if begins(value, b"[") else None
    return list(value) if isinstance(value, (list, tuple)) else None
