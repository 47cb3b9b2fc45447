"""EventBridge: one bus, by its name or ARN, and the entries that are put on the bus."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from eventonce.aws import errors
from eventonce.aws.limits import (
    EVENTBRIDGE_BATCH_BYTES,
    EVENTBRIDGE_BATCH_ENTRIES,
    EVENTBRIDGE_ENTRY_BYTES,
    Refused,
    batches,
)
from eventonce.aws.sessions import Access, Client, connect
from eventonce.core.masking import masked, split
from eventonce.errors import ConfigError, EventonceError
from eventonce.rules.instants import LATEST, instant
from eventonce.types import Event

EVENTBRIDGE_READ_TIMEOUT: Final = 5.0
"""Seconds to wait for an answer, which usually takes milliseconds."""

EVENTBRIDGE_ATTEMPTS: Final = 2
"""Attempts of one request before the error is raised."""

EVENTBRIDGE_UNFIT: Final = frozenset(
    (
        "InvalidArgument",
        "MalformedDetail",
        "NotAuthorizedForDetailTypeException",
        "NotAuthorizedForSourceException",
    )
)
"""The refusals that are about the event itself: a retry does not help."""

NO_RECEIPT: Final = "NoReceipt"
"""The code of an entry that the answer does not mention."""

RESERVED: Final = "aws."
"""The prefix of sources that EventBridge reserves for AWS and its partners."""

_BUS_NAME: Final = re.compile(r"[A-Za-z0-9/_.:-]{1,256}")
"""A name, or the ARN of a bus of another account."""

Entry = dict[str, Any]
"""An entry of PutEvents."""


def parse(uri: str) -> tuple[str, Access]:
    """Return the name and the access of `events://BUS?region=…&endpoint=…&profile=…`."""
    parts = split(uri)
    name = unquote(parts.netloc + parts.path).rstrip("/")
    if parts.scheme != "events" or not _BUS_NAME.fullmatch(name):
        raise ConfigError(
            f"EventBus: {masked(uri)!r} is not the URI of a bus; write "
            "events://BUS?region=REGION, without a user or a password"
        )
    return name, Access.from_query(parts.query, "EventBus")


class _Envelope(msgspec.Struct):
    resources: list[str] = []


class Bus:
    """One bus; safe in threads and after a fork."""

    def __init__(
        self, name: str, access: Access, client: Any = None, *, awaited: bool = True
    ) -> None:
        """A missing bus is `SourceUnavailable` if it is `awaited`, and otherwise a `ConfigError`.
        With a client of your own, the bus is not checked."""
        if not _BUS_NAME.fullmatch(name):
            raise ConfigError(
                "EventBridge: the name of a bus has 1 to 256 of A-Z a-z 0-9 / _ . : -"
            )
        self.name = name
        self._access = access
        explain = partial(errors.explain, place=self, noun="bus", awaited=awaited)
        self._client = Client(self._connected, explain, client)

    @classmethod
    def from_uri(cls, uri: str, client: Any = None, *, awaited: bool = True) -> Bus:
        """Return the bus of this URI; sends no request yet."""
        return cls(*parse(uri), client, awaited=awaited)

    def __str__(self) -> str:
        return f"EventBridge bus {self.name}"

    @property
    def client(self) -> Any:
        """The client in use: yours if you gave one."""
        return self._client.current

    def entry(self, event: Event) -> Entry:
        """Return the entry of this event, with its source, type, time, resources and detail."""
        source = event.source or "eventonce"
        entry: Entry = {
            "Source": f"eventonce/{source}" if source.startswith(RESERVED) else source,
            "DetailType": event.type or "event",
            "Detail": bytes(event.detail_raw).decode(),
            "EventBusName": self.name,
        }
        at = instant(event.time)
        if at is not None and 0 <= at <= LATEST:
            entry["Time"] = datetime.fromtimestamp(at / 1000, UTC)
        resources = _resources(event)
        if resources:
            entry["Resources"] = resources
        return entry

    def send(self, entries: Iterable[Entry]) -> list[Refused[Entry]]:
        """Put all entries in order; return the refused ones."""
        refused: list[Refused[Entry]] = []
        for batch in batches(
            entries, EVENTBRIDGE_BATCH_ENTRIES, size=_size, most_bytes=EVENTBRIDGE_BATCH_BYTES
        ):
            refused += self._put(batch)
        return refused

    def close(self) -> None:
        """Close the connections, unless the client is yours."""
        self._client.close()

    def _put(self, batch: Sequence[Entry]) -> list[Refused[Entry]]:
        size = sum(map(_size, batch))
        if len(batch) == 1 and size > EVENTBRIDGE_ENTRY_BYTES:
            reason = f"{size} bytes, an event has at most {EVENTBRIDGE_ENTRY_BYTES}"
            return [Refused(batch[0], "TooLarge", reason, unfit=True)]
        try:
            answer = self._client.call("put_events", Entries=list(batch))
        except EventonceError as error:
            cause = error.__cause__ or error
            if errors.code_of(cause) != "ValidationException":
                raise
            # One entry makes EventBridge refuse the whole request: putting each alone finds it.
            if len(batch) > 1:
                return [refused for entry in batch for refused in self._put([entry])]
            reason = errors.message_of(cause)
            return [Refused(batch[0], "ValidationException", reason, unfit="size" in reason)]
        return [
            _refused(entry, told)
            for entry, told in zip(batch, _receipts(answer, len(batch)), strict=True)
            if not told.get("EventId")
        ]

    def _connected(self) -> Any:
        client = connect(
            "events",
            self._access,
            read_timeout=EVENTBRIDGE_READ_TIMEOUT,
            attempts=EVENTBRIDGE_ATTEMPTS,
        )
        try:
            # EventBridge accepts events for a bus that does not exist, and drops them.
            client.describe_event_bus(Name=self.name)
        except Exception as error:
            if errors.kind_of(error) != "denied":
                raise
        return client


def _receipts(answer: Any, asked: int) -> list[dict[str, Any]]:
    """Return the result of each entry: its `EventId`, or the error.

    An answer without a result for each entry is not from the service, and no entry counts as put.
    """
    told = answer.get("Entries")
    if not isinstance(told, list) or len(told) != asked:
        said = "the answer is not from EventBridge"
        return [{"ErrorCode": NO_RECEIPT, "ErrorMessage": said}] * asked
    return told


def _refused(entry: Entry, told: dict[str, Any]) -> Refused[Entry]:
    code = str(told.get("ErrorCode") or NO_RECEIPT)
    again = code == NO_RECEIPT or errors.kind_of_code(code) == "busy"
    reason = str(told.get("ErrorMessage", ""))
    return Refused(entry, code, reason, again=again, unfit=code in EVENTBRIDGE_UNFIT)


def _size(entry: Entry) -> int:
    """Return the bytes as EventBridge counts them: 14 for a time, and the texts."""
    texts = [entry["Source"], entry["DetailType"], entry["Detail"], *entry.get("Resources", ())]
    return sum(len(text.encode()) for text in texts) + (14 if "Time" in entry else 0)


def _resources(event: Event) -> list[str]:
    if event.form != "eventbridge":
        return []
    try:
        return msgspec.json.decode(event.envelope_raw or event.raw, type=_Envelope).resources
    except msgspec.MsgspecError:
        return []
