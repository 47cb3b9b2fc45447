"""From the values of a TOML file to the tables they stand for, with every fault there is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final, get_args, get_origin

import msgspec
from msgspec import UnsetType

from eventonce.rules import tomltext
from eventonce.rules.tomltext import Fault, Place, label

_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")

WORDS: Final[Mapping[Any, str]] = {
    str: "a string",
    int: "a whole number",
    bool: "true or false",
    str | int: "a string or a whole number",
    float | str: 'a number of seconds, or a duration such as "5m"',
    list[str]: "a list of strings",
    str | list[str]: "a string or a list of strings",
    dict[str, str]: "a table of strings",
    dict[str, Any]: "a table",
    str | UnsetType: "a string",
    float | UnsetType: "a number",
    Mapping[str, str] | UnsetType: "a table of strings",
}
"""What a field of this type expects."""


def filled(value: Any, faults: list[Fault], place: Place = ()) -> Any:
    """The same with `${NAME}` in its strings filled in from the environment."""
    if isinstance(value, dict):
        return {name: filled(inner, faults, (*place, name)) for name, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, faults, (*place, number)) for number, inner in enumerate(value)]
    if not isinstance(value, str):
        return value
    for name in _VARIABLE.findall(value):
        if name not in os.environ:
            said = f"{label(place)}: the environment has no variable {name}"
            faults.append(Fault(place, said))
    return _VARIABLE.sub(lambda found: os.environ.get(found[1], found[0]), value)


def converted(
    table: type[msgspec.Struct],
    given: Mapping[str, Any],
    faults: list[Fault],
    place: Place = (),
    *,
    unwritten: str = "",
) -> dict[str, Any]:
    """The fields of this table that are right; what is wrong with the others joins the faults.

    One field may be `unwritten`: no file says it.
    """
    fields = {
        field.name: field for field in msgspec.structs.fields(table) if field.name != unwritten
    }
    kept: dict[str, Any] = {}
    for name, value in given.items():
        where = (*place, name)
        if name not in fields:
            known = f"{tomltext.meant(name, fields)}; there are {', '.join(fields)}"
            faults.append(Fault(where, f"{label(where)}: there is no such field{known}"))
            continue
        found = len(faults)
        one = _value(fields[name].type, value, faults, where)
        if len(faults) == found:
            kept[name] = one
    faults.extend(
        Fault(place, f"{label((*place, name))}: is missing; the fields are {', '.join(fields)}")
        for name, field in fields.items()
        if field.required and name not in given
    )
    return kept


def _value(kind: Any, value: Any, faults: list[Fault], place: Place) -> Any:
    inner = get_args(kind)[0] if get_origin(kind) is list else None
    if _is_table(kind):
        if isinstance(value, dict):
            return _made(kind, value, faults, place)
        faults.append(Fault(place, f"{label(place)}: expected a table [{label(place)}]"))
    elif _is_table(inner):
        if isinstance(value, list) and all(isinstance(item, dict) for item in value):
            return [
                _made(inner, item, faults, (*place, number)) for number, item in enumerate(value)
            ]
        faults.append(Fault(place, f"{label(place)}: expected [[{label(place)}]] tables"))
    else:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            # Without the value, which may be a secret.
            said = f"{label(place)}: expected {WORDS[kind]}, not {_kind_of(value)}"
            faults.append(Fault(place, said))
    return None


def _made(kind: Any, value: Mapping[str, Any], faults: list[Fault], place: Place) -> Any:
    found = len(faults)
    kept = converted(kind, value, faults, place)
    return kind(**kept) if len(faults) == found else None


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _kind_of(value: Any) -> str:
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        inner = dict.fromkeys(_kind_of(item) for item in value)
        return f"a list of {' and '.join(inner)}" if inner else "an empty list"
    return kinds.get(type(value), "a date or time")
