"""Lambda's entry point: gives whatever AWS invokes a function with to a consumer, and answers.

Imports no AWS library: only a store that needs one does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from sys import maxsize
from typing import Any, Final, NamedTuple

import msgspec

from eventonce.arguments import check_count, check_flag, check_function, check_seconds
from eventonce.aws.invocation import MARGIN, Invocation, Pace, report
from eventonce.aws.limits import LAMBDA_ATTEMPTS
from eventonce.aws.sqs_batch import (
    NO_TIME,
    Record,
    Visibility,
    batch_response,
    process_batch,
    sqs_records,
)
from eventonce.aws.tap import of_invocation, of_record, to_log
from eventonce.clock import wall_clock
from eventonce.consumer import Consumer
from eventonce.core.redaction import arrival
from eventonce.core.status import DEAD_LETTERS
from eventonce.envelope import parts, read_body
from eventonce.envelope.captured import Arrived, Tap
from eventonce.envelope.carriers import SUPPORTED, delivered, invoker, is_firehose
from eventonce.errors import ConfigError, EventonceError
from eventonce.http_report import Answer, counts, respond, understood
from eventonce.runtime.shadow import to_standard_output
from eventonce.types import Event, Outcome

Admits = Callable[[Mapping[str, str], bytes], bool]
"""Whether a request with these headers, names in lower case, and this body may send events."""


class NotSettled(EventonceError):
    """Some events are not settled: Lambda must invoke again."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = [outcome for outcome in outcomes if not outcome.ack]
        first = self.outcomes[0]
        super().__init__(
            f"{len(self.outcomes)} of {len(outcomes)} events not settled, "
            f"the first is {first.status}: {first.reason}"
        )


class UnsupportedSource(EventonceError):
    """The function was invoked by a source whose records are not read: Lambda must not forget them.

    A retry cannot help; but the source's own dead-letter queue keeps what an answer would lose.
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
    margin: float = MARGIN,
    partial: bool = True,
    attempts: int = LAMBDA_ATTEMPTS,
    admits: Admits | None = None,
    tap: bool | None = None,
    shadow_log: bool | None = None,
    metrics: bool | None = None,
) -> Callable[[Any, Any], Any]:
    """A Lambda function that gives its events to this consumer.

    A batch of SQS records, from the queue itself or through a pipe, is answered with the records
    that must come again; an HTTP request with a response; Firehose with its records; anything else
    with counts, or with an exception where Lambda must retry. What nobody could read raises
    `UnsupportedSource`.

    `margin` is how many seconds before the invocation's deadline no record is taken any more.
    With `partial=False` a batch that is not settled raises too: for an event source mapping that
    does not have `ReportBatchItemFailures`, and for a pipe that does not wait for the answer.
    `admits` is asked about every HTTP request; without it, who may send is for API Gateway or IAM
    to decide.

    `attempts` is how often Lambda itself invokes with an event before it drops it: failing as often
    makes it a dead letter, whatever its rule says. Events of queues and HTTP have their rule's
    attempts.

    `tap` is whether each event is printed as it arrives, as a line of a capture; without it, the
    variable `EVENTONCE_TAP=log` is asked. `eventonce capture --log-group` collects the lines.

    `shadow_log` is whether what rules with `shadow` decide is printed, a line for each event;
    without it, the variable `EVENTONCE_SHADOW_LOG=log` is asked. `eventonce shadow report` reads
    an export of the log.

    `metrics` is whether each invocation ends with a line of CloudWatch's embedded metric format;
    without it, the variable `EVENTONCE_METRICS=emf` is asked.

    Traces and metrics for OpenTelemetry are exported where the variables `OTEL_*` ask for it.
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
    pace, visibility = Pace(), Visibility()

    def to_tap(arrived: Sequence[Arrived]) -> None:
        to_log(lambda one: arrival(one, consumer.rules), arrived)

    tapped = to_tap if _asked_for(tap, "EVENTONCE_TAP") else None
    if _asked_for(shadow_log, "EVENTONCE_SHADOW_LOG"):
        consumer.observers.append(to_standard_output(consumer))

    if any(name.startswith("OTEL_") for name in os.environ):
        from eventonce.otel.setup import exported  # noqa: PLC0415  for those who ask

        export = exported(consumer)
        if export is not None:
            consumer.observers.append(export)

    def handler(event: Any, context: Any = None) -> Any:
        try:
            return answer(event, context)
        finally:
            # Lambda may stop the process here, until the next invocation or for good.
            consumer.runtime.flush()

    def answer(event: Any, context: Any) -> Any:
        invocation = Invocation(context, margin, pace)
        records = sqs_records(event)
        if records is not None:
            if tapped is not None:
                tapped([of_record(record) for record in records])
            # A pipe that reads no answer leaves the retries to Lambda, which soon ends them.
            fires = not partial and records is event
            outcomes = process_batch(
                consumer, records, invocation, attempts=attempts if fires else None
            )
            visibility.change(records, outcomes, invocation.left())
            return batch_response(records, outcomes if partial else _settled(outcomes))
        source = invoker(event, calls=not consumer.runtime.takes(""))
        if source:
            raise UnsupportedSource(source)
        transformed = _delivered(event)
        if transformed is not None:
            if tapped is not None:
                tapped([of_invocation(delivered(record), context) for record in transformed])
            return _answer_firehose(consumer, transformed, invocation, attempts)
        if isinstance(event, Mapping) and is_request(event):
            request = request_of(event)
            return response(
                event, _answer_request(consumer, request, invocation, admits, tapped, context)
            )
        incoming = parts(event)
        if tapped is not None:
            tapped([of_invocation(one, context) for one in incoming])
        return _answer_direct(consumer, incoming, invocation, attempts)

    if not _asked_for(metrics, "EVENTONCE_METRICS", "emf"):
        return handler
    from eventonce.metrics.emf import printing  # noqa: PLC0415  for those who ask

    return printing(consumer, handler)


