"""The names of OpenTelemetry's conventions for messaging, and what they say of a channel.

Written down here, for the package that has them keeps those of messaging as private.
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

BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Seconds: the buckets that the conventions give durations."""

_SYSTEMS: Final = {"sqs": "aws_sqs"}


@lru_cache(maxsize=256)
def described(channel: str, consumer: str) -> Mapping[str, str]:
    """The attributes of all that came by this channel, such as `sqs:orders`, for this consumer."""
    system, _, destination = channel.partition(":")
    known = {
        SYSTEM: _SYSTEMS.get(system, system) or SCOPE,
        DESTINATION: destination,
        GROUP: consumer,
        OPERATION: PROCESS,
    }
    return {name: value for name, value in known.items() if value}
