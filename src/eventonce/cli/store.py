"""Commands on a store: `eventonce store`, and `stats`, `show` and `sweep`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from eventonce.cli import FAILED, Subcommands
from eventonce.cli.history_options import history_option, looking_back
from eventonce.cli.options import (
    Settings,
    config_option,
    dry_run_option,
    json_option,
    options,
    with_settings,
)
from eventonce.cli.output import (
    counted,
    emit,
    finding_text,
    notice,
    progress,
    remark,
    table,
    wants_json,
    with_table,
)
from eventonce.clock import wall_clock
from eventonce.config import DEFAULT_NAME, DEFAULT_STORE, load
from eventonce.config.checks import check_values
from eventonce.core.ledger import Record
from eventonce.core.ports import Finding, StoreAdmin, StoreNames, StoreSchema, offers
from eventonce.envelope import read
from eventonce.errors import ConfigError, EventonceError, StoreUnavailable
from eventonce.history import Decision, History, Search
from eventonce.history.story import told
from eventonce.rules.instants import duration_text
from eventonce.runtime.retention import drop_expired, kept_for
from eventonce.sources.inputs import standard_input
from eventonce.stores import open_schema
from eventonce.stores.probe import write_finding
from eventonce.types import Event

Line = TypeVar("Line")

STORE_COMPLETE: Final = "the store is complete"
IN_MEMORY: Final = "a store in memory needs no file and no table"

MOST_DECISIONS: Final = 10_000
"""Decisions about one event that are told."""

NAMES_SHOWN: Final = 10
"""The most tried names that a line shows."""

SWEEP_STEP: Final = 10_000
"""Records that one call reads, between two updates of the progress bar."""


# eventonce store


@click.group(cls=Subcommands)
def store() -> None:
    """Create, upgrade and check the store of URI, or else of the file, or else the default."""


_on_store = options(json_option, config_option, click.argument("uri", required=False))


def _uri(given: str | None, config: Path | None) -> str:
    return load(config).store or DEFAULT_STORE if given is None else given


@store.command("create")
@_on_store
@dry_run_option
def create(uri: str | None, config: Path | None, *, dry_run: bool) -> None:
    """Create the store's file, table or schema, if it does not exist."""
    _keep_up(uri, config, "create", dry_run=dry_run)


@store.command("migrate")
@_on_store
@dry_run_option
def migrate(uri: str | None, config: Path | None, *, dry_run: bool) -> None:
    """Add what an existing store lacks for this release."""
    _keep_up(uri, config, "migrate", dry_run=dry_run)


def _keep_up(uri: str | None, config: Path | None, verb: str, *, dry_run: bool) -> None:
    with closing(open_schema(_uri(uri, config))) as opened:
        needed = offers(opened, StoreSchema)
        steps: list[str] = getattr(opened, verb)(dry_run=dry_run) if needed else []
    text = "\n".join(steps) or f"nothing to do: {STORE_COMPLETE if needed else IN_MEMORY}"
    emit({"dry_run": dry_run, "steps": steps}, text)


@store.command("check")
@_on_store
def check(uri: str | None, config: Path | None) -> int:
    """Check the store: existence, format and permissions, and whether a record can be written."""
    named = _uri(uri, config)
    with closing(open_schema(named)) as opened:
        needed = offers(opened, StoreSchema)
        findings: list[Finding] = opened.check() if needed else [Finding(IN_MEMORY)]
    # A store with a fault may refuse writes; the fault says why.
    if needed and all(found.fine for found in findings):
        findings.append(write_finding(named))
    document = [{"what": it.what, "fine": it.state == "ok", "fix": it.fix} for it in findings]
    emit(document, "\n".join(map(finding_text, findings)))
    return 0 if all(found.fine for found in findings) else FAILED


# eventonce stats


