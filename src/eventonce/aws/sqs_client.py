"""SQS' own client for `direct`: its operations by the names, and in the forms, that boto3's client
has, so that `sqs` does not see which of the two it calls."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from eventonce.aws.direct import (
    DirectClient,
    Endpoint,
    endpoint_as_found,
    endpoint_of,
    metadata,
    operation_of,
)
from eventonce.aws.sessions import CONNECT_TIMEOUT, Access, connected

_HEADERS: Final = {"x-amzn-query-mode": "true"}
"""Errors then come with the codes that they had before SQS spoke JSON, as with botocore."""


def connect_sqs(access: Access, *, read_timeout: float, attempts: int) -> Any:
    """A client: our own, or botocore's where requests need more than ours does for them."""
    endpoint = endpoint_of("sqs", access)
    client = None
    if endpoint is None:
        client, session = connected("sqs", access, read_timeout=read_timeout, attempts=attempts)
        endpoint = endpoint_as_found(client, session, "list_queues")
    if endpoint is None:
        return client
    if client is not None:
        client.close()
    return SQSClient(endpoint, read_timeout=read_timeout, attempts=attempts)


class SQSClient:
    """Each operation is a method, such as `receive_message`, that takes and gives what boto3's
    does."""

    def __init__(self, endpoint: Endpoint, *, read_timeout: float, attempts: int) -> None:
        self._direct = DirectClient(
            endpoint,
            connect_timeout=CONNECT_TIMEOUT,
            read_timeout=read_timeout,
            attempts=attempts,
            headers=_HEADERS,
        )

    def __getattr__(self, operation: str) -> Callable[..., dict[str, Any]]:
        if operation.startswith("_"):
            raise AttributeError(operation)
        return partial(self._call, operation_of(operation))

    def close(self) -> None:
        """Close the connections; the next call opens another."""
        self._direct.close()

    def _call(self, operation: str, /, **asked: Any) -> dict[str, Any]:
        reply = self._direct.post("AmazonSQS." + operation, _encoded(asked))
        answer = _decoded(reply.body)
        for message in answer.get("Messages") or ():
            for attribute in (message.get("MessageAttributes") or {}).values():
                if attribute.get("BinaryValue"):
                    attribute["BinaryValue"] = b64decode(attribute["BinaryValue"])
        return {**answer, "ResponseMetadata": metadata(reply)}


def _encoded(asked: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(asked)
    except UnicodeEncodeError:
        # Half of a character, which SQS refuses by itself.
        return json.dumps(asked).encode()


def _decoded(body: bytes) -> dict[str, Any]:
    """The answer; empty where the body is none of SQS'."""
    try:
        found = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        try:
            # Half of a character in a message, which an emulator may have taken.
            found = json.loads(body)
        except (ValueError, RecursionError):
            return {}
    return found if isinstance(found, dict) else {}
