"""The EventBridge bus as a sink: an event is put on it with its source, type, time and detail."""

from __future__ import annotations

from typing import Any

from eventonce.aws.eventbridge import RESERVED, Bus, Entry
from eventonce.errors import ConfigError, Reject, Retry
from eventonce.types import Event, Job


class EventBus:
    """Puts each event on a bus.

    At least once, and the bus gives every copy a new id: its consumers must recognise copies by
    their content, as the rules of eventonce do. No rule of the bus may send the event back to the
    queue of this consumer.
    """

    def __init__(self, uri: str, *, source: str = "", client: Any = None) -> None:
        self._bus = Bus.from_uri(uri, client)
        self._source = source
        if source.startswith(RESERVED):
            raise ConfigError(f"EventBus: EventBridge refuses a source that begins with {RESERVED}")

    def __call__(self, job: Job) -> None:
        """Put the event on the bus; raises if it was refused."""
        for refused in self._bus.send([self.entry(job.event)]):
            said = f"{self._bus}: {refused.code}: {refused.reason}"
            raise Reject(said) if refused.unfit else Retry(said)

    def entry(self, event: Event) -> Entry:
        """Return the entry that is put on the bus for this event."""
        entry = self._bus.entry(event)
        return entry | {"Source": self._source} if self._source else entry

    def close(self) -> None:
        """Close the connections, unless the client is yours."""
        self._bus.close()
