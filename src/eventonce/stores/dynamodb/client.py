"""DynamoDB's own client for `aws.direct`: its operations by the names, and in the forms, that
boto3's client has, so that `table` does not see which of the two it calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, TypedDict

import msgspec

from eventonce.aws.direct import (
    DirectClient,
    Endpoint,
    Reply,
    ServiceError,
    metadata,
    operation_of,
)

_TARGET: Final = "DynamoDB_20120810."
"""The version of the protocol, which every operation's name begins with."""


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


class Meta(NamedTuple):
    """The part of a boto3 client's `meta` that is used here."""

    endpoint_url: str
    region_name: str


class DynamoDBClient:
    """Each operation is a method, such as `put_item`, that takes and gives what boto3's does."""

    def __init__(
        self, endpoint: Endpoint, *, connect_timeout: float, read_timeout: float, attempts: int
    ) -> None:
        self.meta = Meta(endpoint.url, endpoint.region)
        self._direct = DirectClient(
            endpoint,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            attempts=attempts,
        )

    def __getattr__(self, operation: str) -> Callable[..., dict[str, Any]]:
        if operation.startswith("_"):
            raise AttributeError(operation)
        return partial(self._call, operation_of(operation))

    def close(self) -> None:
        """Close the connections; the next call opens another."""
        self._direct.close()

    def _call(self, operation: str, /, **asked: Any) -> dict[str, Any]:
        try:
            reply = self._direct.post(_TARGET + operation, _encode(asked))
        except ServiceError as error:
            # The item that stood in the way of a conditional write.
            conflict = _decoded(error.response["Body"], _Conflict) or {}
            error.response |= conflict
            raise
        return self._answer(operation, reply)

    @staticmethod
    def _answer(operation: str, reply: Reply) -> dict[str, Any]:
        # Whatever cannot be read is not DynamoDB's answer: `table` finds nothing in it.
        answer = _decoded(reply.body, _ANSWER_TYPES.get(operation, dict)) or {}
        return {**answer, "ResponseMetadata": metadata(reply)}


_encode: Final = msgspec.json.Encoder().encode
"""Binary values become base64 here."""


def _decoded(body: bytes, kind: Any) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = _decoder(kind).decode(body)
    except (ValueError, RecursionError):
        return None
    return found


@lru_cache(16)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
