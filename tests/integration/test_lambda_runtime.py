"""The Lambda entry point in Amazon's own runtime: errors, exits, time-outs, frozen environments,
and asynchronous invocations that come again under the same request id."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from sqlite3 import OperationalError
from typing import Any

import pytest

from eventonce.core.reasons import GIVEN_UP
from eventonce.envelope.captured import own_line
from eventonce.stores.sqlite import SQLiteStore
from tests.helpers import PATIENCE, until
from tests.servers.lambda_runtime import Answer, Environment, environment

FUNCTION = """
import asyncio, os, sys, time
from pathlib import Path
from eventonce import Consumer, Rule
from eventonce.aws import lambda_handler

folder = Path(os.environ["FOLDER"])
rule = Rule(name="call", match="call", key=["detail.call"], lease=os.environ.get("LEASE", "60s"))
consumer = Consumer(f"sqlite:///{folder}/store.db", name="calls", rules=rule)

def effect(job):
    with open(folder / "effects", "a") as file:
        file.write(f"{job.event.detail['call']} {job.attempt}\\n")

def act(job):
    told = job.event.detail.get("do", {}).get(str(job.attempt), "")
    if told == "raise":
        raise LookupError("not yet")
    if told == "exit":
        os._exit(1)
    if told == "leave":
        sys.exit(1)
    if told == "hang":
        (folder / "hanging").touch()
        time.sleep(600)
    if told == "hold":
        (folder / "held").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)
    if told == "work":
        time.sleep(0.3)
    effect(job)

{register}

handler = lambda_handler(consumer)
"""

SYNC = "consumer.on(act)"
TRIES = 3
"""How often a step is tried that a busy machine can spoil: Lambda ends a process when its time is
over, even if the machine paused for seconds."""

ASYNC = """
@consumer.on
async def handle(job):
    await asyncio.sleep(0)
    act(job)
