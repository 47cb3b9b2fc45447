"""The limits of the receiver on number, size and time, and its answers beyond these limits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from eventonce import Consumer, Job
from eventonce.web import receiver
from tests.unit.asking import JSON, ask, asked
from tests.unit.endpoint import OPEN, RULE, Endpoint, call


def test_a_handler_that_outlasts_the_answer_continues_and_the_next_copy_is_a_duplicate() -> None:
    async def story() -> None:
        going, finish = asyncio.Event(), asyncio.Event()

        async def slow(job: Job) -> None:
            going.set()
            await finish.wait()

        consumer = Consumer("memory:", rules=RULE, handler=slow)
        app = receiver(consumer, msgspec.structs.replace(OPEN, answer_within=0.05))
        sent = Sent()
        first = asyncio.ensure_future(_raw(app, call("a"), sent))
        await going.wait()
        await sent.answered.wait()
        assert sent.messages[0]["status"] == 429
        assert sent.header("retry-after") == "1"
        assert b"still running" in sent.messages[1]["body"]
        # The server still waits for this request, and so for its handler.
        assert not first.done()
        finish.set()
        await first
        # With a longer `answer_within`: on a busy machine even a copy may take longer.
        assert (await asked(receiver(consumer, OPEN), call("a"))).statuses == ["duplicate"]
        consumer.close()

    play(story())


class Sent:
    """The messages of an app, as a server would take them."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.answered = asyncio.Event()

    def header(self, name: str) -> str:
        return str(dict(self.messages[0]["headers"])[name.encode()].decode())

    async def take(self, message: Any) -> None:
        self.messages.append(message)
        if message["type"] == "http.response.body":
            self.answered.set()


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 60))


async def _raw(app: Any, body: Any, sent: Sent) -> None:
    """The app called as a server does, which waits until it returns."""
    whole = msgspec.json.encode(body)

    async def receive() -> Any:
        return {"type": "http.request", "body": whole, "more_body": False}

    await app(_scope(), receive, sent.take)


def _scope() -> dict[str, Any]:
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/events",
        "raw_path": b"/events",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(b"content-type", b"application/json")],
    }


def test_the_event_of_a_cancelled_request_can_run_again() -> None:
    async def story() -> None:
        going = asyncio.Event()
        ran: list[int] = []

        async def handler(job: Job) -> None:
            ran.append(job.attempt)
            if len(ran) == 1:
                going.set()
                await asyncio.sleep(60)

        consumer = Consumer("memory:", rules=RULE, handler=handler)
        app = receiver(consumer, OPEN)
        first = asyncio.ensure_future(_raw(app, call("a"), Sent()))
        await going.wait()
        first.cancel()
        await asyncio.wait([first])
        assert (await asked(app, call("a"))).statuses == ["done"]
        assert ran == [1, 2]
        consumer.close()

    play(story())


def test_a_request_beyond_the_bound_is_503_with_retry_after_and_probes_still_answer() -> None:
    async def story() -> None:
        going, finish = asyncio.Event(), asyncio.Event()

        async def handler(job: Job) -> None:
            going.set()
            await finish.wait()

        consumer = Consumer("memory:", rules=RULE, handler=handler)
        app = receiver(consumer, msgspec.structs.replace(OPEN, concurrency=1))
        first = asyncio.ensure_future(asked(app, call("a")))
        await going.wait()
        answer = await asked(app, call("b"))
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert "under way" in answer.body["reason"]
        assert (await asked(app, path="/health", method="GET")).status == 200
        finish.set()
        assert (await first).status == 200
        assert (await asked(app, call("b"))).status == 200
        consumer.close()

    play(story())


async def _drip(piece: bytes, count: int, pause: float = 0) -> Any:
    for _ in range(count):
        yield piece
        await asyncio.sleep(pause)


