"""Lambda's entry point: gives the events of an invocation to a consumer, and returns the answer.

The module imports no AWS library; only a store that needs one imports it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from eventonce.arguments import check_count, check_flag, check_function, check_seconds
from eventonce.aws.invocation import SETTLE_MARGIN, Invocation, RecentTime, logged
from eventonce.aws.limits import LAMBDA_ATTEMPTS
from eventonce.aws.sqs_batch import (
    NO_TIME,
    Record,
    Visibility,
    batch_response,
    process_batch,
    sqs_records,
)
from eventonce.clock import wall_clock
from eventonce.consumer import Consumer
from eventonce.core.redaction import arrival
from eventonce.core.status import DEAD_LETTERS
from eventonce.envelope import elements, read_body
from eventonce.envelope.captured import Arrived, Tap, line_of
from eventonce.envelope.carriers import (
    SUPPORTED,
    delivered,
    invoker,
    is_firehose,
    queue_of,
    receives_of,
)
from eventonce.errors import ConfigError, EventonceError
from eventonce.http_report import Answer, counts, respond, understood
from eventonce.log import log
from eventonce.rules import Ruleset
from eventonce.runtime.shadow import to_standard_output
from eventonce.types import Event, Outcome

Admits = Callable[[Mapping[str, str], bytes], bool]
"""Whether a request with these headers, names in lower case, and this body may send events."""


class NotSettled(EventonceError):
    """Some events are not settled: Lambda must invoke the function again."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = [outcome for outcome in outcomes if not outcome.ack]
        first = self.outcomes[0]
        super().__init__(
            f"{len(self.outcomes)} of {len(outcomes)} events not settled, "
            f"the first is {first.status}: {first.reason}"
        )


