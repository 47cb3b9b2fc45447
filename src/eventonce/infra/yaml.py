"""Plain data as YAML, as far as a template needs it: what is not a simple word is quoted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*(::[A-Za-z0-9]+)*")
_OTHERWISE: Final = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))
"""Words that some readers of YAML take for something else."""


def dump(value: Mapping[str, Any]) -> str:
    """The whole document."""
    return "\n".join(_lines(value, 0)) + "\n"


def _lines(value: Any, depth: int) -> Iterator[str]:
    space = "  " * depth
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _entry(f"{space}{_scalar(key)}:", inner, depth)
    else:
        for inner in value:
            if isinstance(inner, Mapping) and inner:
                first, *rest = _lines(inner, depth + 1)
                yield f"{space}- {first.lstrip()}"
                yield from rest
            else:
                yield from _entry(f"{space}-", inner, depth)


def _entry(start: str, inner: Any, depth: int) -> Iterator[str]:
    if isinstance(inner, Mapping | Sequence) and not isinstance(inner, str) and inner:
        yield start
        yield from _lines(inner, depth + 1)
    else:
        yield f"{start} {_scalar(inner)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _WORD.fullmatch(value) and value.lower() not in _OTHERWISE:
        return value
    # A text in JSON is one in YAML too, and so are numbers, true, false, [] and {}.
    return json.dumps(value, ensure_ascii=False)