@click.command()
@with_settings("store", "config")
@json_option
def stats(settings: Settings) -> None:
    """Show how many records and dead letters the store holds, the latter by status and rule."""
    check_values(settings.file, "privacy")
    with closing(settings.open_store()) as opened:
        found = opened.stats()
        groups = Counter((one.consumer, one.status, one.rule) for one in opened.letters())
    head = ("consumer", "status", "rule", "count")
    counts = [(*group, count) for group, count in groups.most_common()]
    by_reason = [dict(zip(head, row, strict=True)) for row in counts]
    rows: list[tuple[str, object]] = [("records", found.records), ("dead letters", found.letters)]
    if found.bytes is not None:
        rows.append(("bytes", found.bytes))
    text = table(rows)
    if counts:
        text += "\n\n" + table(counts, head=(*head[:-1], "dead letters"))
    emit({**msgspec.to_builtins(found), "by_reason": by_reason}, text)


# eventonce show


@click.command()
@click.argument("what", metavar="KEY|FILE")
@history_option
@with_settings("store", "presets", "rules", "name", "config")
@json_option
def show(settings: Settings, what: str, uri: str | None) -> int:
    """Show the record of a KEY in hexadecimal, or of the event in FILE (- is stdin).

    The consumer's name is part of every key: an event is looked for under --name or the file's
    name, then under the names that the history, the store or dead letters have, and under
    `default`. With a history, it tells what was decided, too.
    """
    check_values(settings.file, "history", "privacy")
    event = event_in(what)
    key = key_in(what) if event is None else b""
    tried: list[str] = []
    with closing(settings.open_store()) as opened, looking_back(settings.file, uri) as history:
        met = _answered(history.consumers) if history is not None else None
        for name in _names(settings, opened, met or []) if event is not None else [""]:
            if event is not None:
                key = keyed(event, settings, name)
                tried.append(name)
            record, search = opened.show(key), Search(key=key)
            found = _answered(partial(_found, history, search)) if history and met else None
            chapters = told(found or [], whole=True)
            if record is not None or chapters:
                break
    if record is None and not chapters:
        return _unknown(key, tried)
    sentences = [sentence for chapter in chapters for sentence in chapter.sentences]
    if len(tried) > 1 and not wants_json():
        notice(f"found {_named(tried[-1:])}, not {_named(tried[:1])}")
    owner = {"name": tried[-1]} if tried else {}
    if record is None:
        # The record has expired, but the history keeps decisions for longer.
        document = {"key": key.hex(), **owner, "history": sentences}
        emit(document, "\n".join(sentences))
        return 0
    said = {"history": sentences} if met is not None else {}
    document = {"key": key.hex(), **owner, "is": _state(record), **_document(record), **said}
    under = f" {_named(tried[-1:])}" if tried else ""
    text = with_table(f"{key.hex()}: {_state(record)}{under}", _rows(record))
    text = "\n".join([text, *sentences])
    emit(document, text)
    return 0


def _names(settings: Settings, opened: StoreAdmin, met: Sequence[str]) -> Iterator[str]:
    """Yield the known names of consumers: the consumer's own, then those of the history, then those
    that the store keeps, then those of dead letters; each source is read only if needed."""
    in_file = settings.in_file.name or DEFAULT_NAME
    own = [settings.file.name or DEFAULT_NAME, in_file, *met, DEFAULT_NAME]
    places: Sequence[Callable[[], Iterable[str]]] = (
        lambda: own,
        opened.names if offers(opened, StoreNames) else list,
        lambda: (letter.consumer for letter in opened.letters()),
    )
    seen: set[str] = set()
    for name in chain.from_iterable(ask() for ask in places):
        if name not in seen:
            seen.add(name)
            yield name


def _found(history: History, search: Search) -> list[Decision]:
    found, cut = history.story(search, MOST_DECISIONS)
    if cut:
        remark(f"the history has more decisions; the latest {MOST_DECISIONS:,} are told")
    return found


