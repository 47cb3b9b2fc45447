"""The EventBridge bus: the event put on it again, its source, type, time and detail kept."""

from __future__ import annotations

import os
import re
import threading
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from eventonce.aws import errors as faults
from eventonce.errors import ConfigError, EventonceError, Reject, Retry, SourceUnavailable
from eventonce.rules.instants import LATEST, instant
from eventonce.types import Event, Job

LARGEST: Final = 1 << 20
"""Bytes of one entry: EventBridge takes no more."""

TIMEOUT: Final = 5.0
"""Seconds for one answer, which takes milliseconds."""

SENT: Final = 2
"""Times a request is sent before the event is tried again later."""

UNFIT: Final = frozenset(
    (
        "InvalidArgument",
        "MalformedDetail",
        "NotAuthorizedForDetailTypeException",
        "NotAuthorizedForSourceException",
    )
)
"""The refusals that are about the event itself, and stay so however often it is put."""

NO_RECEIPT: Final = "NoReceipt"
"""The code of an entry that the answer does not speak of."""

RESERVED: Final = "aws."
"""EventBridge takes no source that begins like this from anyone but itself and its partners."""

OPTIONS: Final = ("region", "endpoint", "profile")
_NAME: Final = re.compile(r"[A-Za-z0-9/_.:-]{1,256}")
"""A name, or the ARN of a bus of another account."""
_ENDPOINT: Final = re.compile(r"https?://[^@\s]*")


class _Envelope(msgspec.Struct):
    resources: list[str] = []


class EventBus:
    """Puts each event on a bus.

    At least once, and the bus gives every copy a new id: whoever reads it must know copies by what
    the event says, as eventonce's rules do. Let no rule of that bus bring the event back here.
    """

    def __init__(self, uri: str, *, source: str = "", client: Any = None) -> None:
        try:
            parts = urlsplit(uri)
        except ValueError:
            parts = urlsplit("")
        self.name = unquote(parts.netloc + parts.path).rstrip("/")
        self._options = dict(parse_qsl(parts.query, keep_blank_values=True))
        unknown = sorted(self._options.keys() - set(OPTIONS))
        if parts.scheme != "events" or not _NAME.fullmatch(self.name) or unknown:
            raise ConfigError(
                "EventBus: write events://BUS?region=REGION; a bus takes "
                f"{', '.join(OPTIONS)}, and no user or password"
            )
        if not _ENDPOINT.fullmatch(self._options.get("endpoint", "https://")):
            raise ConfigError(
                "EventBus: the endpoint must be like http://127.0.0.1:4566, with no user or "
                "password in it"
            )
        if source.startswith(RESERVED):
            raise ConfigError(f"EventBus: EventBridge takes no source that begins with {RESERVED}")
        self._source = source
        self._given = client
        self._client: Any = None
        self._process = os.getpid()
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return f"EventBridge bus {self.name}"

    def __call__(self, job: Job) -> None:
        """Put the event on the bus; raises where it was not taken."""
        entry = self.entry(job.event)
        size = _size(entry)
        if size > LARGEST:
            raise Reject(f"{self}: {size} bytes, an event has at most {LARGEST}")
        try:
            answer = self._connected().put_events(Entries=[entry])
        except EventonceError:
            raise
        except Exception as error:
            if faults.code_of(error) == "ValidationException" and "size" in str(error):
                raise Reject(f"{self}: {size} bytes: {error}") from error
            raise faults.explain(error, self) from error
        (told,) = receipts(answer, 1)
        if not told.get("EventId"):
            code = str(told.get("ErrorCode") or NO_RECEIPT)
            said = f"{self}: {code}: {told.get('ErrorMessage', '')}"
            raise Reject(said) if code in UNFIT else Retry(said)

    def close(self) -> None:
        """Let go of connections, where the client is our own."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def entry(self, event: Event) -> dict[str, Any]:
        """What is put on the bus for this event."""
        source = self._source or event.source or "eventonce"
        if source.startswith(RESERVED):
            source = f"eventonce/{source}"
        entry: dict[str, Any] = {
            "Source": source,
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

    def _connected(self) -> Any:
        if self._given is not None:
            return self._given
        if self._process != os.getpid():
            # A connection used by two processes would give one the other's answers.
            self._client, self._lock, self._process = None, threading.Lock(), os.getpid()
        with self._lock:
            if self._client is None:
                self._client = self._made()
            return self._client

    def _made(self) -> Any:
        try:
            import boto3  # noqa: PLC0415  slow to import, and only needed by who has a bus
            from botocore.config import Config  # noqa: PLC0415  likewise
        except ModuleNotFoundError as error:
            raise ConfigError('EventBus needs: pip install "eventonce[sqs]"') from error
        config = Config(
            connect_timeout=TIMEOUT,
            read_timeout=TIMEOUT,
            retries={"mode": "standard", "total_max_attempts": SENT},
            max_pool_connections=50,
        )
        region, endpoint, profile = (self._options.get(name) for name in OPTIONS)
        try:
            # A session of its own: boto3's default one must not be shared between threads.
            session = boto3.Session(profile_name=profile, region_name=region)
            client = session.client("events", endpoint_url=endpoint, config=config)
            self._look(client)
        except EventonceError:
            raise
        except Exception as error:
            if type(error).__name__ == "NoRegionError":
                raise ConfigError(
                    f"{self}: name the region, such as events://{self.name}?region=eu-central-1, "
                    f"or set AWS_REGION"
                ) from error
            raise faults.explain(error, self) from error
        return client

    def _look(self, client: Any) -> None:
        """EventBridge says yes to events for a bus that is not there, and they are gone."""
        try:
            client.describe_event_bus(Name=self.name)
        except client.exceptions.ResourceNotFoundException as error:
            raise SourceUnavailable(
                f"{self}: there is no such bus for these credentials. Look at its name, region and "
                f"account; nothing was put on it."
            ) from error
        except client.exceptions.ClientError as error:
            if faults.code_of(error) not in ("AccessDenied", "AccessDeniedException"):
                raise


def receipts(answer: Any, asked: int) -> list[dict[str, Any]]:
    """What the bus says of each entry: the `EventId` of one that it took, or why it did not.

    An answer that does not speak of all of them is not the service's, and says nothing of any.
    """
    told = answer.get("Entries")
    if not isinstance(told, list) or len(told) != asked:
        said = "the answer is not EventBridge's"
        return [{"ErrorCode": NO_RECEIPT, "ErrorMessage": said}] * asked
    return told


def _size(entry: dict[str, Any]) -> int:
    """As EventBridge counts it: 14 bytes for a time, and the texts."""
    texts = [entry["Source"], entry["DetailType"], entry["Detail"], *entry.get("Resources", ())]
    return sum(len(text.encode()) for text in texts) + (14 if "Time" in entry else 0)


def _resources(event: Event) -> list[str]:
    if event.form != "eventbridge":
        return []
    try:
        return msgspec.json.decode(event.envelope_raw or event.raw, type=_Envelope).resources
    except msgspec.MsgspecError:
        return []
