"""Sinks from the configuration file and from Python, without the sinks that need a server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from botocore.exceptions import ClientError

from eventonce import ConfigError, Job, Reject, Rule
from eventonce.aws.limits import SQS_BATCH_BYTES
from eventonce.config import load
from eventonce.envelope import read
from eventonce.sinks import EventBus, JSONLines, Sink, SQSQueue, Table, Webhook, open_sink
from eventonce.sinks.webhook import retry_after
from eventonce.types import Claim
from tests.helpers import call

CALL = Rule(name="call", match="call", key=["detail.call"], lease="1s")
DATE = "Sun, 15 Nov 2026 12:00:00 GMT"
NOON = 1_794_744_000.0


def job(raw: bytes) -> Job:
    return Job(read(raw, max_bytes=1 << 21), Claim(b"k" * 16, 1, 1000, 1000, 5))


def refusal(sink: Sink) -> str:
    with pytest.raises(ConfigError) as refused:
        open_sink(sink)
    return str(refused.value)


@pytest.mark.parametrize(
    ("to", "kind"),
    [
        ("https://hooks.example.com/a?b=c", Webhook),
        ("http://127.0.0.1:8080", Webhook),
        ("sqs://orders.fifo?region=eu-central-1", SQSQueue),
        ("events://orders?region=eu-central-1", EventBus),
        ("table:crm.events", Table),
        ("file:events.jsonl", JSONLines),
    ],
)
def test_the_scheme_of_a_uri_chooses_the_sink(to: str, kind: type) -> None:
    assert isinstance(open_sink(Sink(to)), kind)


@pytest.mark.parametrize(
    ("sink", "why"),
    [
        (Sink("kafka://broker/topic"), "no sink is called 'kafka:'"),
        (Sink("nothing"), "no sink is called"),
        (Sink(""), "no sink is called"),
        (Sink("no_such_module:take"), "no_such_module"),
        (Sink("os:nothing"), "nothing"),
        (Sink("os:environ"), "is not a function"),
        (Sink("table:a; DROP TABLE b"), "is not the name of a table"),
        (Sink("file:"), "not a file's path"),
        (Sink("file://events.jsonl"), "write file:events.jsonl"),
        (Sink("file:/dev/full"), "a folder, a pipe or a device"),
        (Sink("file:."), "a folder, a pipe or a device"),
        (Sink("file:nowhere/events.jsonl"), "there is no folder 'nowhere'"),
        (Sink("events://bus?zone=a"), "region, endpoint, profile"),
        (Sink("sqs://bad name"), "sqs://NAME"),
        (Sink("sqs://plain", group="body.id"), ".fifo"),
        (Sink("sqs://q.fifo", group="body..id"), "group"),
        (Sink("events://bus", source="aws.mine"), "begins with aws."),
        (Sink("events://bus?endpoint=http://user:hush@host"), "no user or password"),
        (Sink("events://[bus"), "is not a valid URI: check its brackets"),
        (Sink("events://bad name"), "write events://BUS"),
        (Sink("sqs://[queue"), "is not a valid URI: check its brackets"),
        (Sink("https://user:hush@host/"), "with no space, user, password"),
        (Sink("https://user:hu/hush@host/"), "with no space, user, password"),
        (Sink("https://user:hu?hush@host/"), "with no space, user, password"),
        (Sink("https:user:hush@host"), "with no space, user, password"),
        (Sink("https://host/a path"), "with no space"),
        (Sink("https://höst/"), "in ASCII"),
        (Sink("https://[::1/"), "https://host/path"),
        (Sink("https://a..b/"), "https://host/path"),
        (Sink("https://"), "https://host/path"),
        (Sink("https://host:port/"), "https://host/path"),
        (Sink("https://host/", timeout=0), "timeout"),
        (Sink("https://host/", headers={"Idempotency-Key": "x"}), "set by eventonce"),
        (Sink("https://host/", headers={"X-Key": "hush\nhush"}), "'X-Key' cannot be sent"),
        (Sink("table:events", headers={"a": "b"}), "Table takes no 'headers'"),
        (Sink("os:getpid", timeout=3), "a function takes no 'timeout'"),
    ],
)
def test_the_error_for_a_wrong_sink_names_its_match_and_the_accepted_forms(
    sink: Sink, why: str
) -> None:
    said = refusal(msgspec.structs.replace(sink, match="order.*"))
    assert why in said
    assert "for 'order.*'" in said
    assert "module:function, https://host/path" in said
    assert "hush" not in said
    assert ".." not in said.replace("a..b", "").replace("body..id", "")


def test_the_error_for_a_module_that_cannot_be_loaded_has_the_error_of_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "torn_module.py").write_text("def take(job:\n")
    (tmp_path / "sad_module.py").write_text("raise RuntimeError('no licence')\n")
    assert "SyntaxError" in refusal(Sink("torn_module:take"))
    assert "RuntimeError: no licence" in refusal(Sink("sad_module:take"))


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ('match = "*"', "my.toml:3: sink.to: is missing; the fields are to, match, headers"),
        ('to = "os:getpid"\ntoo = 1', "my.toml:5: sink.too: there is no such field"),
        ("to = 1", "my.toml:4: sink.to: expected a string, not a whole number"),
    ],
)
def test_the_error_for_a_wrong_field_of_a_sink_names_its_line(
    tmp_path: Path, table: str, why: str
) -> None:
    (tmp_path / "my.toml").write_text(f'[[sink]]\nto = "os:getpid"\n[[sink]]\n{table}\n')
    with pytest.raises(ConfigError) as refused:
        load(tmp_path / "my.toml")
    assert why in str(refused.value)


def test_a_sink_does_not_show_its_secrets() -> None:
    sink = Sink("https://user@hooks.example.com/T0/hush?key=hush", headers={"X": "hush"})
    assert repr(sink) == "Sink(to='https://…', match='*')"
    sink = Sink("https://hooks.example.com/T0/hush?key=hush", headers={"X": "hush"})
    assert repr(sink) == "Sink(to='https://hooks.example.com…', match='*')"


def test_events_are_routed_by_type_to_the_first_sink_that_matches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "routed.py").write_text(
        "seen = []\n"
        "def plain(job):\n    seen.append(('plain', job.event.type))\n"
        "async def waiting(job):\n    seen.append(('waiting', job.event.type))\n"
    )
    (tmp_path / "eventonce.toml").write_text(
        'store = "memory:"\n'
        '[[sink]]\nmatch = "order.*"\nto = "routed:plain"\n'
        '[[sink]]\nmatch = "order.paid"\nto = "file:never.jsonl"\n'
        '[[sink]]\nmatch = "call.*"\nto = "routed:waiting"\n'
    )
    events: list[dict[str, Any]] = [
        {"id": type_, "detail-type": type_, "detail": {}}
        for type_ in ("order.paid", "call.end", "other")
    ]
    with load().consumer() as consumer:
        outcomes = consumer.process(events)
    assert [outcome.status for outcome in outcomes] == ["done", "done", "ignored"]
    # In any order: one of the handlers runs on a loop.
    seen = sorted(sys.modules.pop("routed").seen)
    assert seen == [("plain", "order.paid"), ("waiting", "call.end")]
    assert not Path("never.jsonl").exists()


def test_the_import_of_sinks_loads_no_library_that_only_some_sinks_need() -> None:
    code = (
        "import sys, eventonce.sinks\n"
        "print(*sorted({'urllib3', 'botocore', 'sqlite3', 'asyncio'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ({}, None),
        ({"retry_after": "120"}, 120.0),
        ({"retry_after": " 0 "}, 0.0),
        ({"retry_after": "99999999999999999999"}, 3600.0),
        ({"retry_after": DATE}, 60.0),
        ({"retry_after": DATE, "date": "Sun, 15 Nov 2026 11:59:30 GMT"}, 30.0),
        ({"retry_after": "Sat, 14 Nov 2026 12:00:00 GMT"}, 0.0),
        ({"retry_after": "Fri, 15 Nov 2126 12:00:00 GMT"}, 3600.0),
        ({"retry_after": "soon"}, None),
        ({"retry_after": "-5"}, None),
        ({"retry_after": "²"}, None),
        ({"retry_after": "1.5"}, None),
        ({"retry_after": "Thu, 01 Jan 99999999999 00:00:00 GMT"}, None),
        ({"retry_after": DATE, "date": "Sun, 15 Nov 2026 12:00:00 +99999999999999"}, 60.0),
    ],
)
def test_retry_after_is_seconds_or_a_date_by_the_servers_own_clock(
    said: dict[str, str], seconds: float | None
) -> None:
    assert (
        retry_after({name.replace("_", "-"): text for name, text in said.items()}, NOON - 60)
        == seconds
    )


def test_the_entry_for_a_bus_has_the_fields_of_the_envelope() -> None:
    envelope = {
        "id": "1",
        "detail-type": "order.paid",
        "source": "com.example.shop",
        "time": "2026-11-15T12:00:00Z",
        "resources": ["arn:aws:x:y:z:1:a"],
        "detail": {"order": 1},
    }
    entry = EventBus("events://orders").entry(read(msgspec.json.encode(envelope)))
    assert entry.pop("Time").timestamp() == NOON
    assert entry == {
        "Source": "com.example.shop",
        "DetailType": "order.paid",
        "Detail": '{"order":1}',
        "EventBusName": "orders",
        "Resources": ["arn:aws:x:y:z:1:a"],
    }


@pytest.mark.parametrize(
    ("source", "put"),
    [
        ("", "eventonce"),
        ("aws.partner/genesys.com/cloud/o/s", "eventonce/aws.partner/genesys.com/cloud/o/s"),
        ("mine", "mine"),
    ],
)
def test_a_source_that_the_bus_would_refuse_is_replaced(source: str, put: str) -> None:
    event = read(msgspec.json.encode({"detail-type": "t", "source": source, "detail": {}}))
    assert EventBus("events://orders").entry(event)["Source"] == put
    assert EventBus("events://orders", source="ours").entry(event)["Source"] == "ours"


@pytest.mark.parametrize("time", ["-9007199254740000", "9007199254740000", "soon", ""])
def test_an_invalid_time_is_left_out_of_the_entry_for_a_bus(time: str) -> None:
    envelope = {"detail-type": "t", "time": time, "detail": {}}
    assert "Time" not in EventBus("events://orders").entry(read(msgspec.json.encode(envelope)))


@pytest.mark.parametrize("to", ["sqs://orders", "events://orders"])
def test_a_sink_without_its_extra_is_refused_with_the_command_to_install(
    to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    said = refusal(Sink(to))
    assert 'needs: pip install -e ".[sqs]" in a clone of eventonce' in said


def test_a_bus_without_its_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(ConfigError, match=r'needs: pip install -e "\.\[sqs\]"'):
        EventBus("events://orders")(job(call(1)))


def test_a_bus_without_a_region_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with pytest.raises(
        ConfigError, match=r"orders: NoRegionError\. Set the region with AWS_REGION"
    ):
        EventBus("events://orders")(job(call(1)))


def test_an_event_that_is_too_large_for_a_bus_is_rejected_without_a_request() -> None:
    with pytest.raises(Reject, match="at most 1048576"):
        EventBus("events://orders", client=object())(job(call(1, filler="x" * (1 << 20))))


@pytest.mark.parametrize(
    ("detail", "group", "sent"),
    [
        ({"a": "conversation-1"}, "detail.a", "conversation-1"),
        ({"a": 7}, "detail.a", "7"),
        ({"a": ""}, "detail.a", "6b" * 16),
        ({}, "detail.a", "6b" * 16),
        ({"a": "x"}, "", "6b" * 16),
    ],
)
def test_a_group_is_the_value_of_the_path_or_the_key(
    detail: dict[str, Any], group: str, sent: str
) -> None:
    sink = SQSQueue("sqs://orders.fifo", group=group)
    event = msgspec.json.encode({"detail-type": "t", "detail": detail})
    assert sink._group_of(job(event)) == sent


class Refusing:
    """A client that refuses as SQS does where a message is too long for the whole service."""

    def send_message_batch(self, **_: Any) -> None:
        raise ClientError(
            {
                "Error": {"Code": "AWS.SimpleQueueService.BatchRequestTooLong", "Message": "long"},
                "ResponseMetadata": {"HTTPStatusCode": 400},
            },
            "SendMessageBatch",
        )


def test_a_message_that_is_too_large_with_its_trace_is_sent_without_the_trace() -> None:
    sent: list[dict[str, Any]] = []

    class Client:
        def send_message_batch(self, **asked: Any) -> dict[str, Any]:
            sent.extend(asked["Entries"])
            return {"Successful": [{"Id": "0", "MessageId": "m"}]}

    sink = SQSQueue("https://sqs.eu-central-1.amazonaws.com/1/calls", client=Client())
    for spare in (60, 200):
        one = job(call(1, text="x" * (SQS_BATCH_BYTES - len(call(1, text="")) - spare)))
        one.traced = {"traceparent": "0" * 55}
        sink(one)
    assert [set(it["MessageAttributes"]) for it in sent] == [
        {"effect_id"},
        {"effect_id", "traceparent"},
    ]


def test_a_message_that_the_service_never_takes_is_rejected() -> None:
    queue = SQSQueue("https://sqs.eu-central-1.amazonaws.com/1/orders", client=Refusing())
    with pytest.raises(Reject, match="BatchRequestTooLong"):
        queue(job(call(1)))


@pytest.mark.parametrize("value", ["zwei Wörter", "x" * 129])
def test_a_value_that_cannot_be_the_name_of_a_group_is_hashed(value: str) -> None:
    sink = SQSQueue("sqs://orders.fifo", group="detail.a")
    group = sink._group_of(job(msgspec.json.encode({"detail-type": "t", "detail": {"a": value}})))
    assert len(bytes.fromhex(group)) == 16
