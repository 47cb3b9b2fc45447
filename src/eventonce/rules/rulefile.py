"""Rules out of TOML text; of a wrong one every fault, with line, field and what was expected."""

from __future__ import annotations

from typing import Any, Final

from eventonce.errors import ConfigError
from eventonce.rules import tomltext
from eventonce.rules.rule import Rule, checked
from eventonce.rules.tomltext import Document, Fault

ELSEWHERE: Final = (
    "store",
    "name",
    "presets",
    "rules",
    "secrets",
    "override",
    "sink",
    "letters",
    "unhandled",
    "keep_headers",
    "worker",
    "serve",
    "infra",
)
"""What an `eventonce.toml` says beside its rules. Of a file that is named as rules nobody would
read it, and each of them matters."""


def parse_rule_file(text: str, *, name: str) -> list[Rule]:
    """The rules of a file that has `[[rule]]` tables and nothing else; `name` is what the file is
    called in complaints."""
    document = tomltext.read(text, name=name)
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
    return f"expected nothing but [[rule]] tables{tomltext.meant(field, ['rule'])}"
