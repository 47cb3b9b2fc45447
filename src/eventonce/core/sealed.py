"""The readable part of sealed bytes: that they are sealed, and with which key.

`eventonce.privacy` seals and opens.
"""

from __future__ import annotations

from typing import Final

from eventonce.types import Letter

MARK: Final = b"\0eo1"
"""The beginning of sealed bytes, and the version of their form. No JSON begins like this."""

SEALED_REASON: Final = "sealed with the key "
"""The beginning of the reason of a sealed dead letter, for readers who have no key."""


def key_of(content: bytes) -> str:
    """Return the id of the key that seals these bytes; empty if they are not sealed."""
    if not content.startswith(MARK):
        return ""
    start = len(MARK) + 1
    return content[start : start + int.from_bytes(content[len(MARK) : start])].decode(
        errors="replace"
    )


def key_of_letter(letter: Letter) -> str:
    """Return the same for a dead letter. Anybody may send an event that looks sealed; its dead
    letter has another reason."""
    return key_of(letter.event) if letter.reason.startswith(SEALED_REASON) else ""
