"""`eventonce explain`: the rule that takes an event, and the parts of its key."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from shutil import get_terminal_size
from typing import Any, Final, NamedTuple

import click
import msgspec

from eventonce.cli import FAILED
from eventonce.cli.options import CapturePath, Settings, json_option, with_settings
from eventonce.cli.output import emit, on_terminal, one_line, table, wrapped
from eventonce.errors import ConfigError, EnvelopeError
from eventonce.rules.explanation import Explanation, PartFound
from eventonce.rules.expressions import Hash, parse, paths
from eventonce.rules.instants import duration_text
from eventonce.sources.files import Capture
from eventonce.sources.inputs import STDIN, Place
from eventonce.study.arrivals import Arrival, arrival
from eventonce.study.causes import REMEDIES
from eventonce.study.copies import Row, row_of
from eventonce.study.copies import cause as cause_of
from eventonce.study.fields import leaves_of
from eventonce.types import Event

LABEL_WIDTH: Final = 10
"""The width of a label with the space after it; the longest are `strength` and `keyed by`."""
SAME_SHOWN: Final = 10
"""The characters before a difference that are shown of long values."""
COMPARED_EVENTS: Final = 2
LINES_SEARCHED: Final = 1_000
"""The most lines that are searched for the fault of a file without an event."""


class ArrivedEvent(NamedTuple):
    """An event, and its arrival from a capture."""

    name: str
    """The file, and the line if one was named."""
    event: Event
    row: Row


@click.command()
@click.argument("file", type=CapturePath(allow_dash=True))
@click.argument("other", required=False, type=CapturePath(allow_dash=True))
@click.option(
    "--line",
    "lines",
    multiple=True,
    type=click.IntRange(1),
    metavar="NUMBER",
    help="The event of this line of the capture FILE, as `diagnose --lines` counts; repeat the "
    "option to compare two.",
)
@with_settings("presets", "rules", "name", "config")
@json_option
def explain(settings: Settings, file: Place, other: Place | None, lines: tuple[int, ...]) -> int:
    """Explain the event in FILE (- is stdin): its rule, each part of its key with path and value,
    the key, its strength, how long it is remembered, and for a state the order and the state.
    A missing part is named, and the exit code is 1; so it is for an event that has no key at all.

    With two files, or two lines of a capture: whether both events have the same key, or which
    parts differ; what differs outside the key; and for a copy the cause for which it is there.
    """
    if lines and other is not None:
        raise click.UsageError("--line takes one capture: name it alone.")
    if len(lines) > COMPARED_EVENTS:
        raise click.UsageError("Two lines can be compared: name --line twice at most.")
    found = _at(file, lines) if lines else [_only(one) for one in (file, other) if one is not None]
    rules = settings.file.ruleset()
    first = rules.explain(found[0].event)
    if len(found) < COMPARED_EVENTS:
        emit(_document(first), _page(first))
        return _exit_code(first)
    second = rules.explain(found[1].event)
    same = first.key is not None and first.key == second.key
    outside = _outside(found[0].event, found[1].event, first, second)
    differ = [name for name, _, _ in _differences(first, second)]
    is_copy = same and (first.kind == "fact" or not differ)
    cause = cause_of(found[0].row, found[1].row) if is_copy else None
    document = {
        "same": same,
        "differ": differ,
        "outside": [name for name, _, _ in outside],
        "cause": cause,
        "events": [_document(first), _document(second)],
    }
    missing = [
        f"{one.name}: {fault}"
        for one, explanation in zip(found, (first, second), strict=True)
        for fault in explanation.missing
    ]
    text = _comparison(first, second, missing, same=same)
    if outside:
        text += f"\n\n{_both_values('outside the key', outside)}"
    if cause:
        text += "\n\n" + wrapped(f"cause  {cause}: {REMEDIES[cause]}")
    emit(document, text)
    return max(_exit_code(first), _exit_code(second))


def _exit_code(found: Explanation) -> int:
    return FAILED if found.missing or found.strength == "none" else 0


def _outside(first: Event, second: Event, *found: Explanation) -> list[tuple[str, str, str]]:
    """Return the fields of envelope and detail that differ and are no part of the key, with both
    values."""
    in_key = {path for one in found for part in one.parts for path in _read_by(part.expression)}
    if any(one.replay for one in found):
        in_key.add("replay")
    one, two = (
        {name: getattr(event, name) for name in ("id", "source", "time", "replay")}
        | leaves_of(bytes(event.detail_raw))
        for event in (first, second)
    )
    return [
        (path, _text(one.get(path)), _text(two.get(path)))
        for path in {**one, **two}
        if one.get(path) != two.get(path) and path not in in_key
    ]


def _read_by(expression: str) -> Iterator[str]:
    """Return the fields that a part of a key reads; none for a hash, which may leave some out."""
    tree = None if expression == "part" else parse(expression)
    for path in paths(tree) if tree and not isinstance(tree, Hash) else ():
        roots = {"body": ("detail.eventBody", "detail"), "event": ()}.get(path.root, (path.root,))
        yield from (".".join((root, *path.steps)) for root in roots)
        if path.root == "event":
            yield ".".join(path.steps)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else msgspec.json.encode(value).decode()


def _only(place: Place) -> ArrivedEvent:
    """Return the single event of a file."""
    with closing(iter(Capture([place]))) as events:
        found = list(islice(events, LINES_SEARCHED))
    if not found:
        raise EnvelopeError(f"{_name_of(place)}: no event: the input is empty, or an empty array")
    told = [arrival(raw) for raw in found]
    if len(found) > 1 and any(isinstance(one.event, Event) for one in told):
        raise ConfigError(
            f"{_name_of(place)}: more than one event; explain takes a file with one event, or one "
            f"line of a capture: eventonce explain {place} --line 1"
        )
    # Broken JSON was read line by line, but its fault concerns the whole file.
    return _arrived(_name_of(place), told[0] if len(told) == 1 else arrival(b"\n".join(found)))


def _at(place: Place, lines: Sequence[int]) -> list[ArrivedEvent]:
    """Return the events in these lines of a capture."""
    with closing(iter(Capture([place]))) as events:
        read = enumerate(islice(events, max(lines)), start=1)
        found = {number: raw for number, raw in read if number in lines}
    for number in lines:
        if number not in found:
            raise ConfigError(f"{_name_of(place)} has no line {number}")
    return [_arrived(f"{_name_of(place)}:{number}", arrival(found[number])) for number in lines]


def _arrived(name: str, found: Arrival) -> ArrivedEvent:
    event, row = found.event, row_of(found, 0)
    if isinstance(event, EnvelopeError):
        raise EnvelopeError(f"{name}: {event}", place=event.place)
    assert row is not None, "it is an event"
    return ArrivedEvent(name, event, row)


def _name_of(place: Place) -> str:
    return "stdin" if place == STDIN else str(place)


def _document(found: Explanation) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(found)
    document["key"] = found.key.hex() if found.key is not None else None
    return document


def _page(found: Explanation) -> str:
    lines = [("rule", f"{found.rule} ({found.kind})"), ("type", _name(found.type))]
    if found.scope:
        lines.append(("scope", f"{_name(found.scope)} (in the key in place of the type)"))
    if found.org:
        lines.append(("org", _name(found.org)))
    if found.parts:
        lines.append(("parts", "\n" + table(_rows(found.parts), indent=2)))
    if found.missing:
        faults = "".join(f"\n  {fault}" for fault in found.missing)
        return f"{_labelled(lines)}\n{click.style('no key', fg='red')}{faults}"
    if found.lacking:
        lines.append(("keyed by", _keyed_by(found)))
    if found.replay:
        lines.append(("replay", f"{found.replay} (a part of the key, because it is forced)"))
    if found.key is not None:
        lines.append(("key", found.key.hex()))
    lines.append(("strength", _strength(found)))
    if found.kind == "state":
        state = "\n" + table(_rows(found.state), indent=2)
        lines += [("subject", _name(found.subject)), ("order", str(found.order)), ("state", state)]
    return _labelled(lines)


def _labelled(lines: Sequence[tuple[str, str]]) -> str:
    """Return one line for each label; a text that begins with a newline goes below its label."""
    return "\n".join(
        label + text if text.startswith("\n") else f"{label:<{LABEL_WIDTH}}{text}"
        for label, text in lines
    )


def _rows(parts: Sequence[PartFound]) -> list[tuple[str, str]]:
    return [(part.expression, _value(part)) for part in parts]


def _value(part: PartFound) -> str:
    return msgspec.json.encode(part.value).decode() if part.present else "(absent)"


def _name(text: str) -> str:
    return one_line(text) or "(none)"


def _strength(found: Explanation) -> str:
    if found.strength == "none":
        return "none: a copy cannot be recognised, so every delivery runs"
    return f"{found.strength}, remembered for {duration_text(int(found.remember * 1000))}"


def _keyed_by(found: Explanation) -> str:
    if not found.lacking:
        return _expressions(found.parts)
    other = {"none": "nothing", "transport id": "its transport id"}.get(found.strength)
    return f"{other or 'its content'}, because {'; '.join(found.lacking)}"


def _expressions(parts: Sequence[PartFound]) -> str:
    return ", ".join(part.expression for part in parts)


def _differences(first: Explanation, second: Explanation) -> list[tuple[str, str, str]]:
    """Return the differences with both values: the rule, otherwise the parts of key and version."""
    if first.rule != second.rule:
        return [("rule", first.rule, second.rule)]
    same_parts = _expressions(first.parts) == _expressions(second.parts)
    same_state = _expressions(first.state) == _expressions(second.state)

    def compared(found: Explanation) -> dict[str, str]:
        named = {
            "scope": _name(found.scope),
            "type": _name("" if found.scope else found.type),
            "org": _name(found.org),
        }
        parts = dict(_rows(found.parts)) if same_parts else {"keyed by": _keyed_by(found)}
        state = dict(_rows(found.state)) if same_state else {"state": _expressions(found.state)}
        version = {"order": str(found.order), "replay": _name(found.replay)}
        # A type or an organisation may also be a part of the key; it is named once.
        return {**named, **parts, **state, **version, **named}

    ones, twos = compared(first), compared(second)
    return [(name, one, twos[name]) for name, one in ones.items() if one != twos[name]]


def _comparison(
    first: Explanation, second: Explanation, missing: Sequence[str], *, same: bool
) -> str:
    if first.rule != second.rule and not same:
        return f"different rules: {first.rule} and {second.rule}"
    if missing:
        return "\n".join(missing)
    if first.key is None or second.key is None:
        return f"no key: {first.rule}\na copy cannot be recognised, so every delivery runs"
    verdict = "same key" if same else "different keys"
    rows = _differences(first, second)
    if same and first.kind == "fact":
        return f"{verdict}: {first.rule}, {first.key.hex()}\nthe second is a copy of the first"
    if same and not rows:
        return f"{verdict}, same version: {first.rule}, {first.key.hex()}"
    return f"{verdict}: {first.rule}\n{_both_values('differs', rows)}"


def _both_values(name: str, rows: Sequence[tuple[str, str, str]]) -> str:
    """Return fields with both values; on a narrow terminal, one below the other."""
    wide = 2 + sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True))
    if not on_terminal(sys.stdout) or wide <= get_terminal_size().columns:
        return table(rows, head=(name, "first", "second"), indent=2)
    lines = [click.style(f"  {name}", bold=True)]
    room = get_terminal_size().columns - len("    second  ")
    for path, *values in rows:
        first, second = _from_the_difference(*map(one_line, values), room=room)
        lines += [f"  {path}", table([("first", first), ("second", second)], indent=4)]
    return "\n".join(lines)


def _from_the_difference(first: str, second: str, *, room: int) -> tuple[str, str]:
    """Return both values without their common beginning, if the difference would not be seen in
    this room."""
    pairs = enumerate(zip(first, second, strict=False))
    same = next((at for at, (one, two) in pairs if one != two), min(len(first), len(second)))
    if max(len(first), len(second)) <= room or same < max(room // 2, SAME_SHOWN):
        return first, second
    begin = same - SAME_SHOWN
    return f"…{first[begin:]}", f"…{second[begin:]}"
