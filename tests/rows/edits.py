"""Ways to publish, change and cut a row's event."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from eventonce import presets
from eventonce.rules.expressions import (
    Each,
    Expression,
    Hash,
    Max,
    Path,
    Topic,
    parse,
    parse_path,
    paths,
)
from tests.rows.row import ORG, Row


def republished(row: Row) -> dict[str, Any]:
    """The same fact as its publisher sends it again: everything of the transport is new."""
    event: dict[str, Any] = _reversed(row.event)
    if "detail-type" in event:
        fresh = {"id": "9e8d7c6b-5a49-0e38-9271-6f5e4d3c2b1a", "region": "us-east-1"}
        if not row.timed:
            fresh["time"] = "2026-03-05T17:00:09Z"
        event.update((name, value) for name, value in fresh.items() if name in event)
        if event["source"].startswith("aws.partner/genesys.com/"):
            event["source"] = f"aws.partner/genesys.com/cloud/{ORG}/second.integration"
    detail = detail_of(event)
    if "metadata" in detail and "CorrelationId" in detail["metadata"]:
        detail["metadata"]["CorrelationId"] = "f00dfeed-55a2-4bd6-9f61-9a5c7a4a1e02-archival"
    if "timestamp" in detail and not _keyed_on_timestamp(row):
        detail["timestamp"] = "2026-03-05T17:00:09.120Z"
    if "traceId" in detail:
        detail["traceId"] = "trace-2"
    if "url" in detail.get("data", {}).get("s3Object", {}):
        detail["data"]["s3Object"]["url"] = "https://bucket.example/one?signature=b"
    return event


def _keyed_on_timestamp(row: Row) -> bool:
    """Whether the row's rule reads the notice's own time, by itself or in a hash of the detail."""
    if not row.preset:
        return True
    rule = next(rule for rule in presets.resolve(row.preset) if rule.name == row.rule)
    verified = [] if isinstance(rule.verify, bool) else rule.verify
    trees = [*rule.key, *rule.subject, *([rule.order] if rule.order else []), *rule.state]
    read = [path for text in trees for path in paths(parse(text))]
    read += [parse_path(text) for text in verified]
    steps = {path.steps for path in read if path.root == "detail"}
    return ("timestamp",) in steps or (() in steps and "detail.timestamp" not in rule.ignore)


def _reversed(value: Any) -> Any:
    """The same JSON with the names of every object in another order."""
    if isinstance(value, dict):
        return {name: _reversed(value[name]) for name in reversed(value)}
    return [_reversed(item) for item in value] if isinstance(value, list) else value


def detail_of(event: dict[str, Any]) -> dict[str, Any]:
    for name in ("detail", "payload"):
        detail = event.get(name)
        if isinstance(detail, dict):
            return detail
    return event


def changed(row: Row, text: str) -> Iterator[Row]:
    """The row's event with one part of the key another, once for each path the part reads."""
    tree = parse(text)
    for path in paths(tree):
        event, headers = copy.deepcopy(row.event), dict(row.headers)
        holder, name = _holder(event, headers, path)
        if holder is None:
            continue
        if name is None:
            holder["another"] = 1
        else:
            holder[name] = _other(holder[name], tree)
        yield row._replace(event=event, headers=headers)


def cut(row: Row, text: str) -> Row:
    """The row's event without what one part of the key reads."""
    event, headers = copy.deepcopy(row.event), dict(row.headers)
    for path in paths(parse(text)):
        holder, name = _holder(event, headers, path)
        if holder is not None and name is not None:
            del holder[name]
    return row._replace(event=event, headers=headers)


def _holder(
    event: dict[str, Any], headers: dict[str, str], path: Path
) -> tuple[dict[str, Any] | None, str | None]:
    """The object that has the path's last name; no name for a whole root, nothing if it is
    absent."""
    detail = detail_of(event)
    roots: dict[str, Any] = {
        "detail": detail,
        "body": detail.get("eventBody", detail),
        "envelope": event,
        "headers": headers,
        "event": event,
    }
    holder: Any = roots[path.root]
    if path.root == "headers":
        names = {name.lower(): name for name in headers}
        return (holder, names[path.steps[0]]) if path.steps[0] in names else (None, None)
    if not path.steps:
        return holder, None
    if path.root == "event" and path.steps == ("id",) and "eventId" in event:
        return event, "eventId"
    for step in path.steps[:-1]:
        holder = holder.get(step, {})
    return (holder, path.steps[-1]) if path.steps[-1] in holder else (None, None)


def _other(value: Any, tree: Expression) -> Any:
    if isinstance(tree, Each):
        first, *rest = value
        if not tree.fields:
            return [f"{first}-other", *rest]
        name = tree.fields[0].steps[0]
        return [{**first, name: f"{first[name]}-other"}, *rest]
    if isinstance(tree, Topic):
        words = value.split(".")
        words[tree.index] += "-other"
        return ".".join(words)
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 86_400_000 if isinstance(tree, Max) or value > 10**11 else value + 61
    if isinstance(value, str):
        if re.match(r"\d{4}-\d\d-\d\dT", value):
            return "2027" + value[4:]
        return ".".join(f"{word}-other" for word in value.split("."))
    if isinstance(tree, Hash):
        return {**value, "another": 1} if isinstance(value, dict) else [*value, value[0]]
    raise AssertionError(value)
