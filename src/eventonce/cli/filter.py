"""`eventonce filter`: reads streams, writes new events through `event_filter`, keeps rejects."""

from __future__ import annotations

import gc
import os
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click
import msgspec

from eventonce.cli import FAILED
from eventonce.cli.event_filter import EventFilter
from eventonce.cli.options import CapturePath, PrivateFile, Settings, json_option, with_settings
from eventonce.cli.output import (
    CLEAR_LINE,
    check_files,
    counted,
    emit,
    notice,
    on_terminal,
    printable,
    progress,
    standard_output,
    wants_json,
    with_table,
)
from eventonce.cli.signals import Interrupt
from eventonce.core.masking import masked
from eventonce.core.status import USUAL
from eventonce.envelope import MAX_BYTES
from eventonce.errors import ConfigError
from eventonce.rules import Ruleset
from eventonce.sources.compression import Unreadable
from eventonce.sources.inputs import STDIN, Input, Place, inputs
from eventonce.sources.json_stream import Chunk, Long, inside
from eventonce.stores import open_store
from eventonce.stores.sqlite.admin import make_private

if TYPE_CHECKING:
    from eventonce.cli.copies import CopiesFile

STDOUT_NAME: Final = "<stdout>"
REJECTS_SHOWN: Final = 20
"""The most rejects that stderr shows; the others are counted, and `--rejects` keeps all."""

LONGEST_REJECT: Final = 500
"""The most characters of a reject that stderr shows."""

HOW_TO_CONTINUE: Final = (
    "to continue, give the same command with >> in place of >, which would empty the file"
)
NOT_REMEMBERED: Final = "nothing is remembered without --store: start again from the beginning"

SAME_ID_WORDS: Final = {
    True: ("same_id", "same transport id"),
    False: ("another_id", "another transport id"),
    None: ("no_id", "without an id to compare"),
}
"""The words for duplicates by `Verdict.same_id`, in the document and in the summary."""


@click.command("filter")
@click.argument("captures", nargs=-1, type=CapturePath(allow_dash=True))
@click.option(
    "-s",
    "--store",
    metavar="URI",
    help="Remember events over runs in this store, such as sqlite:///seen.db.",
)
@with_settings("presets", "rules", "name", "config")
@click.option(
    "--rejects",
    type=PrivateFile("ab"),
    help="Append invalid input to this file, complete and with the reason.",
)
@click.option(
    "--copies",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write each copy to this file, with its original and its cause.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(1),
    default=MAX_BYTES,
    help="The size of the largest event accepted.",
)
@json_option
def filter_events(
    settings: Settings,
    captures: tuple[Place, ...],
    store: str | None,
    rejects: BinaryIO | None,
    copies: Path | None,
    max_bytes: int,
) -> int:
    """Read events from CAPTURES (files, folders, s3://bucket/prefix), or from stdin, and write the
    new ones to stdout, one a line.

    A capture is JSON Lines, a JSON array, JSON documents one after the other, an export of
    CloudWatch Logs, or Parquet; also compressed with gzip or zstd. Copies are dropped, whatever
    their transport ids. A summary goes to stderr.

    Only with --store are events remembered after the run: the store of eventonce.toml or
    EVENTONCE_STORE belongs to your consumer, which would take filtered events for done and never
    run them. An event is marked done only after its line was written, so a filter that is killed
    and started again with the same store loses nothing; it can write its last lines again.
    """
    if copies == STDIN:
        raise click.UsageError("--copies needs a file: stdout has the new events.")
    name = getattr(rejects, "name", STDOUT_NAME)
    kept_in = None if name == STDOUT_NAME else Path(name)
    for place in captures or [STDIN]:
        check_files([place], copies, kept_in)
    chosen = settings.file.ruleset()
    opened = open_store(store or "memory:")
    if not wants_json():
        notice(_memory(store, chosen, settings))
        if not captures and on_terminal(sys.stdin):
            notice("reading from the terminal; Ctrl-D ends the input")
    # A filter makes few reference cycles, and the search for them takes a tenth of its time.
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    interrupt = Interrupt()
    event_filter = EventFilter(
        opened,
        chosen,
        standard_output(),
        max_bytes=max_bytes,
        remembers=store is not None,
        traces=copies is not None,
        step=interrupt.after,
    )
    unread: list[str] = []
    found: list[Input] = []
    for place in captures or [STDIN]:
        some, passed_over = inputs([place])
        found += some
        if passed_over:
            notice(passed_over)
    shown = bool(captures) and on_terminal(sys.stderr)
    kept = Rejects(rejects, clear=shown)
    whole = sum(one.size for one in found)
    before = 0
    interrupted = False
    try:
        with interrupt.handled(), ExitStack() as stack, progress("filter", shown=shown) as told:
            traced = None if copies is None else _copies_file(stack, copies)
            for one in found:
                try:
                    for chunk in one.chunks(max_bytes):
                        _filter(chunk, event_filter, kept, traced, one.name, max_bytes)
                        told(before + one.position, whole)
                except Unreadable as error:
                    unread.append(f"{one.name} cannot be read completely: {error}")
                before += one.size
    except KeyboardInterrupt:
        interrupted = True
    opened.close()
    kept.close()
    emit(_document(event_filter, store), _summary(event_filter), err=True)
    if interrupted:
        notice(NOT_REMEMBERED if store is None else HOW_TO_CONTINUE)
        raise click.Abort
    if unread:
        raise ConfigError("; ".join(unread))
    return 0 if event_filter.counts.keys() <= USUAL else FAILED


