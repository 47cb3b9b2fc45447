"""`eventonce capture` from a queue, a log group and S3, and the taps of a worker and a receiver."""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from eventonce.aws.sessions import Access
from eventonce.aws.sqs import Entry, Queue
from eventonce.envelope.captured import Line, own_line
from eventonce.sources.files import Capture
from eventonce.study.capture import GATHER_BYTES, log_group, queue, record
from eventonce.study.capture.log_group import LogGroupFeed
from eventonce.study.capture.queue import QueueFeed
from eventonce.study.capture.recorder import Recorder
from tests.helpers import PATIENCE, Run, call, until

KILLED = """
import os, signal, sys
from eventonce.aws.sqs import Queue
from eventonce.cli import main
from eventonce.study.capture import queue

left = int(sys.argv.pop(1))

def step(original):
    def taken(*given):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*given)
    return taken

queue.VISIBILITY, queue.RECEIVE_WAIT = 2, 0
os.fsync, Queue.delete = step(os.fsync), step(Queue.delete)
main()
"""
"""The command line, killed before this step to the disk or this deletion, if there are as many."""


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"q{abs(hash(request.node.name))}"


@pytest.fixture
def own(endpoint: str, name: str) -> str:
    """The URI of a queue that is made for a capture."""
    boto3.client("sqs", endpoint_url=endpoint).create_queue(QueueName=f"{name}-capture")
    return f"sqs://{name}-capture?endpoint={endpoint}"


def sent(uri: str, *bodies: str) -> None:
    sender = Queue.from_uri(uri)
    assert sender.send([Entry(body) for body in bodies]) == []
    sender.close()


def left(uri: str) -> int:
    there = Queue.from_uri(uri)
    found = there.client.get_queue_attributes(QueueUrl=there.url, AttributeNames=["All"])
    there.close()
    counts = found["Attributes"]
    return sum(int(value) for key, value in counts.items() if key.startswith("ApproximateNumber"))


def lines(folder: Path, pattern: str = "capture*.jsonl*") -> list[Line]:
    found = [own_line(raw) for raw in Capture(sorted(folder.glob(pattern)))]
    return [line for line in found if line is not None]


def numbers(folder: Path, pattern: str = "capture*.jsonl*") -> list[int]:
    return [json.loads(bytes(line.event))["detail"]["call"] for line in lines(folder, pattern)]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(queue, "RECEIVE_WAIT", 0)
    monkeypatch.setattr(log_group, "FOLLOW_INTERVAL", 0.5)
    return tmp_path


def test_a_queue_is_written_with_its_arrivals_and_emptied(run: Run, own: str, here: Path) -> None:
    sent(own, *(call(number).decode() for number in range(25)), "no event")
    before = time.time() * 1000
    result = run("capture", "--queue", own, "--json")
    assert result.code == 0
    assert result.documents[0]["events"] == 26
    found = lines(here)
    assert len({line.id for line in found}) == 26
    assert all(before <= (line.arrived or 0) <= time.time() * 1000 for line in found)
    assert {(line.channel.rpartition("-")[2], line.receives) for line in found} == {("capture", 1)}
    assert own.startswith(f"sqs://{found[0].channel.removeprefix('sqs:')}?")
    assert b'"no event"' in [bytes(line.event) for line in found]
    assert left(own) == 0


def test_a_capture_continues_after_its_last_event(run: Run, own: str, here: Path) -> None:
    for number in range(3):
        sent(own, call(number).decode())
        result = run("capture", "--queue", own, "-o", "capture.jsonl.zst")
    assert numbers(here) == [0, 1, 2]
    assert "goes on after 2 events" in result.err
    assert "3 since the capture began" in result.err
    assert "eventonce diagnose capture.jsonl.zst" in result.err
    assert run("diagnose", "capture.jsonl.zst").code == 0


def test_a_capture_that_is_killed_several_times_loses_and_repeats_no_event(
    own: str, here: Path
) -> None:
    def captured(step: int) -> int:
        command = [sys.executable, "-c", KILLED, str(step), "capture", "--queue", own]
        return subprocess.run(command, stderr=subprocess.PIPE, check=False).returncode

    # Before the first lines are on the disk, before a checkpoint is, and between two deletions.
    steps = (4, 2, 5)
    for number, step in enumerate(steps):
        sent(own, *(call(20 * number + one).decode() for one in range(20)))
        assert captured(step) == -signal.SIGKILL
    while left(own):
        assert captured(10**6) == 0
    assert sorted(numbers(here)) == list(range(20 * len(steps)))


