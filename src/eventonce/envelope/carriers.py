"""Carriers: the messages of services with one event or a batch inside; how each is recognised and
taken off.

A carrier is a function from fields to its content, and a line in `CARRIERS` or `BATCHES`; `forms`
knows the events themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from eventonce.envelope import tracing
from eventonce.envelope.jsontext import elements, members, string, top_level
from eventonce.errors import EnvelopeError
from eventonce.types import NO_HEADERS

Fields = Mapping[str, Any]
"""The fields of an object, as JSON (`msgspec.Raw`) or as Python values."""

SUPPORTED: Final = (
    "EventBridge, SQS, SNS, EventBridge pipes from SQS, CloudWatch Logs, Firehose transformations, "
    "and HTTP through API Gateway, Function URLs, load balancers and VPC Lattice"
)

MAX_CARRIER: Final = 64 << 20
"""The most bytes of a carrier after decompression: ten times the limit of an invocation, so that no
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
"""The services by the `eventSource` of their records, which are not read; nor is any other `aws:`
source."""

_TYPES: Final = ("detail-type", "type", "eventType", "Type", "topicName")
"""The fields that may have the type of an event: with a type, the handlers decide about it."""

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
"""Invocations that need an answer of a special form, by the fields that only they have."""


_QUEUE_MARKS: Final = ("receiptHandle", "ReceiptHandle", "eventSourceARN")
_QUEUE_FIELDS: Final = frozenset(
    (
        *("messageId", "body", "attributes", "messageAttributes", "md5OfBody"),
        *("md5OfMessageAttributes", "eventSource", "awsRegion"),
        *("MessageId", "Body", "Attributes", "MessageAttributes", "MD5OfBody"),
        "MD5OfMessageAttributes",
    )
)
_NOTICE_FIELDS: Final = frozenset(
    (
        *("Type", "MessageId", "Subject", "Message", "Timestamp", "MessageAttributes"),
        *("SignatureVersion", "Signature", "SigningCertURL", "UnsubscribeURL", "SequenceNumber"),
    )
)
_RECORD_FIELDS: Final = frozenset(("Sns", "EventSource", "EventVersion", "EventSubscriptionArn"))
_LOG_FIELDS: Final = frozenset(
    ("logStreamName", "timestamp", "message", "ingestionTime", "eventId")
)
_BUS_FIELDS: Final = frozenset(("Data", "Metadata", "SystemMetadata"))
"""All fields of a carrier. An object with further fields, and without a mark that only the carrier
has, is an event that looks like a carrier: unwrapped, it would lose fields of its key."""


class Wrapped(msgspec.Struct, frozen=True):
    """An event inside a carrier, and the carrier's fields about it."""

    content: Any
    place: str
    id: str = ""
    source: str = ""
    type: str = ""
    time: str = ""
    replay: str = ""
    headers: Mapping[str, str] = NO_HEADERS
    part: str = ""
    channel: str = ""
    receives: int = 0
    trace: Mapping[str, str] = NO_HEADERS
    keep: bool = False
    """Whether the carrier is kept, because it has fields of the event."""


Batch = tuple[str, list[Any]]
"""The name of a batch in its carrier, and its elements, each of which may be an event."""


def unwrapped(fields: Fields) -> Wrapped | None:
    """Return the event inside, if these are the fields of a carrier; else None."""
    source = unread(fields)
    if source:
        raise EnvelopeError(refusal(source))
    found = batch(fields)
    if found is not None:
        name, records = found
        if len(records) == 1:
            return Wrapped(records[0], f"{name}[0]")
        reason = f"a batch of {len(records)} {name.lower()}, not one event"
        raise EnvelopeError(reason, place=name)
    if "Records" in fields:
        return None
    for carrier in CARRIERS:
        wrapped = carrier(fields)
        if wrapped is not None:
            return wrapped
    return None


def batch(fields: Fields) -> Batch | None:
    """Return the batch in these fields; None if they are not a batch."""
    for mark, carrier in BATCHES.items():
        if mark in fields:
            found = carrier(fields)
            if found is not None:
                return found
    return None


def _records(fields: Fields) -> Batch | None:
    """Recognise queue or topic messages, as Lambda gives them to a function."""
    records = elements(fields["Records"])
    # The notifications of S3 are Records, too; all of them together are one event.
    if records is None or any("s3" in members(record) for record in records):
        return None
    return "Records", records


