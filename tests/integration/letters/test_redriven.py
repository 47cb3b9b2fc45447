"""Redrives of dead-letter queues of all kinds: settled events are deleted, and no others.

EventBridge's and Lambda's own dead letters are sent by the tests themselves, in their own form:
the emulator has none. The dead letters of SQS are moved by the emulator's redrive policy.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from eventonce import Consumer
from eventonce.aws.sqs import Entry, Queue
from tests.helpers import Run, call, statuses
from tests.integration.letters.queues import CALL, TOML, Made, Make, consumer_of, effects, fill

BRIDGE = {
    "RULE_ARN": "arn:aws:events:eu-central-1:1:rule/orders/to-lambda",
    "TARGET_ARN": "arn:aws:lambda:eu-central-1:1:function:crm",
    "ERROR_CODE": "NO_PERMISSIONS",
    "ERROR_MESSAGE": "no right to invoke",
    "EXHAUSTED_RETRY_CONDITION": "MaximumRetryAttempts",
    "RETRY_ATTEMPTS": "0",
}


@pytest.mark.usefixtures("existing_store")
def test_a_redrive_of_a_queue_deletes_only_the_settled_dead_letters(make: Make, run: Run) -> None:
    queue = make()
    with consumer_of(queue.uri, store="sqlite:///store.db") as consumer:
        consumer.process([call(1), call(2), {"id": "x", "detail-type": "other", "detail": {}}])
    Path("eventonce.toml").write_text(
        TOML + '[[sink]]\nmatch = "call"\nto = "file:effects.jsonl"\n'
    )
    redriven = run("redrive", "--from", queue.uri, "--json")
    assert json.loads(redriven.err) == {"done": 2, "ignored": 1}
    assert redriven.code == 1
    assert sorted(effects()) == [1, 2]
    assert [line[-1] for line in queue.values_of("reason")] == ["x"]
    with consumer_of(queue.uri, store="sqlite:///store.db") as consumer:
        assert statuses(consumer.process([call(1), call(2)])) == ["duplicate", "duplicate"]


@pytest.mark.usefixtures("existing_store")
def test_a_dead_letter_whose_event_is_done_meanwhile_is_deleted_and_not_run(
    make: Make, run: Run
) -> None:
    queue = make()
    with consumer_of(queue.uri, store="sqlite:///store.db") as consumer:
        consumer.process([call(1), call(2)])
        good = consumer_of("", handler=lambda _: None, store="sqlite:///store.db")
        assert statuses(good.runtime.run_again([call(1)])) == ["done"]
        good.close()
    dry = json.loads(run("redrive", "--from", queue.uri, "--dry-run", "--json").out)
    assert sorted(one["would"] for one in dry["letters"]) == ["duplicate", "run"]
    assert (dry["would_run"], effects()) == (1, [])
    redriven = run("redrive", "--from", queue.uri, "--json")
    assert json.loads(redriven.err) == {"done": 1, "duplicate": 1}
    assert effects() == [2]
    assert queue.visible() == []


def assert_both_given_up_again(queue: Made, run: Run) -> None:
    Path("stern.py").write_text(
        "from eventonce import Reject\n"
        "runs = []\n"
        "def refuse(job):\n    runs.append(job.event.id)\n    raise Reject('still not')\n"
    )
    Path("eventonce.toml").write_text(f'letters = "{queue.uri}"\n{TOML}')
    redriven = run("redrive", "--handler", "stern:refuse", "--json")
    assert json.loads(redriven.err) == {"dead": 2}
    assert sorted(sys.modules.pop("stern").runs) == ["id-1", "id-2"]
    assert queue.values_of("reason") == ["rejected by the handler: still not"] * 2


@pytest.mark.usefixtures("existing_store")
def test_a_dead_letter_given_up_again_is_replaced_and_has_the_newest_reason(
    make: Make, run: Run
) -> None:
    """In the queue that is being read: each dead letter runs once, and is in the queue once."""
    queue = make()
    with consumer_of(queue.uri, store="sqlite:///store.db") as consumer:
        consumer.process([call(1), call(2)])
    assert_both_given_up_again(queue, run)
    assert run("list", "--from", "store").out == "no dead letters with --name=crm\n"
    assert len(run("list", "--json").documents) == 2


@pytest.mark.usefixtures("existing_store")
def test_a_message_of_another_sender_in_the_queue_of_our_dead_letters_runs_once(
    make: Make, run: Run
) -> None:
    """One queue may serve a redrive policy and dead letters: a redrive skips its own letters."""
    queue = make()
    Queue.from_uri(queue.uri).send([Entry(call(1).decode(), BRIDGE), Entry(call(2).decode())])
    assert_both_given_up_again(queue, run)


@pytest.mark.usefixtures("existing_store")
def test_an_event_that_fails_again_stays_in_the_queue(make: Make, run: Run) -> None:
    queue = make()
    fill(queue, 2)
    Path("weak.py").write_text("def fail(job):\n    raise ValueError('no answer')\n")
    redriven = run("redrive", "--from", queue.uri, "--handler", "weak:fail", "--json")
    assert json.loads(redriven.err) == {"failed": 2}
    assert len(queue.visible()) == 2


@pytest.mark.usefixtures("existing_store")
def test_eventbridge_s_dead_letters_are_read_chosen_and_run(make: Make, run: Run) -> None:
    queue = make()
    other = BRIDGE | {"RULE_ARN": "arn:aws:events:eu-central-1:1:rule/nightly"}
    Queue.from_uri(queue.uri).send(
        [Entry(call(1).decode(), BRIDGE), Entry(call(2).decode(), other)]
    )
    listed = run("list", "--from", queue.uri, "--json").documents
    assert {one["rule"] for one in listed} == {"orders/to-lambda", "nightly"}
    assert all("NO_PERMISSIONS: no right to invoke" in one["reason"] for one in listed)
    redriven = run("redrive", "--from", queue.uri, "--rule", "nightly", "--json")
    assert json.loads(redriven.err) == {"done": 1}
    assert effects() == [2]
    assert [message["Body"].encode() for message in queue.visible()] == [call(1)]


@pytest.mark.usefixtures("existing_store")
def test_an_event_that_lambda_gave_up_is_read_and_run(make: Make, run: Run) -> None:
    queue = make()
    said = {"RequestID": "r-1", "ErrorCode": "200", "ErrorMessage": "exited"}
    record = {
        "version": "1.0",
        "timestamp": "2026-11-14T18:16:05.568Z",
        "requestContext": {"condition": "RetriesExhausted", "approximateInvokeCount": 3},
        "requestPayload": json.loads(call(2)),
        "responseContext": {"statusCode": 200, "functionError": "Unhandled"},
        "responsePayload": {"errorMessage": "exited"},
    }
    several = record | {"requestPayload": [json.loads(call(3)), json.loads(call(4))]}
    Queue.from_uri(queue.uri).send(
        [Entry(call(1).decode(), said), Entry(json.dumps(record)), Entry(json.dumps(several))]
    )
    listed = run("list", "--from", queue.uri, "--json").documents
    assert all("given up by Lambda: exited" in one["reason"] for one in listed)
    redriven = run("redrive", "--from", queue.uri, "--json")
    assert json.loads(redriven.err) == {"done": 2, "invalid": 1}
    assert sorted(effects()) == [1, 2]
    assert [json.loads(one["Body"]) for one in queue.visible()] == [several]


def test_a_consumer_of_the_user_runs_the_events_of_a_queue_under_its_own_name(
    make: Make, run: Run
) -> None:
    queue = make()
    Queue.from_uri(queue.uri).send([Entry(call(1).decode(), BRIDGE)])
    Path("billing.py").write_text(
        "from eventonce import Consumer, Rule\n"
        "ran = []\n"
        "rule = Rule(name='call', match='call', key=['detail.call'])\n"
        "consumer = Consumer('sqlite:///billing.db', name='billing', rules=rule)\n"
        "consumer.on()(lambda job: ran.append(job.event.id))\n"
    )
    redriven = run("redrive", "--from", queue.uri, "--handler", "billing:consumer", "--json")
    assert json.loads(redriven.err) == {"done": 1}
    assert sys.modules.pop("billing").ran == ["id-1"]
    assert queue.visible() == []
    for name, status in (("billing", "duplicate"), ("crm", "done")):
        with Consumer("sqlite:///billing.db", name=name, rules=CALL) as consumer:
            consumer.on()(lambda _: None)
            assert statuses(consumer.process([call(1)])) == [status]


@pytest.mark.usefixtures("existing_store")
def test_an_event_given_up_again_from_a_foreign_queue_becomes_our_dead_letter(
    make: Make, run: Run
) -> None:
    queue = make()
    Queue.from_uri(queue.uri).send([Entry(call(1).decode(), BRIDGE)])
    Path("sterner.py").write_text(
        "from eventonce import Reject\ndef refuse(job):\n    raise Reject('never')\n"
    )
    run("redrive", "--from", queue.uri, "--handler", "sterner:refuse")
    assert queue.visible() == []
    (ours,) = run("list", "--json").documents
    assert ours["reason"] == "rejected by the handler: never"


@pytest.mark.usefixtures("existing_store")
def test_a_message_that_sqs_gave_up_is_read_and_run_under_its_original_id(
    make: Make, run: Run
) -> None:
    dead = make("-dead")
    arn = dead.client.get_queue_attributes(
        QueueUrl=Queue.from_uri(dead.uri).url, AttributeNames=["QueueArn"]
    )["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "1"})
    source = make("-source", RedrivePolicy=policy)
    nameless = json.dumps({"detail-type": "nameless", "detail": {"call": 7}})
    queue = Queue.from_uri(source.uri)
    queue.send([Entry(nameless), Entry(call(1).decode())])
    messages = queue.receive(wait=5, visibility=0)
    while queue.receive(wait=0, visibility=0):
        pass
    listed = run("list", "--from", dead.uri, "--json").documents
    assert {one["id"] for one in listed} == {message["MessageId"] for message in messages}
    assert all("received from" in one["reason"] for one in listed)
    # The worker had run the nameless event under the id of its message.
    known = next(one["MessageId"] for one in messages if one["Body"] == nameless)
    with consumer_of("", handler=lambda _: None, store="sqlite:///store.db") as consumer:
        assert statuses(consumer.process([json.loads(nameless) | {"id": known}])) == ["done"]
    redriven = run("redrive", "--from", dead.uri, "--json")
    assert json.loads(redriven.err) == {"duplicate": 1, "done": 1}
    assert effects() == [1]
    assert dead.visible() == []


@pytest.mark.usefixtures("existing_store")
def test_a_record_that_only_names_its_events_is_shown_and_never_run(make: Make, run: Run) -> None:
    queue = make()
    record = json.dumps({"version": "1.0", "busArn": "arn:…", "events": [{"id": "1"}]})
    Queue.from_uri(queue.uri).send([Entry(record)])
    (listed,) = run("list", "--from", queue.uri, "--json").documents
    assert "replay it" in listed["reason"]
    redriven = run("redrive", "--from", queue.uri, "--json")
    assert json.loads(redriven.err) == {"invalid": 1}
    assert (effects(), len(queue.visible())) == ([], 1)


@pytest.mark.usefixtures("existing_store")
def test_a_group_of_a_queue_is_run_within_a_bound_and_stopped_by_ctrl_c(
    make: Make, run: Run
) -> None:
    queue = make(VisibilityTimeout="3600")
    fill(queue, 45)
    (group,) = run("groups", "--from", queue.uri, "--json").documents
    assert (group["count"], group["rules"]) == (45, {"call": 45})
    chosen = ("--from", queue.uri, "--group", group["id"], "--type", "call", "--json")
    assert json.loads(run("redrive", *chosen, "--limit", "3").err) == {"done": 3}
    assert len(queue.visible()) == 42
    Path("halting.py").write_text(
        "import os, signal\n"
        "runs = []\n"
        "def take(job):\n"
        "    runs.append(job)\n"
        "    if len(runs) == 5:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
    )
    stopped = run("redrive", *chosen, "--handler", "halting:take")
    sys.modules.pop("halting")
    counts, said = map(json.loads, stopped.err.splitlines())
    assert (stopped.code, counts) == (130, {"done": 20})
    assert said["error"] == "stopped after 20; the others are in the queue still"
    assert len(queue.visible()) == 22, "given back at once"
    assert json.loads(run("redrive", *chosen).err) == {"done": 22}
    assert queue.visible() == []
