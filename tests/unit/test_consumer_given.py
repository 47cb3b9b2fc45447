"""What a consumer is given is looked at when it is given, not when the first event comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventonce import Consumer, Job
from eventonce.errors import ConfigError
from eventonce.stores.memory import MemoryStore


@pytest.mark.parametrize("store", [Path("events.db"), None, object()])
@pytest.mark.parametrize("name", [None, "crm"])
def test_what_is_no_store_is_refused(store: Any, name: str | None) -> None:
    with pytest.raises(ConfigError, match="expected a store, or the URI of one"):
        Consumer(store, name=name)


def test_what_is_no_handler_is_refused() -> None:
    nothing: Any = 5
    with pytest.raises(ConfigError, match=r"expected a handler.* not 5"):
        Consumer(MemoryStore(), handler=nothing)
    with pytest.raises(ConfigError, match=r"expected a handler.* not 5"):
        Consumer(MemoryStore()).on(nothing)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"threads": 0}, "threads must be at least 1, not 0"),
        ({"max_bytes": 0}, "max_bytes must be at least 1, not 0"),
        ({"observers": [5]}, "expected a function as an observer, not 5"),
        ({"letters": 5}, "letters: expected sqs://NAME, or a LetterSink.* not int"),
    ],
)
def test_an_option_that_can_never_work_is_refused_at_once(
    given: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Consumer(MemoryStore(), **given)


def test_a_coroutine_that_nobody_awaits_is_told_and_closed() -> None:
    async def inner() -> None: ...

    def handler(_: Job) -> Any:
        return inner()

    # A warning is an error in these tests, and one that nobody awaits would warn.
    (outcome,) = Consumer(MemoryStore(), handler=handler).process([b'{"id": "1", "type": "t"}'])
    assert "async def" in outcome.reason
