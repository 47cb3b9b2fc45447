"""The Lambda entry point: its answer to each kind of invocation."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from eventonce import Consumer, Job, Reject, Rule, envelope
from eventonce.aws import NotSettled, lambda_handler
from eventonce.clock import wall_clock
from eventonce.core.reasons import GIVEN_UP
from eventonce.errors import ConfigError
from eventonce.history import History, Search, recorder
from eventonce.runtime.observers import Tally, to_log
from tests.helpers import PATIENCE, WatchedStore, away
from tests.unit.invoked import FIFO, RULE, Crm, event, failures, record


@pytest.fixture
def crm() -> Crm:
    return Crm()


def test_an_eventbridge_event_is_answered_with_the_counts(crm: Crm) -> None:
    for expected in ({"processed": 1, "duplicates": 0}, {"processed": 0, "duplicates": 1}):
        answer = crm.handler(event("a"), None)
        assert answer["statusCode"] == 200
        body = json.loads(answer["body"])
        assert {name: body[name] for name in expected} == expected
        assert body["errors"] == 0


def test_a_list_of_events_is_taken_as_one_invocation(crm: Crm) -> None:
    body = json.loads(crm.handler([event("a"), event("b"), event("a", "new")], None)["body"])
    assert (body["processed"], body["duplicates"]) == (2, 1)


def test_an_event_to_be_retried_raises_and_a_copy_does_not(crm: Crm) -> None:
    crm.failing = {"a"}
    with pytest.raises(NotSettled, match="1 of 2 events not settled, the first is failed"):
        crm.handler([event("a"), event("b")], None)
    crm.failing = set()
    crm.handler([event("a"), event("b")], None)
    assert crm.ran == ["b", "a"]


def test_a_queue_gets_exactly_the_messages_that_must_be_delivered_again(crm: Crm) -> None:
    crm.failing = {"b"}
    answer = crm.handler(
        {"Records": [record("a"), record("b"), record("c"), record("x", body="{")]}, None
    )
    assert failures(answer) == ["message-b"]
    assert crm.ran == ["a", "c"]
    assert len(list(crm.consumer.letters())) == 1


def test_no_event_of_a_fifo_group_is_tried_after_a_failed_event_of_the_group(crm: Crm) -> None:
    crm.failing = {"a2"}
    records = [
        record("a1", group="a"),
        record("b1", group="b"),
        record("a2", group="a"),
        record("a3", group="a"),
        record("b2", group="b"),
    ]
    assert failures(crm.handler({"Records": records}, None)) == ["message-a2", "message-a3"]
    assert sorted(crm.ran) == ["a1", "b1", "b2"]


def test_a_failed_event_of_a_standard_queue_does_not_hold_back_its_message_group(crm: Crm) -> None:
    crm.failing = {"a1"}
    records = [record(call, group="a", arn=FIFO.removesuffix(".fifo")) for call in ("a1", "a2")]
    assert failures(crm.handler({"Records": records}, None)) == ["message-a1"]
    assert crm.ran == ["a2"]


@pytest.mark.parametrize("odd", [{}, {"attributes": None}, {"attributes": []}])
def test_a_record_without_a_group_does_not_wait_for_other_records(
    crm: Crm, odd: dict[str, Any]
) -> None:
    crm.failing = {"a"}
    records = [record(call, arn=FIFO) for call in "ab"]
    for one in records:
        del one["attributes"]
    answer = crm.handler({"Records": [one | odd for one in records]}, None)
    assert failures(answer) == ["message-a"]
    assert crm.ran == ["b"]


def test_a_busy_record_is_returned_to_the_queue_and_a_copy_of_a_settled_record_is_not(
    crm: Crm,
) -> None:
    with crm.consumer.once(event("a")):
        answer = crm.handler({"Records": [record("a"), record("b")]}, None)
        with pytest.raises(NotSettled, match="busy"):
            crm.handler(event("a"), None)
    assert failures(answer) == ["message-a"]
    assert failures(crm.handler({"Records": [record("a"), record("b")]}, None)) == []
    assert crm.ran == ["b"]


def test_without_partial_responses_a_batch_that_is_not_settled_raises() -> None:
    crm = Crm(partial=False)
    crm.failing = {"b"}
    with pytest.raises(NotSettled, match="1 of 3 events"):
        crm.handler({"Records": [record("a"), record("b"), record("c")]}, None)
    crm.failing = set()
    assert failures(crm.handler({"Records": [record("a"), record("b")]}, None)) == []
    assert crm.ran == ["a", "c", "b"]


def test_an_event_arrives_through_sns_directly_and_inside_sqs(crm: Crm) -> None:
    note = {"Type": "Notification", "MessageId": "n", "Message": json.dumps(event("a"))}
    assert failures(crm.handler({"Records": [record("a", body=json.dumps(note))]}, None)) == []
    direct = {
        "Records": [{"EventSource": "aws:sns", "Sns": note | {"Message": json.dumps(event("b"))}}]
    }
    crm.handler(direct, None)
    assert crm.ran == ["a", "b"]


def test_only_the_invalid_notification_of_an_invocation_becomes_a_dead_letter(crm: Crm) -> None:
    notices = [
        {"EventSource": "aws:sns", "Sns": {"Type": "Notification", "Message": message}}
        for message in (json.dumps(event("a")), "{", json.dumps(event("b")))
    ]
    body = json.loads(crm.handler({"Records": notices}, None)["body"])
    assert (body["processed"], body["errors"]) == (2, 1)
    (letter,) = crm.consumer.letters()
    assert json.loads(letter.event) == notices[1]


def test_only_the_invalid_element_of_a_list_becomes_a_dead_letter(crm: Crm) -> None:
    body = json.loads(crm.handler([event("a"), 7, event("b")], None)["body"])
    assert (body["processed"], body["errors"]) == (2, 1)
    (letter,) = crm.consumer.letters()
    assert letter.event == b"7"


@pytest.mark.parametrize("nothing", [None, "", 7, {}, [[]]])
def test_a_payload_that_is_no_event_becomes_a_dead_letter_and_is_not_retried(
    crm: Crm, nothing: object
) -> None:
    body = json.loads(crm.handler(nothing, None)["body"])
    assert (body["processed"], body["errors"]) == (0, 1)
    assert len(list(crm.consumer.letters())) == 1


def test_an_empty_list_or_batch_is_a_success(crm: Crm) -> None:
    assert json.loads(crm.handler([], None)["body"])["processed"] == 0
    assert failures(crm.handler({"Records": []}, None)) == []


def test_pipes_deliver_a_list_of_records_and_get_the_ids_of_the_failed_records(
    crm: Crm,
) -> None:
    crm.failing = {"b"}
    assert failures(crm.handler([record("a"), record("b")], None)) == ["message-b"]
    assert crm.ran == ["a"]


def test_pipes_with_an_input_transformer_deliver_a_list_of_events(crm: Crm) -> None:
    crm.failing = {"b"}
    with pytest.raises(NotSettled):
        crm.handler([event("a"), event("b")], None)
    assert crm.ran == ["a"]


def test_a_failed_event_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: Job) -> None:
        raise LookupError("no such call")

    consumer = Consumer("memory:", rules=RULE, handler=fail)
    lambda_handler(consumer)({"Records": [record("a")]}, None)
    (line,) = caplog.messages
    assert line.startswith("failed type=call id=a rule=call key=")
    assert line.endswith(": LookupError: no such call")
    assert "Traceback" in caplog.text


OBSERVERS: dict[str, Callable[[], list[Any]]] = {
    "unobserved": list,
    "observed": lambda: [Tally()],
    "logged": lambda: [to_log()],
    "logged where it matters": lambda: [to_log(every=False)],
}


@pytest.mark.parametrize("observers", OBSERVERS)
def test_an_event_that_is_given_up_is_logged_once_with_any_observer(
    caplog: pytest.LogCaptureFixture, observers: str
) -> None:
    """An alarm counts these lines: nothing else reports dead letters that are kept in the table.
    One line for each event, or the alarm would count the event twice."""

    def fail(job: Job) -> None:
        raise Reject("no such call") if job.event.id == "a" else LookupError("not yet")

    rule = Rule(name="call", match="call", key=["detail.call"], attempts=1)
    consumer = Consumer("memory:", rules=rule, handler=fail, observers=OBSERVERS[observers]())
    records = [record("a"), record("b"), record("x", body="garbage")]
    assert failures(lambda_handler(consumer)({"Records": records}, None)) == []
    a, b, x = sorted(caplog.messages, key=lambda line: "type=- " in line)
    assert a.startswith(f"{GIVEN_UP}: dead type=call id=a rule=call key=")
    assert a.endswith(": rejected by the handler: no such call")
    assert b.startswith(f"{GIVEN_UP}: dead type=call id=b rule=call key=")
    assert ": given up after 1 attempt: LookupError" in b
    assert x.startswith(f"{GIVEN_UP}: invalid type=- id=- rule=- key=-: ")
    assert [one.exc_info is not None for one in caplog.records].count(True) == 1


def test_other_content_under_a_settled_key_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    rule = Rule(name="call", match="call", key=["detail.call"], verify=True)
    handler = lambda_handler(Consumer("memory:", rules=rule, handler=lambda _: None))
    handler(event("a"), None)
    other = event("a") | {"detail": {"call": "a", "length": 7}}
    assert json.loads(handler(other, None)["body"])["errors"] == 1
    (line,) = caplog.messages
    assert line.startswith(f"{GIVEN_UP}: conflict type=call id=a rule=call key=")


def test_successful_events_and_copies_are_not_logged(
    crm: Crm, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        crm.handler({"Records": [record("a"), record("b")]}, None)
    assert caplog.messages == []


@pytest.mark.parametrize("way", ["a queue", "a list", "HTTP"])
def test_an_invocation_is_logged_as_one_line_with_statuses_and_causes_of_copies(
    crm: Crm, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    caplog.set_level("INFO", "eventonce")
    crm.failing = {"c"}
    crm.consumer.process([event("b", "earlier")])
    events = [event("a"), event("b"), event("c"), event("a")]
    caplog.clear()
    with suppress(NotSettled):
        if way == "a queue":
            records = [record(f"{n}", body=json.dumps(one)) for n, one in enumerate(events)]
            crm.handler({"Records": records}, None)
        elif way == "a list":
            crm.handler(events, None)
        else:
            post = {"http": {"method": "POST"}}
            crm.handler({"requestContext": post, "body": json.dumps(events)}, None)
    (line,) = [one for one in caplog.records if one.levelname == "INFO"]
    assert line.getMessage() == (
        "4 events: done=1 duplicate=2 failed=1 (copies: 1 the same again under another "
        "transport id, 1 the same again under the same transport id)"
    )
    assert line.__dict__["statuses"] == {"done": 1, "duplicate": 2, "failed": 1}
    assert sum(line.__dict__["copies"].values()) == 2


def test_an_event_that_is_given_up_is_logged_as_one_warning_and_its_copies_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def rejects(_: Job) -> None:
        raise Reject("no such call")

    caplog.set_level("INFO", "eventonce")
    handler = lambda_handler(Consumer("memory:", rules=RULE, handler=rejects))
    handler({"Records": [record("a", body="no event")]}, None)
    for number in range(3):
        handler({"Records": [record(f"{number}", body=json.dumps(event("b")))]}, None)
    warnings = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert [text.partition(" type=")[0] for text in warnings] == [
        f"{GIVEN_UP}: invalid",
        f"{GIVEN_UP}: dead",
    ]
    assert caplog.messages[-1] == "1 events: dead=1 (copies: 1 was given up before)"


def test_an_event_that_ran_unguarded_is_logged_as_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rule = structs.replace(RULE, on_store_error="run")
    consumer = Consumer(WatchedStore(away("claim")), rules=rule, handler=lambda _: None)
    lambda_handler(consumer)({"Records": [record("a")]}, None)
    (warning,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert warning.startswith("unguarded type=call")


def test_events_for_which_no_time_was_left_are_counted_too(
    crm: Crm, caplog: pytest.LogCaptureFixture
) -> None:
    class Context:
        def get_remaining_time_in_millis(self) -> int:
            return 0

    caplog.set_level("INFO", "eventonce")
    crm.handler({"Records": [record("a"), record("b")]}, Context())
    assert "2 events: done=1 failed=1" in caplog.messages


TOPIC = [{"EventSource": "aws:sns", "Sns": {"Message": json.dumps(event("a"))}}]


@pytest.mark.parametrize("given", [event("a"), [event("a")], {"Records": TOPIC}])
@pytest.mark.parametrize(
    ("options", "attempts"), [({}, 3), ({"attempts": 1}, 1), ({"attempts": 9}, 5)]
)
def test_an_event_that_lambda_retries_itself_becomes_a_dead_letter_before_lambda_drops_it(
    given: Any, options: dict[str, int], attempts: int
) -> None:
    crm = Crm(**options)
    crm.failing = {"a"}
    for _ in range(attempts - 1):
        with pytest.raises(NotSettled):
            crm.handler(given, None)
    assert list(crm.consumer.letters()) == []
    assert json.loads(crm.handler(given, None)["body"])["errors"] == 1
    (letter,) = crm.consumer.letters()
    assert (letter.status, letter.attempt) == ("dead", attempts)


def test_a_record_of_a_pipe_without_partial_responses_becomes_a_dead_letter_at_attempt_3() -> None:
    crm = Crm(partial=False)
    crm.failing = {"a"}
    for _ in range(2):
        with pytest.raises(NotSettled):
            crm.handler([record("a")], None)
    assert failures(crm.handler([record("a")], None)) == []
    (letter,) = crm.consumer.letters()
    assert letter.attempt == 3


def test_the_last_delivery_by_lambda_makes_a_dead_letter_though_an_attempt_did_not_count() -> None:
    """The first invocation ended with its process, which does not count towards the rule's
    attempts; the third is the last all the same."""
    crm = Crm()
    claim = crm.consumer.rules.plan(envelope.read(event("a")), 1)[1]
    crm.consumer.store.claim([claim], wall_clock() - RULE.lease)
    crm.failing = {"a"}
    with pytest.raises(NotSettled):
        crm.handler(event("a"), None)
    crm.handler(event("a"), None)
    (letter,) = crm.consumer.letters()
    assert (letter.status, letter.attempt) == ("dead", 3)


REQUEST = {"requestContext": {}, "body": json.dumps(event("a"))}


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"Records": [record("a")]}, {}),
        ({"Records": [record("a")]}, {"partial": False}),
        ([record("a")], {}),
        (REQUEST, {}),
    ],
    ids=["queue", "whole batch", "pipe", "request"],
)
def test_an_event_of_a_queue_or_a_sender_is_tried_as_often_as_its_rule_says(
    given: Any, options: dict[str, bool]
) -> None:
    crm = Crm(**options)
    crm.failing = {"a"}
    for _ in range(4):
        with suppress(NotSettled):
            crm.handler(given, None)
        assert list(crm.consumer.letters()) == []
    crm.handler(given, None)
    (letter,) = crm.consumer.letters()
    assert letter.attempt == 5


def test_a_rejected_event_is_a_letter_and_not_a_failure() -> None:
    def reject(_: Job) -> None:
        raise Reject("never")

    consumer = Consumer("memory:", rules=RULE, handler=reject)
    answer = lambda_handler(consumer)({"Records": [record("a")]}, None)
    assert failures(answer) == []
    (letter,) = consumer.letters()
    assert (letter.status, letter.reason) == ("dead", "rejected by the handler: never")
    assert json.loads(letter.event) == event("a")


def test_an_async_handler_is_awaited() -> None:
    ran: list[str] = []

    async def handler(job: Job) -> None:
        ran.append(job.event.id)

    with Consumer("memory:", rules=RULE, handler=handler) as consumer:
        lambda_handler(consumer)({"Records": [record("a")]}, None)
    assert ran == ["a"]


def loaded(modules: Sequence[str]) -> list[str]:
    code = f"import eventonce.aws, sys; print([m for m in {list(modules)} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return eval(result.stdout)  # type: ignore[no-any-return]


def test_importing_the_lambda_module_loads_no_driver_no_loop_and_no_command_line() -> None:
    assert loaded(["boto3", "botocore", "asyncio", "click", "redis", "psycopg", "sqlite3"]) == []


def test_importing_the_lambda_module_loads_no_slow_module_of_the_standard_library() -> None:
    slow = ["logging", "json", "tomllib", "hashlib", "importlib.resources", "pathlib", "random"]
    assert loaded(slow) == []


RUNNING = """
import sys
from eventonce import Consumer
from eventonce.aws import lambda_handler

