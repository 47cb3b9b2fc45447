"""SQS: one queue, by its name or its URL, with the verbs receive, delete, delay and send."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from eventonce.aws import errors
from eventonce.aws.limits import (
    SQS_BATCH_BYTES,
    SQS_BATCH_ENTRIES,
    SQS_VISIBILITY_SECONDS,
    SQS_WAIT_SECONDS,
    Refused,
    batches,
)
from eventonce.aws.sessions import Access, Client
from eventonce.core.masking import masked, split
from eventonce.errors import ConfigError, EventonceError, SourceUnavailable

SQS_READ_TIMEOUT: Final = SQS_WAIT_SECONDS + 5.0
"""Seconds to wait for an answer: the longest wait for a message, and some for the network."""

SQS_ATTEMPTS: Final = 2
"""Attempts of one request before the error is raised: a worker polls again anyway, and must know
soon that it should poll more slowly."""

SQS_UNFIT: Final = frozenset(
    ("BatchRequestTooLong", "InvalidMessageContents", "InvalidParameterValue")
)
"""The last parts of error codes that are about the message itself; some codes have a prefix."""

SCHEMES: Final = ("sqs", "https", "http")
"""The schemes of the URI of a queue."""

_QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
_AMAZONS: Final = re.compile(
    r"(?:sqs|queue)(?:-fips)?\.(?P<region>[a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|api\.aws)"
    r"|(?P<older>[a-z0-9-]+)\.queue\.amazonaws\.com(?:\.cn)?"
    r"|queue\.amazonaws\.com"
)
_MESSAGE: Final = ("MessageId", "ReceiptHandle", "Body")
"""The fields that every message has."""


class Address(msgspec.Struct, frozen=True):
    """The address of a queue: all parts of its URI."""

    name: str
    url: str = ""
    """The URL; empty if only the name is known: then SQS is asked for it."""
    access: Access = Access()

    @property
    def account(self) -> str:
        """The account of the queue; empty without a URL."""
        path = urlsplit(self.url).path.split("/")
        return path[-2] if len(path) > 2 else ""

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.access.region, self.access.endpoint) if part)
        return f"SQS queue {self.name}" + (f" ({where})" if where else "")


def parse(uri: str) -> Address:
    """Return the address of `sqs://NAME?region=…&endpoint=…&profile=…`, or of the queue's URL with
    the same options."""
    parts = split(uri)
    if parts.scheme not in SCHEMES or "@" in parts.netloc or not parts.netloc:
        raise ConfigError(
            f"queue: {masked(uri)!r} is not the URI of a queue; write sqs://NAME?region=REGION, or "
            "the URL of the queue. Credentials do not belong in it: they come from the role, the "
            "profile or the environment."
        )
    name = unquote(parts.netloc if parts.scheme == "sqs" else parts.path.rpartition("/")[2])
    if not _QUEUE_NAME.fullmatch(name) or (parts.scheme == "sqs" and parts.path not in ("", "/")):
        raise ConfigError(
            f"queue {masked(uri)!r}: write sqs://NAME?region=REGION, or the queue's URL; a name "
            f"has 1 to 80 letters, digits, '-' and '_', and may end with .fifo"
        )
    access = Access.from_query(parts.query, f"queue {name}")
    if parts.scheme == "sqs":
        return Address(name, access=access)
    amazons = _AMAZONS.fullmatch(parts.hostname or "")
    if amazons is None:
        of_url = Access(endpoint=f"{parts.scheme}://{parts.netloc}")
    else:
        of_url = Access(amazons["region"] or amazons["older"] or "us-east-1")
    return Address(name, uri.partition("?")[0], access.over(of_url))


def same(one: Address, other: Address) -> bool:
    """Whether both may be the same queue: an option that only one address has is not compared,
    because the default of the other may be the same."""
    said = zip(_where(one), _where(other), strict=True)
    return one.name == other.name and all(ours == its for ours, its in said if ours and its)


def _where(address: Address) -> tuple[str, ...]:
    access = address.access
    endpoint = (access.endpoint or "").rstrip("/").lower()
    return (access.region or "", endpoint, address.account, access.profile or "")


def uri_of_arn(arn: str) -> str:
    """Return the URL of the queue with this ARN."""
    parts = arn.split(":")
    if len(parts) != 6 or parts[2] != "sqs":
        raise ConfigError(f"{arn!r} is not the ARN of a queue")
    _, partition, _, region, account, name = parts
    domain = "amazonaws.com.cn" if partition == "aws-cn" else "amazonaws.com"
    return f"https://sqs.{region}.{domain}/{account}/{name}"


class Entry(msgspec.Struct, frozen=True):
    """One message to send."""

    body: str
    attributes: Mapping[str, str] = {}
    """Text attributes; an empty value is left out, because SQS refuses it."""
    group: str = ""
    """The message group: needed on a FIFO queue, for fairness on others."""
    deduplication: str = ""
    """The deduplication id on a FIFO queue: SQS accepts a second message with the same id within
    five minutes, and does not deliver it."""

    @property
    def size(self) -> int:
        """The bytes as SQS counts them: the body, and each attribute's name, type and value."""
        attributes = sum(
            len(name.encode()) + len("String") + len(value.encode())
            for name, value in self.attributes.items()
        )
        return len(self.body.encode("utf-8", "surrogatepass")) + attributes

    def request(self, number: int) -> dict[str, Any]:
        """Return the entry in the form of a request."""
        said: dict[str, Any] = {"Id": str(number), "MessageBody": self.body}
        if self.attributes:
            said["MessageAttributes"] = {
                name: {"DataType": "String", "StringValue": value}
                for name, value in self.attributes.items()
                if value
            }
        if self.group:
            said["MessageGroupId"] = self.group
        if self.deduplication:
            said["MessageDeduplicationId"] = self.deduplication
        return said


