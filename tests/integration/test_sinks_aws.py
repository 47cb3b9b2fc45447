"""Queues and buses as sinks, against an emulator that speaks their protocol."""

from __future__ import annotations

from typing import Any

import boto3
import msgspec
import pytest

from eventonce import Consumer, Job, Retry, Rule
from eventonce.aws.sqs import Queue
from eventonce.errors import SourceUnavailable
from eventonce.sinks import EventBus, SQSQueue
from eventonce.stores.memory import MemoryStore
from eventonce.types import Outcome
from tests.helpers import call, statuses
from tests.servers import free_port

CALL = Rule(name="call", match="call", key=["detail.call"])
AGENT = Rule(name="agent", match="agent", subject=["detail.agent"], order="detail.version")


@pytest.fixture(scope="module")
def events(endpoint: str) -> Any:
    return boto3.client("events", endpoint_url=endpoint)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"q{abs(hash(request.node.name))}"


def made(endpoint: str, name: str) -> str:
    """A queue of this name; its URI."""
    fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    boto3.client("sqs", endpoint_url=endpoint).create_queue(QueueName=name, Attributes=fifo)
    return f"sqs://{name}?endpoint={endpoint}"


def received(uri: str) -> list[dict[str, Any]]:
    """All messages of the queue, in its order; the first message may take a while to arrive."""
    queue = Queue.from_uri(uri)
    messages = queue.receive(wait=20, visibility=60)
    while some := queue.receive(wait=0, visibility=60):
        messages += some
    queue.close()
    return messages


def agent(name: str, version: int) -> bytes:
    detail = {"agent": name, "version": version}
    return msgspec.json.encode({"id": f"{version}", "detail-type": "agent", "detail": detail})


def through(sink: SQSQueue | EventBus, *given: bytes) -> list[Outcome]:
    with Consumer("memory:", rules=[CALL, AGENT], handler=sink) as consumer:
        outcomes = [consumer.process([event])[0] for event in given]
    sink.close()
    return outcomes


def test_a_queue_gets_the_event_and_its_effect_id(endpoint: str, name: str) -> None:
    uri = made(endpoint, name)
    outcomes = through(SQSQueue(uri), call(1), call(1))
    assert statuses(outcomes) == ["done", "duplicate"]
    (message,) = received(uri)
    assert message["Body"].encode() == call(1)
    assert message["MessageAttributes"]["effect_id"]["StringValue"] == outcomes[0].key.hex()


def test_a_queue_gets_the_trace_of_its_handler(endpoint: str, name: str) -> None:
    uri = made(endpoint, name)
    sink = SQSQueue(uri)

    def traced(job: Job) -> None:
        job.traced = {"traceparent": "00-1-2-01"}
        sink(job)

    with Consumer("memory:", rules=CALL, handler=traced) as consumer:
        consumer.process([call(1)])
    sink.close()
    (message,) = received(uri)
    assert message["MessageAttributes"]["traceparent"]["StringValue"] == "00-1-2-01"


def test_a_fifo_queue_drops_an_event_that_is_sent_twice(endpoint: str, name: str) -> None:
    """A worker that dies after sending sends again, under the same deduplication id."""
    uri = made(endpoint, f"{name}.fifo")
    sink = SQSQueue(uri)
    died: list[Job] = []

    def dies_once(job: Job) -> None:
        sink(job)
        if not died:
            died.append(job)
            raise Retry("as if it had died here")

    with Consumer("memory:", rules=CALL, handler=dies_once) as consumer:
        outcomes = [consumer.process([call(1)])[0] for _ in range(2)]
    assert statuses(outcomes) == ["failed", "done"]
    (message,) = received(uri)
    assert message["Attributes"]["MessageDeduplicationId"] == outcomes[0].key.hex()
    sink.close()


def test_versions_of_one_subject_are_one_group_and_keep_their_order(
    endpoint: str, name: str
) -> None:
    uri = made(endpoint, f"{name}.fifo")
    versions = [agent(who, version) for version in (1, 2, 3) for who in ("a1", "a2")]
    assert statuses(through(SQSQueue(uri), *versions)) == ["done"] * 6
    groups: dict[str, list[int]] = {}
    for message in received(uri):
        version = msgspec.json.decode(message["Body"])["detail"]["version"]
        groups.setdefault(message["Attributes"]["MessageGroupId"], []).append(version)
    assert list(groups.values()) == [[1, 2, 3]] * 2


def test_facts_are_grouped_by_the_value_at_the_path_of_the_group(endpoint: str, name: str) -> None:
    uri = made(endpoint, f"{name}.fifo")
    sink = SQSQueue(uri, group="detail.conversation")
    through(sink, *(call(number, conversation=f"c-{number % 2}") for number in range(4)))
    groups = [message["Attributes"]["MessageGroupId"] for message in received(uri)]
    assert sorted(groups) == ["c-0", "c-0", "c-1", "c-1"]


def test_characters_that_a_queue_refuses_travel_as_escapes(endpoint: str, name: str) -> None:
    uri = made(endpoint, name)
    event = call(1, text="a\ufffe\uffff\u0001b")
    assert statuses(through(SQSQueue(uri), event)) == ["done"]
    (message,) = received(uri)
    assert msgspec.json.decode(message["Body"]) == msgspec.json.decode(event)