{handler}
lambda_handler(Consumer("memory:", rules="genesys", handler=handle))({event}, None)
print([module for module in ("boto3", "asyncio") if module in sys.modules])
"""


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        ("def handle(job): pass", []),
        ("async def handle(job): pass", ["asyncio"]),
    ],
)
def test_an_invocation_loads_no_boto3_and_loads_asyncio_only_for_an_async_handler(
    handler: str, expected: list[str]
) -> None:
    code = RUNNING.format(handler=handler, event={"Records": [record("a")]})
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert eval(result.stdout) == expected


def test_an_attempts_argument_below_1_is_refused() -> None:
    with pytest.raises(ConfigError, match="attempts must be at least 1, not 0"):
        lambda_handler(Consumer("memory:", handler=print), attempts=0)


def test_a_newline_in_an_event_type_starts_no_new_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: Job) -> None:
        raise ValueError("no")

    handler = lambda_handler(Consumer("memory:", handler=fail))
    with pytest.raises(NotSettled):
        handler({"id": "1", "detail-type": f"x\n{GIVEN_UP}", "detail": {}}, None)
    assert [record.getMessage().count("\n") for record in caplog.records] == [0]


def test_a_function_writes_its_history_before_the_invocation_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "FLUSH_WAIT", PATIENCE)
    crm = Crm()
    with History(f"sqlite:///{tmp_path}/history.db") as history:
        crm.consumer.observers.append(history.observer(crm.consumer, "lambda:calls"))
        crm.failing.add("b")
        crm.handler({"Records": [record("a"), record("b")]}, None)
        found = history.find(Search())
    told = [(one.status, one.channel) for one in found]
    assert told == [("done", "sqs:calls"), ("failed", "sqs:calls")]


def test_an_observer_writes_before_the_invocation_ends_and_its_error_fails_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Kept:
        written = 0

        def batch(self, _outcomes: object, _seconds: float, /) -> None:
            pass

        def flush(self) -> None:
            self.written += 1
            raise ZeroDivisionError

    kept = Kept()
    consumer = Consumer("memory:", handler=lambda _: None, observers=[kept])
    assert failures(lambda_handler(consumer)({"Records": [record("a")]}, None)) == []
    assert kept.written == 1
    assert "ZeroDivisionError" in caplog.text


def test_a_metrics_argument_that_is_no_flag_is_refused() -> None:
    with pytest.raises(ConfigError, match="lambda_handler: metrics"):
        lambda_handler(Consumer("memory:", handler=print), metrics="emf")  # type: ignore[arg-type]