class UnsupportedSource(EventonceError):
    """The function was invoked by a source whose records cannot be read.

    A retry does not help; but after an error the records go to the source's own dead-letter queue,
    and an answer would lose them.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        super().__init__(
            f"invoked by {source}, which is not supported: nothing was run, and nothing is "
            f"acknowledged. Supported are {SUPPORTED}"
        )


def lambda_handler(
    consumer: Consumer,
    *,
    margin: float = SETTLE_MARGIN,
    partial: bool = True,
    attempts: int = LAMBDA_ATTEMPTS,
    admits: Admits | None = None,
    tap: bool | None = None,
    shadow_log: bool | None = None,
    metrics: bool | None = None,
) -> Callable[[Any, Any], Any]:
    """Return a Lambda function that gives its events to this consumer.

    A batch of SQS records, from the queue itself or through a pipe, is answered with the records
    that must come again; an HTTP request with a response; Firehose with its records; any other
    event with counts, or with an exception if Lambda must retry. Records of a source that cannot be
    read raise `UnsupportedSource`.

    No event is begun in the last `margin` seconds before the invocation's deadline.
    With `partial=False` a batch that is not settled raises too: for an event source mapping without
    `ReportBatchItemFailures`, and for a pipe that does not wait for the answer.
    `admits` decides about every HTTP request; without it, API Gateway or IAM decide who may send.

    `attempts` is how often Lambda invokes the function with an event before Lambda drops it: after
    as many failures the event becomes a dead letter, whatever its rule says. Events of queues and
    HTTP have their rule's attempts.

    `tap` prints each event as it arrives, as a line of a capture; the default is whether
    `EVENTONCE_TAP=log` is set. `eventonce capture --log-group` collects the lines.

    `shadow_log` prints the decisions of rules with `shadow`, a line for each event; the default is
    whether `EVENTONCE_SHADOW_LOG=log` is set. `eventonce shadow report` reads an export of the log.

    `metrics` prints a line of CloudWatch's embedded metric format after each invocation; the
    default is whether `EVENTONCE_METRICS=emf` is set.

    Traces and metrics for OpenTelemetry are exported if the variables `OTEL_*` ask for it.
    """
    if not isinstance(consumer, Consumer):
        raise ConfigError(
            "lambda_handler: expected a Consumer, as in lambda_handler(Consumer(…)), not "
            f"{type(consumer).__name__}"
        )
    check_count("lambda_handler: attempts", attempts)
    check_seconds("lambda_handler: margin", margin)
    check_flag("lambda_handler: partial", partial)
    for name, asked in (("tap", tap), ("shadow_log", shadow_log), ("metrics", metrics)):
        if asked is not None:
            check_flag(f"lambda_handler: {name}", asked)
    if admits is not None:
        check_function("lambda_handler: admits", admits)
    recent, visibility = RecentTime(), Visibility()

    def print_arrivals(arrived: Sequence[Arrived]) -> None:
        _print_arrivals(consumer.rules, arrived)

    tapped = print_arrivals if _asked_for(tap, "EVENTONCE_TAP") else None
    if _asked_for(shadow_log, "EVENTONCE_SHADOW_LOG"):
        consumer.observers.append(to_standard_output(consumer))

    if any(name.startswith("OTEL_") for name in os.environ):
        from eventonce.otel.setup import exported  # noqa: PLC0415  seldom needed

        export = exported(consumer)
        if export is not None:
            consumer.observers.append(export)

    def handler(event: Any, context: Any = None) -> Any:
        try:
            return answer(event, context)
        finally:
            # Lambda may freeze the process after this, until the next invocation or for good.
            consumer.runtime.flush()

    def answer(event: Any, context: Any) -> Any:
        invocation = Invocation(context, margin, recent)
        records = sqs_records(event)
        if records is not None:
            if tapped is not None:
                tapped([_arrival_of_record(record) for record in records])
            # For a pipe that reads no answer, Lambda retries, and only `attempts` times.
            fires = not partial and records is event
            outcomes = process_batch(
                consumer, records, invocation, attempts=attempts if fires else None
            )
            visibility.change(records, outcomes, invocation.left())
            return batch_response(records, outcomes if partial else _settled(outcomes))
        source = invoker(event, calls=consumer.runtime.routes.of("") is None)
        if source:
            raise UnsupportedSource(source)
        transformed = _delivered(event)
        if transformed is not None:
            if tapped is not None:
                tapped([_arrival_of_invocation(delivered(one), context) for one in transformed])
            return _answer_firehose(consumer, transformed, invocation, attempts)
        if isinstance(event, Mapping) and is_request(event):
            request = request_of(event)
            return response(
                event, _answer_request(consumer, request, invocation, admits, tapped, context)
            )
        incoming = elements(event)
        if tapped is not None:
            tapped([_arrival_of_invocation(one, context) for one in incoming])
        return _answer_direct(consumer, incoming, invocation, attempts)

    if not _asked_for(metrics, "EVENTONCE_METRICS", "emf"):
        return handler
    from eventonce.metrics.emf import printing  # noqa: PLC0415  seldom needed

    return printing(consumer, handler)


def _asked_for(said: bool | None, variable: str, value: str = "log") -> bool:  # noqa: FBT001  the value of an argument
    """Whether the argument, or without it the environment, asks for lines in the log."""
    return os.environ.get(variable, "") == value if said is None else said


LINE_BYTES: Final = 256_000
"""The most bytes of a line: CloudWatch Logs cuts longer lines."""


def _print_arrivals(rules: Ruleset, arrived: Sequence[Arrived]) -> None:
    """Print a line of a capture for each event. A function can write to its log without permissions
    and without a request, and the line stays when Lambda stops the process."""
    dropped = 0
    for one in arrived:
        try:
            line = line_of(arrival(one, rules))
            if len(line) > LINE_BYTES:
                dropped += 1
                continue
            # One write: the output of another thread must not split the line.
            sys.stdout.write(line.decode() + "\n")
        except Exception:  # noqa: BLE001  an error here must not fail the invocation
            dropped += 1
    if dropped:
        log().warning("tap: %d of %d events are left out of the log", dropped, len(arrived))


def _arrival_of_record(record: Mapping[str, Any]) -> Arrived:
    """Return the arrival of a message of an SQS batch."""
    channel, receives = queue_of(record) or "sqs:", receives_of(record) or 1
    return Arrived(record.get("body", ""), channel, record["messageId"], wall_clock(), receives)


def _arrival_of_invocation(body: Any, context: Any) -> Arrived:
    """Return the arrival of an invocation's event; Lambda's retries have the same request id."""
    name = getattr(context, "function_name", "") or os.environ.get("AWS_LAMBDA_FUNCTION_NAME", "")
    return Arrived(
        body, f"lambda:{name}", str(getattr(context, "aws_request_id", "") or ""), wall_clock()
    )


def _delivered(event: Any) -> Sequence[Record] | None:
    """Return the records that Firehose asks to transform; None for another event."""
    if not isinstance(event, Mapping) or not is_firehose(event):
        return None
    records = event["records"]
    named = isinstance(records, list) and all(
        isinstance(record, Mapping) and isinstance(record.get("recordId"), str)
        for record in records
    )
    return records if named else None


def _answer_direct(
    consumer: Consumer, incoming: Sequence[Any], invocation: Invocation, attempts: int
) -> dict[str, Any]:
    outcomes = _settled(_processed(consumer, incoming, invocation, attempts))
    return {"statusCode": 200, "body": msgspec.json.encode(counts(outcomes)._asdict()).decode()}


def _settled(outcomes: list[Outcome]) -> list[Outcome]:
    if not all(outcome.ack for outcome in outcomes):
        raise NotSettled(outcomes)
    return outcomes


def _answer_firehose(
    consumer: Consumer, records: Sequence[Record], invocation: Invocation, attempts: int
) -> dict[str, Any]:
    """Return each record unchanged, with whether its events are settled or given up.

    A copy is delivered too: Firehose repeats an invocation whose answer was lost, and a record that
    was dropped as a copy would never reach the destination.
    """
    taken = [_of_firehose(record) for record in records]
    incoming = [one for some in taken for one in some]
    told = iter(_settled(_processed(consumer, incoming, invocation, attempts)))
    answers = []
    for record, some in zip(records, taken, strict=True):
        lost = [outcome for outcome in islice(told, len(some)) if outcome.status in DEAD_LETTERS]
        result = "ProcessingFailed" if lost else "Ok"
        answers.append(
            {"recordId": record["recordId"], "result": result, "data": record.get("data", "")}
        )
    return {"records": answers}


def _of_firehose(record: Record) -> list[Event | bytes]:
    """Return the events of a record; a single event without an id gets the record's id."""
    found = read_body(delivered(record), max_bytes=sys.maxsize)
    match found:
        case [Event(id="") as event]:
            return [msgspec.structs.replace(event, id=record["recordId"])]
    return found


