"""AWS services that put records of their own around events: which it is, and what is in it.

`forms` asks here about every object that is no event by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from eventonce.envelope.jsontext import begins, items, string, top_level
from eventonce.errors import EnvelopeError

Fields = Mapping[str, Any]
"""The fields of an object, as JSON (`msgspec.Raw`) or as Python values."""

SUPPORTED: Final = (
    "EventBridge, SQS, SNS, EventBridge pipes from SQS, CloudWatch Logs, Firehose transformations, "
    "and HTTP through API Gateway, Function URLs, load balancers and VPC Lattice"
)

LARGEST: Final = 64 << 20
"""Bytes of a compressed carrier once it is unpacked: ten times what invokes a function, and no
sender can fill the memory with a few kilobytes."""

_READ: Final = frozenset(("aws:sqs", "aws:sns", "aws:s3"))
_STREAMS: Final[Mapping[str, str]] = {
    "aws:kinesis": "Kinesis Data Streams",
    "aws:dynamodb": "DynamoDB Streams",
    "aws:kafka": "Amazon MSK (Kafka)",
    "SelfManagedKafka": "Apache Kafka",
    "aws:SelfManagedKafka": "Apache Kafka",
    "aws:mq": "Amazon MQ (ActiveMQ)",
    "aws:amq": "Amazon MQ (ActiveMQ)",
    "aws:rmq": "Amazon MQ (RabbitMQ)",
    "aws:docdb": "DocumentDB change streams",
    "aws:ses": "SES",
    "aws:codecommit": "CodeCommit",
}
"""What the `eventSource` of a record stands for; any other `aws:` is not read either."""

_TYPES: Final = ("detail-type", "type", "eventType", "Type", "topicName")
"""The fields by which an event may say its type: what has one is for handlers to take or not."""

_CALLS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("triggerSource", "userPoolId"), "a Cognito trigger"),
    (("CodePipeline.job",), "a CodePipeline job"),
    (("DeploymentId", "LifecycleEventHookExecutionId"), "a CodeDeploy hook"),
    (("invokingEvent", "configRuleName"), "an AWS Config evaluation"),
    (("RequestType", "ResponseURL"), "a CloudFormation custom resource"),
    (("SecretId", "ClientRequestToken", "Step"), "a Secrets Manager rotation"),
    (("arguments", "info"), "an AppSync resolver"),
    (("bot", "userId"), "a Lex bot"),
    (("bot", "sessionState"), "a Lex bot"),
    (("agent", "actionGroup"), "a Bedrock agent"),
    (("getObjectContext",), "S3 Object Lambda"),
    (("userRequest", "userIdentity"), "S3 Object Lambda"),
    (("invocationSchemaVersion", "tasks"), "S3 Batch Operations"),
    (("applicationArn", "records"), "Kinesis Data Analytics"),
    (("protocolData", "protocols"), "an IoT authorizer"),
    (("claimCertificatePem",), "IoT provisioning"),
    (("connection-id", "endpoint-id"), "a Client VPN connection handler"),
    (("widgetContext",), "a CloudWatch dashboard"),
)
"""What wants an answer of its own form, by the fields that only it has."""


def unread(fields: Fields) -> str:
    """The source of this record or batch, if it is one whose records are not read; else empty."""
    mark = string(fields.get("eventSource")) or string(fields.get("EventSource"))
    if mark in _STREAMS:
        return _STREAMS[mark]
    return mark if mark.startswith("aws:") and mark not in _READ else ""


def refusal(source: str) -> str:
    """The complaint about a source whose records are not read."""
    return f"a record of {source}, which is not supported. Supported are {SUPPORTED}"


def invoker(payload: Any, *, calls: bool) -> str:
    """Who invoked a function with this, if nothing of it can be read; else empty.

    With `calls`, also who wants an answer that only a function made for it can give.
    """
    records = payload.get("Records") if isinstance(payload, Mapping) else payload
    for one in [payload, *(records if isinstance(records, list) else ())]:
        if not isinstance(one, Mapping):
            continue
        found = unread(one) or _authorizer(one) or (calls and _caller(one))
        if found:
            return found
    return ""


def _authorizer(fields: Fields) -> str:
    """API Gateway's and AppSync's authorizers, which look like requests that have no body."""
    asked = fields.get("type") in ("TOKEN", "REQUEST") and _any(fields, "methodArn", "routeArn")
    asked = asked or ("authorizationToken" in fields and "requestContext" in fields)
    return "an authorizer" if asked else ""


def _caller(fields: Fields) -> str:
    if _any(fields, *_TYPES):
        return ""
    if fields.get("Name") == "ContactFlowEvent":
        return "an Amazon Connect flow"
    found = (name for marks, name in _CALLS if all(mark in fields for mark in marks))
    return next(found, "")


def _any(fields: Fields, *names: str) -> bool:
    return any(name in fields for name in names)


def is_firehose(fields: Fields) -> bool:
    """Whether Firehose asks for these records to be transformed."""
    return "deliveryStreamArn" in fields and "records" in fields


def carried(fields: Fields) -> tuple[str, list[Any]] | None:
    """What CloudWatch Logs or Firehose carry, each with the id it has there; None for others."""
    if "awslogs" in fields:
        logs = _object(fields["awslogs"])
        if "data" in logs:
            return carried(top_level(unpacked(string(logs["data"]), "awslogs.data"))) or (
                "logEvents",
                [],
            )
    if "logEvents" in fields and "messageType" in fields:
        # A control message only asks whether somebody is there.
        heard = string(fields["messageType"]) == "DATA_MESSAGE"
        lines = [_object(line) for line in _list(fields["logEvents"])] if heard else []
        return "logEvents", [_named(line.get("id"), string(line.get("message"))) for line in lines]
    if is_firehose(fields):
        records = [_object(record) for record in _list(fields["records"])]
        return "records", [
            _named(record.get("recordId"), delivered(record).decode("utf-8", "surrogateescape"))
            for record in records
        ]
    return None


def delivered(record: Fields) -> bytes:
    """The data of a Firehose record; as it stands there where it cannot be unpacked."""
    data = string(record.get("data"))
    try:
        return unpacked(data, "data")
    except EnvelopeError:
        return data.encode("utf-8", "surrogatepass")


def unpacked(text: str, place: str) -> bytes:
    """Base64 to bytes, and what gzip made of them to what they were."""
    from base64 import b64decode  # noqa: PLC0415  few events need it
    from zlib import MAX_WBITS, decompressobj, error  # noqa: PLC0415  likewise

    try:
        data = b64decode(text, validate=True)
        if not data.startswith(b"\x1f\x8b"):
            return data
        decompress = decompressobj(16 + MAX_WBITS)
        whole = decompress.decompress(data, LARGEST)
    except (ValueError, error) as fault:
        raise EnvelopeError(f"cannot be unpacked: {fault}", place=place) from None
    if not decompress.eof:
        why = f"more than {LARGEST} bytes" if len(whole) >= LARGEST else "it is cut off"
        raise EnvelopeError(f"cannot be unpacked: {why}", place=place)
    return whole


def _named(id: object, content: str) -> dict[str, Any]:
    """The content under its carrier's id, in the form of a dead letter."""
    return {"eventonce": 1, "id": string(id), "event": content}


def _object(value: Any) -> dict[str, Any]:
    """The fields of an object, none of anything else."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (bytes, msgspec.Raw)) and begins(value, b"{"):
        return top_level(value)
    return {}


def _list(value: Any) -> list[Any]:
    if isinstance(value, msgspec.Raw):
        return list(items(value)) if begins(value, b"[") else []
    return value if isinstance(value, list) else []
