"""The facts of a set-up: what the account, the store, the queue, the rules of the buses and the
functions say of themselves. An area that was not looked at is None or empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from eventonce.aws.limits import LAMBDA_ATTEMPTS
from eventonce.core.ports import Finding
from eventonce.doctor.patterns import UnknownPattern
from eventonce.rules import Rule

RETRIES: Final = 185
"""The times that EventBridge tries to deliver an event, unless its target says otherwise."""
RETRY_AGE: Final = 86_400
"""Seconds for which it tries, unless its target says otherwise."""
INVOKE_AGE: Final = 21_600
"""Seconds for which Lambda tries to invoke a function asynchronously, unless the function says
otherwise."""


def judged(fine: bool, what: str, fix: str) -> Finding:  # noqa: FBT001  it stands first
    """The finding, with its remedy where all is not fine."""
    return Finding(what, "" if fine else fix)


class Identity(msgspec.Struct, frozen=True):
    """The caller, as AWS knows it; of one that AWS does not know, the region alone."""

    account: str
    principal: str
    region: str


class QueueFacts(msgspec.Struct, frozen=True):
    """The queue that events come from."""

    name: str
    arn: str
    visibility: int = 30
    """Seconds, as are all times here."""
    retention: int = 345_600
    dead: str = ""
    """The ARN of the dead-letter queue of its redrive policy; empty without one."""
    receives: int = 0
    """The redrive policy's maxReceiveCount."""
    deduplicates: bool = False
    """Whether a FIFO queue takes the content of a message for its deduplication id."""
    policy: dict[str, Any] = {}
    key: str = ""
    """The KMS key that encrypts it; empty without one."""
    delay: int = 0
    """Seconds for which every message waits before it can be received."""
    largest: int = 1 << 20
    """Bytes of the largest message that it takes."""

    @property
    def fifo(self) -> bool:
        """Whether the queue keeps an order."""
        return self.name.endswith(".fifo")


class BusTarget(msgspec.Struct, frozen=True):
    """One target of an EventBridge rule that reaches the queue or a function, or does so by a
    topic."""

    bus: str
    rule: str
    arn: str
    """The rule's ARN, which a delivery carries."""
    target: str
    """The id of the target in its rule."""
    to: str
    """The ARN of the queue or the function, or of a topic to which one of them subscribes."""
    pattern: dict[str, Any] = {}
    enabled: bool = True
    retries: int = RETRIES
    age: int = RETRY_AGE
    dead: str = ""
    """The ARN of the queue for events that could not be delivered; empty without one."""
    input: str = ""
    """A constant that replaces the event."""
    path: str = ""
    """The part of the event that replaces it."""
    template: str = ""
    """The template of an input transformer."""
    paths: dict[str, str] = {}
    group: str = ""
    """The message group, for a FIFO queue."""
    role: str = ""
    """The role in whose name the rule sends; without one the queue's policy decides."""
    forwarded: bool | None = True
    """Whether a partner's events can come to this bus, which is not the partner's own, by a rule or
    from another account; None if that was not seen."""

    @property
    def topic(self) -> str:
        """The name of the SNS topic between the rule and the queue; empty without one."""
        return self.to.rpartition(":")[2] if ":sns:" in self.to else ""

    @property
    def reshaped(self) -> bool:
        """Whether something else than the event as it is comes to the target."""
        return bool(self.input or self.template or self.path not in ("", "$"))

    def __str__(self) -> str:
        return f"rule {self.rule} of bus {self.bus}"


class SourceMapping(msgspec.Struct, frozen=True):
    """The event source mapping from the queue to a function."""

    id: str
    function: str
    enabled: bool = True
    partial: bool = True
    """Whether the function may report single messages of a batch as failed."""
    filters: tuple[dict[str, Any], ...] = ()
    """The patterns of its filter criteria, one of which a message has to match."""
    filter_key: str = ""
    """The KMS key by which a filter is hidden; empty if none is."""


class AsyncFacts(msgspec.Struct, frozen=True):
    """How Lambda invokes a function asynchronously, as a rule of a bus asks it to."""

    attempts: int = LAMBDA_ATTEMPTS
    """The first invocation and its retries."""
    age: int = INVOKE_AGE
    dead: str = ""
    """The ARN of the on-failure destination, or of the function's own dead-letter queue; empty
    without either."""


class FunctionFacts(msgspec.Struct, frozen=True):
    """A function that runs the consumer."""

    name: str
    arn: str
    timeout: int = 3
    concurrency: int | None = None
    """The reserved concurrency, None without one."""
    role: str = ""
    invoked: AsyncFacts | None = None
    """None if its settings were not seen."""


class Denied(msgspec.Struct, frozen=True):
    """A right that a principal needs and does not have."""

    principal: str
    action: str
    resource: str


class HistoryFacts(msgspec.Struct, frozen=True):
    """The history that the file names, as this user finds it."""

    uri: str
    keep: int
    """Milliseconds for which the file keeps a decision."""
    most: int
    """Decisions that the file keeps."""
    fault: str = ""
    """Why it cannot be read; empty where it can."""
    refused: str = ""
    """Why this user may not write to it; empty where that is allowed."""
    begun: bool = True
    """Whether there is one already."""
    age: int = 0
    """Milliseconds since its oldest decision."""
    span: int = 0
    """Decisions in it."""
    hidden: int = 0
    """Decisions whose ids are digests under a secret that the file does not name."""


class Facts(msgspec.Struct, frozen=True):
    """All that AWS said; `unseen` are the things it did not say, and those that do not exist."""

    identity: Identity | None = None
    ahead: int | None = None
    """Milliseconds that this machine's clock is ahead of AWS'."""
    queue: QueueFacts | None = None
    """None if none is named, or the queue did not show its attributes."""
    dead: QueueFacts | None = None
    """The dead-letter queue of its redrive policy."""
    letters: QueueFacts | None = None
    """The queue for the consumer's own dead letters."""
    targets: tuple[BusTarget, ...] = ()
    mappings: tuple[SourceMapping, ...] = ()
    functions: tuple[FunctionFacts, ...] = ()
    asked_rights: tuple[str, ...] = ()
    """The principals whose rights were simulated."""
    denied: tuple[Denied, ...] = ()
    unseen: tuple[tuple[str, Finding], ...] = ()
    """Findings of the look itself, by area."""
    undelivered: tuple[QueueFacts, ...] = ()
    """The queues in which targets keep what they could not deliver."""
    hidden: bool = False
    """Whether a queue is named whose attributes were not seen."""
    history: HistoryFacts | None = None


class FileFacts(msgspec.Struct, frozen=True):
    """The settings of the file that the checks need."""

    rules: Sequence[Rule]
    visibility: float = 60
    """Seconds for which a worker hides its messages."""
    patterns: Sequence[UnknownPattern] = ()
    taken: Sequence[str] = ()
    """The patterns of the types that sinks take; empty if they are not known."""
    unread: Sequence[str] = ()
    """Places of patterns that could not be read."""