"""


def function(register: str = SYNC) -> str:
    return FUNCTION.replace("{register}", register)


def call(number: int, **do: str) -> dict[str, Any]:
    """An event whose detail says what the handler does at each attempt."""
    told = {name.removeprefix("at_"): what for name, what in do.items()}
    detail = {"call": number, "do": told}
    return {"id": f"id-{number}", "detail-type": "call", "source": "s", "detail": detail}


def record(number: int, **do: str) -> dict[str, Any]:
    return {
        "messageId": f"message-{number}",
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:eu-central-1:111122223333:calls",
        "attributes": {},
        "body": json.dumps(call(number, **do)),
    }


def effects(folder: Path) -> list[str]:
    file = folder / "effects"
    return file.read_text().split("\n")[:-1] if file.exists() else []


def counted(answer: Answer) -> dict[str, int]:
    assert answer.kind == "response", answer
    body = json.loads(answer.payload["body"])
    return {name: body[name] for name in ("processed", "duplicates", "errors")}


def answers_until(found: Callable[[], Answer], kind: str = "response") -> list[Answer]:
    """The answers up to the first one of this kind."""
    end = time.monotonic() + PATIENCE
    answers = [found()]
    while answers[-1].kind != kind:
        assert time.monotonic() < end, answers
        time.sleep(0.05)
        answers.append(found())
    return answers


@pytest.fixture(params=[SYNC, ASYNC], ids=["def", "async def"])
def register(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_an_event_takes_effect_once_when_the_function_is_invoked_with_it_twice(
    tmp_path: Path, register: str
) -> None:
    with environment(function(register), env={"FOLDER": str(tmp_path)}) as env:
        first, second = env.invoke(call(1), id="r"), env.invoke(call(1), id="r")
        assert counted(first) == {"processed": 1, "duplicates": 0, "errors": 0}
        assert counted(second) == {"processed": 0, "duplicates": 1, "errors": 0}
        assert env.starts == 1
    assert effects(tmp_path) == ["1 1"]


def test_a_tap_logs_each_retry_under_the_request_id_of_the_first_attempt(tmp_path: Path) -> None:
    variables = {"FOLDER": str(tmp_path), "EVENTONCE_TAP": "log"}
    with environment(function(), env=variables) as env:
        env.invoke_async(call(1, at_1="raise", at_2="exit"))
        said = env.said
    lines = [own_line(line.encode()) for line in said.splitlines()]
    told = [(line.id, json.loads(bytes(line.event))) for line in lines if line is not None]
    assert len(told) == 3
    assert len({request for request, _ in told}) == 1
    assert all(event == call(1, at_1="raise", at_2="exit") for _, event in told)


def test_an_asynchronous_invocation_is_retried_until_its_handler_succeeds(
    tmp_path: Path, register: str
) -> None:
    with environment(function(register), env={"FOLDER": str(tmp_path)}) as env:
        answers = env.invoke_async(call(1, at_1="raise", at_2="raise"))
    assert [answer.kind for answer in answers] == ["error", "error", "response"]
    assert answers[0].payload["errorType"] == "NotSettled"
    assert "LookupError: not yet" in answers[0].payload["errorMessage"]
    assert effects(tmp_path) == ["1 3"]


def test_an_asynchronous_event_that_always_fails_is_a_dead_letter_before_lambda_drops_it(
    tmp_path: Path, register: str
) -> None:
    do = {f"at_{attempt}": "raise" for attempt in range(1, 9)}
    with environment(function(register), env={"FOLDER": str(tmp_path)}) as env:
        answers = env.invoke_async(call(1, **do))
        said = env.said
    assert [answer.kind for answer in answers] == ["error", "error", "response"]
    assert counted(answers[-1]) == {"processed": 0, "duplicates": 0, "errors": 1}
    assert f"{GIVEN_UP}: dead type=call id=id-1 rule=" in said
    assert ": given up after 3 attempts" in said
    store = SQLiteStore(tmp_path / "store.db")
    (letter,) = store.letters()
    assert (letter.status, letter.attempt) == ("dead", 3)
    assert json.loads(letter.event) == call(1, **do)
    store.close()


def test_an_exit_frees_the_event_and_lambda_tries_again(tmp_path: Path) -> None:
    with environment(function(), env={"FOLDER": str(tmp_path)}) as env:
        assert env.invoke(call(1, at_1="leave"), id="r").kind == "exit"
        assert counted(env.invoke(call(1), id="r"))["processed"] == 1
        assert env.starts == 2
    assert effects(tmp_path) == ["1 2"]


def test_a_crash_counts_as_an_attempt_and_a_later_retry_runs_the_event(
    tmp_path: Path,
) -> None:
    with environment(function(), env={"FOLDER": str(tmp_path)}) as env:
        for number in range(TRIES):
            event = call(number, at_1="exit")
            if env.invoke(event, id="r", timeout=1).kind == "exit":
                break
        else:
            raise AssertionError(env.said)
        answers = answers_until(lambda: env.invoke(event, id="r"))
    assert {answer.kind for answer in answers[:-1]} <= {"error"}
    assert counted(answers[-1])["processed"] == 1
    assert effects(tmp_path) == [f"{number} 2"]


def test_a_time_out_ends_the_lease_too_so_that_the_retry_runs(
    tmp_path: Path, register: str
) -> None:
    """With the rule's own lease of an hour, no retry could run while this test waits."""
    settings = {"FOLDER": str(tmp_path), "LEASE": "1h"}
    with environment(function(register), env=settings, timeout=1) as env:
        for number in range(TRIES):
            event = call(number, at_1="hang")
            assert env.invoke(event, id="r").kind == "timeout"
            starts = env.starts
            if (tmp_path / "hanging").exists():
                break
        else:
            raise AssertionError(env.said)
        answers = answers_until(lambda: env.invoke(event, id="r", timeout=PATIENCE))
        assert counted(answers[-1])["processed"] == 1
        assert env.starts == starts + 1
    assert effects(tmp_path) == [f"{number} 2"]


