"""Events that no handler takes: logged at every way in, and kept or failed as `unhandled` says."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from eventonce import Consumer, Job
from eventonce.aws import NotSettled, lambda_handler
from eventonce.aws.dlq import FoundLetter
from eventonce.clock import wall_clock
from eventonce.config import load
from eventonce.core.reasons import GIVEN_UP
from eventonce.errors import ConfigError
from eventonce.letters.runners import foreseen
from eventonce.runtime.observers import to_log
from eventonce.runtime.running_batch import CopyWait
from eventonce.runtime.unhandled import ADVICE, UNHANDLED_TYPES
from eventonce.sources import FileSource
from eventonce.types import Outcome
from eventonce.web import receiver
from eventonce.worker import Worker, WorkerSettings
from tests.helpers import WatchedStore, away
from tests.unit.asking import ask
from tests.unit.endpoint import OPEN
from tests.unit.invoked import record


@pytest.fixture(autouse=True)
def _warnings_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Only warnings, whatever level an earlier command of this process has set."""
    caplog.set_level(logging.WARNING, logger="eventonce")


def fact(type: str, number: int = 1) -> dict[str, Any]:
    return {"id": str(number), "source": "s", "detail-type": type, "detail": {"number": number}}


def consumer(unhandled: str = "ignore") -> Consumer:
    made = Consumer("memory:", unhandled=unhandled)
    made.on("call.ends")(lambda _: None)
    return made


def redriven(made: Consumer, event: dict[str, Any]) -> list[Outcome]:
    return made.runtime.run_again([event])


def worked_on(made: Consumer, event: dict[str, Any]) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder, "capture.jsonl")
        file.write_text(json.dumps(event) + "\n")
        Worker(made, FileSource([file]), WorkerSettings(concurrency=1, receivers=1)).run()


def invoked(made: Consumer, event: object) -> None:
    with suppress(NotSettled):
        lambda_handler(made)(event, None)


WAYS_IN: dict[str, Callable[[Consumer, dict[str, Any]], object]] = {
    "process": lambda made, event: made.process([event]),
    "process_async": lambda made, event: asyncio.run(made.process_async([event])),
    "run_again": redriven,
    "a worker": worked_on,
    "the receiver": lambda made, event: ask(receiver(made, OPEN), event),
    "lambda": invoked,
    "lambda behind a queue": lambda made, event: invoked(
        made, {"Records": [record("1", body=json.dumps(event))]}
    ),
    "lambda behind HTTP": lambda made, event: invoked(
        made, {"requestContext": {"http": {"method": "POST"}}, "body": json.dumps(event)}
    ),
}


@pytest.mark.parametrize("way", WAYS_IN)
def test_the_first_unhandled_event_of_each_type_is_a_warning(
    caplog: pytest.LogCaptureFixture, way: str
) -> None:
    made = consumer()
    for number, call in enumerate(["call.end", "call.end", "call.start", "call.end"]):
        WAYS_IN[way](made, fact(call, number))
    assert [line.partition(": ")[0] for line in caplog.messages] == [
        "ignored type=call.end id=0 rule=- key=-",
        "ignored type=call.start id=2 rule=- key=-",
    ]
    assert "no handler takes events of type 'call.end'" in caplog.messages[0]
    assert ADVICE in caplog.messages[0]
    assert {one.levelname for one in caplog.records} == {"WARNING"}


@pytest.mark.parametrize("every", [True, False])
@pytest.mark.parametrize(
    ("way", "policy"),
    [
        # A capture delivers a failed event again, and a worker would never end.
        (way, policy)
        for way in WAYS_IN
        for policy in ("ignore", "letter", "fail")
        if (way, policy) != ("a worker", "fail")
    ],
)
def test_an_unhandled_event_has_one_log_line_at_most(
    caplog: pytest.LogCaptureFixture, way: str, policy: str, every: bool
) -> None:
    caplog.set_level(logging.INFO, logger="eventonce")
    made = consumer(policy)
    made.observers.append(to_log(every=every))
    for number in range(3):
        WAYS_IN[way](made, fact("call.end", number))
    lines = [one for one in caplog.records if hasattr(one, "fields")]
    first, *others = [one.getMessage() for one in lines]
    status = {"ignore": "ignored", "letter": f"{GIVEN_UP}: dead", "fail": "failed"}[policy]
    said = "no handler takes events of type 'call.end'"
    assert first.startswith(f"{status} type=call.end id=0 rule=- key=-: {said}; {ADVICE}")
    assert lines[0].levelname == "WARNING"
    quiet = policy == "ignore" and not every
    numbers = () if quiet else (1, 2)
    assert others == [f"{status} type=call.end id={at} rule=- key=-: {said}" for at in numbers]
    assert not [one for one in caplog.messages if "call.end" in one and one not in (first, *others)]


@pytest.mark.parametrize("way", [way for way in WAYS_IN if way.startswith("lambda")])
@pytest.mark.parametrize("policy", ["ignore", "letter"])
def test_the_alarm_counts_an_object_without_a_type_once(
    caplog: pytest.LogCaptureFixture, way: str, policy: str
) -> None:
    made = consumer(policy)
    for number in range(2):
        WAYS_IN[way](made, {"ticket": number})
    first, second = caplog.messages
    assert first.startswith(f"{GIVEN_UP}: invalid ")
    assert first.endswith(f"; {ADVICE}")
    assert second.startswith(f"{GIVEN_UP}: invalid ")
    assert ADVICE not in second


