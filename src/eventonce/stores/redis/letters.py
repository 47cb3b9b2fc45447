"""Letters in Redis: a hash of them by id, and a sorted set of their places in time.

Both lie in one slot, so that a script can change them together. A place is the letter's instant and
its id, and a body begins with the same eight bytes, so that the one can be found from the other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from eventonce.stores.redis import scripts
from eventonce.stores.redis.calls import Call, script_call
from eventonce.stores.redis.names import Names
from eventonce.types import Letter

PAGE: Final = 100
"""Letters read or written at once: each holds a whole event, up to some hundred KiB."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Letter).decode
_instant: Final = struct.Struct(">Q")


def putting(names: Names, letters: Sequence[Letter]) -> Iterator[Call]:
    """The calls that keep these letters."""
    for start in range(0, len(letters), PAGE):
        some = letters[start : start + PAGE]
        # A run ends with such a letter, and must be able to; how many come of input that never ran
        # has no bound, and these wait until there is memory.
        words = [b"1" if any(letter.status == "dead" for letter in some) else b"0"]
        for letter in some:
            words += (letter.id.encode(), _instant.pack(letter.at) + _encode(letter))
        yield script_call(scripts.PUT_LETTERS, _both(names), words, names.letters_slot)


def dropping(names: Names, ids: Sequence[str]) -> Call:
    """The call that forgets these letters."""
    words = [name.encode() for name in ids]
    return script_call(scripts.DROP_LETTERS, _both(names), words, names.letters_slot)


def one(names: Names, name: str) -> Call:
    """The call for one letter's body."""
    return Call((b"HGET", names.letters, name.encode()), names.letters_slot)


def counting(names: Names) -> Call:
    """The call for how many there are."""
    return Call((b"HLEN", names.letters), names.letters_slot)


def read(body: bytes) -> Letter:
    """The letter of this body."""
    return _decode(body[_instant.size :])


def oldest_first(names: Names, ask: Callable[[Call], Any]) -> Iterator[Letter]:
    """All letters, page by page: they may be dropped while they are read."""
    start = b"-"
    while True:
        words = (b"ZRANGEBYLEX", names.places, start, b"+", b"LIMIT", b"0", b"%d" % PAGE)
        page = ask(Call(words, names.letters_slot))
        if not page:
            return
        ids = [place[_instant.size :] for place in page]
        for body in ask(Call((b"HMGET", names.letters, *ids), names.letters_slot)):
            # None where it was dropped between the two calls.
            if body is not None:
                yield read(body)
        start = b"(" + page[-1]


def _both(names: Names) -> tuple[bytes, bytes]:
    return names.letters, names.places
