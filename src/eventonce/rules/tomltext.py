"""TOML with the line of every field, which tomllib does not keep and a complaint must name; and
rules out of it, or every fault of a wrong one."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from eventonce.errors import ConfigError
from eventonce.rules.rule import Rule, checked

Place = tuple[str | int, ...]
"""The names that lead to a field, with numbers where tables repeat: `("sink", 1, "to")`."""


class Fault(NamedTuple):
    """Something that is wrong, and where."""

    place: Place
    said: str


class Document(msgspec.Struct, frozen=True):
    """The values of a TOML text, and the lines they stand in."""

    name: str
    """The name of the file in error messages."""
    text: str
    values: dict[str, Any]

    def line(self, place: Place) -> int:
        """The line of this field, or of the nearest table around it that has one."""
        lines = _lines(self.text)
        ends = range(len(place), 0, -1)
        return next((lines[place[:end]] for end in ends if place[:end] in lines), 1)

    def complaint(self, faults: Iterable[Fault]) -> ConfigError:
        """All faults with their lines, from the first line to the last."""
        found = sorted((self.line(fault.place), fault.said) for fault in faults)
        return ConfigError("\n".join(f"{self.name}:{line}: {said}" for line, said in found))


# Compiled when first used: only complaints do, and a cold start has none.
_HEADER: Final = r"\s*(\[\[?)\s*([^\[\]#]+?)\s*\]\]?\s*(?:#.*)?"
_STEP: Final = r"""(?:"[^"]+"|'[^']+'|[A-Za-z0-9_-]+)"""
_FIELD: Final = rf"\s*({_STEP}(?:\s*\.\s*{_STEP})*)\s*="
_LONG: Final = r'''(?s)"""(?:[^\\]|\\.)*?"""|\'{3}.*?\'{3}'''
_QUIET: Final = r""""(?:[^"\\]|\\.)*"|'[^']*'|#.*"""
_WHERE: Final = r"\(at line (\d+), column \d+\)"


def read(text: str, *, name: str) -> Document:
    """The text taken apart; ConfigError names the line where it is not TOML."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(_WHERE, str(error))
        line = where[1] if where else str(text.count("\n") + 1)
        reason = re.sub(_WHERE, "", str(error)).strip()
        if text.lstrip().startswith("{"):
            reason = "this is JSON, such as a capture; rules and settings are written in TOML"
        raise ConfigError(f"{name}:{line}: not TOML: {reason}") from None
    except RecursionError:
        raise ConfigError(f"{name}: not read: its values lie too deep in one another") from None
    return Document(name, text, values)


def label(place: Place) -> str:
    """A place as a complaint names it: its line tells which of several tables is meant."""
    return ".".join(step for step in place if isinstance(step, str))


def meant(name: str, known: Iterable[str]) -> str:
    """The name that was probably meant, as a question; empty if none is near."""
    from difflib import get_close_matches  # noqa: PLC0415  only a complaint needs it

    near = get_close_matches(name.lower(), list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


@lru_cache(maxsize=1)
def _lines(text: str) -> Mapping[Place, int]:
    """The line of every table and every field in one.

    The text is known to be TOML, so a line that looks like a header or a field is one, except
    inside a string or a list of several lines; what such a line seems to say is taken only if
    nothing before it said it.
    """
    lines: dict[Place, int] = {}
    counts: dict[Place, int] = {}
    table: Place = ()
    depth = 0
    # Of a text over several lines only those are left.
    bare = re.sub(_LONG, lambda long: "\n" * long[0].count("\n"), text)
    for line, content in enumerate(bare.splitlines(), start=1):
        header = None if depth else re.fullmatch(_HEADER, content)
        if header:
            table = _table([part.strip(" \"'") for part in header[2].split(".")], counts)
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                lines.setdefault(table, line)
                table = (*table, counts[table])
            lines.setdefault(table, line)
            continue
        field = None if depth else re.match(_FIELD, content)
        if field:
            place = table
            for step in re.findall(_STEP, field[1]):
                place = (*place, step.strip("\"'"))
                lines.setdefault(place, line)
        depth = max(0, depth + _opened(content))
    return lines


def _table(path: Sequence[str], counts: Mapping[Place, int]) -> Place:
    """Where a header's table stands, in the last one of those it is within."""
    place: Place = ()
    for step in path[:-1]:
        place = (*place, step)
        if place in counts:
            place = (*place, counts[place])
    return (*place, path[-1])


def _opened(content: str) -> int:
    """How many brackets this line opens and leaves open."""
    bare = re.sub(_QUIET, "", content)
    return sum(map(bare.count, "[{")) - sum(map(bare.count, "]}"))


ELSEWHERE: Final = (
    "store",
    "name",
    "presets",
    "rules",
    "secrets",
    "override",
    "sink",
    "letters",
    "keep_letters",
    "unhandled",
    "keep_headers",
    "tap",
    "audit",
    "history",
    "privacy",
    "dashboard",
    "shadow_log",
    "worker",
    "serve",
    "infra",
)
"""The fields that an `eventonce.toml` has beside its rules. In a file that is named as rules they
would not be read, and each of them matters."""


def parse_rule_file(text: str, *, name: str) -> list[Rule]:
    """The rules of a file that has `[[rule]]` tables and nothing else; `name` is what the file is
    called in complaints."""
    document = read(text, name=name)
    rules, faults = rules_in(document)
    faults += [
        Fault((field,), f"{field}: {_out_of_place(field, value)}")
        for field, value in document.values.items()
        if field != "rule"
    ]
    if not rules and not faults:
        faults = [Fault((), "there is no [[rule]] in it: expected at least one")]
    if faults:
        raise document.complaint(faults)
    return rules


def rules_in(document: Document) -> tuple[list[Rule], list[Fault]]:
    """The rules that are right, and what is wrong with the others."""
    tables = document.values.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        return [], [Fault(("rule",), "rule: expected [[rule]] tables")]
    rules: list[Rule] = []
    faults: list[Fault] = []
    for number, table in enumerate(tables):
        try:
            rules.append(Rule(**table))
        except (ConfigError, TypeError):
            called = f" of {table['name']!r}" if isinstance(table.get("name"), str) else ""
            faults.extend(
                Fault(("rule", number, field), f"{field}{called}: {fault}")
                for field, fault in checked(table)[1]
            )
    return rules, faults


def holds_tables(value: Any) -> bool:
    """Whether this is what `[x]` or `[[x]]` writes, and no name or list of names."""
    return isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(item, dict) for item in value)
    )


def _out_of_place(field: str, value: Any) -> str:
    if field in ELSEWHERE and not (field == "rules" and holds_tables(value)):
        return (
            "belongs to a whole eventonce.toml, and where rules are asked for nothing but "
            "[[rule]] tables is read: name this file with --config, or in Python use "
            "eventonce.config.load(path).consumer()"
        )
    return f"expected nothing but [[rule]] tables{meant(field, ['rule'])}"