def test_a_body_is_bounded_whatever_length_is_declared(endpoint: Endpoint) -> None:
    endpoint.app = receiver(endpoint.consumer, msgspec.structs.replace(OPEN, max_body=1000))
    assert ask(endpoint.app, b" " * 1001).status == 413
    assert ask(endpoint.app, _drip(b" " * 100, 11)).status == 413
    lying = {**JSON, "content-length": "10"}
    answer = ask(endpoint.app, _drip(b" " * 100, 11), headers=lying)
    assert (answer.status, answer.body) == (413, {"reason": "the body is larger than 1000 bytes"})
    assert endpoint.letters() == []
    exact = msgspec.json.encode(call("a")).ljust(1000)
    assert ask(endpoint.app, exact).status == 200


def test_the_events_of_one_request_are_bounded(endpoint: Endpoint) -> None:
    endpoint.app = receiver(endpoint.consumer, msgspec.structs.replace(OPEN, max_events=2))
    assert ask(endpoint.app, [1, 2, 3]).status == 413
    assert (
        ask(endpoint.app, b"1\n2\n3", headers={"content-type": "application/jsonl"}).status == 413
    )
    assert endpoint.letters() == []


def test_a_body_that_does_not_arrive_in_time_is_408_and_the_connection_ends(
    endpoint: Endpoint,
) -> None:
    async def story() -> None:
        app = receiver(endpoint.consumer, msgspec.structs.replace(OPEN, body_timeout=0.05))
        sent = Sent()
        messages: Any = iter([{"type": "http.request", "body": b"{", "more_body": True}])

        async def receive() -> Any:
            for message in messages:
                return message
            await asyncio.sleep(60)
            raise AssertionError

        await app(_scope(), receive, sent.take)
        assert sent.messages[0]["status"] == 408
        assert sent.header("connection") == "close"

    play(story())
    assert endpoint.letters() == []


BODY = msgspec.json.encode(call("a"))


@pytest.mark.parametrize(
    ("messages", "timers"),
    [
        pytest.param([(BODY, False)], 2, id="answered"),
        pytest.param([(BODY[:5], True), (BODY[5:], False)], 2, id="in two pieces"),
        pytest.param([(b" " * 2000, True)], 1, id="refused"),
        pytest.param([(BODY[:5], True), None], 1, id="disconnected"),
    ],
)
def test_no_timeout_of_a_request_outlives_the_request(
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    messages: list[tuple[bytes, bool] | None],
    timers: int,
) -> None:
    """The timeout of the body would cancel a request whose handler runs, and that of the answer
    would send a second answer."""

    async def story() -> None:
        loop, came = asyncio.get_running_loop(), iter(messages)
        later, set_ = loop.call_later, list[asyncio.TimerHandle]()

        def call_later(*given: Any) -> asyncio.TimerHandle:
            set_.append(later(*given))
            return set_[-1]

        async def receive() -> Any:
            message = next(came)
            if message is None:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": message[0], "more_body": message[1]}

        app = receiver(endpoint.consumer, msgspec.structs.replace(OPEN, max_body=1000))
        monkeypatch.setattr(loop, "call_later", call_later)
        await app(_scope(), receive, Sent().take)
        monkeypatch.undo()
        assert [one.cancelled() for one in set_] == [True] * timers

    play(story())


def test_a_client_that_disconnects_during_the_body_leaves_no_dead_letter(
    endpoint: Endpoint,
) -> None:
    async def story() -> None:
        sent = Sent()
        messages: Any = iter(
            [
                {"type": "http.request", "body": b'{"detail-type":"call"', "more_body": True},
                {"type": "http.disconnect"},
            ]
        )

        async def receive() -> Any:
            return next(messages)

        await endpoint.app(_scope(), receive, sent.take)
        assert sent.messages == []

    play(story())
    assert endpoint.letters() == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/xml"},
        {"content-type": "application/json; charset=utf-16"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
def test_a_body_that_is_not_declared_as_plain_json_is_415(
    endpoint: Endpoint, headers: dict[str, str]
) -> None:
    answer = ask(endpoint.app, call("a"), headers=headers)
    assert answer.status == 415
    assert answer.body["reason"]
    assert endpoint.ran == []
