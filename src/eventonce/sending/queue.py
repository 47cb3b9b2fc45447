"""To an SQS queue: the events as EventBridge would put them there, and what it refuses."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Final

from eventonce.aws.sqs import Entry, Queue
from eventonce.envelope import read
from eventonce.errors import EnvelopeError
from eventonce.sending.retry import attempts
from eventonce.sending.sender import NOT_AN_EVENT, Outgoing, Refusal

GROUP: Final = "eventonce"


class Messages:
    """Sends events to a queue.

    On a FIFO queue each copy has a deduplication id of its own: the queue would drop it otherwise,
    and it is the consumer that is tried here.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def __call__(self, going: Sequence[Outgoing], answers: Counter[str]) -> list[Refusal]:
        """Send these; answers which were refused, each with the service's code."""
        refusals: list[Refusal] = []
        left: list[tuple[Outgoing, Entry]] = []
        for one in going:
            try:
                left.append((one, self._entry(one)))
            except EnvelopeError as error:
                refusals.append(Refusal.of(one, NOT_AN_EVENT, str(error)))
        for last in attempts():
            whose = {id(entry): one for one, entry in left}
            refused = self._queue.send([entry for _, entry in left])
            left = []
            for it in refused:
                one = whose[id(it.entry)]
                if it.again and not last:
                    left.append((one, it.entry))
                else:
                    refusals.append(Refusal.of(one, it.code, it.reason))
            if not left:
                break
        answers.update(refusal.code for refusal in refusals)
        return refusals

    def close(self) -> None:
        """Let go of connections."""
        self._queue.close()

    def _entry(self, outgoing: Outgoing) -> Entry:
        read(outgoing.raw)  # EventBridge brings nothing but events, and SQS nothing but text
        body = outgoing.raw.decode()
        if not self._queue.fifo:
            return Entry(body)
        return Entry(body, group=GROUP, deduplication=str(uuid.uuid4()))
