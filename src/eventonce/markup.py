"""Markup that is always escaped: text becomes markup only through `tag`.

Events contain any text that their senders write, and the readers of a page trust the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

MAX_SHOWN: Final = 240
"""The most characters of a text that are shown; a value may have a hundred thousand."""
EMPTY_TAGS: Final = frozenset({"meta", "link", "rect", "path", "line", "circle", "input", "br"})
THIN: Final = "\u202f"
"""A narrow space that does not break: between thousands, and between a number and its unit."""
HYPHEN: Final = "\u2011"
"""A hyphen that does not break."""
KEPT_SPACES: Final = f"\n\u00a0{THIN}"


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, /, *inside: object, **attributes: object) -> Html:
    """Return an element; content that is not `Html` is escaped, and `None` is left out.

    An attribute is written with `-` for `_`, and `class_` as `class`. An attribute that is None or
    False is left out; True gives an attribute without a value. The `value` of a field keeps its
    control characters, because the form sends it back.
    """
    told = "".join(
        f" {word.rstrip('_').replace('_', '-')}"
        + ("" if value is True else f'="{escape(_attribute(word, _plain(value)))}"')
        for word, value in attributes.items()
        if value is not None and value is not False
    )
    if name in EMPTY_TAGS and not inside:
        return Html(f"<{name}{told}/>")
    return Html(f"<{name}{told}>{joined(*inside)}</{name}>")


def joined(*inside: object) -> Html:
    """Return the markup of several parts, one after the other."""
    return Html(
        "".join(
            part if isinstance(part, Html) else escape(printable(_plain(part)))
            for part in inside
            if part is not None
        )
    )


class Highlight(NamedTuple):
    """A highlighted word of a report's first sentence; `harm` marks something bad."""

    text: str
    harm: bool = False


Sentence = Sequence[str | Highlight]
"""The first sentence of a report, for a page and for a terminal."""


def lead(sentence: Sentence) -> Html:
    """Return the sentence as markup."""
    return joined(
        *(
            tag("b", word.text, class_="harm" if word.harm else None)
            if isinstance(word, Highlight)
            else word
            for word in sentence
        )
    )


def data(text: object) -> Html:
    """Return a text of an event as markup: cut if it is long, and without an effect on the writing
    direction of the words around it."""
    full = str(text)
    cut = f"{full[:MAX_SHOWN]}… ({number(len(full))} characters)" if len(full) > MAX_SHOWN else full
    return tag("bdi", cut)


def dotted(name: str) -> Html:
    """Return a name of an event, such as a type or a path, which may break after its dots."""
    return Html(data(name).replace(".", ".<wbr/>"))


def printable(text: str) -> str:
    """Return the text with control characters escaped, such as those for the writing direction;
    line breaks and the spaces of numbers stay."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign in KEPT_SPACES else repr(sign)[1:-1] for sign in text
    )


def _attribute(word: str, text: str) -> str:
    # A page is UTF-8, which has no lone surrogates.
    return text.encode(errors="replace").decode() if word == "value" else printable(text)


def _plain(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def number(value: float) -> str:
    """Return a number with narrow spaces between its thousands."""
    shown = f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.2g}"
    return shown.replace(",", THIN)


def share(part: float, whole: float) -> str:
    """Return a part of a whole, in percent."""
    percent = 100 * part / whole if whole else 0.0
    digits = 0 if percent in (0, 100) else 1
    shown = f"{percent:.{digits}f}"
    if percent and shown == "0.0":
        shown = "under 0.1"
    if percent < 100 and shown == "100.0":
        shown = "over 99.9"
    return f"{shown}{THIN}%"


def counted(amount: float, one: str, many: str = "") -> str:
    """Return a number with its noun: `1 event`, `20 000 events`."""
    return f"{number(amount)}\u00a0{one if amount == 1 else many or one + 's'}"
