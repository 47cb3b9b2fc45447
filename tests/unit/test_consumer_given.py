"""The arguments of a consumer are checked at its construction, not at the first event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from eventonce import Consumer, Job, Retry
from eventonce.aws import lambda_handler
from eventonce.config import load
from eventonce.errors import ConfigError
from eventonce.rules import Ruleset
from eventonce.runtime.observers import to_log
from eventonce.stores import open_store
from eventonce.stores.memory import MemoryStore
from eventonce.stores.sqlite import SQLiteStore
from eventonce.testing.harness import Harness
from eventonce.web import receiver
from eventonce.worker import Worker, WorkerSettings

EVENT = {"id": "1", "source": "s", "detail-type": "call.end", "detail": {}}


@pytest.mark.parametrize("store", [Path("events.db"), None, object()])
@pytest.mark.parametrize("name", [None, "crm"])
def test_an_argument_that_is_no_store_is_refused(store: Any, name: str | None) -> None:
    with pytest.raises(ConfigError, match="expected a store, or the URI of one"):
        Consumer(store, name=name)


def test_a_store_behind_a_wrapper_is_accepted_with_its_transactions(tmp_path: Path) -> None:
    """On every version of Python: `isinstance` of 3.12 and later sees no method of the wrapper."""

    class Wrapper:
        def __init__(self, store: SQLiteStore) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

    wrapper: Any = Wrapper(SQLiteStore(tmp_path / "x.db"))
    connections: list[Any] = []
    with Consumer(wrapper, handler=lambda job: connections.append(job.connection)) as consumer:
        (outcome,) = consumer.process(EVENT)
    assert (outcome.status, len(connections)) == ("done", 1)


def test_an_argument_that_is_no_handler_is_refused() -> None:
    nothing: Any = 5
    with pytest.raises(ConfigError, match=r"expected a handler.* not 5"):
        Consumer(MemoryStore(), handler=nothing)
    with pytest.raises(ConfigError, match=r"expected a handler.* not 5"):
        Consumer(MemoryStore()).on(nothing)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"name": ""}, "expected the name of the consumer, such as 'crm-sync', not ''"),
        ({"threads": 0}, "threads must be at least 1, not 0"),
        ({"threads": 2.5}, "threads must be a whole number, not 2.5"),
        ({"threads": True}, "threads must be a whole number, not True"),
        ({"max_bytes": 0}, "max_bytes must be at least 1, not 0"),
        ({"max_bytes": "1"}, "max_bytes must be a whole number, not '1'"),
        ({"observers": [5]}, "an observer must be a function, not 5"),
        ({"observers": print}, "observers: expected a list of functions, not builtin"),
        ({"letters": 5}, "letters: expected sqs://NAME, or a LetterSink.* not int"),
        ({"unhandled": "drop"}, "unhandled: expected ignore, letter, fail, not 'drop'"),
        ({"keep_headers": "x-tenant"}, "keep_headers must be a list of texts, not 'x-tenant'"),
        ({"keep_headers": [5]}, "keep_headers must be a list of texts, not 5"),
        ({"secrets": b"a secret of some length"}, "secrets: expected a list of bytes"),
        ({"secrets": ["a secret of some length"]}, "secrets: expected bytes, not str"),
        ({"secrets": [b"short"]}, "secrets: a secret needs at least 16 bytes, this one has 5"),
        ({"secrets": [b""]}, "secrets: the first is empty"),
        ({"clock": 5}, "clock must be a function, not 5"),
    ],
)
def test_an_option_that_can_never_work_is_refused_at_once(
    given: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Consumer(MemoryStore(), **given)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"deadline": "5"}, "deadline must be a number of seconds, not '5'"),
        ({"deadline": nan}, "deadline must be a number of seconds, not nan"),
        ({"margin": -1}, "margin must be 0 seconds or more, not -1"),
        ({"margin": "5"}, "margin must be a number of seconds, not '5'"),
        ({"deliveries": 0}, "deliveries must be at least 1, not 0"),
        ({"deliveries": 1.5}, "deliveries must be a whole number, not 1.5"),
        ({"wait": -1}, "wait must be 0 seconds or more, not -1"),
        ({"wait": nan}, "wait must be a number of seconds, not nan"),
    ],
)
def test_an_invalid_number_given_to_process_is_refused(
    given: dict[str, Any], complaint: str
) -> None:
    consumer = Consumer(MemoryStore(), handler=lambda _: None)
    with pytest.raises(ConfigError, match=complaint):
        consumer.process([EVENT], **given)
    if "wait" in given:
        with pytest.raises(ConfigError, match=complaint):
            asyncio.run(consumer.process_async([EVENT], **given))


def test_a_deadline_in_the_past_is_treated_as_a_deadline_of_now() -> None:
    consumer = Consumer(MemoryStore(), handler=lambda _: None)
    assert consumer.process([EVENT], deadline=-1, margin=1)[0].status == "failed"
    assert consumer.process([EVENT], deadline=-1)[0].status == "done"
    assert consumer.process([EVENT], deadline=inf, margin=1)[0].status == "duplicate"


@pytest.mark.parametrize(
    ("call", "given", "complaint"),
    [
        (Consumer.process, 5, "expected a list of events: dicts, JSON text or bytes, not int"),
        (Consumer.once, [EVENT], "expected one event, or a function, not list"),
        (Consumer.redrive, 5, "expected a list of dead letters, not int"),
        (Consumer.redrive, [EVENT], "expected dead letters, as consumer.letters.* not dict"),
        (Consumer.over, 5, "expected a store, or the URI of one"),
        (Consumer.use, "genesys", "expected a Ruleset, not str"),
        (
            Consumer.use,
            Ruleset([], name="crm"),
            "for the consumer 'crm', and this consumer is 'default'",
        ),
        (lambda it, given: setattr(it, "observers", given), [5], "must be a function, not 5"),
        (lambda it, given: it.runtime.wrap(given), 5, "wrap must be a function, not 5"),
        (lambda it, given: it.runtime.wrap(given), lambda _: None, "expected a handler.* not None"),
        (lambda it, given: it.admin.show(given), "00ab", "a key must be bytes, not '00ab'"),
        (lambda it, given: it.admin.forget([given]), 5, "a key must be bytes, not 5"),
        (lambda it, given: it.rules.explain(given), EVENT, "expected an Event, not dict"),
        (lambda _, given: to_log(given), "calls", "expected a logger, not str"),
        (lambda _, given: open_store(given), None, "must be a URI.* not NoneType"),
        (lambda _, given: load(given), 5, "expected the path of a file, not int"),
        (lambda _, given: lambda_handler(given), 5, "expected a Consumer.* not int"),
        (lambda it, given: lambda_handler(it, attempts=given), 0, "attempts must be at least 1"),
        (lambda it, given: lambda_handler(it, margin=given), -1, "margin must be 0 seconds or"),
        (lambda it, given: lambda_handler(it, partial=given), "no", "partial must be True or"),
        (lambda it, given: lambda_handler(it, tap=given), "log", "tap must be True or False"),
        (lambda it, given: lambda_handler(it, shadow_log=given), 1, "shadow_log must be True or"),
        (lambda it, given: lambda_handler(it, admits=given), "me", "admits must be a function"),
        (lambda _, given: receiver(given), 5, "expected a Consumer, not int"),
        (receiver, {"api_keys": ["a"]}, "expected settings such as .*Serve.*, not dict"),
        (lambda it, given: receiver(it, tap=given), 5, "tap must be a function, not 5"),
        (lambda it, given: Worker(it, given, WorkerSettings()), 5, "expected a Source, not int"),
        (lambda _, given: Worker(given, given, WorkerSettings()), 5, "expected a Consumer, not"),
        (lambda _, given: WorkerSettings(concurrency=given), 0, "concurrency must be at least 1"),
        (lambda _, given: WorkerSettings(receivers=given), 0, "receivers must be at least 1"),
        (lambda _, given: WorkerSettings(drain=given), -1, "drain must be 0 seconds or more"),
        (lambda it, given: Harness().deliver(EVENT, to=it, copies=given), 0, "copies must be"),
        (lambda it, given: Harness().deliver(given, to=it), 5, "expected a list of events"),
    ],
)
def test_an_argument_that_can_never_work_is_refused_at_once(
    call: Callable[[Consumer, Any], object], given: Any, complaint: str
) -> None:
    consumer = Consumer(MemoryStore(), handler=lambda _: None)
    with pytest.raises(ConfigError, match=complaint):
        call(consumer, given)


def test_a_retry_whose_time_is_no_number_is_refused() -> None:
    later: Any = "5"
    with pytest.raises(ValueError, match="after must be 0 to 1209600 seconds, not '5'"):
        Retry("later", after=later)


def test_an_empty_older_secret_finds_the_records_from_before_the_first_secret() -> None:
    store, ran = MemoryStore(), list[Job]()
    for secrets in ((), (b"a secret of some length", b"")):
        Consumer(store, handler=ran.append, secrets=secrets).process([EVENT])
    assert len(ran) == 1


def test_a_coroutine_that_a_plain_handler_returns_is_reported_and_closed() -> None:
    async def inner() -> None: ...

    def handler(_: Job) -> Any:
        return inner()

    # A warning is an error in these tests, and a coroutine that is not awaited would warn.
    (outcome,) = Consumer(MemoryStore(), handler=handler).process([b'{"id": "1", "type": "t"}'])
    assert "async def" in outcome.reason
