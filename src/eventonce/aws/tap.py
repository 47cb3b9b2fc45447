"""The tap of a Lambda function: a line in its log for each event that it is invoked with.

A function can write to its log without permissions and without a request, and a line stays when
Lambda stops the process; `eventonce capture --log-group` collects the lines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from eventonce.clock import wall_clock
from eventonce.envelope.captured import Arrived, line_of
from eventonce.envelope.carriers import queue_of, receives_of
from eventonce.log import log

LINE_BYTES: Final = 256_000
"""The most bytes of a line: CloudWatch Logs cuts longer lines."""


def of_record(record: Mapping[str, Any]) -> Arrived:
    """Return the arrival of a message of an SQS batch."""
    channel, receives = queue_of(record) or "sqs:", receives_of(record) or 1
    return Arrived(record.get("body", ""), channel, record["messageId"], wall_clock(), receives)


def of_invocation(body: Any, context: Any) -> Arrived:
    """Return the arrival of an invocation's event; Lambda's retries have the same request id."""
    name = getattr(context, "function_name", "") or os.environ.get("AWS_LAMBDA_FUNCTION_NAME", "")
    return Arrived(
        body, f"lambda:{name}", str(getattr(context, "aws_request_id", "") or ""), wall_clock()
    )


def to_log(kept: Callable[[Arrived], Arrived], arrived: Sequence[Arrived]) -> None:
    """Print the lines; `kept` redacts each arrival. An error here must not fail the invocation."""
    dropped = 0
    for one in arrived:
        try:
            line = line_of(kept(one))
            if len(line) > LINE_BYTES:
                dropped += 1
                continue
            # One write: the output of another thread must not split the line.
            sys.stdout.write(line.decode() + "\n")
        except Exception:  # noqa: BLE001  see above
            dropped += 1
    if dropped:
        log().warning("tap: %d of %d events are left out of the log", dropped, len(arrived))