def test_an_event_too_large_for_a_message_becomes_a_dead_letter(endpoint: str, name: str) -> None:
    uri = made(endpoint, name)
    fits = call(1, filler="x" * ((1 << 20) - 200))
    large = call(2, filler="x" * ((1 << 20) - 80))
    assert statuses(through(SQSQueue(uri), fits, large)) == ["done", "dead"]


def test_a_queue_that_does_not_exist_is_an_outage(endpoint: str, name: str) -> None:
    (outcome,) = through(SQSQueue(f"sqs://{name}?endpoint={endpoint}"), call(1))
    assert (outcome.status, type(outcome.error)) == ("failed", SourceUnavailable)


def test_a_service_that_is_away_is_an_outage(endpoint: str) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    queue = SQSQueue(f"sqs://orders?endpoint={nowhere}&region=eu-central-1")
    bus = EventBus(f"events://orders?endpoint={nowhere}&region=eu-central-1")
    for sink in (queue, bus):
        (outcome,) = through(sink, call(1))
        assert (outcome.status, type(outcome.error)) == ("failed", SourceUnavailable)


def routed(events: Any, endpoint: str, name: str, pattern: dict[str, Any]) -> str:
    """A bus of this name, whose events of this pattern go to a queue of the same name."""
    uri = made(endpoint, name)
    events.create_event_bus(Name=name)
    events.put_rule(
        Name=name, EventBusName=name, EventPattern=msgspec.json.encode(pattern).decode()
    )
    account = Queue.from_uri(uri).url.split("/")[-2]
    arn = f"arn:aws:sqs:eu-central-1:{account}:{name}"
    events.put_targets(Rule=name, EventBusName=name, Targets=[{"Id": "1", "Arn": arn}])
    return uri


def test_a_bus_gets_the_event_with_the_fields_of_its_first_bus(
    events: Any, endpoint: str, name: str
) -> None:
    uri = routed(events, endpoint, name, {"source": ["com.example.shop"]})
    envelope = {
        "id": "first-id",
        "detail-type": "call",
        "source": "com.example.shop",
        "time": "2026-11-15T12:00:00Z",
        "resources": ["arn:aws:x:y:z:1:a"],
        "detail": {"call": 1, "deep": {"list": [1, None]}},
    }
    sink = EventBus(f"events://{name}?endpoint={endpoint}")
    assert statuses(through(sink, msgspec.json.encode(envelope))) == ["done"]
    (message,) = received(uri)
    arrived = msgspec.json.decode(message["Body"])
    assert arrived["id"] != "first-id"
    # The time is sent, too, but the emulator sets the time of all events itself.
    for kept in ("detail-type", "source", "resources", "detail"):
        assert arrived[kept] == envelope[kept]


def test_the_event_of_a_partner_is_put_under_a_source_that_the_bus_accepts(
    events: Any, endpoint: str, name: str
) -> None:
    source = "aws.partner/genesys.com/cloud/org/suffix"
    uri = routed(events, endpoint, name, {"source": [{"prefix": "eventonce/aws.partner"}]})
    sink = EventBus(f"events://{name}?endpoint={endpoint}")
    event = {"id": "1", "detail-type": "call", "source": source, "detail": {"call": 1}}
    assert statuses(through(sink, msgspec.json.encode(event))) == ["done"]
    (message,) = received(uri)
    assert msgspec.json.decode(message["Body"])["source"] == f"eventonce/{source}"


def test_an_event_for_a_bus_that_does_not_exist_fails(endpoint: str) -> None:
    (outcome,) = through(EventBus(f"events://nowhere?endpoint={endpoint}"), call(1))
    assert outcome.status == "failed"
    assert "no such bus" in outcome.reason


def test_an_event_whose_entry_the_bus_refuses_is_given_up(
    events: Any, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulator refuses only entries whose source is one of Amazon's own."""
    sink = EventBus(f"events://default?endpoint={endpoint}")
    honest = sink.entry
    monkeypatch.setattr(sink, "entry", lambda event: honest(event) | {"Source": "aws.mine"})
    (outcome,) = through(sink, call(1))
    assert outcome.status == "dead"
    assert "NotAuthorizedForSource" in outcome.reason


@pytest.mark.parametrize(
    ("code", "status"), [("ThrottlingException", "failed"), ("MalformedDetail", "dead")]
)
def test_the_error_code_of_a_refused_entry_decides_between_failed_and_dead(
    code: str, status: str
) -> None:
    """No emulator throttles a single entry: this client answers as the documentation says."""

    class Throttling:
        def put_events(self, **_: Any) -> dict[str, Any]:
            entry = {"ErrorCode": code, "ErrorMessage": "as documented"}
            return {"FailedEntryCount": 1, "Entries": [entry]}

    sink = EventBus("events://orders", client=Throttling())
    with Consumer(MemoryStore(), rules=CALL, handler=sink) as consumer:
        assert consumer.process([call(1)])[0].status == status
