"""Keyed digests of the same shape: digits stay digits, letters stay letters, equal values stay
equal, and different values stay different.

Short texts are permuted among all texts of their shape, so that no two get the same digest; for
long texts a hash is enough.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache
from hashlib import blake2b, shake_128
from typing import Final

LARGE_SHAPE: Final = 1 << 64
"""The number of texts of one shape above which two hashes are practically never the same."""
ROUNDS: Final = 8
BLOCK_CHARACTERS: Final = 128
"""Characters of a script are neighbours: a letter is replaced by another one of its block."""
LARGE_SCRIPTS: Final = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3))
"""Chinese characters and Korean syllables: within a block, most family names could be guessed."""
HEX: Final = "0123456789abcdef"
DIGITS: Final = "0123456789"
FIRST_DIGITS: Final = "123456789"


class Cipher:
    """The digests with one key."""

    def __init__(self, key: bytes) -> None:
        self._key = blake2b(key, digest_size=32).digest()
        self.text = lru_cache(maxsize=1 << 16)(self._text)
        self.number = lru_cache(maxsize=1 << 16)(self._number)
        self.hexadecimal = lru_cache(maxsize=1 << 16)(self._hexadecimal)

    @property
    def fingerprint(self) -> str:
        """A text that tells keys apart, and reveals nothing about them."""
        return blake2b(b"fingerprint", key=self._key, digest_size=8).hexdigest()

    def _text(self, text: str) -> str:
        """Return a text of the same shape; only letters and digits are replaced."""
        return self._replaced(text, [_alphabet(one) for one in text])

    def _number(self, digits: str) -> str:
        """Return digits without a sign replaced; zeros before them stay, so that a number with and
        without them has the same digest."""
        bare = digits.lstrip("0")
        if not bare:
            return digits
        alphabets = [FIRST_DIGITS, *[DIGITS] * (len(bare) - 1)]
        return digits[: len(digits) - len(bare)] + self._replaced(bare, alphabets)

    def _hexadecimal(self, text: str) -> str:
        """Return a hexadecimal id, such as a UUID, replaced; in lower or upper case."""
        lower = text.lower()
        new = self._replaced(lower, [HEX if one in HEX else "" for one in lower])
        return new if text == lower else new.upper()

    def _replaced(self, text: str, alphabets: Sequence[str]) -> str:
        """Return the text with each character replaced from its alphabet; none if it is empty."""
        size = 1
        for alphabet in alphabets:
            size *= len(alphabet) or 1
            if size > LARGE_SHAPE:
                return self._digested(text, alphabets)
        value = 0
        for one, alphabet in zip(text, alphabets, strict=True):
            if alphabet:
                value = value * len(alphabet) + alphabet.index(one)
        # Each shape has its own permutation.
        shape = "".join(alphabet[0] if alphabet else "-" for alphabet in alphabets).encode()
        value = self._permuted(value, size, shape)
        found = list(text)
        for place in reversed(range(len(text))):
            alphabet = alphabets[place]
            if alphabet:
                value, at = divmod(value, len(alphabet))
                found[place] = alphabet[at]
        return "".join(found)

    def _digested(self, text: str, alphabets: Sequence[str]) -> str:
        stream = shake_128(self._key + text.encode("utf-8", "surrogatepass")).digest(2 * len(text))
        return "".join(
            alphabet[(stream[2 * at] << 8 | stream[2 * at + 1]) % len(alphabet)]
            if alphabet
            else text[at]
            for at, alphabet in enumerate(alphabets)
        )

    def _permuted(self, value: int, size: int, shape: bytes) -> int:
        """Return another value below `size`; no two values get the same one (a Feistel network,
        repeated until its value is small enough)."""
        if size == 1:
            return value
        half = ((size - 1).bit_length() + 1) // 2
        mask = (1 << half) - 1
        seed = blake2b(shape, key=self._key, digest_size=16).digest()
        while True:
            left, right = value >> half, value & mask
            for number in range(ROUNDS):
                asked = seed + bytes((number,)) + right.to_bytes(8, "big")
                mixed = blake2b(asked, key=self._key, digest_size=8).digest()
                left, right = right, left ^ (int.from_bytes(mixed, "big") & mask)
            value = left << half | right
            if value < size:
                return value


@lru_cache(maxsize=4096)
def _alphabet(one: str) -> str:
    """Return the characters that may replace this one; none if it stays."""
    if one.isascii():
        if one.isdecimal():
            return DIGITS
        if not one.isalpha():
            return ""
    category = unicodedata.category(one)
    if category[0] not in "LN":
        return ""
    block = ord(one) // BLOCK_CHARACTERS * BLOCK_CHARACTERS
    first, last = next(
        (script for script in LARGE_SCRIPTS if script[0] <= ord(one) <= script[1]),
        (block, block + BLOCK_CHARACTERS - 1),
    )
    return _letters(first, last, category)


@cache
def _letters(first: int, last: int, category: str) -> str:
    near = map(chr, range(first, last + 1))
    return "".join(letter for letter in near if unicodedata.category(letter) == category)