def _answered(ask: Callable[[], list[Line]]) -> list[Line] | None:
    """Return the story from the history; None if the history is unavailable, because the store
    still has the record."""
    try:
        return ask()
    except (ConfigError, StoreUnavailable) as error:
        remark(f"the history does not answer: {error}")
        return None


def _unknown(key: bytes, tried: Sequence[str]) -> int:
    text = f"the store has no record of the key {key.hex()}"
    if tried:
        text = (
            f"the store has no record of this event {_named(tried)}; if its consumer has another "
            "name, give it: --name NAME"
        )
    emit(None, text, err=not wants_json())
    return FAILED


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:NAMES_SHOWN]))
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"under the {'name' if len(names) == 1 else 'names'} {shown}{more}"


def event_in(what: str) -> Event | None:
    """Return the event in this file; None if there is no such file, so that it must be a key."""
    if what != "-" and not Path(what).exists():
        return None
    return read(standard_input().read() if what == "-" else Path(what).read_bytes())


def key_in(text: str) -> bytes:
    """Return the key that this text is in hexadecimal."""
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise click.UsageError(
            f"{text!r} is neither a file nor a key in hexadecimal; `eventonce explain FILE` prints "
            "the key of an event"
        ) from error


def keyed(event: Event, settings: Settings, name: str = "") -> bytes:
    """Return the key of this event for the consumer of this name."""
    return settings.file.ruleset(name).plan(event, 1)[1].key


def _state(record: Record) -> str:
    """Return the state of a record, in a word or two."""
    if wall_clock() < record.held_until:
        return "running"
    if record.done:
        return "done"
    return "given up" if record.dead else "tried and not settled"


def _document(record: Record) -> dict[str, Any]:
    document = msgspec.to_builtins(record, builtin_types=(bytes,))
    return {name: _plain(value) for name, value in document.items() if value}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _rows(record: Record) -> list[tuple[str, object]]:
    # `dead` of a fact is one empty text, which adds nothing to the state above.
    return [
        (name, _shown(name, value)) for name, value in _document(record).items() if value != [""]
    ]


def _shown(name: str, value: Any) -> str:
    if name in ("expires", "held_until", "at"):
        return datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec="milliseconds")
    if name == "by":
        return f"{value} (a hash of the transport id)"
    # Not as a count: the numbers of a record are mostly identifiers.
    return "yes" if value is True else str(value)


# eventonce sweep


@click.command()
@with_settings("store", "config")
@json_option
def sweep(settings: Settings) -> None:
    """Look at every record once and delete those that have expired, and old dead letters and
    decisions.

    Consumers may run at the same time. Stores whose server expires records itself need no sweep
    for them. Dead letters are deleted if the file has keep_letters, decisions if it has a
    [history].
    """
    check_values(settings.file, "history", "privacy")
    swept = 0
    keep = kept_for("keep_letters", settings.file.keep_letters)
    name = settings.file.name or DEFAULT_NAME
    with closing(settings.open_store()) as opened:
        records = opened.stats().records
        with progress("sweep") as shown:
            for done in range(0, max(records, 1), SWEEP_STEP):
                swept += opened.sweep(SWEEP_STEP)
                shown(done + SWEEP_STEP, max(records, 1))
        letters = 0 if keep is None else drop_expired(opened, name, wall_clock() - keep)
        getattr(opened, "empty_log", lambda: None)()
    text = f"deleted {swept} of {counted(records, 'record')}"
    document = {"looked_at": records, "swept": swept}
    if keep is not None:
        text += f"\ndeleted {counted(letters, 'dead letter')} of {name} older than "
        text += duration_text(keep)
        document["letters"] = letters
    fault: EventonceError | None = None
    try:
        with looking_back(settings.file) as history:
            if history is not None:
                document["decisions"] = history.tidy()
                history.empty_log()
                text += f"\ndeleted {counted(document['decisions'], 'decision')} of the history"
    except EventonceError as error:
        fault = error
    emit(document, text)
    if fault is not None:
        raise fault
