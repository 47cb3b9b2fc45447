"""DynamoDB for `aws.direct`: the encoding of its operations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, TypedDict

import msgspec

from eventonce.aws.direct import Service


class Value(TypedDict, total=False):
    """The value of an attribute: typed, so that binary values are decoded from base64."""

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
"""The types of answers that contain items; all others have no binary values."""


_encode: Final = msgspec.json.Encoder().encode
"""The encoder of requests; it writes binary values as base64."""


def _answer(operation: str, body: bytes) -> dict[str, Any]:
    # An answer that cannot be read is not from DynamoDB: it is empty, and `table` refuses it.
    return _decoded(body, _ANSWER_TYPES.get(operation, dict))


def _conflict(body: bytes) -> dict[str, Any]:
    """Return the item that made a conditional write fail."""
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
"""The service; every operation's name begins with the version of the protocol."""
