"""Checks of settings that have the right type but cannot work, for `eventonce check` and for the
commands themselves. No connection is opened."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, Final

import msgspec

from eventonce.aws.limits import SQS_VISIBILITY_SECONDS
from eventonce.aws.sqs import parse
from eventonce.config import CIRCULAR, DEFAULT_STORE, Config, Reading, read, resolved, table_needs
from eventonce.envelope.headers import header_names
from eventonce.errors import ConfigError
from eventonce.history.connection import check as check_history
from eventonce.infra.topology import Infra, faults, placed
from eventonce.privacy import Sealer
from eventonce.rules.instants import duration
from eventonce.rules.tomltext import Fault, Place, label
from eventonce.runtime.retention import kept_for
from eventonce.runtime.unhandled import POLICIES
from eventonce.sinks import Sink, check_sink
from eventonce.sinks.json_lines import path_of
from eventonce.sockets import PORTS
from eventonce.sources import open_source
from eventonce.sources.sqs import SHORTEST_VISIBILITY
from eventonce.stores import Adapter, adapter_of, check_uri
from eventonce.stores.sqlite.uri import read as read_sqlite

MOST_THREADS: Final = 1_000
"""The most handlers at the same time: each has a thread."""

MOST_RECEIVERS: Final = 100

Checks = Mapping[Place, Callable[[Any], object]]
"""Checks by the place of a field: a function that raises ConfigError or ValueError for a wrong
value."""


def check(path: Path, *, name: str | None = None, also: Checks | None = None) -> Config:
    """Return the settings of the file; ConfigError with every fault. A field or a table with a
    reference whose service was not asked has its default.

    `name` is the consumer's name if it does not come from the file; `also` are checks of fields
    that only one command knows.
    """
    reading = read(path, ask=False)
    checks = {**CHECKS, **(also or {})}
    found = [fault for fault in _faults(reading, name, checks) if _is_read(reading, fault.place)]
    if reading.faults or found:
        raise reading.document.complaint([*reading.faults, *found])
    plain = {str(place[0]) for place in reading.unasked if place[0] != "sink"}
    sinks = [
        sink
        for number, sink in enumerate(reading.sinks)
        if sink is not None and ("sink", number, "to") not in reading.unasked
    ]
    kept = {field: getattr(Config(), field) for field in plain}
    return msgspec.structs.replace(reading.config, sink=sinks, **kept)


def check_values(config: Config, *tables: str, also: Checks | None = None) -> None:
    """Raise ConfigError with every wrong value of these tables and of fields outside all tables,
    from the file or from an option, and with settings that name the same file. `also` are checks
    of fields that only one command knows."""
    asked = {place: it for place, it in CHECKS.items() if len(place) == 1 or place[0] in tables}
    found = [*_wrong_values(config, {**asked, **(also or {})}), *_shared_files(config, config.sink)]
    if found:
        raise ConfigError("\n".join(fault.said for fault in found))


def _is_read(reading: Reading, place: Place) -> bool:
    """Whether this field and all fields within it could be read; otherwise it is not checked."""
    wrong = [fault.place for fault in reading.faults]
    table = getattr(reading.config, str(place[0])) if len(place) == 1 else None
    if not isinstance(table, msgspec.Struct):
        # A check of a whole table does not depend on fields that a service is asked for.
        wrong += reading.unasked
    return not any(it[: len(place)] == place or place[: len(it)] == it for it in wrong)


def _faults(reading: Reading, name: str | None, checks: Checks) -> Iterator[Fault]:
    config = reading.config
    yield from _wrong_values(config, checks)
    yield from _rule_faults(reading)
    yield from _sink_faults(reading)
    yield from _shared_files(config, reading.sinks)
    yield from _infra_faults(config)
    adapter = _adapter(config.store)
    if adapter is not None and adapter.extra and not (name or config.name):
        said = "name: a shared store needs a name, such as 'crm-sync': it is part of every key"
        yield Fault(("name",), said)
    if config.circular:
        yield Fault(("letters",), CIRCULAR)


def _wrong_values(config: Config, checks: Checks) -> Iterator[Fault]:
    for place, wrong in checks.items():
        try:
            wrong(reduce(getattr, map(str, place), config))
        except (ConfigError, ValueError) as error:
            for line in str(error).split("\n"):
                said = line.removeprefix(f"{place[0]}: ")
                # Only the field's name is removed, not a value such as `tap.db`.
                said = re.sub(rf"^{place[-1]}(?=[: \[])", "", said).lstrip(": ")
                # The message about one item begins with its number, such as `[0]`.
                yield Fault(place, f"{label(place)}{'' if said.startswith('[') else ': '}{said}")


def _rule_faults(reading: Reading) -> Iterator[Fault]:
    for field in ("presets", "rules"):
        for number, spec in enumerate(getattr(reading.config, field)):
            try:
                resolved(field, spec)
            except ConfigError as error:
                for line in str(error).split("\n"):
                    yield Fault((field, number), f"{field}: {line.removeprefix(f'{field}: ')}")


def _sink_faults(reading: Reading) -> Iterator[Fault]:
    adapter = _adapter(reading.config.store)
    for number, sink in enumerate(reading.sinks):
        if sink is None:
            continue
        place: Place = ("sink", number, "to")
        try:
            check_sink(sink)
        except ConfigError as error:
            yield Fault(place, f"{label(place)}: {error}")
        if sink.to.startswith("table:") and adapter is not None and not adapter.transactional:
            yield Fault(place, f"{label(place)}: {table_needs(sink)}")


def _shared_files(config: Config, sinks: Iterable[Sink | None]) -> Iterator[Fault]:
    """Yield settings that name the same file: they would write into each other's data."""
    files: defaultdict[str, dict[Place, str]] = defaultdict(dict)
    for place, way, path in _written(config, sinks):
        files[os.path.realpath(path)][place] = way
    for found in files.values():
        for place, way in found.items():
            others = {label(it): None for it, other in found.items() if other != way}
            if others:
                said = f"names the same file as {' and '.join(others)}: give each a file of its own"
                yield Fault(place, f"{label(place)}: {said}")


