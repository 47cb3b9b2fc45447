"""The client that `sqs` uses: the encoding of SQS for `direct`, or botocore."""

from __future__ import annotations

import json
from base64 import b64decode
from contextlib import suppress
from typing import Any, Final

import msgspec

from eventonce.aws.direct import Service, ServiceClient, endpoint_as_found, endpoint_of
from eventonce.aws.sessions import CONNECT_TIMEOUT, Access, connected

_HEADERS: Final = {"x-amzn-query-mode": "true"}
"""The header that asks for the error codes of the old query protocol, as botocore does."""


def connect_sqs(access: Access, *, read_timeout: float, attempts: int) -> Any:
    """Return our own client; botocore's if the requests need more than ours can do."""
    endpoint = endpoint_of("sqs", access)
    client = None
    if endpoint is None:
        client, session = connected("sqs", access, read_timeout=read_timeout, attempts=attempts)
        endpoint = endpoint_as_found(client, session, "list_queues")
    if endpoint is None:
        return client
    if client is not None:
        client.close()
    return ServiceClient(
        SQS,
        endpoint,
        connect_timeout=CONNECT_TIMEOUT,
        read_timeout=read_timeout,
        attempts=attempts,
    )


def _encoded(asked: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(asked)
    except UnicodeEncodeError:
        # A lone surrogate, which SQS then refuses.
        return json.dumps(asked).encode()


def _answer(_: str, body: bytes) -> dict[str, Any]:
    answer = _decoded(body)
    for message in answer.get("Messages") or ():
        for attribute in (message.get("MessageAttributes") or {}).values():
            if attribute.get("BinaryValue"):
                attribute["BinaryValue"] = b64decode(attribute["BinaryValue"])
    return answer


def _decoded(body: bytes) -> dict[str, Any]:
    """Return the answer; TypeError, as in botocore's parser, if the body is not from SQS. Otherwise
    the page of a proxy would look like an empty queue."""
    if not body:
        return {}
    found: Any = None
    try:
        found = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        # A lone surrogate in a message, which an emulator may have accepted.
        with suppress(ValueError, RecursionError):
            found = json.loads(body)
    if not isinstance(found, dict):
        raise TypeError("the body of the answer is not a JSON object")
    return found


SQS: Final = Service("AmazonSQS.", _encoded, _answer, headers=_HEADERS)
