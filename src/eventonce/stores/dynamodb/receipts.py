"""What DynamoDB itself says in an answer: one without it is a proxy's or anybody's, and proves
nothing, whatever its HTTP status."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

ASKED: Final[Mapping[str, Mapping[str, str]]] = {
    "put_item": {"ReturnConsumedCapacity": "TOTAL"},
}
"""What a request asks for besides, so that its answer is not empty when all went well."""


def is_answer(operation: str, asked: Mapping[str, Any], answer: Any) -> bool:
    """Whether this answers what was asked, every part of it."""
    holds = _ANSWERS.get(operation)
    try:
        return holds is None or holds(asked, answer)
    except (AttributeError, KeyError, TypeError):
        return False


def _is_put(_: Mapping[str, Any], answer: Any) -> bool:
    return bool(answer["ConsumedCapacity"]["TableName"])


def _are_executed(asked: Mapping[str, Any], answer: Any) -> bool:
    each = answer["Responses"]
    return len(each) == len(asked["Statements"]) and all(
        one.get("TableName") or one["Error"]["Code"] for one in each
    )


def _are_read(asked: Mapping[str, Any], answer: Any) -> bool:
    """Every key is found, or known not to be there, or left undone: each table is named in one."""
    named = {**answer["Responses"], **(answer.get("UnprocessedKeys") or {})}
    return all(table in named for table in asked["RequestItems"])


def _lists(_: Mapping[str, Any], answer: Any) -> bool:
    return isinstance(answer["Items"], list)


def _has(name: str) -> Callable[[Mapping[str, Any], Any], bool]:
    return lambda _, answer: bool(answer[name])


_ANSWERS: Final[Mapping[str, Callable[[Mapping[str, Any], Any], bool]]] = {
    "put_item": _is_put,
    "batch_execute_statement": _are_executed,
    "batch_get_item": _are_read,
    "query": _lists,
    "scan": _lists,
    "describe_table": _has("Table"),
    "describe_time_to_live": _has("TimeToLiveDescription"),
    "create_table": _has("TableDescription"),
    "update_table": _has("TableDescription"),
    "update_time_to_live": _has("TimeToLiveSpecification"),
}
