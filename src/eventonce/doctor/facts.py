"""The facts of a set-up: the settings of the account, the store, the queue, the rules of the buses
and the functions. An area that was not looked at is None or empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from eventonce.aws.limits import LAMBDA_ATTEMPTS, SQS_BATCH_BYTES
from eventonce.core.ports import Finding
from eventonce.doctor.patterns import UnknownPattern
from eventonce.rules import Rule

DEFAULT_RETRIES: Final = 185
"""The default number of EventBridge's retries for a target."""
RETRY_AGE: Final = 86_400
"""The default seconds for which EventBridge retries."""
INVOKE_AGE: Final = 21_600
"""The default seconds for which Lambda retries an asynchronous invocation."""


class Identity(msgspec.Struct, frozen=True):
    """The caller as AWS knows it; only the region if AWS does not know the caller."""

    account: str
    principal: str
    region: str


class QueueFacts(msgspec.Struct, frozen=True):
    """The settings of a queue."""

    name: str
    arn: str
    visibility: int = 30
    """Seconds, like all times of this class."""
    retention: int = 345_600
    dead: str = ""
    """The ARN of the dead-letter queue of its redrive policy; empty without one."""
    receives: int = 0
    """The redrive policy's maxReceiveCount."""
    deduplicates: bool = False
    """Whether a FIFO queue uses the content of a message as its deduplication id."""
    policy: dict[str, Any] = {}
    key: str = ""
    """The KMS key that encrypts the queue; empty without one."""
    delay: int = 0
    """Seconds for which every message waits before it can be received."""
    largest: int = SQS_BATCH_BYTES
    """Bytes of the largest message that the queue takes."""

    @property
    def fifo(self) -> bool:
        """Whether the queue is a FIFO queue."""
        return self.name.endswith(".fifo")


class BusTarget(msgspec.Struct, frozen=True):
    """One target of an EventBridge rule: the queue, a function, or a topic in front of them."""

    bus: str
    rule: str
    arn: str
    """The rule's ARN, which every delivery has."""
    target: str
    """The id of the target in its rule."""
    to: str
    """The ARN of the queue or the function, or of a topic to which one of them subscribes."""
    pattern: dict[str, Any] = {}
    enabled: bool = True
    retries: int = DEFAULT_RETRIES
    age: int = RETRY_AGE
    dead: str = ""
    """The ARN of the queue for events that could not be delivered; empty without one."""
    input: str = ""
    """A constant that replaces the event."""
    path: str = ""
    """The path of the part that is delivered instead of the whole event."""
    template: str = ""
    """The template of an input transformer."""
    paths: dict[str, str] = {}
    group: str = ""
    """The message group, for a FIFO queue."""
    role: str = ""
    """The role with which the rule sends; without a role, the queue's policy decides."""
    forwarded: bool | None = True
    """Whether a rule or another account can forward a partner's events to this bus, which is not
    the partner's own; None if that was not seen."""

    @property
    def topic(self) -> str:
        """The name of the SNS topic between the rule and the queue; empty without one."""
        return self.to.rpartition(":")[2] if ":sns:" in self.to else ""

    @property
    def reshaped(self) -> bool:
        """Whether the target gets anything other than the unchanged event."""
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
    """The patterns of its filter criteria; a message must match one of them."""
    filter_key: str = ""
    """The KMS key that encrypts the filter; empty if it can be read."""


class AsyncFacts(msgspec.Struct, frozen=True):
    """The settings of asynchronous invocations, which the rules of a bus cause."""

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
    """The settings of asynchronous invocations; None if they were not seen."""


class Denied(msgspec.Struct, frozen=True):
    """A right that a principal needs and does not have."""

    principal: str
    action: str
    resource: str


class HistoryFacts(msgspec.Struct, frozen=True):
    """The history that the file names, as this user sees it."""

    uri: str
    keep: int
    """Milliseconds for which the file keeps a decision."""
    most: int
    """The most decisions that the file keeps."""
    fault: str = ""
    """The reason why the history cannot be read; empty if it can."""
    refused: str = ""
    """The reason why this user may not write to it; empty if allowed."""
    begun: bool = True
    """Whether the history exists already."""
    age: int = 0
    """Milliseconds since its oldest decision."""
    span: int = 0
    """The number of its decisions."""
    hidden: int = 0
    """Decisions whose ids are digests under a secret that the file does not name."""


class Facts(msgspec.Struct, frozen=True):
    """All answers of AWS; `unseen` has the questions without an answer, and missing resources."""

    identity: Identity | None = None
    ahead: int | None = None
    """Milliseconds that this machine's clock is ahead of AWS'; None if not known."""
    queue: QueueFacts | None = None
    """The queue of events; None if none is named, or its attributes were not seen."""
    dead: QueueFacts | None = None
    """The dead-letter queue of the queue's redrive policy."""
    letters: QueueFacts | None = None
    """The queue for the consumer's own dead letters."""
    targets: tuple[BusTarget, ...] = ()
    mappings: tuple[SourceMapping, ...] = ()
    functions: tuple[FunctionFacts, ...] = ()
    asked_rights: tuple[str, ...] = ()
    """The principals whose rights were simulated."""
    denied: tuple[Denied, ...] = ()
    unseen: tuple[tuple[str, Finding], ...] = ()
    """Findings of the questions themselves, by area."""
    undelivered: tuple[QueueFacts, ...] = ()
    """The queues for events that targets could not deliver."""
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