def test_a_message_that_was_written_and_not_deleted_is_not_written_again(
    own: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    class Feed(QueueFeed):
        def committed(self) -> None:
            if self._undeleted:
                raise Killed

    sent(own, *(call(number).decode() for number in range(5)))
    recorder = Recorder(here / "capture.jsonl", "test")
    monkeypatch.setattr(queue, "VISIBILITY", 0)
    with pytest.raises(Killed):
        record(Feed(Queue.from_uri(own), follow=False), recorder)
    recorder.close()
    monkeypatch.setattr(queue, "VISIBILITY", 60)
    again = Recorder(here / "capture.jsonl", "test")
    record(QueueFeed(Queue.from_uri(own), follow=False), again)
    again.close()
    assert sorted(numbers(here)) == list(range(5))
    assert left(own) == 0


def test_ctrl_c_ends_a_capture_with_all_received_events(own: str, here: Path) -> None:
    command = [sys.executable, "-m", "eventonce", "capture", "--queue", own, "--follow"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        sent(own, call(1).decode())
        until(lambda: left(own) == 0)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 0
    assert "1 event, " in err
    assert numbers(here) == [1]


def test_a_capture_ends_after_its_time(run: Run, own: str) -> None:
    assert run("capture", "--queue", own, "--for", "1s").code == 0


def test_a_queue_that_was_not_made_for_a_capture_is_refused(
    run: Run, endpoint: str, name: str
) -> None:
    boto3.client("sqs", endpoint_url=endpoint).create_queue(QueueName=name)
    uri = f"sqs://{name}?endpoint={endpoint}"
    sent(uri, call(1).decode())
    result = run("capture", "--queue", uri)
    assert result.code == 2
    assert "--own-queue" in result.err
    assert left(uri) == 1
    Path("eventonce.toml").write_text(f'[worker]\nqueue = "{uri}"\n')
    result = run("capture", "--queue", uri, "--own-queue")
    assert result.code == 2
    assert "run --tap" in result.err
    Path("eventonce.toml").unlink()
    assert run("capture", "--queue", uri, "--own-queue").code == 0
    assert left(uri) == 0


def test_a_queue_with_an_earlier_receiver_is_reported(run: Run, own: str) -> None:
    sent(own, call(1).decode())
    other = Queue.from_uri(own)
    other.receive(visibility=0)
    other.close()
    assert "1 messages had been received before" in run("capture", "--queue", own).err


def test_messages_in_flight_at_another_receiver_are_reported(run: Run, own: str) -> None:
    sent(own, call(1).decode(), call(2).decode())
    other = Queue.from_uri(own)
    other.receive(most=1, visibility=60)
    other.close()
    (note,) = run("capture", "--queue", own, "--json").documents[0]["notes"]
    assert note.startswith("the queue counts about 1 messages in flight")
    assert "in flight" not in run("capture", "--queue", own, "--for", "1s").err


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (("--queue", "sqs://none-capture"), "there is no such queue"),
        (("--log-group", "/none"), "there is no such log group"),
        (("--s3", "s3://no-such-bucket/x"), "NoSuchBucket"),
        (("--s3", "bucket/x"), "write s3://BUCKET/PREFIX"),
        (("--s3", "s3://[x"), "is not a valid URI: check its brackets"),
        (("--s3", "s3://user:hush@bucket/x"), "Credentials do not belong in it"),
        ((), "Name one of"),
        (("--queue", "sqs://a-capture", "--since", "1d"), "--log-group does"),
        (("--log-group", "/a", "--since", "yesterday"), "such as 7d"),
        (("--log-group", "/a", "--since", "1h", "--until", "2h"), "later than --since"),
        (("--log-group", "/a", "--rotate-size", "big"), "such as 256MB"),
    ],
)
def test_a_mistake_is_explained_and_leaves_no_file(
    run: Run, endpoint: str, here: Path, source: tuple[str, ...], said: str
) -> None:
    result = run("capture", *source, "--endpoint", endpoint)
    assert result.code == 2
    assert said in result.err
    assert "hush" not in result.err
    assert list(here.iterdir()) == []


def test_an_unreachable_queue_exits_as_unavailable(run: Run, endpoint: str) -> None:
    result = run("capture", "--queue", "sqs://x-capture?endpoint=http://127.0.0.1:1")
    assert result.code == 3
    assert "not reached" in result.err


@pytest.fixture
def group(endpoint: str, name: str) -> Iterator[str]:
    logs = boto3.client("logs", endpoint_url=endpoint)
    logs.create_log_group(logGroupName=f"/aws/events/{name}")
    logs.create_log_stream(logGroupName=f"/aws/events/{name}", logStreamName="s")
    yield f"/aws/events/{name}"
    logs.close()


def logged(endpoint: str, group: str, *messages: tuple[int, str]) -> None:
    logs = boto3.client("logs", endpoint_url=endpoint)
    events = [{"timestamp": at, "message": text} for at, text in messages]
    logs.put_log_events(logGroupName=group, logStreamName="s", logEvents=events)
    logs.close()