def _received(fields: Fields) -> Batch | None:
    """Recognise queue messages, as `aws sqs receive-message` prints them."""
    messages = elements(fields["Messages"])
    # Any object may have a field Messages: these are the fields of a queue's.
    if messages and all({"Body", "ReceiptHandle"} <= members(one).keys() for one in messages):
        return "Messages", messages
    return None


def _queue_message(fields: Fields) -> Wrapped | None:
    for name, id_name in (("body", "messageId"), ("Body", "MessageId")):
        if name in fields and (
            _any(fields, *_QUEUE_MARKS) or (id_name in fields and fields.keys() <= _QUEUE_FIELDS)
        ):
            return Wrapped(
                fields[name],
                name,
                id=string(fields.get(id_name)),
                channel=queue_of(fields),
                receives=receives_of(fields),
                trace=tracing.of_message(fields),
            )
    return None


def queue_of(fields: Fields) -> str:
    """Return the channel of a message that Lambda received: `sqs:` and the name of its queue."""
    queue = string(fields.get("eventSourceARN")).rpartition(":")[2]
    return f"sqs:{queue}" if queue else ""


def receives_of(fields: Fields) -> int:
    """Return how often the queue has delivered a message; 0 if the message does not say."""
    known = members(fields.get("attributes") or fields.get("Attributes"))
    return _count(known.get("ApproximateReceiveCount"))


def _count(value: object) -> int:
    text = string(value)
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _topic_record(fields: Fields) -> Wrapped | None:
    notice = members(fields.get("Sns"))
    if "Message" not in notice or not fields.keys() <= _RECORD_FIELDS:
        return None
    return _published(notice, "Sns.Message")


def _topic_notice(fields: Fields) -> Wrapped | None:
    if "Message" not in fields or string(fields.get("Type")) != "Notification":
        return None
    if "TopicArn" not in fields and not fields.keys() <= _NOTICE_FIELDS:
        return None
    return _published(fields, "Message")


def _published(notice: Fields, place: str) -> Wrapped:
    return Wrapped(
        notice["Message"],
        place,
        id=string(notice.get("MessageId")),
        trace=tracing.of_message(notice),
    )


def _custom_bus(fields: Fields) -> Wrapped | None:
    """Recognise an event of the Custom Event Bus: the payload in `Data`, the envelope beside it."""
    data = fields.get("Data")
    if not isinstance(data, msgspec.Raw) or len(fields) < 2 or not fields.keys() <= _BUS_FIELDS:
        return None
    said = members(fields.get("Metadata")) | members(fields.get("SystemMetadata"))
    return Wrapped(
        data,
        "Data",
        id=string(said.get("aws:EventId")),
        source=string(said.get("aws:Source")),
        type=string(said.get("aws:DetailType")),
        time=string(said.get("aws:IngestionTime")),
        # The bus does not name the replay.
        replay="REPLAY" if string(said.get("aws:DeliveryType")) == "REPLAY" else "",
        keep=True,
    )


def _dead_letter(fields: Fields) -> Wrapped | None:
    """Recognise a dead letter of eventonce, with the values of an event that are not its JSON."""
    place = next((name for name in ("event", "event_base64") if name in fields), "")
    if not place or "eventonce" not in fields:
        return None
    headers = members(fields.get("headers"))
    return Wrapped(
        fields[place] if place == "event" else _decoded(fields[place]),
        place,
        id=string(fields.get("id")),
        headers={name: string(value) for name, value in headers.items()},
        part=string(fields.get("part")),
        channel=string(fields.get("channel")),
        receives=_count(fields.get("receives")),
    )


def _decoded(value: object) -> bytes:
    from base64 import b64decode  # noqa: PLC0415  slow to import, and few events need it

    try:
        return b64decode(string(value), validate=True)
    except ValueError:
        raise EnvelopeError("not valid base64", place="event_base64") from None


def unread(fields: Fields) -> str:
    """Return the source of this record or batch if its records are not supported; else empty."""
    mark = string(fields.get("eventSource")) or string(fields.get("EventSource"))
    if mark in _STREAMS:
        return _STREAMS[mark]
    return mark if mark.startswith("aws:") and mark not in _READ else ""


