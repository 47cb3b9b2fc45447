"""`eventonce capture`: events as they arrive, written to files that the study reads."""

from __future__ import annotations

import logging
import os
import secrets
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from eventonce.aws.s3 import parse as parse_s3
from eventonce.aws.sessions import Access
from eventonce.aws.sqs import Queue, parse, same
from eventonce.cli import FAILED, started_as
from eventonce.cli.options import (
    Settings,
    endpoint_option,
    instant,
    json_option,
    placed_uri,
    region_option,
    with_settings,
)
from eventonce.cli.output import (
    check_files,
    counted,
    emit,
    notice,
    on_terminal,
    one_line,
    overwrite,
    remark,
    wants_json,
)
from eventonce.cli.signals import ended_by_signals
from eventonce.errors import ConfigError
from eventonce.rules.instants import duration
from eventonce.study.capture import Feed, Progress, record
from eventonce.study.capture.anonymise import Anonymiser
from eventonce.study.capture.files import FileFeed
from eventonce.study.capture.log_group import LogGroupFeed
from eventonce.study.capture.queue import QueueFeed, own
from eventonce.study.capture.recorder import Recorder, Rotation

SIZE_UNITS: Final = {"KB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}
DEFAULT_OUTPUT: Final = "capture.jsonl.gz"
KEY_VARIABLE: Final = "EVENTONCE_ANONYMISE_KEY"
KEY_BYTES: Final = 16


def _size(_ctx: click.Context, _param: click.Parameter, text: str) -> int:
    number, unit = text[:-2].strip(), text[-2:].upper()
    if not number.isdecimal() or unit not in SIZE_UNITS or not int(number):
        raise click.BadParameter(f"{text!r} must be a size, such as 256MB or 1GB.")
    return int(number) * SIZE_UNITS[unit]


def _duration(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        found = duration(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}") from None
    if not found:
        raise click.BadParameter("must be greater than 0.")
    return found


@click.command()
@click.option(
    "--queue",
    metavar="URI",
    help="An SQS queue of the capture's own, sqs://NAME?region=… or its URL: messages are deleted "
    "once they are written.",
)
@click.option(
    "--own-queue",
    is_flag=True,
    help="Nobody else reads the queue, although its name does not end with -capture.",
)
@click.option("--log-group", metavar="NAME", help="A log group that a rule or a tap writes to.")
@click.option(
    "--s3", metavar="URI", help="What Firehose or an archive wrote, s3://BUCKET/PREFIX?region=…."
)
@click.option(
    "--from",
    "files",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="A capture that exists, a file or a folder, to write it anew; repeat the option for "
    "several.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=DEFAULT_OUTPUT,
    help="The capture; .gz and .zst are compressed.",
)
@click.option(
    "--since",
    callback=instant,
    metavar="TIME",
    help="With --log-group: lines of this time or later, such as 2026-11-16T08:00Z or 7d.",
)
@click.option(
    "--until", callback=instant, metavar="TIME", help="With --log-group: lines up to this time."
)
@click.option(
    "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.  [default: end when empty]"
)
@click.option(
    "--for", "time_limit", callback=_duration, metavar="DURATION", help="Go on for so long: 7d."
)
@click.option(
    "--rotate-size",
    callback=_size,
    default="256MB",
    help="Finish a file of this size, and begin the next.",
)
@click.option(
    "--rotate-age",
    callback=_duration,
    default="1d",
    help="Finish a file that was begun so long ago.",
)
@click.option(
    "--anonymise",
    is_flag=True,
    help="Replace personal values by keyed digests of the same shape: what is equal stays equal, "
    "and every count stays the same. What was left alone is listed.",
)
@click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --anonymise: the key, 16 bytes or more; or else EVENTONCE_ANONYMISE_KEY. Captures "
    "with the same key can be compared.  [default: a key for this run alone]",
)
@region_option
@endpoint_option
@with_settings("config")
@json_option
def capture(
    settings: Settings,
    output: Path,
    rotate_size: int,
    rotate_age: int,
    time_limit: int | None,
    key_file: Path | None,
    *,
    anonymise: bool,
    **given: Any,
) -> int:
    """Write events as they arrive, each with its arrival time, its channel and its receive count.

    Nothing is taken from others: a queue must be the capture's own, and log groups, objects and
    files are only read. `run --tap` and `serve --tap` write the events that they process.

    The same command goes on where it ended or was killed: no event is lost, and none is written
    twice. A finished file is renamed to the time it was begun, such as
    capture-20261116T080000000Z.jsonl.gz.
    """
    follow = given.pop("follow") or time_limit is not None
    feed = _feed(settings, follow=follow, **given)
    check_files(given["files"], output)
    change = _anonymiser(key_file) if anonymise else None
    what = str(feed) if change is None else f"{feed}, anonymised with key {change.fingerprint}"
    recorder = Recorder(output, what, Rotation(rotate_size, rotate_age))
    logging.basicConfig(stream=sys.stderr, format="eventonce: %(message)s")
    ended = time.monotonic() + time_limit / 1000 if time_limit is not None else None
    asked: list[str] = []

    def stopping() -> bool:
        return bool(asked) or (ended is not None and time.monotonic() >= ended)

    if not wants_json():
        going = (
            f"goes on after {counted(recorder.lines, 'event')}" if recorder.resumed else "begins"
        )
        ends = "Ctrl-C ends it" if follow else "it ends when all is read"
        click.echo(f"capture of {feed} to {output} {going}; {ends}", err=True)
    told = _progress(recorder)
    try:
        with ended_by_signals(asked.append):
            done = record(feed, recorder, change=change or bytes, stopping=stopping, told=told)
    finally:
        recorder.close()
        if on_terminal(sys.stderr):
            overwrite("")
    if not wants_json():
        for note in feed.notes:
            notice(note)
    _say(done, recorder, change, feed.notes)
    return FAILED if feed.broken else 0


def _feed(
    settings: Settings,
    *,
    queue: str | None,
    own_queue: bool,
    log_group: str | None,
    s3: str | None,
    files: tuple[Path, ...],
    since: int | None,
    until: int | None,
    follow: bool,
    region: str | None,
    endpoint: str | None,
) -> Feed:
    sources = [
        name
        for name, one in (
            ("--queue", queue),
            ("--log-group", log_group),
            ("--s3", s3),
            ("--from", files),
        )
        if one
    ]
    if len(sources) != 1:
        raise click.UsageError("Name one of --queue, --log-group, --s3 and --from.")
    if not log_group and (since is not None or until is not None):
        raise click.UsageError(f"{sources[0]} takes no --since and no --until: --log-group does.")
    if since is not None and until is not None and since >= until:
        raise click.UsageError("--until must be later than --since.")
    if queue:
        return _from_queue(
            settings, placed_uri(queue, region, endpoint), own_queue=own_queue, follow=follow
        )
    if log_group:
        access = Access(region, endpoint)
        return LogGroupFeed(log_group, access, begin=since or 0, end=until, follow=follow)
    if s3:
        # Checked before the URI is shown: it may have a secret in a wrong place.
        parse_s3(s3)
    return FileFeed([placed_uri(s3, region, endpoint)] if s3 else files, follow=follow)


def _anonymiser(key_file: Path | None) -> Anonymiser:
    key = key_file.read_bytes() if key_file else os.environ.get(KEY_VARIABLE, "").encode()
    if (key_file or key) and len(key) < KEY_BYTES:
        raise ConfigError(
            f"the key of {key_file or KEY_VARIABLE} has {len(key)} bytes and could be guessed; use "
            f"{KEY_BYTES} or more, for example 32 of /dev/urandom"
        )
    if not key:
        remark(
            f"the key is for this run alone: what is equal stays equal within it, and the capture "
            f"cannot be continued later. --key-file or {KEY_VARIABLE} gives one that stays"
        )
    return Anonymiser(key or secrets.token_bytes(32))


def _from_queue(settings: Settings, uri: str, *, own_queue: bool, follow: bool) -> QueueFeed:
    worker = settings.file.worker.queue
    if worker and same(parse(worker), parse(uri)):
        raise ConfigError(
            f"capture: {uri} is the queue of [worker]: each would take events from the other. "
            f"`eventonce run --tap FILE` writes what the worker receives"
        )
    queue = Queue.from_uri(uri, awaited=False)
    own(queue, said=own_queue)
    return QueueFeed(queue, follow=follow)


def _progress(recorder: Recorder) -> Callable[[Progress], None]:
    """The progress line on a terminal, which is overwritten."""
    shown = on_terminal(sys.stderr)
    lately = deque([(time.monotonic(), 0)], maxlen=10)

    def told(done: Progress) -> None:
        if shown:
            now = time.monotonic()
            since, before = lately[0]
            lately.append((now, done.lines))
            rate = (done.lines - before) / max(1.0, now - since)
            text = f"{done.lines:,} events, {_bytes(recorder.written)}, {rate:,.0f} a second"
            last = datetime.fromtimestamp(done.last / 1000, UTC).strftime("%H:%M:%S")
            more = f", the last at {last} UTC" if done.last else ", none yet"
            overwrite(f"{text}{more}")

    return told


def _bytes(number: int) -> str:
    unit = next((unit for unit in ("GB", "MB", "KB") if number >= SIZE_UNITS[unit]), "")
    return f"{number / SIZE_UNITS[unit]:.1f} {unit}" if unit else f"{number} bytes"


def _say(
    done: Progress, recorder: Recorder, change: Anonymiser | None, notes: Sequence[str]
) -> None:
    document: dict[str, Any] = {
        "events": done.lines,
        "all_events": recorder.lines,
        "bytes": recorder.written,
        "files": recorder.files,
        "output": str(recorder.path),
        "notes": notes,
    }
    text = f"no new event; {recorder.path} is not written"
    if done.lines:
        text = f"{counted(done.lines, 'event')}, {_bytes(recorder.written)} in {recorder.path}"
    if recorder.lines > done.lines:
        text += f"; {recorder.lines:,} since the capture began"
    if change is not None:
        kinds = {
            kind: {"left": change.left(kind), "replaced": change.replaced(kind)}
            for kind in change.fields
        }
        document["types"] = kinds
        text = "\n".join([_fields(kinds), text]) if kinds else text
    if recorder.lines:
        text += f"\nnext: {started_as()} diagnose {recorder.pattern}"
    emit(document, text, err=not wants_json())


def _fields(kinds: dict[str, dict[str, list[str]]]) -> str:
    """Return the fields that were not changed, and those that were replaced, by type; a field may
    be in both lists."""
    lines = []
    for kind, fields in kinds.items():
        lines.append(one_line(kind))
        for name, found in fields.items():
            told = one_line(", ".join(found)) or "nothing"
            lines.append(click.wrap_text(told, 100, f"  {name:<9} ", " " * 12))
    return "\n".join(lines)