def test_a_log_group_is_read_from_one_time_to_another(
    run: Run, endpoint: str, group: str, here: Path
) -> None:
    # Half a second past a second: the window is given in seconds, and its ends belong to it.
    now = int(time.time()) * 1000 + 500 - 100_000
    times = [(now + 1_000 * number, call(number).decode()) for number in range(10)]
    logged(endpoint, group, *times, (now + 5_500, "START RequestId: 1"))
    since, until_ = (
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime((now + after) / 1000 + 1))
        for after in (2_000, 7_000)
    )
    window = ("--since", since, "--until", until_)
    result = run("capture", "--log-group", group, "--endpoint", endpoint, *window)
    assert result.code == 0
    assert "1 lines of the log are no events" in result.err
    assert numbers(here) == [3, 4, 5, 6, 7]
    assert {line.channel for line in lines(here)} == {f"logs:{group}"}
    assert all(line.id and (line.arrived or 0) > now + 50_000 for line in lines(here))


def test_a_followed_log_group_is_read_once_with_its_late_events(
    endpoint: str, group: str, here: Path
) -> None:
    now = int(time.time() * 1000)
    logged(endpoint, group, (now, call(1).decode()), (now, call(2).decode()))

    def captured(count: int) -> None:
        feed = LogGroupFeed(group, Access(endpoint=endpoint), follow=True)
        recorder = Recorder(here / "capture.jsonl", str(feed))
        end = time.monotonic() + PATIENCE
        record(feed, recorder, stopping=lambda: recorder.lines >= count or time.monotonic() > end)
        recorder.close()

    captured(2)
    # The third event is earlier than the events read before; the fourth has the same time.
    logged(endpoint, group, (now - 60_000, call(3).decode()), (now, call(4).decode()))
    captured(4)
    assert sorted(numbers(here)) == [1, 2, 3, 4]


def test_the_log_of_a_function_has_the_lines_of_its_tap(
    run: Run, endpoint: str, name: str, here: Path
) -> None:
    group = f"/aws/lambda/{name}"
    logs = boto3.client("logs", endpoint_url=endpoint)
    logs.create_log_group(logGroupName=group)
    logs.create_log_stream(logGroupName=group, logStreamName="s")
    logs.close()
    now = int(time.time() * 1000)
    line = b'{"eventonce":1,"id":"r","arrived":7,"channel":"lambda:f","event":%s}' % call(1)
    logged(endpoint, group, (now, "START"), (now, line.decode()), (now, '{"level": "INFO"}'))
    assert run("capture", "--log-group", group, "--endpoint", endpoint).code == 0
    (found,) = lines(here)
    assert (found.id, found.arrived, found.channel) == ("r", 7, "lambda:f")


def test_each_object_is_read_once_and_a_broken_object_is_named(
    run: Run, endpoint: str, name: str, here: Path
) -> None:
    s3 = boto3.client("s3", endpoint_url=endpoint)
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    packed = gzip.compress(call(1) + b"\n" + call(2) + b"\n")
    s3.put_object(Bucket=name, Key="a/2026/11/16/10/stream-1", Body=packed)
    s3.put_object(Bucket=name, Key="a/2026/11/16/11/stream-2", Body=call(3) + call(4))
    s3.put_object(Bucket=name, Key="b/other", Body=call(9))
    source = ("--s3", f"s3://{name}/a/", "--endpoint", endpoint)
    result = run("capture", *source)
    assert (result.code, numbers(here)) == (0, [1, 2, 3, 4])
    assert "do not say when and how they arrived" in result.err
    s3.put_object(Bucket=name, Key="a/2026/11/16/09/late", Body=call(5))
    s3.put_object(Bucket=name, Key="a/2026/11/16/12/broken.gz", Body=packed[:-9])
    result = run("capture", *source)
    assert result.code == 1
    assert "broken.gz cannot be read to its end" in result.err
    assert numbers(here)[4] == 5
    # As soon as the object is whole, its unread rest is read.
    s3.put_object(Bucket=name, Key="a/2026/11/16/12/broken.gz", Body=packed)
    assert run("capture", *source).code == 0
    assert numbers(here) == [1, 2, 3, 4, 5, 1, 2]
    assert run("capture", *source, "--json").documents[0]["events"] == 0
    s3.close()