def test_the_warning_says_that_the_dead_letter_could_not_be_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = consumer("letter").over(WatchedStore(away("put_letters", times=1)))
    made.observers.append(to_log())
    made.process([fact("call.end")])
    (line,) = caplog.messages
    assert line.startswith("failed type=call.end id=1 ")
    assert "and its dead letter could not be kept" in line
    assert line.endswith(ADVICE)


def test_a_logger_of_the_program_has_a_line_for_each_outcome(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = consumer("letter")
    made.observers.append(to_log(logging.getLogger("tests.own")))
    made.process([fact("call.end", number) for number in range(2)])
    assert [one.name for one in caplog.records] == ["eventonce", "tests.own", "tests.own"]


def test_the_forecast_of_a_redrive_logs_no_line_and_uses_up_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = consumer("letter")
    made.process([fact("call.end")])
    (letter,) = made.letters()
    other = consumer("letter").over(made.store)
    caplog.clear()
    assert foreseen(other, FoundLetter(letter))[0] == "dead"
    assert caplog.messages == []
    other.process([fact("call.end", 2)])
    assert len(caplog.messages) == 1


def test_only_one_of_two_concurrent_batches_has_the_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = consumer()
    planned = [made.runtime.plan([fact("call.end", number)]) for number in range(2)]
    told = [made.runtime.tell(made.runtime.run(one, CopyWait(0.0)), 0.0)[0] for one in planned]
    assert [one.warned for one in told] == [True, False]
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(("policy", "ends"), [("ignore", True), ("letter", False), ("fail", False)])
def test_the_warning_announces_no_further_lines_only_where_no_line_follows(
    caplog: pytest.LogCaptureFixture, policy: str, ends: bool
) -> None:
    made = consumer(policy)
    made.observers.append(to_log(every=False))
    made.process([fact("call.end", number) for number in range(3)])
    first, *others = caplog.messages
    assert first.endswith(ADVICE) is not ends
    assert (others == []) is ends


def test_a_sender_cannot_fill_the_log_with_types(caplog: pytest.LogCaptureFixture) -> None:
    consumer().process([fact(f"made-up-{number}", number) for number in range(300)])
    assert len(caplog.messages) == UNHANDLED_TYPES + 1
    assert caplog.messages[-1].endswith("no warning for any other")


def test_a_long_type_from_a_sender_is_cut_and_logged_on_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    consumer().process([fact("x\n" * 10_000)])
    (line,) = caplog.messages
    assert "\n" not in line
    assert len(line) < 2_000


def test_an_unhandled_event_can_be_kept_as_a_dead_letter_and_run_later() -> None:
    made = consumer("letter")
    (outcome,) = made.process([fact("call.end")])
    assert (outcome.status, outcome.ack) == ("dead", True)
    (letter,) = made.letters()
    assert letter.reason == "no handler takes events of type 'call.end'"
    assert [one.status for one in made.redrive()] == ["dead"]
    assert len(list(made.letters())) == 1
    ran: list[Job] = []
    made.on("call.end")(ran.append)
    assert [one.status for one in made.redrive()] == ["done"]
    assert [job.event.id for job in ran] == ["1"]
    assert list(made.letters()) == []


def test_two_unhandled_events_are_two_dead_letters() -> None:
    made = consumer("letter")
    made.process([fact("call.end", 1), fact("call.end", 2), fact("call.end", 1)])
    assert len(list(made.letters())) == 2


def test_an_unhandled_event_can_stay_unacknowledged() -> None:
    made, now = consumer("fail"), wall_clock()
    (outcome,) = made.process([fact("call.end")])
    assert (outcome.status, outcome.ack) == ("failed", False)
    assert (outcome.retry_at or 0) >= now + 1000
    assert list(made.letters()) == []
    with pytest.raises(NotSettled, match="no handler takes events of type"):
        lambda_handler(made)(fact("call.end"), None)


@pytest.mark.parametrize("policy", ["ignore", "letter"])
def test_an_unhandled_object_without_a_type_is_kept(policy: str) -> None:
    made = consumer(policy)
    (outcome,) = made.process([{"ticket": 7}])
    assert (outcome.status, outcome.reason) == (
        "invalid",
        "it has no type, and no handler takes events without one",
    )
    assert str(outcome.error) == outcome.reason
    assert [letter.event for letter in made.letters()] == [b'{"ticket":7}']


def test_a_consumer_over_another_store_has_the_same_policy_for_unhandled_events() -> None:
    other = consumer("fail").over(Consumer("memory:").store)
    assert [one.status for one in other.process([fact("call.end")])] == ["failed"]


def test_a_policy_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="unhandled: expected ignore, letter, fail, not 'drop'"):
        Consumer("memory:", unhandled="drop")


def test_the_configuration_file_sets_the_policy_for_unhandled_events(tmp_path: Path) -> None:
    file = tmp_path / "eventonce.toml"
    file.write_text(
        'store = "memory:"\nunhandled = "letter"\n[[sink]]\nmatch = "a"\nto = "builtins:print"\n'
    )
    with load(file).consumer() as made:
        assert [one.status for one in made.process([fact("b")])] == ["dead"]