def refusal(source: str) -> str:
    """Return the error message about a source whose records are not supported."""
    return f"a record of {source}, which is not supported. Supported are {SUPPORTED}"


def invoker(payload: Any, *, calls: bool) -> str:
    """Return the service that invoked a function with this payload, if the payload cannot be read;
    else empty.

    With `calls`, also a service that needs an answer of a special form.
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
    """Recognise authorizers of API Gateway and AppSync, which look like requests without a body."""
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
    """Whether these are the fields of a Firehose transformation."""
    return "deliveryStreamArn" in fields and "records" in fields


def _logs(fields: Fields) -> Batch | None:
    """Recognise CloudWatch Logs, compressed or not."""
    if "awslogs" in fields:
        logs = members(fields["awslogs"])
        if "data" in logs:
            packed = unpacked(string(logs["data"]), "awslogs.data")
            return _logs(top_level(packed)) or ("logEvents", [])
    if "logEvents" not in fields or "messageType" not in fields:
        return None
    # A control message only tests the connection.
    heard = string(fields["messageType"]) == "DATA_MESSAGE"
    lines = map(members, elements(fields["logEvents"]) or ()) if heard else ()
    return "logEvents", [
        _named(line.get("id"), string(line.get("message")), line.get("timestamp")) for line in lines
    ]


def _found_logs(fields: Fields) -> Batch | None:
    """Recognise CloudWatch Logs as `aws logs filter-log-events` and `get-log-events` print them."""
    lines = elements(fields["events"])
    # Any object may have a field events: these are the fields of a log's.
    if lines and all(_log_line(members(line)) for line in lines):
        return "events", lines
    return None


def _log_line(fields: Fields) -> Wrapped | None:
    """Recognise one line of a log, as these commands print it."""
    if not {"timestamp", "message", "ingestionTime"} <= fields.keys() <= _LOG_FIELDS:
        return None
    return Wrapped(fields["message"], "message", id=string(fields.get("eventId")))


def _firehose(fields: Fields) -> Batch | None:
    if not is_firehose(fields):
        return None
    records = map(members, elements(fields["records"]) or ())
    return "records", [
        _named(record.get("recordId"), delivered(record).decode("utf-8", "surrogateescape"))
        for record in records
    ]


def delivered(record: Fields) -> bytes:
    """Return the data of a Firehose record; unchanged if it cannot be unpacked."""
    data = string(record.get("data"))
    try:
        return unpacked(data, "data")
    except EnvelopeError:
        return data.encode("utf-8", "surrogatepass")


def unpacked(text: str, place: str) -> bytes:
    """Decode base64, and decompress the bytes if they are gzip."""
    from base64 import b64decode  # noqa: PLC0415  few events need it
    from zlib import MAX_WBITS, decompressobj, error  # noqa: PLC0415  likewise

    try:
        data = b64decode(text, validate=True)
        if not data.startswith(b"\x1f\x8b"):
            return data
        decompress = decompressobj(16 + MAX_WBITS)
        whole = decompress.decompress(data, MAX_CARRIER)
    except (ValueError, error) as fault:
        raise EnvelopeError(f"cannot be unpacked: {fault}", place=place) from None
    if not decompress.eof:
        why = f"more than {MAX_CARRIER} bytes" if len(whole) >= MAX_CARRIER else "it is cut off"
        raise EnvelopeError(f"cannot be unpacked: {why}", place=place)
    return whole


def _named(id: object, content: str, arrived: object = None) -> dict[str, Any]:
    """Return the content with its carrier's id, in the form of a dead letter or a captured line."""
    told = {"arrived": arrived} if arrived is not None else {}
    return {"eventonce": 1, "id": string(id), **told, "event": content}


CARRIERS: Final[tuple[Callable[[Fields], Wrapped | None], ...]] = (
    _queue_message,
    _topic_record,
    _topic_notice,
    _custom_bus,
    _dead_letter,
    _log_line,
)
"""Carriers of one event, in the order they are tried."""

BATCHES: Final[Mapping[str, Callable[[Fields], Batch | None]]] = {
    "Records": _records,
    "Messages": _received,
    "awslogs": _logs,
    "logEvents": _logs,
    "events": _found_logs,
    "deliveryStreamArn": _firehose,
}
"""Carriers of batches, each by a field that all of its batches have."""
