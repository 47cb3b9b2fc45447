"""Where a worker's events come from: a queue, opened by its URI, or captured events in files."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from eventonce.core.masking import scheme_of
from eventonce.core.ports import Source
from eventonce.sources.files import FileSource
from eventonce.sources.sqs import SQSSource

__all__ = ["FileSource", "SQSSource", "open_source"]


class Kind(NamedTuple):
    """The class of a scheme's source, and the options of the worker that it takes."""

    module: str
    name: str
    options: tuple[str, ...] = ()


KINDS: Final[Mapping[str, Kind]] = {
    "sqs": Kind("sqs", "SQSSource", ("visibility", "wait")),
    "https": Kind("sqs", "SQSSource", ("visibility", "wait")),
    "http": Kind("sqs", "SQSSource", ("visibility", "wait")),
}
"""Adding a source is one file, with a class that takes a URI, and one line here."""


def open_source(uri: str, **options: Any) -> Source:
    """The source of this URI, with those of the options that it takes; it is not asked yet, and
    ConfigError says what is wrong with the URI."""
    # A URI without a scheme that is known gets the complaint of a queue, which is what it may be.
    kind = KINDS.get(scheme_of(uri)) or KINDS["sqs"]
    module = importlib.import_module(f"eventonce.sources.{kind.module}")
    taken = {name: value for name, value in options.items() if name in kind.options}
    source: Source = getattr(module, kind.name)(uri, **taken)
    return source
