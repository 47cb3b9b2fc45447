"""DynamoDB for `aws.direct`: how its operations are written and read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, TypedDict

import msgspec

from eventonce.aws.direct import Service


class Value(TypedDict, total=False):
    """An attribute's value: typed, so that what is binary is decoded from base64."""

    S: str
    N: str
    B: bytes
    BOOL: bool
    NULL: bool
    L: list[Value]
    M: dict[str, Value]
    SS: list[str]
    NS: list[str]
    BS: list[bytes]


Item = dict[str, Value]


class _StatementError(TypedDict, total=False):
    Code: str
    Message: str
    Item: Item


class _Executed(TypedDict, total=False):
    TableName: str
    Item: Item
    Error: _StatementError


class _Statements(TypedDict, total=False):
    Responses: list[_Executed]


class _Items(TypedDict, total=False):
    Responses: dict[str, list[Item]]
    UnprocessedKeys: dict[str, Any]


class _Page(TypedDict, total=False):
    Items: list[Item]
    LastEvaluatedKey: Item


class _Conflict(TypedDict, total=False):
    Item: Item


_ANSWER_TYPES: Final[Mapping[str, Any]] = {
    "BatchExecuteStatement": _Statements,
    "BatchGetItem": _Items,
    "Query": _Page,
    "Scan": _Page,
}
"""The answers with items in them; all others hold nothing binary."""


_encode: Final = msgspec.json.Encoder().encode
"""Binary values become base64 here."""


def _answer(operation: str, body: bytes) -> dict[str, Any]:
    # Whatever cannot be read is not DynamoDB's answer: `table` finds nothing in it.
    return _decoded(body, _ANSWER_TYPES.get(operation, dict))


def _conflict(body: bytes) -> dict[str, Any]:
    """The item that stood in the way of a conditional write."""
    return _decoded(body, _Conflict)


def _decoded(body: bytes, kind: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] | None = _decoder(kind).decode(body)
    except (ValueError, RecursionError):
        return {}
    return found or {}


@lru_cache(16)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


DYNAMODB: Final = Service("DynamoDB_20120810.", _encode, _answer, _conflict)
"""The version of the protocol is the beginning of every operation's name."""