def _answer_request(
    consumer: Consumer,
    request: HTTPRequest,
    invocation: Invocation,
    admits: Admits | None,
    tapped: Tap | None,
    context: Any,
) -> Answer:
    if request.probes:
        return Answer(200, {"content-type": "application/json"}, b"{}")
    if request.method != "POST":
        return _refusal(405, f"events are sent with POST, not {request.method}", allow="POST")
    if admits is not None and not admits(request.headers, request.body):
        return _refusal(401, "this request may not send events")
    incoming = read_body(
        request.body,
        request.headers,
        keep=consumer.kept_headers,
        max_bytes=consumer.max_bytes,
    )
    if tapped is not None:
        tapped([_arrival_of_invocation(one, context) for one in incoming])
    answer = respond(_processed(consumer, incoming, invocation), wall_clock())
    return understood(answer, request.headers)


def _refusal(status: int, why: str, **headers: str) -> Answer:
    body = msgspec.json.encode({"reason": why})
    return Answer(status, {"content-type": "application/json", **headers}, body)


def _processed(
    consumer: Consumer, incoming: Sequence[Any], invocation: Invocation, attempts: int | None = None
) -> list[Outcome]:
    """Return one outcome for each event, also for events that had no time left."""
    outcomes: list[Outcome] = []
    while len(outcomes) < len(incoming) and (room := invocation.room(consumer)):
        some = incoming[len(outcomes) : len(outcomes) + room]
        outcomes += invocation.process(consumer, some, attempts)
    untried = [
        Outcome(part if isinstance(part, Event) else None, NO_TIME.status, NO_TIME.reason)
        for part in incoming[len(outcomes) :]
    ]
    return logged(outcomes + untried)


PROBE: Final = "elb-healthchecker/"
"""The user agent of a load balancer's health check, which sends a GET and expects 200."""


class HTTPRequest(NamedTuple):
    """An HTTP request, the same for every form of payload."""

    method: str
    headers: Mapping[str, str]
    """The headers, with names in lower case; of several values of one name, the last."""
    body: bytes

    @property
    def probes(self) -> bool:
        """Whether the request is a load balancer's health check."""
        return self.method == "GET" and self.headers.get("user-agent", "").lower().startswith(PROBE)


def is_request(event: Mapping[str, Any]) -> bool:
    """Whether the payload is an HTTP request; the record of a Lambda destination has a
    `requestContext` too, and a `requestPayload`."""
    return ("requestContext" in event and "requestPayload" not in event) or (
        # VPC Lattice, the first version of its payload.
        "raw_path" in event and "method" in event
    )


def request_of(event: Mapping[str, Any]) -> HTTPRequest:
    """Return the request of a payload, in any of its forms."""
    context = event.get("requestContext") or {}
    http = context.get("http") or {}
    several = event.get("multiValueHeaders") or {}
    headers = {name: values[-1] for name, values in several.items() if values}
    headers.update(event.get("headers") or {})
    method = http.get("method") or event.get("httpMethod") or event.get("method") or "POST"
    return HTTPRequest(
        method=str(method).upper(),
        headers={name.lower(): _last(value) for name, value in headers.items()},
        body=_body(event),
    )


def _last(value: Any) -> str:
    """Return the value of a header; VPC Lattice gives a list of values."""
    if isinstance(value, list):
        return str(value[-1]) if value else ""
    return str(value)


def _body(event: Mapping[str, Any]) -> bytes:
    body = str(event.get("body") or "").encode(errors="surrogatepass")
    if not (event.get("isBase64Encoded") or event.get("is_base64_encoded")):
        return body
    from base64 import b64decode  # noqa: PLC0415  few requests need it

    try:
        return b64decode(body, validate=True)
    except ValueError:
        # A body that is not base64 is probably not an event either, and becomes a dead letter.
        return body


def response(event: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """Return the answer in the form that this request needs.

    A load balancer that sends lists of headers only understands lists.
    """
    said: dict[str, Any] = {"statusCode": answer.status, "isBase64Encoded": False}
    if "multiValueHeaders" in event:
        said["multiValueHeaders"] = {name: [value] for name, value in answer.headers.items()}
    else:
        said["headers"] = dict(answer.headers)
    return {**said, "body": answer.body.decode()}