def test_an_existing_capture_is_anonymised_and_its_plain_fields_are_listed(
    run: Run, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "plain.jsonl").write_bytes(call(1, name="Anna Schmidt", direction="INBOUND") + b"\n")
    (here / "key").write_bytes(b"secret" * 3)
    options = ("--from", "plain.jsonl", "--anonymise", "-o", "capture.jsonl")
    result = run("capture", *options, "--key-file", "key")
    assert result.code == 0
    assert "detail.direction" in result.err
    (found,) = lines(here)
    event = json.loads(bytes(found.event))
    assert event["detail"]["direction"] == "INBOUND"
    assert event["detail"]["name"] not in ("", "Anna Schmidt")
    refused = run("capture", *options)
    assert refused.code == 2
    assert "the key is for this run alone" in refused.err
    assert "begun as a capture of" in refused.err
    monkeypatch.setenv("EVENTONCE_ANONYMISE_KEY", "secret" * 3)
    assert run("capture", *options, "--json").documents[0]["events"] == 0
    for key in (b"", b"secret"):
        (here / "key").write_bytes(key)
        assert "could be guessed" in run("capture", *options, "--key-file", "key").err


def test_a_killed_pass_over_a_capture_continues_in_the_middle_of_a_file(here: Path) -> None:
    events = [call(number, text="x" * 50_000) + b"\n" for number in range(200)]
    (here / "plain.jsonl").write_bytes(b"".join(events))
    assert len(events) * 50_000 > 2 * GATHER_BYTES
    command = [sys.executable, "-m", "eventonce", "capture", "--from", "plain.jsonl"]
    done = subprocess.run(
        [*command, "-o", "capture.jsonl"],
        check=False,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (6 << 20, 6 << 20)),
    )
    assert done.returncode != 0
    assert 0 < len(numbers(here)) < 200
    subprocess.run([*command, "-o", "capture.jsonl"], check=True, stderr=subprocess.PIPE)
    assert numbers(here) == list(range(200))


def test_a_worker_with_a_tap_writes_the_messages_that_it_receives(
    endpoint: str, name: str, here: Path
) -> None:
    boto3.client("sqs", endpoint_url=endpoint).create_queue(QueueName=name)
    uri = f"sqs://{name}?endpoint={endpoint}"
    (here / "eventonce.toml").write_text(
        f'store = "sqlite:///db"\ntap = "capture.jsonl.gz"\n'
        f'[worker]\nqueue = "{uri}"\nwait = "0s"\n[[sink]]\nto = "file:out.jsonl"\n'
    )
    sent(uri, call(1).decode(), call(1).decode(), "no event")
    command = [sys.executable, "-m", "eventonce", "run"]
    env = {**os.environ, "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as process:
        until(lambda: left(uri) == 0)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
    assert process.returncode == 0
    assert "tap: 3 events in capture.jsonl.gz, 0 left out" in err
    found = lines(here)
    assert [(line.channel, line.receives) for line in found] == [(f"sqs:{name}", 1)] * 3
    assert len({line.id for line in found}) == 3


def test_a_tap_needs_a_queue(run: Run, here: Path) -> None:
    (here / "c.jsonl").write_bytes(call(1))
    result = run("run", "--from", "c.jsonl", "--tap", "t.jsonl")
    assert result.code == 2
    assert "--tap needs a queue" in result.err


def test_a_capture_is_set_up_by_one_command_and_gets_a_copy_of_each_event(
    run: Run, endpoint: str, name: str, here: Path
) -> None:
    place = ("--name", name, "--region", "eu-central-1", "--endpoint", endpoint)
    result = run("infra", "apply", "--role", "capture", "--source", "com.example", *place)
    assert result.code == 0, result.err
    assert f"eventonce capture --queue sqs://{name}-capture --for 7d" in result.err
    again = run("infra", "apply", "--role", "capture", "--source", "com.example", *place)
    assert f"the stack {name}-capture is up to date" in again.out
    bus = boto3.client("events", endpoint_url=endpoint)
    entry = {"Source": "com.example", "DetailType": "call", "Detail": '{"call": 7}'}
    bus.put_events(Entries=[entry])
    bus.close()
    until(lambda: left(f"sqs://{name}-capture?endpoint={endpoint}") == 1)
    source = ("--queue", f"sqs://{name}-capture", "--endpoint", endpoint)
    assert run("capture", *source).code == 0
    assert numbers(here) == [7]


def test_a_capture_may_be_set_up_with_a_log_group(
    run: Run, endpoint: str, name: str, here: Path
) -> None:
    place = ("--name", name, "--region", "eu-central-1", "--endpoint", endpoint)
    to = ("--parameter", "CaptureTo=log-group")
    result = run("infra", "apply", "--role", "capture", "--source", "com.example", *to, *place)
    assert result.code == 0, result.err
    assert f"capture --log-group /aws/events/{name}-capture" in result.err
    logs = boto3.client("logs", endpoint_url=endpoint)
    groups = logs.describe_log_groups(logGroupNamePrefix=f"/aws/events/{name}")["logGroups"]
    logs.close()
    assert [group["retentionInDays"] for group in groups] == [14]