class Queue:
    """One SQS queue; safe in threads and after a fork."""

    def __init__(self, address: Address, client: Any = None, *, awaited: bool = True) -> None:
        self.name = address.name
        self.fifo = address.name.endswith(".fifo")
        self._address = address
        self._url = address.url

        def make() -> Any:
            # Imported here: it loads an HTTP client, which reading a URI does not need.
            from eventonce.aws.sqs_client import connect_sqs  # noqa: PLC0415

            return connect_sqs(address.access, read_timeout=SQS_READ_TIMEOUT, attempts=SQS_ATTEMPTS)

        explain = partial(errors.explain, place=address, noun="queue", awaited=awaited)
        self._client = Client(make, explain, client)

    @classmethod
    def from_uri(cls, uri: str, client: Any = None, *, awaited: bool = True) -> Queue:
        """Return the queue of `sqs://NAME?region=…&endpoint=…&profile=…`, or of the queue's URL;
        sends no request yet.

        A missing queue is `SourceUnavailable` if it is `awaited`, as by a worker; otherwise it is a
        `ConfigError`.
        """
        return cls(parse(uri), client, awaited=awaited)

    def __str__(self) -> str:
        return str(self._address)

    @property
    def client(self) -> Any:
        """The client in use: yours if you gave one."""
        return self._client.current

    @property
    def url(self) -> str:
        """The queue's URL; SQS is asked once, if only the name was given."""
        if not self._url:
            answer = self._called("get_queue_url", QueueName=self.name)
            if not answer.get("QueueUrl"):
                raise errors.strange("get_queue_url", self)
            self._url = str(answer["QueueUrl"])
        return self._url

    def receive(
        self,
        most: int = SQS_BATCH_ENTRIES,
        wait: int = SQS_WAIT_SECONDS,
        visibility: int | None = None,
        attributes: Sequence[str] | None = None,
        sent: Sequence[str] = (),
    ) -> list[dict[str, Any]]:
        """Return up to ten messages in the form of SQS, after up to `wait` seconds for the first.

        Messages have all their attributes; or, if `attributes` is given, only these system
        attributes, and those of `sent` that the sender set.
        """
        asked: dict[str, Any] = {
            "MaxNumberOfMessages": max(1, min(most, SQS_BATCH_ENTRIES)),
            "WaitTimeSeconds": max(0, min(wait, SQS_WAIT_SECONDS)),
        }
        if attributes is None:
            attributes = sent = ["All"]
        asked["MessageSystemAttributeNames"] = list(attributes)
        if sent:
            asked["MessageAttributeNames"] = list(sent)
        if visibility is not None:
            asked["VisibilityTimeout"] = _bounded(visibility)
        answer = self._called("receive_message", QueueUrl=self.url, **asked)
        messages: list[dict[str, Any]] = answer.get("Messages") or []
        # The answer of an empty queue has no messages either, but is not a page.
        page = not messages and errors.is_page(answer)
        if page or not all(isinstance(it.get(name), str) for it in messages for name in _MESSAGE):
            raise errors.strange("receive_message", self)
        return messages

    def delete(self, receipts: Sequence[str]) -> list[str]:
        """Delete these messages; return the receipts that were refused."""
        entries = [{"ReceiptHandle": receipt} for receipt in receipts]
        return self._refused("delete_message_batch", entries)

    def delay(self, receipts: Sequence[tuple[str, float]]) -> list[str]:
        """Make each message visible after its seconds; return the receipts that were refused."""
        entries = [
            {"ReceiptHandle": receipt, "VisibilityTimeout": _bounded(seconds)}
            for receipt, seconds in receipts
        ]
        return self._refused("change_message_visibility_batch", entries)

    def send(self, entries: Iterable[Entry]) -> list[Refused[Entry]]:
        """Send all entries in order; return the refused ones.

        After `SourceUnavailable`, some may have been sent: sending again may make copies.
        """
        refused: list[Refused[Entry]] = []
        for batch in batches(
            entries, SQS_BATCH_ENTRIES, size=lambda it: it.size, most_bytes=SQS_BATCH_BYTES
        ):
            refused += self._sent(batch)
        return refused

    def in_flight(self) -> int:
        """Return the approximate number of messages in flight: received, and not yet deleted."""
        names = ["ApproximateNumberOfMessagesNotVisible"]
        answer = self._called("get_queue_attributes", QueueUrl=self.url, AttributeNames=names)
        told = (answer.get("Attributes") or {}).get(names[0], "")
        if not str(told).isdecimal():
            raise errors.strange("get_queue_attributes", self)
        return int(told)

    def close(self) -> None:
        """Close the connections, unless the client is yours."""
        self._client.close()

    def _refused(self, operation: str, entries: Sequence[dict[str, Any]]) -> list[str]:
        refused: list[str] = []
        for some in batches(entries, SQS_BATCH_ENTRIES):
            numbered = [{"Id": str(number), **entry} for number, entry in enumerate(some)]
            answer = self._called(operation, QueueUrl=self.url, Entries=numbered)
            taken = {one.get("Id") for one in answer.get("Successful") or ()}
            refused += [one["ReceiptHandle"] for one in numbered if one["Id"] not in taken]
        return refused

    def _sent(self, batch: Sequence[Entry]) -> list[Refused[Entry]]:
        if len(batch) == 1 and batch[0].size > SQS_BATCH_BYTES:
            reason = f"{batch[0].size} bytes, a message has at most {SQS_BATCH_BYTES}"
            return [Refused(batch[0], "TooLarge", reason, unfit=True)]
        entries = [entry.request(number) for number, entry in enumerate(batch)]
        try:
            answer = self._called("send_message_batch", QueueUrl=self.url, Entries=entries)
        except (ConfigError, SourceUnavailable):
            raise
        except EventonceError as error:
            # One message makes SQS refuse the whole request: sending each alone finds it.
            if len(batch) > 1:
                return [refused for entry in batch for refused in self._sent([entry])]
            code = errors.code_of(error.__cause__ or error)
            return [Refused(batch[0], code, str(error), unfit=_is_unfit(code))]
        sent = {one.get("Id") for one in answer.get("Successful") or () if one.get("MessageId")}
        failed = {one.get("Id"): one for one in answer.get("Failed") or ()}
        return [
            _not_sent(entry, failed.get(str(number)))
            for number, entry in enumerate(batch)
            if str(number) not in sent
        ]

    def _called(self, operation: str, **asked: Any) -> dict[str, Any]:
        try:
            return self._client.call(operation, **asked)
        except EventonceError as error:
            if errors.kind_of(error.__cause__ or error) == "absent":
                # The URL may be out of date: the queue may be created again in another account.
                self._url = self._address.url
            raise


def _not_sent(entry: Entry, failed: dict[str, Any] | None) -> Refused[Entry]:
    """Return the refusal of an entry that the answer gives no message id for."""
    if failed is None:
        return Refused(entry, "NoReceipt", "the answer has no MessageId for it", again=True)
    code, again = str(failed.get("Code", "")), not failed.get("SenderFault", False)
    unfit = not again and _is_unfit(code)
    return Refused(entry, code, str(failed.get("Message", "")), again=again, unfit=unfit)


def _is_unfit(code: str) -> bool:
    return code.rpartition(".")[2] in SQS_UNFIT


def _bounded(seconds: float) -> int:
    return max(0, min(int(seconds), SQS_VISIBILITY_SECONDS))