def _filter(
    chunk: Chunk | Long,
    event_filter: EventFilter,
    rejects: Rejects,
    copies: CopiesFile | None,
    file: str,
    max_bytes: int,
    *,
    may_be_batches: bool = True,
) -> None:
    if isinstance(chunk, Long):
        event_filter.counts["invalid"] += 1
        rejects.add(f"{file}{chunk.place}", "invalid", "", chunk, max_bytes)
        return
    events = chunk.events if chunk.by_line else [_on_one_line(event) for event in chunk.events]
    batch = event_filter.plan(events)
    if may_be_batches and any(inside(events[one.at]) for one in batch.rejected):
        for some in chunk.apart():
            _filter(some, event_filter, rejects, copies, file, max_bytes, may_be_batches=False)
        return
    for one in event_filter.write_new(batch):
        rejects.add(f"{file}{chunk.place(one.at)}", one.status, one.reason, [events[one.at]])
    if copies is not None:
        copies.add(event_filter.decided, events, lambda at: f"{file}{chunk.place(at)}")


def _copies_file(stack: ExitStack, path: Path) -> CopiesFile:
    from eventonce.cli.copies import CopiesFile  # noqa: PLC0415  slow to import, and seldom asked

    make_private(path)
    # Without a buffer: a buffer that cannot be flushed would fail again at its close.
    out = stack.enter_context(path.open("wb", buffering=0))
    return stack.enter_context(closing(CopiesFile(out)))


def _on_one_line(event: bytes) -> bytes:
    if b"\n" not in event and b"\r" not in event:
        return event
    try:
        return msgspec.json.format(event, indent=-1)
    except (msgspec.DecodeError, RecursionError):
        # Not an event, and refused; but not over several lines that would be read as events.
        return event.replace(b"\n", b" ").replace(b"\r", b" ")


def _memory(store: str | None, rules: Ruleset, settings: Settings) -> str:
    if store is not None:
        spans = {rule.remember for rule in rules.rules}
        most = "up to " if len(spans) > 1 else ""
        return f"events are remembered in {masked(store)} for {most}{_span(max(spans))}"
    consumers = settings.file.store or os.environ.get("EVENTONCE_STORE", "")
    untouched = f"; {masked(consumers)} is not touched" if consumers else ""
    return f"events are remembered only during this run (--store URI keeps them){untouched}"


