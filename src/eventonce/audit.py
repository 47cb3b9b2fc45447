"""The audit: a line when a person's action begins and a line when it has ended, with the person,
the action and the counts, and no content of an event."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from getpass import getuser
from pathlib import Path
from typing import Final

import msgspec

from eventonce.errors import ConfigError
from eventonce.log import on_one_line

MODE: Final = 0o600

BEGUN: Final = "begun"
"""The value of `ended` in the first line of an action. An action without a second line was killed,
or still runs."""

NO_AUDIT: Final = (
    "No file keeps the audit: actions are told in the log eventonce.audit alone. Name a file in "
    'eventonce.toml: audit = "audit.jsonl"'
)

log = logging.getLogger("eventonce.audit")


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning or the end of one action of one person."""

    time: str
    id: str
    """The id of the action, the same in both its lines."""
    who: str
    via: str
    """`cli` or `dashboard`."""
    action: str
    selection: str
    """The selection, as options of the command line."""
    counts: Mapping[str, int]
    ended: str
    """`begun`, `finished`, `not finished` and why, `stopped`, or the error that ended it."""


class Recorded(msgspec.Struct, frozen=True):
    """One action as the audit has it."""

    first: Line
    """The line of its begin, or that of its end where the begin is in another file."""
    last: Line | None
    """The line of its end; None where it has none."""


def recorded(path: Path) -> tuple[list[Recorded], int]:
    """The actions of an audit file in the order in which they began, and how many lines are none:
    a full disk cuts a line off."""
    found: dict[str, Recorded] = {}
    broken = 0
    with path.open("rb") as file:
        for text in filter(bytes.strip, file):
            try:
                line = msgspec.json.decode(text, type=Line)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                broken += 1
                continue
            begun = found.get(line.id)
            last = None if line.ended == BEGUN else line
            found[line.id] = Recorded(begun.first if begun is not None else line, last)
    return list(found.values()), broken


class Audit:
    """Writes audit lines to the log `eventonce.audit` and, if a file is named, to that file."""

    def __init__(self, file: str = "") -> None:
        """ConfigError if the file cannot be written: an action must not begin then."""
        self._file = file
        if file:
            self._append(b"")

    def record(
        self,
        action: str,
        *,
        id: str,
        who: str,
        via: str,
        selection: str,
        counts: Mapping[str, int],
        ended: str = "finished",
    ) -> None:
        """Write the line of an action that begins or has ended; ConfigError if the line of a
        beginning cannot be written to the file."""
        line = Line(
            id=id,
            time=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            who=on_one_line(who),
            via=via,
            action=action,
            selection=on_one_line(selection),
            counts=dict(counts),
            ended=on_one_line(ended),
        )
        said = ", ".join(f"{count} {name}" for name, count in line.counts.items())
        log.info(
            "%s by %s: %s (%s), %s",
            line.action,
            line.who,
            said or ("nothing yet" if ended == BEGUN else "nothing"),
            line.selection,
            line.ended,
            extra={"fields": msgspec.structs.asdict(line)},
        )
        if self._file:
            try:
                self._append(msgspec.json.encode(line) + b"\n")
            except ConfigError as error:
                if ended == BEGUN:
                    raise
                # The action has happened, and its line is in the log.
                log.error("%s", error)  # noqa: TRY400  it says all

    def _append(self, data: bytes) -> None:
        try:
            file = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_APPEND, MODE)
            try:
                size = os.fstat(file).st_size
                if data and size and os.pread(file, 1, size - 1) != b"\n":
                    # The line before is incomplete, because the disk was full.
                    data = b"\n" + data
                if os.write(file, data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(file)
        except OSError as error:
            raise ConfigError(
                f"audit: {self._file} cannot be written: {error.strerror or error}"
            ) from error


def user() -> str:
    """Return the name of the user who runs this process."""
    try:
        return getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"