def test_the_rest_of_a_batch_too_long_for_the_function_is_returned_in_time(tmp_path: Path) -> None:
    found: list[Any] = []
    for number in range(TRIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        kinds, settled = _invoked_until_done(folder)
        once = sorted(effects(folder)) == [f"{number} 1" for number in range(8)]
        if set(kinds) == {"response"} and len(kinds) > 1 and all(settled) and once:
            return
        found.append((kinds, settled, effects(folder)))
    raise AssertionError(found)


def _invoked_until_done(folder: Path) -> tuple[list[str], list[int]]:
    """The kinds of answers of a function with three seconds, and how many events each settled."""
    waiting = {f"message-{number}": record(number, at_1="work") for number in range(8)}
    kinds: list[str] = []
    settled: list[int] = []
    with environment(function(), env={"FOLDER": str(folder)}, timeout=3) as env:
        while waiting:
            answer = env.invoke({"Records": list(waiting.values())})
            kinds.append(answer.kind)
            if answer.kind != "response":
                break
            failed = {item["itemIdentifier"] for item in answer.payload["batchItemFailures"]}
            settled.append(len(waiting) - len(failed))
            waiting = {name: waiting[name] for name in waiting if name in failed}
    return kinds, settled


def test_the_settled_events_of_a_batch_whose_process_was_killed_do_not_run_again(
    tmp_path: Path,
) -> None:
    expected = ["0 1", "1 1", "2 1", "3 2", "4 2"]
    for number in range(TRIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        if _effects_of_killed_batch(folder) == expected:
            return
    assert effects(folder) == expected


def _effects_of_killed_batch(folder: Path) -> list[str]:
    """The effects of a batch whose third event hangs at first."""
    records = [record(1), record(2), record(3, at_1="hang"), record(4)]
    with environment(function(), env={"FOLDER": str(folder)}) as env:
        # A warm function has measured how long an event takes, and claims the whole batch at once.
        env.invoke(call(0))
        assert env.invoke({"Records": records}, timeout=3).kind == "timeout"
        if not (folder / "hanging").exists():
            return effects(folder)
        end = time.monotonic() + PATIENCE
        while True:
            answer = env.invoke({"Records": records})
            if not answer.payload["batchItemFailures"]:
                break
            assert time.monotonic() < end, answer
    return sorted(effects(folder))


@contextmanager
def two_environments(
    folder: Path, register: str, lease: str = "60s"
) -> Iterator[list[Environment]]:
    """Two environments of one function."""
    settings = {"FOLDER": str(folder), "LEASE": lease}
    with ExitStack() as stack:
        code = function(register)
        yield [stack.enter_context(environment(code, env=settings)) for _ in range(2)]


def test_the_same_request_in_two_environments_runs_once(tmp_path: Path, register: str) -> None:
    event = call(1, at_1="hold")
    with two_environments(tmp_path, register) as (first, second):
        first.begin(event, id="r")
        until((tmp_path / "held").exists)
        answer = second.invoke(event, id="r")
        assert answer.kind == "error"
        assert "busy" in answer.payload["errorMessage"]
        (tmp_path / "go").touch()
        assert counted(first.end())["processed"] == 1
        assert counted(second.invoke(event, id="r"))["duplicates"] == 1
    assert effects(tmp_path) == ["1 1"]


def freeze(env: Environment, file: Path) -> None:
    """Stop the environment while it does not lock the store's file, so that others can write."""
    end = time.monotonic() + PATIENCE
    while True:
        env.freeze()
        with closing(sqlite3.connect(file, timeout=0.1)) as beside, suppress(OperationalError):
            beside.execute("BEGIN IMMEDIATE")
            return
        env.thaw()
        assert time.monotonic() < end
        time.sleep(0.05)


def test_an_environment_frozen_during_a_run_is_fenced_after_a_takeover(
    tmp_path: Path,
) -> None:
    event = call(1, at_1="hold")
    with two_environments(tmp_path, SYNC, lease="500ms") as (first, second):
        first.begin(event, id="r")
        until((tmp_path / "held").exists)
        freeze(first, tmp_path / "store.db")
        answers = answers_until(lambda: second.invoke(event, id="r"))
        assert counted(answers[-1])["processed"] == 1
        (tmp_path / "go").touch()
        first.thaw()
        late = first.end()
        assert late.kind == "error"
        assert "fenced" in late.payload["errorMessage"]
        assert counted(first.invoke(event, id="r"))["duplicates"] == 1


def test_an_environment_frozen_between_invocations_continues_after_it_is_thawed(
    tmp_path: Path,
) -> None:
    settings = {"FOLDER": str(tmp_path), "LEASE": "100ms"}
    with environment(function(ASYNC), env=settings) as env:
        assert counted(env.invoke(call(1)))["processed"] == 1
        env.freeze()
        # Longer than a lease: the thread that renews them wakes up with nothing left to do.
        time.sleep(0.3)
        env.thaw()
        assert counted(env.invoke(call(1)))["duplicates"] == 1
        assert counted(env.invoke(call(2)))["processed"] == 1
        assert env.starts == 1
    assert effects(tmp_path) == ["1 1", "2 1"]


def test_a_message_that_kills_its_process_is_given_up_after_its_attempts(tmp_path: Path) -> None:
    """A queue delivers the message as often as that takes; Lambda itself does not."""
    do = {f"at_{attempt}": "exit" for attempt in range(1, 9)}
    settings = {"FOLDER": str(tmp_path), "LEASE": "50ms"}
    exits, end = 0, time.monotonic() + PATIENCE
    with environment(function(), env=settings) as env:
        while True:
            answer = env.invoke({"Records": [record(1, **do)]})
            exits += answer.kind == "exit"
            if answer.kind == "response" and not answer.payload["batchItemFailures"]:
                break
            assert time.monotonic() < end, answer
            time.sleep(0.05)
        assert GIVEN_UP in env.said
    # The first exit does not count: another event in that process may have caused it.
    assert exits == 6
    store = SQLiteStore(tmp_path / "store.db")
    (letter,) = store.letters()
    assert letter.status == "dead"
    store.close()


def test_a_wrong_configuration_fails_the_initialization_of_the_function() -> None:
    code = "from eventonce import Consumer\nConsumer('redis://127.0.0.1:1', rules='genesis')"
    with environment(code) as env:
        answer = env.invoke(call(1))
    assert answer.kind == "init"
    assert "a shared store needs a name" in answer.payload["errorMessage"]