def _asked_for(said: bool | None, variable: str, value: str = "log") -> bool:  # noqa: FBT001  what an argument said
    """Whether the argument, or else the environment, asks for lines in the log."""
    return os.environ.get(variable, "") == value if said is None else said


def _delivered(event: Any) -> Sequence[Record] | None:
    """The records that Firehose asks to transform."""
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
    """Each record as it came, and whether its events are settled or given up.

    A copy is delivered too: an invocation whose answer was lost is repeated, and to drop the
    records that ran the first time would keep them from where Firehose delivers.
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
    """The events of a record; a lone one without an id has the record's."""
    found = read_body(delivered(record), max_bytes=maxsize)
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
        tapped([of_invocation(one, context) for one in incoming])
    answer = respond(_processed(consumer, incoming, invocation), wall_clock())
    return understood(answer, request.headers)


def _refusal(status: int, why: str, **headers: str) -> Answer:
    body = msgspec.json.encode({"reason": why})
    return Answer(status, {"content-type": "application/json", **headers}, body)


def _processed(
    consumer: Consumer, incoming: Sequence[Any], invocation: Invocation, attempts: int | None = None
) -> list[Outcome]:
    """One outcome per event, also for those there was no time for."""
    outcomes: list[Outcome] = []
    while len(outcomes) < len(incoming) and (room := invocation.room(consumer)):
        some = incoming[len(outcomes) : len(outcomes) + room]
        outcomes += invocation.process(consumer, some, attempts)
    untried = [
        Outcome(part if isinstance(part, Event) else None, NO_TIME.status, NO_TIME.reason)
        for part in incoming[len(outcomes) :]
    ]
    return report(outcomes + untried)


PROBE: Final = "elb-healthchecker/"
"""The name of a load balancer's health check, which asks with GET and wants a 200."""


class HTTPRequest(NamedTuple):
    """An HTTP request, in whichever form it was handed over."""

    method: str
    headers: Mapping[str, str]
    """Names in lower case; of several values of one name, the last."""
    body: bytes

    @property
    def probes(self) -> bool:
        """Whether the request is a load balancer's health check."""
        return self.method == "GET" and self.headers.get("user-agent", "").lower().startswith(PROBE)


def is_request(event: Mapping[str, Any]) -> bool:
    """Whether the payload is an HTTP request; a Lambda destination has a `requestContext` too, with
    its payload."""
    return ("requestContext" in event and "requestPayload" not in event) or (
        # VPC Lattice, the first version of its form.
        "raw_path" in event and "method" in event
    )


def request_of(event: Mapping[str, Any]) -> HTTPRequest:
    """The request, whichever of the forms it came in."""
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
    """The value of a header; VPC Lattice gives a list of them."""
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
        # A body that is no base64 is most likely no event either: a dead letter keeps it as it is.
        return body


def response(event: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """The answer in the form this request wants it.

    A load balancer that sends lists of headers understands nothing else.
    """
    said: dict[str, Any] = {"statusCode": answer.status, "isBase64Encoded": False}
    if "multiValueHeaders" in event:
        said["multiValueHeaders"] = {name: [value] for name, value in answer.headers.items()}
    else:
        said["headers"] = dict(answer.headers)
    return {**said, "body": answer.body.decode()}
