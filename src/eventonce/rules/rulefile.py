"""Rules out of TOML text; of a wrong one every fault, with line, field and what was expected."""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final

from eventonce.errors import ConfigError
from eventonce.rules.check import checked
from eventonce.rules.rule import Rule

_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([^\[\]#]+?)\s*\]\]?\s*(?:#.*)?")
_FIELD: Final = re.compile(r"""\s*(?:"([^"]+)"|'([^']+)'|([A-Za-z0-9_-]+))\s*(?:\.[^=]*)?=""")
_WHERE: Final = re.compile(r"\(at line (\d+), column \d+\)")


def parse_rules(text: str, *, name: str) -> list[Rule]:
    """The `[[rule]]` tables of this text; `name` is what the file is called in complaints."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = _WHERE.search(str(error))
        line = where[1] if where else str(text.count("\n") + 1)
        reason = _WHERE.sub("", str(error)).strip()
        raise ConfigError(f"{name}:{line}: not TOML: {reason}") from None
    tables = document.get("rule", [])
    places = _places(text)
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{name}:{places.get((-1, 'rule'), 1)}: rule: expected [[rule]] tables")
    rules: list[Rule] = []
    faults: list[tuple[int, str]] = []
    for number, table in enumerate(tables):
        start = places.get((number, ""), 1)
        called = f" of {table['name']!r}" if isinstance(table.get("name"), str) else ""
        wrong = checked(table)[1]
        faults.extend(
            (places.get((number, field), start), f"{field}{called}: {fault}")
            for field, fault in wrong
        )
        if not wrong:
            rules.append(Rule(**table))
    if faults:
        raise ConfigError("\n".join(f"{name}:{line}: {fault}" for line, fault in sorted(faults)))
    return rules


def _places(text: str) -> dict[tuple[int, str], int]:
    """The line of every field of every `[[rule]]`, and of the table itself under an empty name.

    tomllib keeps no lines. The text is known to be TOML, so a line that looks like a header or a
    field is one, except inside a string or a list of several lines; what such a line seems to say
    is taken only if nothing before it said it.
    """
    places: dict[tuple[int, str], int] = {}
    table, inside = -1, False
    depth: Any = 0
    for line, content in enumerate(text.splitlines(), start=1):
        header = _HEADER.fullmatch(content)
        if header and not depth:
            path = [part.strip(" \"'") for part in header[2].split(".")]
            inside = path[0] == "rule"
            if inside and len(path) == 1 and header[1] == "[[":
                table += 1
                places[table, ""] = line
            elif inside and len(path) > 1:
                places.setdefault((table, path[1]), line)
                inside = False
            continue
        field = _FIELD.match(content)
        if field and not depth:
            name = field[1] or field[2] or field[3]
            places.setdefault((table if inside else -1, name), line)
        depth = max(0, depth + _opened(content))
    return places


_QUIET: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'|#.*')


def _opened(content: str) -> int:
    """How many brackets this line opens and leaves open."""
    bare = _QUIET.sub("", content)
    return sum(map(bare.count, "[{")) - sum(map(bare.count, "]}"))
