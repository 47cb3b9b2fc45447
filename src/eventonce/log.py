"""The log for what happens out of anybody's sight; `logging` is loaded when there is something to
say, because a Lambda pays for every import with each cold start."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger


def log() -> Logger:
    """The logger `eventonce`."""
    from logging import getLogger  # noqa: PLC0415  see above

    return getLogger("eventonce")


def on_one_line(text: str) -> str:
    """A text of a sender on one line, so that it cannot pass for a line of ours."""
    return text if text.isprintable() else repr(text)[1:-1]
