"""TOML with the line of every field, which error messages need and tomllib does not keep; and the
rules in it, or all their faults."""

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
    """One fault, and its place."""

    place: Place
    said: str


class Document(msgspec.Struct, frozen=True):
    """The values of a TOML text, and their lines."""

    name: str
    """The name of the file in error messages."""
    text: str
    values: dict[str, Any]

    def line(self, place: Place) -> int:
        """Return the line of this field, or of the nearest table around it that has a line."""
        lines = _lines(self.text)
        ends = range(len(place), 0, -1)
        return next((lines[place[:end]] for end in ends if place[:end] in lines), 1)

    def complaint(self, faults: Iterable[Fault]) -> ConfigError:
        """Return the error with all faults and their lines, from the first line to the last."""
        found = sorted((self.line(fault.place), fault.said) for fault in faults)
        return ConfigError("\n".join(f"{self.name}:{line}: {said}" for line, said in found))


# Compiled when first used: only error messages need them, and a cold start has none.
_HEADER: Final = r"\s*(\[\[?)\s*([^\[\]#]+?)\s*\]\]?\s*(?:#.*)?"
_STEP: Final = r"""(?:"[^"]+"|'[^']+'|[A-Za-z0-9_-]+)"""
_FIELD: Final = rf"\s*({_STEP}(?:\s*\.\s*{_STEP})*)\s*="
_LONG: Final = r'''(?s)"""(?:[^\\]|\\.)*?"""|\'{3}.*?\'{3}'''
_QUIET: Final = r""""(?:[^"\\]|\\.)*"|'[^']*'|#.*"""
_WHERE: Final = r"\(at line (\d+), column \d+\)"


def read(text: str, *, name: str) -> Document:
    """Parse the text; the ConfigError of a text that is not TOML names the line."""
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
        raise ConfigError(f"{name}: cannot be read: its values are nested too deep") from None
    return Document(name, text, values)


def label(place: Place) -> str:
    """Return a place for an error message, without numbers: the line says which table is meant."""
    return ".".join(step for step in place if isinstance(step, str))


def meant(name: str, known: Iterable[str]) -> str:
    """Return the name that was probably meant, as a question; empty if none is similar."""
    from difflib import get_close_matches  # noqa: PLC0415  only an error message needs it

    near = get_close_matches(name.lower(), list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


@lru_cache(maxsize=1)
def _lines(text: str) -> Mapping[Place, int]:
    """Return the line of every table and every field.

    The text is valid TOML, so a line that looks like a header or a field is one, except inside a
    string or a list of several lines; therefore the first line for a place counts.
    """
    lines: dict[Place, int] = {}
    counts: dict[Place, int] = {}
    table: Place = ()
    depth = 0
    # Of a string over several lines only the line breaks are left.
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
    """Return the place of a header's table, within the last of repeated tables."""
    place: Place = ()
    for step in path[:-1]:
        place = (*place, step)
        if place in counts:
            place = (*place, counts[place])
    return (*place, path[-1])


def _opened(content: str) -> int:
    """Return how many brackets this line leaves open; negative if it closes more."""
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
"""The fields of an `eventonce.toml` besides its rules. A file that is given as rules must not have
them, because they would not be read."""


def parse_rule_file(text: str, *, name: str) -> list[Rule]:
    """Return the rules of a file that has only `[[rule]]` tables; `name` is the name of the file in
    error messages."""
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
    """Return the valid rules, and the faults of the others."""
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
    """Whether the value is a table `[x]` or tables `[[x]]`, and not a name or a list of names."""
    return isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(item, dict) for item in value)
    )


def _out_of_place(field: str, value: Any) -> str:
    if field in ELSEWHERE and not (field == "rules" and holds_tables(value)):
        return (
            "belongs to a whole eventonce.toml, and a file of rules has only [[rule]] tables: "
            "name this file with --config, or in Python use "
            "eventonce.config.load(path).consumer()"
        )
    return f"expected only [[rule]] tables{meant(field, ['rule'])}"
