"""The SQS queue as a sink: the event as a message; on a FIFO queue with its effect id and group."""

from __future__ import annotations

import string
from hashlib import blake2b
from typing import Any, Final

from msgspec.structs import replace

from eventonce.aws.limits import SQS_BATCH_BYTES, SQS_GROUP_CHARACTERS
from eventonce.aws.sqs import Entry, Queue
from eventonce.errors import ConfigError, Reject, Retry
from eventonce.rules.expressions import parse_path
from eventonce.rules.parts import Tree
from eventonce.types import Job

_GROUPED: Final = frozenset(string.ascii_letters + string.digits + string.punctuation)
"""The characters that SQS takes in the name of a message group."""

_ESCAPED: Final = {0xFFFE: "\\ufffe", 0xFFFF: "\\uffff"}
"""The two characters that JSON allows and SQS refuses. They can only be inside JSON strings, where
their escapes mean the same."""


class SQSQueue:
    """Sends each event to a queue; the attribute `effect_id` identifies its effect.

    At least once. A FIFO queue drops a copy within five minutes, and keeps the order within a
    group. A group is the events of one key, unless `group` is the path of another field, such as
    `body.conversationId`.
    """

    def __init__(self, uri: str, *, group: str = "", client: Any = None) -> None:
        self._queue = Queue.from_uri(uri, client)
        try:
            self._group = parse_path(group) if group else None
        except ValueError as error:
            raise ConfigError(f"SQSQueue: group {group!r}: {error}") from error
        if group and not self._queue.fifo:
            raise ConfigError(
                f"SQSQueue: {self._queue.name} has no groups: only a queue whose name ends with "
                f".fifo keeps an order"
            )

    def __call__(self, job: Job) -> None:
        """Send the event; raises if it was refused."""
        entry = Entry(
            body=job.event.raw.decode().translate(_ESCAPED),
            attributes={**job.trace, "effect_id": job.effect_id},
            group=self._group_of(job) if self._queue.fifo else "",
            deduplication=job.effect_id if self._queue.fifo else "",
        )
        if job.trace and entry.size > SQS_BATCH_BYTES:
            # An event must not fail because of its trace headers.
            entry = replace(entry, attributes={"effect_id": job.effect_id})
        for refused in self._queue.send([entry]):
            said = f"{self._queue}: {refused.code}: {refused.reason}"
            raise Reject(said) if refused.unfit else Retry(said)

    def close(self) -> None:
        """Close the connections."""
        self._queue.close()

    def _group_of(self, job: Job) -> str:
        value = job.key.hex()
        if self._group is not None:
            tree = Tree(job.event)
            if tree.has(self._group):
                value = str(tree.value(self._group.root, self._group.steps))
        if len(value) <= SQS_GROUP_CHARACTERS and _GROUPED.issuperset(value):
            return value
        return blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
