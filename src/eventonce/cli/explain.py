"""`eventonce explain`: which rule takes an event, and why it has the key it has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from eventonce.cli import FAILED
from eventonce.cli.options import (
    config_option,
    json_option,
    name_option,
    rules_option,
    ruleset,
)
from eventonce.cli.table import table
from eventonce.envelope import read_many
from eventonce.errors import ConfigError, EnvelopeError
from eventonce.rules import Ruleset
from eventonce.rules.explanation import Explanation, PartFound


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.argument(
    "other", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@rules_option
@name_option
@config_option
@json_option
def command(
    file: str,
    other: str | None,
    rules: tuple[str, ...],
    name: str | None,
    config: Path | None,
    *,
    as_json: bool,
) -> int:
    """Explain the event in FILE (- is stdin): the rule that takes it, each part of its key with its
    path and value, the key, the order, the state. A missing part is named, and the exit code is 1.

    With two files: whether both have the same key, or which parts differ.
    """
    chosen = ruleset(config, rules, name)
    first = _explained(file, chosen)
    if other is None:
        click.echo(_json(first) if as_json else _page(first))
        return 0 if first.key is not None else FAILED
    second = _explained(other, chosen)
    same = first.key is not None and first.key == second.key
    if as_json:
        compared = {"same": same, "differ": _differing(first, second)}
        documents = [_document(first), _document(second)]
        click.echo(msgspec.json.encode({**compared, "events": documents}).decode())
    else:
        click.echo(_comparison(first, second, same=same))
    return 0 if first.key is not None and second.key is not None else FAILED


def _explained(file: str, rules: Ruleset) -> Explanation:
    with click.open_file(file, "rb") as stream:
        found = read_many(stream.read())
    if len(found) != 1:
        raise ConfigError(f"{file}: {len(found)} events; explain takes one event a file")
    event = found[0]
    if isinstance(event, EnvelopeError):
        raise EnvelopeError(f"{file}: {event}", place=event.place)
    return rules.explain(event)


def _document(found: Explanation) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(found)
    document["key"] = found.key.hex() if found.key is not None else None
    return document


def _json(found: Explanation) -> str:
    return msgspec.json.encode(_document(found)).decode()


def _page(found: Explanation) -> str:
    lines = [f"rule   {found.rule} ({found.kind})"]
    lines += ["parts", table(_rows(found.parts), indent=2)]
    if found.key is None:
        lines += [click.style("no key", fg="red")]
        lines += [f"  {fault}" for fault in found.missing]
        return "\n".join(lines)
    if found.replay:
        lines += [f"replay {found.replay} (a part of the key, for it is forced)"]
    lines += [f"key    {found.key.hex()}"]
    if found.kind == "state":
        lines += [f"order  {found.order}", "state", table(_rows(found.state), indent=2)]
    return "\n".join(lines)


def _rows(parts: Sequence[PartFound]) -> list[tuple[str, str]]:
    return [(part.expression, _value(part)) for part in parts]


def _value(part: PartFound) -> str:
    return msgspec.json.encode(part.value).decode() if part.present else "(absent)"


def _differing(first: Explanation, second: Explanation) -> list[str]:
    if first.rule != second.rule:
        return ["rule"]
    pairs = zip((*first.parts, *first.state), (*second.parts, *second.state), strict=False)
    differing = [one.expression for one, two in pairs if one != two]
    if first.order != second.order:
        differing.append("order")
    return differing if first.replay == second.replay else [*differing, "replay"]


def _comparison(first: Explanation, second: Explanation, *, same: bool) -> str:
    if first.rule != second.rule:
        return f"different rules: {first.rule} and {second.rule}"
    if first.key is None or second.key is None:
        return "\n".join([*first.missing, *second.missing])
    verdict = "same key" if same else "different keys"
    differing = set(_differing(first, second))
    rows = [
        (one.expression, _value(one), _value(two))
        for one, two in zip(
            (*first.parts, *first.state), (*second.parts, *second.state), strict=True
        )
        if one.expression in differing
    ]
    if "order" in differing:
        rows.append(("order", str(first.order), str(second.order)))
    if "replay" in differing:
        rows.append(("replay", first.replay or "(none)", second.replay or "(none)"))
    if same and first.kind == "fact":
        return f"{verdict}: {first.rule}, {first.key.hex()}\nthe second is a copy of the first"
    if same and not rows:
        return f"{verdict}, same version: {first.rule}, {first.key.hex()}"
    return f"{verdict}: {first.rule}\n{table(rows, head=('differs', 'first', 'second'), indent=2)}"
