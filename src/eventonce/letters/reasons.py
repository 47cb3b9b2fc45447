"""Reasons without numbers, ids and values: dead letters with equal ones are one group."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from eventonce.rules.keys import hasher

LONGEST_REASON: Final = 300
"""The most characters of a reason that are compared: the rest is a server's answer or a trace."""

VARYING: Final = "…"
"""The character in place of a number, an id or a value."""

_PARTS: Final = re.compile(
    r"(?P<place>\b[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s/?#'\"]*)[^\s'\"]*"
    r"|(?P<status>\b(?:answered|status|code|HTTP)[ :=]{1,2}[1-5][0-9]{2}\b)"
    r"|\"[^\"]*\"|(?<!\w)'[^']*'(?!\w)|`[^`]*`"
    r"|\b[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}\b"
    r"|\b[\w.+-]{1,64}@[\w.-]{1,253}"
    r"|(?<!\w)[+-]?[^\W\d]*\d\w*(?:[.:+-]\w+)*"
)
_REPEATED: Final = re.compile(f"{VARYING}(?:[ ,;/-]{{1,2}}{VARYING})+")


@lru_cache(maxsize=4096)
def normalised(reason: str) -> str:
    """Return the reason with … for numbers, ids, quoted values and the paths of URLs. The status
    of an HTTP answer stays: 404 and 503 have different causes."""
    text = _PARTS.sub(_constant, " ".join(reason[:LONGEST_REASON].split()))
    return _REPEATED.sub(VARYING, text)


def _constant(found: re.Match[str]) -> str:
    if found["status"]:
        return found["status"]
    place = found["place"]
    if place:
        return place if place == found[0] else f"{place}/{VARYING}"
    return VARYING


_CAPITAL: Final = f"[{''.join(filter(str.isupper, map(chr, range(0x2000))))}]"
_NAMES: Final = re.compile(
    r"(?<=://)[^\s/]*(?=@)"
    r"|“[^”]*”|„[^“”]*[“”]|«[^»]*»"
    # A quoted value without its end, because the reason was cut off.
    r"|(?<!\w)['\"`“„«][^'\"`]*$"
    rf"|(?:(?<=[^\s:(.;]\s)|(?<=[=/:,|#<>([{{])){_CAPITAL}\w*(?:[ '\u2019.-]{{1,2}}{_CAPITAL}\w*)*"
)


def veiled(reason: str) -> str:
    """Return the reason for viewers who may not see personal data: normalised, and without words
    inside a sentence that begin with a capital letter, as names of people do; and without the user
    and the password of a URL."""
    return _REPEATED.sub(VARYING, _NAMES.sub(VARYING, normalised(reason)))


def grouping(secrets: Sequence[bytes]) -> Callable[[str], str]:
    """Return a function from a reason to the id of its group: a digest, keyed with the first secret
    if there is one. Links and the audit show the id; without a secret, a person's name in a reason
    could be guessed from it."""
    digest = hasher(4, next(iter(secrets), b""))

    @lru_cache(maxsize=4096)
    def group_of(reason: str) -> str:
        return digest(b"letters group\0" + normalised(reason).encode(errors="replace")).hex()

    return group_of


group_of: Final = grouping(())
"""The function from a reason to the id of its group, without a secret."""
