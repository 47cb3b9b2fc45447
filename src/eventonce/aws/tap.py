"""The tap of a function: what it is invoked with, one line each, in its own log.

The log is the one place that a function can write to without rights, without a request and without
losing what is written when Lambda stops it; `eventonce capture --log-group` collects the lines.
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
"""Bytes of a line: CloudWatch Logs cuts what is longer."""


def of_record(record: Mapping[str, Any]) -> Arrived:
    """A message of an SQS batch."""
    channel, receives = queue_of(record) or "sqs:", receives_of(record) or 1
    return Arrived(record.get("body", ""), channel, record["messageId"], wall_clock(), receives)


def of_invocation(body: Any, context: Any) -> Arrived:
    """An event of an invocation; Lambda's own retries have the same request id."""
    name = getattr(context, "function_name", "") or os.environ.get("AWS_LAMBDA_FUNCTION_NAME", "")
    return Arrived(
        body, f"lambda:{name}", str(getattr(context, "aws_request_id", "") or ""), wall_clock()
    )


def to_log(kept: Callable[[Arrived], Arrived], arrived: Sequence[Arrived]) -> None:
    """Print the lines, each as it may be `kept`. Whatever goes wrong here must not fail the
    invocation."""
    dropped = 0
    for one in arrived:
        try:
            line = line_of(kept(one))
            if len(line) > LINE_BYTES:
                dropped += 1
                continue
            # In one piece: what other threads print must not stand in the middle of it.
            sys.stdout.write(line.decode() + "\n")
        except Exception:  # noqa: BLE001  see above
            dropped += 1
    if dropped:
        log().warning("tap: %d of %d events are left out of the log", dropped, len(arrived))