def _span(milliseconds: int) -> str:
    for unit, size in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000)):
        if milliseconds % size == 0:
            return counted(milliseconds // size, unit)
    return f"{milliseconds / 1000:g} seconds"


def _document(event_filter: EventFilter, store: str | None) -> dict[str, Any]:
    return {
        "events": event_filter.counts.total(),
        "statuses": event_filter.counts,
        "duplicates": {SAME_ID_WORDS[same][0]: many for same, many in event_filter.same_id.items()},
        "store": store and masked(store),
    }


def _summary(event_filter: EventFilter) -> str:
    counts = event_filter.counts
    by_id = ", ".join(
        f"{many:,} {SAME_ID_WORDS[same][1]}" for same, many in event_filter.same_id.most_common()
    )
    rows = [
        (status, many, by_id if status == "duplicate" else "")
        for status, many in counts.most_common()
    ]
    return with_table(f"{counted(counts.total(), 'event')}, {counts['done']:,} new", rows)


class Rejects:
    """The writer of invalid input: all of it, complete, to a file; or the first of it to stderr."""

    def __init__(self, file: BinaryIO | None, *, clear: bool) -> None:
        """`clear`: whether a progress bar must be cleared before each line."""
        self._file = file
        self._before = CLEAR_LINE if clear else ""
        self._shown = 0

    def add(
        self, place: str, status: str, reason: str, event: Iterable[bytes], limit: int = 0
    ) -> None:
        """Write one reject, as a stream; for a reject above the limit, the reason is its size."""
        size = 0
        if self._file is None:
            begin = b""
            for piece in event:
                begin += piece[: 4 * LONGEST_REJECT - len(begin)]
                size += len(piece)
            self._show(place, status, _too_large(size, limit) or reason, begin, size)
            return
        text = getincrementaldecoder("utf-8")(errors="backslashreplace").decode
        entry = msgspec.json.encode({"place": place, "status": status, "event": ""})
        self._file.write(entry[:-2])
        try:
            for piece in event:
                size += len(piece)
                self._file.write(msgspec.json.encode(text(piece))[1:-1])
        finally:
            # Also after a failure of the stream: the next reject must begin a new line.
            end = msgspec.json.encode(text(b"", final=True))[1:]
            why = msgspec.json.encode(_too_large(size, limit) or reason)
            self._file.write(end + b',"reason":' + why + b"}\n")
            self._file.flush()

    def close(self) -> None:
        """Report the number of rejects that were not shown."""
        left = self._shown - REJECTS_SHOWN
        if left <= 0:
            return
        hint = "--rejects FILE keeps all of them, complete"
        document = {"not_shown": left, "hint": hint}
        emit(document, f"and {left} more; {hint}", err=True)

    def _show(self, place: str, status: str, reason: str, begin: bytes, size: int) -> None:
        self._shown += 1
        if self._shown > REJECTS_SHOWN:
            return
        text = begin.decode(errors="backslashreplace")
        if not wants_json():
            text = _escaped(begin, whole=size == len(begin))
        if size > len(begin) or len(text) > LONGEST_REJECT:
            text = f"{text[:LONGEST_REJECT]}… ({size} bytes)"
        if wants_json():
            entry = {"place": place, "status": status, "reason": reason, "event": text}
            said = msgspec.json.encode(entry).decode()
        else:
            said = f"{printable(f'{place}: {status}: {reason}')}\n  {text}"
        click.echo(f"{self._before}{said}", err=True)


def _escaped(begin: bytes, *, whole: bool) -> str:
    """Return the text of a reject for a terminal; if it is not UTF-8, all of it is shown as bytes,
    so that it has escapes of one kind."""
    try:
        text = getincrementaldecoder("utf-8")().decode(begin, final=whole)
    except UnicodeDecodeError:
        return repr(begin)[2:-1]
    return printable(text)


def _too_large(size: int, limit: int) -> str:
    return f"too large: {size} bytes, and the limit is {limit}" if limit else ""
