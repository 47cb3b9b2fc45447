"""`eventonce run`: the worker, on an SQS queue or on a capture."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from math import inf
from pathlib import Path
from types import FrameType
from typing import Final

import click
import msgspec

from eventonce.cli import FAILED
from eventonce.cli.consumers import consumer
from eventonce.cli.options import (
    config_option,
    configured,
    json_option,
    name_option,
    rules_option,
    store_option,
)
from eventonce.cli.table import counted, table
from eventonce.config import Worker as Table
from eventonce.config import load
from eventonce.config.checks import check_table, seconds
from eventonce.core.ports import Source
from eventonce.core.status import DEAD_LETTERS
from eventonce.errors import ConfigError, EventonceError
from eventonce.runtime.observers import Tally, to_log
from eventonce.sources import FileSource, open_source
from eventonce.stores.probe import PROBE
from eventonce.worker import Report, Settings, Worker
from eventonce.worker.health import listening

ALL_IGNORED: Final = (
    "nothing but ignored events came: look at the match of the sinks; --verbose says of each event "
    "why"
)

DRAW: Final = 0.2
"""Seconds between two looks of the progress bar."""


@click.command()
@config_option
@configured("--queue", metavar="URI", help="sqs://NAME?region=…, or the queue's URL.")
@click.option(
    "--from",
    "captured",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="A file or folder of events instead of a queue; may be given several times.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="With --from: events a second at the most.",
)
@click.option(
    "--handler",
    metavar="MODULE:NAME",
    help="A handler or a Consumer of yours, in place of the sinks.",
)
@store_option
@name_option
@rules_option
@click.option("--concurrency", type=int, help="Handlers side by side. [default: 10]")
@click.option(
    "--drain", help='How long running handlers may take to end after SIGTERM. [default: "25s"]'
)
@click.option(
    "--health", metavar="[HOST:]PORT", help="Where to answer /health/live and /health/ready."
)
@click.option(
    "-v", "--verbose", is_flag=True, help="Log every event's outcome, not only the bad ones."
)
@json_option
def command(
    config: Path | None,
    queue: str | None,
    captured: tuple[Path, ...],
    rate: float | None,
    handler: str | None,
    store: str | None,
    name: str | None,
    rules: tuple[str, ...],
    concurrency: int | None,
    drain: str | None,
    health: str | None,
    *,
    verbose: bool,
    as_json: bool,
) -> int:
    """Receive events from an SQS queue, or read them from a capture, and give them to the sinks.

    Ends after SIGTERM or Ctrl-C with what is in work finished; the second one ends it at once.
    """
    said = load(config)
    own = {"queue": queue, "concurrency": concurrency, "drain": drain, "health": health}
    given = {option: value for option, value in own.items() if value is not None}
    asked = msgspec.structs.replace(said.worker, **given)
    said = msgspec.structs.replace(said, worker=asked)
    if rate is not None and not captured:
        raise ConfigError("--rate is for --from; a queue is worked through as it comes")
    check_table("worker", asked)
    receivers = 1 if captured else asked.receivers
    settings = Settings(asked.concurrency, receivers, seconds(asked.drain))
    source: Source = FileSource(captured, rate=rate or inf) if captured else _from_queue(asked)
    tally = Tally()
    made = consumer(said, handler, command="run", store=store, name=name, rules=rules)
    with made, closing(source):
        _log(verbose=verbose)
        made.observers += [tally, to_log()]
        if isinstance(source, FileSource):
            if source.capture.passed_over:
                click.echo(f"eventonce: {source.capture.passed_over}", err=True)
            # Somebody waits for this run, and shall know at once that it cannot begin.
            made.store.claim([PROBE])
        worker = Worker(made, source, settings)
        with ExitStack() as stack:
            if asked.health:
                stack.enter_context(listening(str(asked.health), worker.state))
            if isinstance(source, FileSource):
                stack.enter_context(_progress(source))
            stack.enter_context(_signals(worker.stop))
            report = worker.run()
        _say(tally.counts, report, as_json=as_json)
        if tally.counts.keys() == {"ignored"}:
            click.echo(f"eventonce: {ALL_IGNORED}", err=True)
        failed = isinstance(source, FileSource) and _is_wanting(source, tally.counts)
        if report.unfinished:
            # What still runs in this process would go on while it ends.
            _end(FAILED)
    if report.error is not None:
        raise _readable(report.error)
    return FAILED if failed else 0


def _is_wanting(source: FileSource, counts: Counter[str]) -> bool:
    """Whether some event was given up, or not come to."""
    if not source.ended:
        click.echo(
            "eventonce: not all was read; the same command goes on where this ended", err=True
        )
    if source.unread:
        click.echo(f"eventonce: {source.unread}", err=True)
    return not source.ended or bool(source.unread) or bool(counts.keys() & DEAD_LETTERS)


def _from_queue(asked: Table) -> Source:
    if not asked.queue:
        raise ConfigError(
            "run: no queue is named; give --queue sqs://NAME?region=…, write queue = … into the "
            "table [worker], or read a capture with --from"
        )
    return open_source(asked.queue, visibility=seconds(asked.visibility), wait=seconds(asked.wait))


def _log(*, verbose: bool) -> None:
    """Say what the worker does on stderr, unless the sinks' own modules have arranged for it."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("eventonce").setLevel(logging.INFO)
    logging.getLogger("eventonce.outcomes").setLevel(logging.INFO if verbose else logging.WARNING)


@contextmanager
def _signals(stop: Callable[[str], None]) -> Iterator[None]:
    """SIGTERM and SIGINT ask to stop; the second of them ends the process as it is."""
    asked: list[int] = []

    def on(number: int, _frame: FrameType | None) -> None:
        # Noted before it is counted: the other signal may interrupt this very function.
        asked.append(number)
        if len(asked) > 1:
            os._exit(128 + number)
        stop(signal.Signals(number).name)

    before = {number: signal.signal(number, on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress(source: FileSource) -> Iterator[None]:
    """A progress bar over the capture's bytes, on a terminal."""
    ended = threading.Event()
    with click.progressbar(
        length=max(1, source.capture.size),
        label="run",
        file=sys.stderr,
        hidden=not (sys.stderr and sys.stderr.isatty()),
    ) as bar:

        def draw() -> None:
            while not ended.wait(DRAW):
                bar.update(source.capture.position - bar.pos)

        thread = threading.Thread(target=draw, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            bar.update(source.capture.position - bar.pos)


def _say(counts: Counter[str], report: Report, *, as_json: bool) -> None:
    if as_json:
        told = {**counts, "unfinished": report.unfinished}
        click.echo(msgspec.json.encode(told).decode())
        return
    total = sum(counts.values())
    rows = [*counts.most_common(), *([("unfinished", report.unfinished)] * bool(report.unfinished))]
    said = f"{counted(total, 'delivery', 'deliveries')}, {counts['done']} ran"
    click.echo(f"{said}\n{table(rows, indent=2)}" if rows else said, err=True)


def _readable(error: BaseException) -> BaseException:
    """Our own errors as they are; a defect with its name, for the log has its traceback."""
    if isinstance(error, EventonceError | OSError):
        return error
    return EventonceError(f"the worker ended by a defect: {type(error).__name__}: {error}")


def _end(code: int) -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)
