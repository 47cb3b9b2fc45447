"""The queue itself: four verbs in batches, and a client that is made anew when it must be."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from eventonce.errors import ConfigError, EventonceError, SourceUnavailable
from eventonce.sqs import faults
from eventonce.sqs.address import Address, parse
from eventonce.sqs.entries import LARGEST, MOST, Entry, Refused, batches, packed, size

LONGEST_WAIT: Final = 20
"""Seconds a request for messages may wait for one: SQS takes no more."""

LONGEST_DELAY: Final = 43_200
"""Seconds a message can be invisible, from when it was received: twelve hours."""

CONNECT: Final = 3.0
"""Seconds for a connection: beyond that the network is at fault."""

READ: Final = LONGEST_WAIT + 5.0
"""Seconds for an answer: the longest wait for a message, and some for the way."""

SENT: Final = 2
"""Times a request is sent before the caller is told: who polls tries again anyway, and must know
soon that it should do so more slowly."""

CONNECTIONS: Final = 50
"""Kept open for threads that call at the same time."""

FRESH: Final = 5.0
"""Seconds a client is kept at least: one that is refused is not made anew by every call."""

T = TypeVar("T")


class Queue:
    """One SQS queue. Safe in many threads, and after a fork."""

    def __init__(self, address: Address, client: Any = None, *, awaited: bool = True) -> None:
        self.name = address.name
        self.fifo = address.name.endswith(".fifo")
        self._address = address
        self._given = client
        self._awaited = awaited
        self._url = address.url
        self._client: Any = None
        self._made = 0.0
        self._process = os.getpid()
        self._lock = threading.Lock()

    @classmethod
    def from_uri(cls, uri: str, client: Any = None, *, awaited: bool = True) -> Queue:
        """`sqs://NAME?region=…&endpoint=…&profile=…`, or the queue's URL; asks nobody yet.

        A queue that is not there is `SourceUnavailable` to who waits for it, as a worker does; to
        who wants it now it is a `ConfigError`: then it is not `awaited`.
        """
        return cls(parse(uri), client, awaited=awaited)

    def __str__(self) -> str:
        return str(self._address)

    @property
    def client(self) -> Any:
        """The boto3 client to call now: yours if you gave one."""
        if self._given is not None:
            return self._given
        if self._process != os.getpid():
            # A connection used by two processes would give one the other's answers.
            self._client, self._lock, self._process = None, threading.Lock(), os.getpid()
        with self._lock:
            if self._client is None:
                self._client, self._made = _connected(self._address), time.monotonic()
            return self._client

    @property
    def url(self) -> str:
        """The queue's URL; the service is asked once, where only the name was given."""
        if not self._url:
            answer = self._called("get_queue_url", QueueName=self.name)
            if not answer.get("QueueUrl"):
                raise faults.strange("get_queue_url", self)
            self._url = str(answer["QueueUrl"])
        return self._url

    def receive(
        self,
        most: int = MOST,
        wait: int = LONGEST_WAIT,
        visibility: int | None = None,
        attributes: Sequence[str] | None = None,
    ) -> list[dict[str, Any]]:
        """Up to ten messages as the service gives them, waiting so many seconds for the first.

        With all that is known of them, the sender's attributes too; or, where that is too much,
        with no more than the system attributes named.
        """
        asked: dict[str, Any] = {
            "MaxNumberOfMessages": max(1, min(most, MOST)),
            "WaitTimeSeconds": max(0, min(wait, LONGEST_WAIT)),
        }
        if attributes is None:
            asked["MessageAttributeNames"] = attributes = ["All"]
        asked["MessageSystemAttributeNames"] = list(attributes)
        if visibility is not None:
            asked["VisibilityTimeout"] = _bounded(visibility)
        answer = self._called("receive_message", QueueUrl=self.url, **asked)
        messages: list[dict[str, Any]] = answer.get("Messages") or []
        if not messages and faults.is_page(answer):
            # An empty queue's answer is empty, too.
            raise faults.strange("receive_message", self)
        return messages

    def delete(self, receipts: Sequence[str]) -> list[str]:
        """Forget these messages; answers the receipts that were refused."""
        entries = [{"ReceiptHandle": receipt} for receipt in receipts]
        return self._refused("delete_message_batch", entries)

    def delay(self, receipts: Sequence[tuple[str, float]]) -> list[str]:
        """Show each of these messages again after so many seconds; answers those refused."""
        entries = [
            {"ReceiptHandle": receipt, "VisibilityTimeout": _bounded(seconds)}
            for receipt, seconds in receipts
        ]
        return self._refused("change_message_visibility_batch", entries)

    def send(self, entries: Iterable[Entry]) -> list[Refused]:
        """Send all of them, in their order; answers what was refused.

        On `SourceUnavailable` some may have been sent: sending again may make copies.
        """
        refused: list[Refused] = []
        for batch in batches(entries):
            refused += self._sent(batch)
        return refused

    def close(self) -> None:
        """Let go of connections, where the client is our own."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _refused(self, operation: str, entries: Sequence[dict[str, Any]]) -> list[str]:
        refused: list[str] = []
        for start in range(0, len(entries), MOST):
            some = entries[start : start + MOST]
            numbered = [{"Id": str(number), **entry} for number, entry in enumerate(some)]
            answer = self._called(operation, QueueUrl=self.url, Entries=numbered)
            taken = {one.get("Id") for one in answer.get("Successful") or ()}
            refused += [
                entry["ReceiptHandle"]
                for number, entry in enumerate(some)
                if str(number) not in taken
            ]
        return refused

    def _sent(self, batch: Sequence[Entry]) -> list[Refused]:
        if len(batch) == 1 and size(batch[0]) > LARGEST:
            reason = f"{size(batch[0])} bytes, a message has at most {LARGEST}"
            return [Refused(batch[0], "TooLarge", reason)]
        entries = [packed(number, entry) for number, entry in enumerate(batch)]
        try:
            answer = self._called("send_message_batch", QueueUrl=self.url, Entries=entries)
        except (ConfigError, SourceUnavailable):
            raise
        except EventonceError as error:
            # Refused as a whole for what stands in one of them: which one, they show alone.
            if len(batch) > 1:
                return [refused for entry in batch for refused in self._sent([entry])]
            return [Refused(batch[0], faults.code_of(_cause(error)), str(error))]
        sent = {one.get("Id") for one in answer.get("Successful") or () if one.get("MessageId")}
        failed = {one.get("Id"): one for one in answer.get("Failed") or ()}
        return [
            _not_sent(entry, failed.get(str(number)))
            for number, entry in enumerate(batch)
            if str(number) not in sent
        ]

    def _called(self, operation: str, **asked: Any) -> dict[str, Any]:
        client = self.client
        try:
            answer: dict[str, Any] = getattr(client, operation)(**asked)
        except Exception as error:
            self._doubt(client, error)
            raise faults.explain(error, self, awaited=self._awaited) from error
        return answer

    def _doubt(self, client: Any, error: Exception) -> None:
        """Forget what may be out of date: an address, or credentials read from a file long ago."""
        code = faults.code_of(error)
        if code in faults.ABSENT:
            self._url = self._address.url
        if code in faults.STALE or type(error).__name__ in faults.LACKING:
            with self._lock:
                old = time.monotonic() - self._made > FRESH
                if self._client is client and old:
                    self._client = None


def _cause(error: EventonceError) -> Exception:
    return error.__cause__ if isinstance(error.__cause__, Exception) else error


def _not_sent(entry: Entry, failed: dict[str, Any] | None) -> Refused:
    """A message without a receipt was not sent, whatever else the answer says."""
    if failed is None:
        return Refused(entry, "NoReceipt", "the answer has no MessageId for it", again=True)
    return Refused(
        entry,
        str(failed.get("Code", "")),
        str(failed.get("Message", "")),
        again=not failed.get("SenderFault", False),
    )


def _bounded(seconds: float) -> int:
    return max(0, min(int(seconds), LONGEST_DELAY))


def _connected(address: Address) -> Any:
    try:
        import boto3  # noqa: PLC0415  slow to import, and only needed by who has a queue
        import botocore  # noqa: PLC0415  likewise
        from botocore.config import Config  # noqa: PLC0415  likewise
    except ModuleNotFoundError as error:
        raise ConfigError('An SQS queue needs: pip install "eventonce[sqs]"') from error
    config = Config(
        connect_timeout=CONNECT,
        read_timeout=READ,
        retries={"mode": "standard", "total_max_attempts": SENT},
        max_pool_connections=CONNECTIONS,
        # What we send is always of the same shape, and looking at it again takes its time; so does
        # putting a name together for every request.
        parameter_validation=False,
        user_agent=f"eventonce Botocore/{botocore.__version__}",
    )
    try:
        # A session of its own: boto3's default one must not be shared between threads.
        session = boto3.Session(profile_name=address.profile, region_name=address.region)
        return session.client("sqs", endpoint_url=address.endpoint, config=config)
    except Exception as error:
        raise faults.explain(error, address) from error
