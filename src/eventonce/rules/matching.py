"""Globs over what an envelope says: which events a rule or a handler is for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import msgspec


class Match(msgspec.Struct, frozen=True):
    """Globs over what the envelope says; a list is satisfied by any of its globs."""

    type: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    form: tuple[str, ...] = ()

    def fits(self, form: str, source: str, type: str) -> bool:
        """Whether all three match; an empty list matches everything."""
        return (
            _any_fits(self.form, form)
            and _any_fits(self.source, source)
            and _any_fits(self.type, type)
        )


@lru_cache(maxsize=4096)
def glob(pattern: str) -> re.Pattern[str]:
    """A glob as an expression: `*` crosses dots, everything else stands for itself."""
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def _any_fits(globs: Sequence[str], text: str) -> bool:
    return not globs or any(glob(pattern).fullmatch(text) for pattern in globs)
