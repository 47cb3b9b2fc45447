"""Objects that begin anew in the child of a fork: no other thread of the parent is there, so a lock
that such a thread holds would never be released."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_registered: Final = WeakKeyDictionary[Any, Callable[[Any], None]]()


def register(one: T, begin: Callable[[T], None]) -> None:
    """Call `begin` with this object in the child of every fork, as long as the object lives."""
    _registered[one] = begin


def lock_of(one: Any) -> threading.Lock:
    """Return a lock for `_lock` of this object. In the child of every fork it is replaced, and the
    object keeps all else."""
    register(one, _replace_lock)
    return threading.Lock()


def _replace_lock(one: Any) -> None:
    one._lock = threading.Lock()  # noqa: SLF001  see `lock_of`


def begin_anew() -> None:
    """Call the functions of all objects; in the child, before any code of its own."""
    for one, begin in list(_registered.items()):
        begin(one)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=begin_anew)
