"""The names of OpenTelemetry's conventions for messaging, and the attributes of a channel.

The names are repeated here because they are private in the package of the conventions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

SCOPE: Final = "eventonce"
"""The name of the instrumentation."""

SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"
GROUP: Final = "messaging.consumer.group.name"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGE: Final = "messaging.message.id"
BATCH_SIZE: Final = "messaging.batch.message_count"
ERROR: Final = "error.type"

PROCESS: Final = "process"
PROCESS_DURATION: Final = "messaging.process.duration"
CONSUMED: Final = "messaging.client.consumed.messages"

DURATION_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""The buckets of durations, in seconds, as the conventions give them."""

_SYSTEMS: Final = {"sqs": "aws_sqs"}


@lru_cache(maxsize=256)
def described(channel: str, consumer: str) -> Mapping[str, str]:
    """Return the attributes of events of this channel, such as `sqs:orders`, for this consumer."""
    system, _, destination = channel.partition(":")
    known = {
        SYSTEM: _SYSTEMS.get(system, system) or SCOPE,
        DESTINATION: destination,
        GROUP: consumer,
        OPERATION: PROCESS,
    }
    return {name: value for name, value in known.items() if value}
