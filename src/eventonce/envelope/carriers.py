"""Carriers: what puts something of its own around events, one or a batch; which it is, and what is
in it.

A carrier is a function from fields to what it carries, and a line in `CARRIERS` or `BATCHES`;
`forms` knows the events themselves.
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
"""The service that the `eventSource` of a record stands for; any other `aws:` is not read
either."""

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
"""Invocations that want an answer of their own form, by the fields that only they have."""


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
"""All that a carrier has of its own. An object that has more, and no mark that only the carrier
has, is an event that only looks like one: taken apart it would lose what tells it from others."""


class Wrapped(msgspec.Struct, frozen=True):
    """An event inside something that carries it, and what the carrier knows of it."""

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
    """Whether the carrier says something about the event that must not be lost with it."""


Batch = tuple[str, list[Any]]
"""The name that a batch has in its carrier, and what may be an event each."""


def unwrapped(fields: Fields) -> Wrapped | None:
    """The event inside, if these are the fields of a carrier."""
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
    """The batch that these fields are, None if they are none."""
    for mark, carrier in BATCHES.items():
        if mark in fields:
            found = carrier(fields)
            if found is not None:
                return found
    return None


def _records(fields: Fields) -> Batch | None:
    """Queue or topic messages, as Lambda is invoked with them."""
    records = elements(fields["Records"])
    # S3 calls its notifications Records too; those are one event together.
    if records is None or any("s3" in members(record) for record in records):
        return None
    return "Records", records


def _received(fields: Fields) -> Batch | None:
    """Queue messages, as `aws sqs receive-message` prints them."""
    messages = elements(fields["Messages"])
    # Anything may call something messages: these are a queue's.
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
    """The channel of a message that Lambda was given: `sqs:` and the name of its queue."""
    queue = string(fields.get("eventSourceARN")).rpartition(":")[2]
    return f"sqs:{queue}" if queue else ""


def receives_of(fields: Fields) -> int:
    """How often the queue has delivered a message; 0 where it does not say."""
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
    """The Custom Event Bus: the payload in `Data`, and what the bus says of it beside."""
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
        # A bus that replays gives it no name.
        replay="REPLAY" if string(said.get("aws:DeliveryType")) == "REPLAY" else "",
        keep=True,
    )


def _dead_letter(fields: Fields) -> Wrapped | None:
    """A dead letter of our own, with all that an event has beside its JSON."""
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
        raise EnvelopeError("this is no base64", place="event_base64") from None


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
    """The service that invoked a function with this payload, if nothing of it can be read; else
    empty.

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


def _logs(fields: Fields) -> Batch | None:
    """CloudWatch Logs: packed, or as they are once unpacked."""
    if "awslogs" in fields:
        logs = members(fields["awslogs"])
        if "data" in logs:
            packed = unpacked(string(logs["data"]), "awslogs.data")
            return _logs(top_level(packed)) or ("logEvents", [])
    if "logEvents" not in fields or "messageType" not in fields:
        return None
    # A control message only asks whether somebody is there.
    heard = string(fields["messageType"]) == "DATA_MESSAGE"
    lines = map(members, elements(fields["logEvents"]) or ()) if heard else ()
    return "logEvents", [
        _named(line.get("id"), string(line.get("message")), line.get("timestamp")) for line in lines
    ]


def _found_logs(fields: Fields) -> Batch | None:
    """CloudWatch Logs, as `aws logs filter-log-events` and `get-log-events` print them."""
    lines = elements(fields["events"])
    # Anything may call something events: these are a log's.
    if lines and all(_log_line(members(line)) for line in lines):
        return "events", lines
    return None


def _log_line(fields: Fields) -> Wrapped | None:
    """One line of a log, of those that are printed."""
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


def _named(id: object, content: str, arrived: object = None) -> dict[str, Any]:
    """The content under its carrier's id, in the form of a dead letter or a captured line."""
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
"""Carriers of many, each by a field that all of its batches have."""
