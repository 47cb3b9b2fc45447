"""Where events go: handlers by name, each opened from a `[[sink]]` table or used from Python."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import msgspec

from eventonce.errors import ConfigError
from eventonce.ports import Handler


class Sink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[sink]]` table: which events, and where to."""

    to: str
    match: str = "*"
    """A glob over event types; the first sink that matches takes the event."""


def open_sink(sink: Sink) -> Handler:
    """The handler this table describes."""
    handler: Handler = imported(sink.to)
    return handler


def imported(path: str) -> Any:
    """What `module:name` names, looked up from the working directory too."""
    module, _, name = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{path}: expected MODULE:NAME of a function or a Consumer: {error}"
        ) from error
