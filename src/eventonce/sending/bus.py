"""To an EventBridge bus: as many entries as one request carries, and what it refuses of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from eventonce.aws import errors as faults
from eventonce.envelope import read
from eventonce.errors import ConfigError, EnvelopeError
from eventonce.sending.retry import TRIES, attempts
from eventonce.sending.sender import NOT_AN_EVENT, Outgoing, Refusal
from eventonce.sinks.bus import NO_RECEIPT, EventBus, receipts

LARGEST: Final = 1_000_000
"""Bytes of all entries in one request: EventBridge takes one MB, and of the two that are called so
this is the smaller. Until 2026 it took 256 KB."""

PASSING: Final = frozenset(
    ("InternalException", "InternalFailure", "ThrottlingException", NO_RECEIPT)
)
"""Why an entry may be refused now and taken a moment later."""

RESERVED: Final = "NotAuthorizedForSourceException"
HINT: Final = (
    "A source that begins with aws. is Amazon's or a partner's own, and nobody else can put it on "
    "a bus. Give another, such as --source com.example.trial, and let the rule match that too"
)

Entry = tuple[Outgoing, dict[str, Any]]


class Bus:
    """Puts events on a bus, with their own source, type, time, resources and detail."""

    def __init__(
        self,
        name: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        source: str = "",
        type: str = "",
    ) -> None:
        self.name = name
        self._source = source
        self._type = type
        # What an event is on a bus is the sink's to say.
        self._sink = EventBus(f"events://{name}")
        self._client = _client(self, region, endpoint)
        _look(self._client, self)

    def __str__(self) -> str:
        return f"EventBridge bus {self.name}"

    def __call__(self, going: Sequence[Outgoing], answers: Counter[str]) -> list[Refusal]:
        """Put these; answers which were refused, each with the service's code."""
        refusals: list[Refusal] = []
        entries: list[Entry] = []
        for outgoing in going:
            try:
                entries.append((outgoing, self._entry(outgoing)))
            except EnvelopeError as error:
                refusals.append(Refusal.of(outgoing, NOT_AN_EVENT, str(error)))
        for request in _requests(entries):
            refusals += self._put(request)
        answers.update(refusal.code for refusal in refusals)
        return refusals

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()

    def _entry(self, outgoing: Outgoing) -> dict[str, Any]:
        event = read(outgoing.raw)
        entry = self._sink.entry(event)
        if not entry["Detail"].lstrip().startswith("{"):
            raise EnvelopeError("its detail is no JSON object, which is what EventBridge takes")
        entry["Source"] = self._source or event.source or entry["Source"]
        entry["DetailType"] = self._type or entry["DetailType"]
        return entry

    def _put(self, entries: Sequence[Entry]) -> list[Refusal]:
        refusals: list[Refusal] = []
        left = list(entries)
        for last in attempts():
            try:
                answer = self._client.put_events(Entries=[entry for _, entry in left])
            except Exception as error:
                if faults.code_of(error) != "ValidationException":
                    raise faults.explain(error, self) from error
                # Refused as a whole for what one of them is: which one, they show alone.
                if len(left) > 1:
                    return refusals + [it for one in left for it in self._put([one])]
                return [*refusals, Refusal.of(left[0][0], "ValidationException", _said(error))]
            told, asked, left = receipts(answer, len(left)), left, []
            for one, entry in zip(asked, told, strict=True):
                if entry.get("EventId"):
                    continue
                code = entry.get("ErrorCode") or NO_RECEIPT
                if code in PASSING and not last:
                    left.append(one)
                else:
                    refusals.append(Refusal.of(one[0], code, _reason(entry)))
            if not left:
                break
        return refusals


def _reason(entry: dict[str, Any]) -> str:
    said = str(entry.get("ErrorMessage", ""))
    return f"{said} {HINT}" if entry.get("ErrorCode") == RESERVED else said


def _said(error: Any) -> str:
    return str(error.response["Error"].get("Message", ""))


def _requests(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """As many together as one request may carry; how many there are `copies` has seen to."""
    some: list[Entry] = []
    total = 0
    for one in entries:
        size = _size(one[1])
        if some and total + size > LARGEST:
            yield some
            some, total = [], 0
        some.append(one)
        total += size
    if some:
        yield some


def _size(entry: dict[str, Any]) -> int:
    """As EventBridge counts it: 14 bytes for a time, and the texts."""
    texts = [entry["Source"], entry["DetailType"], entry["Detail"], *entry.get("Resources", ())]
    return sum(len(text.encode()) for text in texts) + (14 if "Time" in entry else 0)


def _client(bus: Bus, region: str | None, endpoint: str | None) -> Any:
    try:
        import boto3  # noqa: PLC0415  slow to import, and only needed by who has a bus
        from botocore.config import Config  # noqa: PLC0415  likewise
        from botocore.exceptions import NoRegionError  # noqa: PLC0415  likewise
    except ModuleNotFoundError as error:
        raise ConfigError('eventonce send --bus needs: pip install "eventonce[sqs]"') from error
    retries = {"mode": "standard", "total_max_attempts": TRIES}
    config = Config(connect_timeout=3.0, read_timeout=10.0, retries=retries)
    try:
        session = boto3.Session(region_name=region)
        return session.client("events", endpoint_url=endpoint, config=config)
    except NoRegionError as error:
        raise ConfigError(f"{bus}: which region? Give --region, or set AWS_REGION") from error
    except Exception as error:
        raise faults.explain(error, bus) from error


def _look(client: Any, bus: Bus) -> None:
    """EventBridge says yes to events for a bus that is not there, and they are gone."""
    try:
        client.describe_event_bus(Name=bus.name)
    except Exception as error:
        code = faults.code_of(error)
        if code == "ResourceNotFoundException":
            raise ConfigError(
                f"{bus}: there is no such bus for these credentials. Look at its name, region and "
                f"account, or make it: eventonce infra apply --bus {bus.name}"
            ) from error
        if code not in ("AccessDenied", "AccessDeniedException"):
            raise faults.explain(error, bus) from error
