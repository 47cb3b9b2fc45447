"""`eventonce run`: the worker, on an SQS queue or on a capture."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from math import inf
from pathlib import Path
from typing import Final

import click
import msgspec

from eventonce.aws.sqs import parse
from eventonce.cli import FAILED
from eventonce.cli.dashboard import checked_settings, dashboard_option, watched_by_people
from eventonce.cli.history_options import keeping_history
from eventonce.cli.logs import log_format_option, log_to_stderr
from eventonce.cli.options import (
    Settings,
    configured,
    handler_option,
    json_option,
    recording_shadows,
    tap_option,
    tapping,
    verbose_option,
    with_settings,
)
from eventonce.cli.output import counted, emit, progress, remark, wants_json, with_table
from eventonce.cli.reload import rules_reloaded
from eventonce.cli.signals import ended_by_signals
from eventonce.config import WorkerTable
from eventonce.config.checks import seconds
from eventonce.core.ports import Source
from eventonce.core.status import DEAD_LETTERS
from eventonce.errors import ConfigError, EventonceError
from eventonce.metrics.prometheus import scraping
from eventonce.otel.setup import exporting
from eventonce.runtime.observers import Tally, to_log
from eventonce.runtime.retention import maintained
from eventonce.sources import FileSource, open_source
from eventonce.stores.probe import new_trial_key, write_trial
from eventonce.study.capture.tap import TappedSource
from eventonce.worker import ExitReport, Worker, WorkerSettings
from eventonce.worker.health import listening
from eventonce.worker.worker import HANDOVER_DELAY

ALL_IGNORED: Final = (
    "all events were ignored: check `match` of the sinks; --verbose logs the reason for each event"
)

DRAW_INTERVAL: Final = 0.2
"""Seconds between two updates of the progress bar."""


@click.command()
@configured("--queue", metavar="URI", help="The queue: sqs://NAME?region=…, or its URL.")
@click.option(
    "--from",
    "captured",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="A file or folder of events instead of a queue; repeat the option for several.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="With --from: at most this many events a second.",
)
@handler_option
@tap_option
@with_settings("store", "name", "presets", "rules", "config")
@click.option("--concurrency", type=int, help="Handlers at the same time.  [default: 10]")
@click.option(
    "--drain", help="How long running handlers have to finish after SIGTERM.  [default: 25s]"
)
@click.option(
    "--health",
    metavar="[HOST:]PORT",
    help="The address of /health/live, /health/ready and /metrics.",
)
@dashboard_option
@verbose_option
@log_format_option
@json_option
def run(
    settings: Settings,
    captured: tuple[Path, ...],
    rate: float | None,
    handler: str | None,
    tap: str | None,
    dashboard: str | None,
    *,
    verbose: bool,
    log_format: str,
    **worker_options: str | int | None,
) -> int:
    """Receive events from an SQS queue, or read them from a capture, and give them to the sinks.

    SIGTERM or Ctrl-C ends the worker after the running handlers; the second signal ends it at once.
    """
    given = {option: value for option, value in worker_options.items() if value is not None}
    asked = msgspec.structs.replace(settings.file.worker, **given)
    settings = settings.also(worker=asked)
    _check_options(captured, rate, tap)
    settings = checked_settings(settings, dashboard, worker=asked, tap=tap, taps=not captured)
    receivers = 1 if captured else asked.receivers
    source: Source = FileSource(captured, rate=rate or inf) if captured else _from_queue(asked)
    tally = Tally()
    consumer = settings.consumer(handler, command="run")
    with consumer, closing(source):
        # The run of a capture ends, and a person waits for it at a terminal.
        form = "text" if captured and log_format == "auto" else log_format
        log_to_stderr(form, bar=bool(captured))
        consumer.observers += [tally, to_log(every=verbose, copies=not captured)]
        if isinstance(source, FileSource):
            if source.capture.passed_over:
                remark(source.capture.passed_over)
            # A person waits for this run, and must see at once that the store cannot be written.
            write_trial(consumer.store, new_trial_key())
        with ExitStack() as stack:
            channel = "file" if captured else _channel(asked.queue)
            stack.enter_context(exporting(consumer, channel))
            stack.enter_context(recording_shadows(settings.file, consumer))
            stack.enter_context(maintained(consumer.admin, consumer.runtime.retention))
            tap_file = "" if captured else tap or settings.file.tap
            tapped = stack.enter_context(tapping(tap_file, consumer))
            if tapped is not None:
                source = TappedSource(source, tapped, channel)
            worker = Worker(
                consumer, source, WorkerSettings(asked.concurrency, receivers, seconds(asked.drain))
            )
            stack.enter_context(keeping_history(settings.file, consumer, channel, worker.in_flight))
            if asked.health:
                scrape = scraping(consumer, on=asked.metrics)
                stack.enter_context(listening(str(asked.health), worker.state, scrape))
            stack.enter_context(watched_by_people(settings, consumer, handler, worker.state))
            if isinstance(source, FileSource):
                stack.enter_context(_progress(source))
            stack.enter_context(rules_reloaded(settings, consumer, handler))
            stack.enter_context(ended_by_signals(worker.stop))
            report = worker.run()
            if report.unfinished:
                _end_before_handover()
        _say(tally.counts, report)
        if tally.counts.keys() == {"ignored"}:
            remark(ALL_IGNORED)
        failed = isinstance(source, FileSource) and _is_wanting(
            source, captured, tally.counts, report
        )
        if report.unfinished:
            # At once: otherwise a handler that still runs would continue during the shutdown.
            _end(FAILED)
    if report.error is not None:
        raise _readable(report.error)
    return FAILED if failed else 0


def _check_options(captured: Sequence[Path], rate: float | None, tap: str | None) -> None:
    if rate is not None and not captured:
        raise ConfigError("--rate needs --from: a queue has no rate limit")
    if tap and captured:
        raise ConfigError("--tap needs a queue: what --from reads is a capture already")


def _is_wanting(
    source: FileSource, captured: Sequence[Path], counts: Counter[str], report: ExitReport
) -> bool:
    """Whether an event was given up, was not read, or failed because no handler takes its type."""
    if report.unhandled:
        events = counted(report.unhandled, "event")
        remark(f"{events} failed, because no handler or sink takes the type")
    if source.ended and not source.unread and not counts:
        remark(f"no events in {', '.join(map(str, captured))}")
    if not source.ended:
        remark("not all events were read; the same command continues where this one ended")
    if source.unread:
        remark(source.unread)
    kept = bool(counts.keys() & DEAD_LETTERS)
    return not source.ended or bool(source.unread) or kept or bool(report.unhandled)


def _from_queue(asked: WorkerTable) -> Source:
    if not asked.queue:
        raise ConfigError(
            "run: no queue is given; use --queue sqs://NAME?region=…, or write queue = … into the "
            "table [worker], or read a capture with --from"
        )
    return open_source(asked.queue, visibility=seconds(asked.visibility), wait=seconds(asked.wait))


def _channel(queue: str) -> str:
    """Return the channel in a capture and in a history: the name of the queue, or the scheme of
    another source."""
    try:
        return f"sqs:{parse(queue).name}"
    except ConfigError:
        return queue.partition(":")[0]


@contextmanager
def _progress(source: FileSource) -> Iterator[None]:
    """Show a progress bar over the bytes of the capture, on a terminal."""
    ended, capture = threading.Event(), source.capture
    with progress("run") as told:

        def draw() -> None:
            while not ended.wait(DRAW_INTERVAL):
                told(capture.position, capture.size)

        thread = threading.Thread(target=draw, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            told(capture.position, capture.size)


def _say(counts: Counter[str], report: ExitReport) -> None:
    rows = counts.most_common()
    if report.unfinished:
        rows.append(("unfinished", report.unfinished))
    text = f"{counted(counts.total(), 'delivery', 'deliveries')}, {counts['done']} done"
    document = {**counts, "unfinished": report.unfinished}
    emit(document, with_table(text, rows), err=not wants_json())


def _readable(error: BaseException) -> BaseException:
    """Return the text of an error: the message of our own errors; of any other, only its class,
    because the log has its traceback."""
    if isinstance(error, EventonceError | OSError):
        return error
    return EventonceError(f"the worker ended with a defect: {type(error).__name__}: {error}")


def _end_before_handover() -> None:
    """End the process soon, in any case: its events are freed, and a handler that still runs must
    not go on while a history or a collector is waited for."""
    timer = threading.Timer(HANDOVER_DELAY / 2, _end, [FAILED])
    timer.daemon = True
    timer.start()


def _end(code: int) -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)
