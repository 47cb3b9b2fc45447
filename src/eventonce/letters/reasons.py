"""Reasons without what varies: those that differ in numbers, ids and values alone are one group."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from eventonce.rules.keys import hasher

LONGEST_REASON: Final = 300
"""Characters of a reason that count: what follows is the answer of some server, or a trace."""

VARYING: Final = "…"
"""Stands for what varies between the reasons of one group."""

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
    """The reason with … for numbers, ids, quoted values and the paths of URLs. The status of an
    HTTP answer stays: 404 and 503 have nothing in common."""
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
    # A value that was cut off before its end.
    r"|(?<!\w)['\"`“„«][^'\"`]*$"
    rf"|(?:(?<=[^\s:(.;]\s)|(?<=[=/:,|#<>([{{])){_CAPITAL}\w*(?:[ '\u2019.-]{{1,2}}{_CAPITAL}\w*)*"
)


def veiled(reason: str) -> str:
    """The reason for those who may not read what is personal: without what varies, and without the
    words within a sentence that begin with a capital letter, as names of people do in any script
    that has such letters; and without the name and the password in an address."""
    return _REPEATED.sub(VARYING, _NAMES.sub(VARYING, normalised(reason)))


def grouping(secrets: Sequence[bytes]) -> Callable[[str], str]:
    """A function from a reason to the id of its group: a digest, keyed with the first secret if
    there is one. It stands in links and in the audit, and without a key a person's name that a
    reason has could be guessed from it."""
    digest = hasher(4, next(iter(secrets), b""))

    @lru_cache(maxsize=4096)
    def group_of(reason: str) -> str:
        return digest(b"letters group\0" + normalised(reason).encode(errors="replace")).hex()

    return group_of


group_of: Final = grouping(())
"""The id of the group that a reason belongs to, where there are no secrets."""
