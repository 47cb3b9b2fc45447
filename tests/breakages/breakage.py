"""One planted breakage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

Patch = pytest.MonkeyPatch


class Breakage(NamedTuple):
    """One behaviour that is broken, and a promise that must not hold then."""

    name: str
    plant: Callable[[Patch], object]
    promise: Callable[..., None]
    given: tuple[Any, ...] = ()
    """The arguments of the promise."""


def replaced(text: str, old: str, new: str) -> str:
    """The text with the old words replaced; they must occur exactly once."""
    found = text.count(old)
    assert found == 1, f"{old!r} occurs {found} times, not once: plant the breakage anew"
    return text.replace(old, new)


def attribute(owner: Any, name: str, value: Any) -> Callable[[Patch], None]:
    """Replace a function, a method or a constant by this value."""
    return lambda patch: patch.setattr(owner, name, value)