def _written(
    config: Config, sinks: Iterable[Sink | None]
) -> Iterator[tuple[Place, str, str | Path]]:
    """Yield the files that are written: the setting, the way of writing, and the path. Settings
    with the same way may share a file: SQLite's tables have different names, and sinks append whole
    lines."""
    for field in ("tap", "shadow_log", "audit"):
        path = getattr(config, field)
        if path and "\0" not in path:
            yield (field,), field, path
    databases: dict[Place, str] = {
        ("store",): config.store or DEFAULT_STORE,
        ("history", "store"): config.history.store,
    }
    for place, uri in databases.items():
        if uri.startswith("sqlite:"):
            try:
                names = read_sqlite(uri).names
            except ConfigError:
                continue  # the check of this field reports it
            yield from ((place, "sqlite", name) for name in names)
    for number, sink in enumerate(sinks):
        if sink is not None and sink.to.startswith("file:") and "\0" not in sink.to:
            yield ("sink", number, "to"), "sink", path_of(sink.to)


def _infra_faults(config: Config) -> Iterator[Fault]:
    """Yield the wrong fields of the table `[infra]`, if the file has it."""
    infra = config.infra
    if infra == Infra():
        return
    from eventonce.infra.template import typed  # noqa: PLC0415  reads the templates

    try:
        infra = placed(infra, config.worker.queue)
    except ConfigError as error:
        if infra.queue:  # the worker's queue has its own check
            yield Fault(("infra", "queue"), f"infra: {error}")
        infra = msgspec.structs.replace(infra, queue="")
    for field, said in faults(infra, config.name):
        consumers = field == "name" and not infra.name
        yield Fault(("name",) if consumers else ("infra", field), said)
    for name, text in infra.parameters.items():
        try:
            typed(name, text)
        except ConfigError as error:
            yield Fault(("infra", "parameters", name), str(error))


def _adapter(uri: str) -> Adapter | None:
    try:
        return adapter_of(uri)
    except ConfigError:
        return None


def seconds(value: float | str) -> float:
    """Return a duration in seconds; digits alone are seconds, even as a text."""
    return duration(float(value) if str(value).replace(".", "", 1).isdecimal() else value) / 1000


def _visibility(value: Any) -> None:
    if not SHORTEST_VISIBILITY <= seconds(value) <= SQS_VISIBILITY_SECONDS:
        raise ValueError(f"expected {SHORTEST_VISIBILITY:g} s to 12 h, not {value!r}")


def _some_time(value: Any) -> None:
    if not duration(value):
        raise ValueError("must be greater than 0")


def _policy(value: str) -> None:
    if value not in POLICIES:
        raise ValueError(f"expected {', '.join(POLICIES)}, not {value!r}")


def _from(least: int, most: int | None = None) -> Callable[[Any], None]:
    def check_number(value: Any) -> None:
        if value < least or (most is not None and value > most):
            upto = "or more" if most is None else f"to {most}"
            raise ValueError(f"expected {least} {upto}, not {value}")

    return check_number


CHECKS: Final[Checks] = {
    ("store",): lambda uri: check_uri(uri) if uri else None,
    ("letters",): lambda uri: parse(uri) if uri else None,
    ("keep_letters",): lambda keep: kept_for("keep_letters", keep),
    ("unhandled",): _policy,
    ("keep_headers",): header_names,
    ("privacy", "sealing_keys"): Sealer,
    ("history", "store"): lambda uri: check_history(uri) if uri else None,
    ("history", "keep"): _some_time,
    ("history", "most"): _from(1),
    ("worker", "queue"): lambda uri: open_source(uri) if uri else None,
    ("worker", "concurrency"): _from(1, MOST_THREADS),
    ("worker", "receivers"): _from(1, MOST_RECEIVERS),
    ("worker", "visibility"): _visibility,
    ("worker", "wait"): seconds,
    ("worker", "drain"): seconds,
    ("serve", "port"): _from(0, PORTS - 1),
    ("serve", "webhook_tolerance"): _some_time,
    ("serve", "sns_tolerance"): _some_time,
    ("serve", "max_body"): _from(1),
    ("serve", "max_events"): _from(1),
    ("serve", "concurrency"): _from(1),
    ("serve", "max_in_flight"): _from(1),
    ("serve", "header_timeout"): _some_time,
    ("serve", "body_timeout"): _some_time,
    ("serve", "answer_within"): _some_time,
    ("serve", "drain"): _some_time,
}
"""The checks of the fields, in addition to their types."""
