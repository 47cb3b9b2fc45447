"""Sources of a worker: a queue, opened by its URI, or captured events in files."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from eventonce.core.masking import scheme_of
from eventonce.core.ports import Source
from eventonce.errors import ConfigError
from eventonce.sources.files import FileSource
from eventonce.sources.sqs import SQSSource

__all__ = ["FileSource", "SQSSource", "open_source"]


class Kind(NamedTuple):
    """The class of a scheme's source, and the options of the worker that it takes."""

    module: str
    name: str
    options: tuple[str, ...] = ()


_SQS: Final = Kind("sqs", "SQSSource", ("visibility", "wait"))

KINDS: Final[Mapping[str, Kind]] = {"sqs": _SQS, "https": _SQS, "http": _SQS}
"""The kinds of sources. A new one needs a file, with a class that takes a URI, and a line here."""


def open_source(uri: str, **options: Any) -> Source:
    """Return the source of this URI, with the options that it takes; it does not connect yet.
    ConfigError names a fault of the URI."""
    # An unknown scheme gets the error message of a queue, because a queue is the usual source.
    scheme = scheme_of(uri)
    kind = KINDS.get(scheme, _SQS)
    module = importlib.import_module(f"eventonce.sources.{kind.module}")
    taken = {name: value for name, value in options.items() if name in kind.options}
    try:
        source: Source = getattr(module, kind.name)(uri, **taken)
    except ConfigError as error:
        others = [f"{name}:…" for name, one in KINDS.items() if one is not _SQS]
        if scheme in KINDS or not others:
            raise
        raise ConfigError(f"{error} Other sources: {', '.join(others)}") from error
    return source
