"""The requests that the receiver admits: by number, by bytes, and one by one when the receiver is
full."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from eventonce import ConfigError, Consumer, Job
from eventonce.envelope import read_body
from eventonce.types import Event
from eventonce.web import Serve, receiver, server
from eventonce.web.admission import Admission, limits
from eventonce.web.responses import refuse
from eventonce.web.server import Server, listen
from tests.unit.asking import JSON, ask, asked
from tests.unit.endpoint import OPEN, RULE, call

KIB = 1024


class Held:
    """Handlers that wait until `finish` is set."""

    def __init__(self, **settings: Any) -> None:
        self.going = asyncio.Semaphore(0)
        self.finish = asyncio.Event()
        self.writers: list[asyncio.StreamWriter] = []
        self.consumer = Consumer("memory:", rules=RULE, handler=self._handle)
        self.settings = msgspec.structs.replace(OPEN, port=0, **settings)
        self.app = receiver(self.consumer, self.settings)

    async def _handle(self, job: Job) -> None:
        self.going.release()
        await self.finish.wait()

    async def begun(self, name: str, size: int = 0) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(asked(self.app, call(name, text="x" * size)))
        await self.going.acquire()
        return task


def play(story: Awaitable[None]) -> None:
    async def played() -> None:
        async with asyncio.timeout(20):
            await story

    asyncio.run(played())


def test_permanent_refusals_are_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = [0.0]
    admission = Admission(limits(Serve()), threads=2, clock=lambda: clock[0])
    for clock[0] in (0.0, 10.0, 59.0, 61.0):
        admission.count_refusal(refuse(401))
        admission.count_refusal(refuse(503))
    assert [record.getMessage()[:39] for record in caplog.records] == [
        "refused requests: 1, the last with 401:",
        "refused requests: 3, the last with 401:",
    ]


@pytest.mark.parametrize(
    ("key", "media", "status", "reason"),
    [
        ("wrong", "application/json", 401, "No credentials that this receiver knows"),
        ("k" * 16, "text/plain", 415, "content-type is 'text/plain'; it must be"),
        ("k" * 16, "", 413, "the body is larger than 100 bytes"),
    ],
)
def test_a_permanent_refusal_is_logged_with_its_reason_and_without_the_key_of_the_request(
    key: str, media: str, status: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = Consumer("memory:", rules=RULE, handler=lambda _: None)
    app = receiver(consumer, Serve(api_keys=["k" * 16], max_body=100))
    body = b"x" * 200 if status == 413 else b"{}"
    headers = {"x-api-key": key, "content-type": media or "application/json"}
    assert ask(app, body, headers=headers).status == status
    (record,) = caplog.records
    assert f"the last with {status}: {reason}" in record.getMessage()
    assert ". Correct the sender" in record.getMessage()
    assert key not in record.getMessage()
    consumer.close()


def test_bodies_are_bounded_by_their_sum_and_refused_before_a_byte_is_read() -> None:
    async def story() -> None:
        held = Held(max_body=10 * KIB, max_in_flight=10 * KIB)
        first = await held.begun("a", 6 * KIB)
        answer = await asked(held.app, _never(), headers=JSON | {"content-length": str(5 * KIB)})
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert "bytes are under way" in answer.body["reason"]
        # A body that fits into the rest is admitted.
        second = await held.begun("b", KIB)
        held.finish.set()
        assert [(await first).status, (await second).status] == [200, 200]
        assert (await asked(held.app, call("c", text="x" * 9 * KIB))).status == 200
        held.consumer.close()

    play(story())


async def _never() -> Any:
    yield b""
    raise AssertionError("the body was read")


async def _chunks(count: int) -> Any:
    for _ in range(count):
        yield b" " * KIB


def test_a_body_without_a_declared_length_is_counted_while_it_is_read() -> None:
    async def story() -> None:
        held = Held(max_body=10 * KIB, max_in_flight=10 * KIB)
        first = await held.begun("a", 6 * KIB)
        assert (await asked(held.app, _chunks(9))).status == 503
        held.finish.set()
        await first
        # No bytes of the refused body are still counted.
        assert (await asked(held.app, _chunks(9))).status == 400
        held.consumer.close()

    play(story())


def test_a_limit_of_bytes_in_flight_below_one_body_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_in_flight"):
        limits(Serve(max_body=1000, max_in_flight=999))


def test_a_timeout_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="serve: header_timeout must be greater than 0"):
        limits(Serve(header_timeout="0s"))


def test_a_large_body_is_read_in_a_thread_and_a_small_body_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: list[str] = []

    def reading(body: bytes, *args: Any, **named: Any) -> Sequence[Event | bytes]:
        names.append(threading.current_thread().name)
        return read_body(body, *args, **named)

    monkeypatch.setattr("eventonce.web.events.read_body", reading)

    async def story() -> None:
        held = Held()
        held.finish.set()
        for size in (10, 200 * KIB):
            assert (await asked(held.app, call(str(size), text="x" * size))).statuses == ["done"]
        held.consumer.close()

    play(story())
    assert names[0] == "MainThread"
    assert names[1].startswith("eventonce-reading")


def test_ready_fails_when_no_event_gets_through_and_the_log_has_the_duration(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        held = Held(concurrency=2)
        first = await held.begun("a")
        answer = await asked(held.app, path="/ready", method="GET")
        assert (answer.status, answer.body["under_way"]) == (200, 1)
        second = await held.begun("b")
        answer = await asked(held.app, path="/ready", method="GET")
        assert (answer.status, answer.body["status"]) == (503, "no event gets through")
        assert (await asked(held.app, path="/health", method="GET")).body["under_way"] == 2
        for _ in range(3):
            assert (await asked(held.app, call("c"))).status == 503
        held.finish.set()
        await asyncio.gather(first, second)
        assert (await asked(held.app, path="/ready", method="GET")).status == 200
        held.consumer.close()

    play(story())
    (line,) = [it.getMessage() for it in caplog.records if it.name == "eventonce.web"]
    assert "requests are refused" in line
    assert "requests under way: 2, the oldest for" in line


def test_a_receiver_is_stuck_with_as_many_overdue_requests_as_threads() -> None:
    now = 0.0
    admission = Admission(limits(Serve(answer_within=5)), threads=2, clock=lambda: now)
    slow = [admission.enter(1), admission.enter(1)]
    assert not admission.stuck
    now = 5.1
    assert admission.stuck
    assert admission.oldest == now
    admission.leave(admission.enter(1))
    # A request was answered meanwhile.
    assert not admission.stuck
    now = 11.0
    assert admission.stuck
    for request in slow:
        admission.leave(request)
    assert not admission.stuck
    assert admission.oldest == 0


def test_slow_handlers_are_logged_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    admission = Admission(limits(Serve(answer_within=5)), threads=2, clock=lambda: now)
    caplog.set_level(logging.WARNING)
    admission.enter(1)
    for at in (5.0, 6.0, 14.9, 15.0):
        now = at
        admission.warn_of_slow()
    told = [record.getMessage() for record in caplog.records]
    assert [text.rpartition(" for ")[2] for text in told] == ["5.0 s", "15.0 s"]


async def _served(held: Held, story: Callable[[Server, int], Awaitable[None]]) -> None:
    served = Server(held.app, limits(held.settings))
    with listen(held.settings) as listening:
        serving = asyncio.ensure_future(served.serve(listening))
        try:
            await story(served, listening.getsockname()[1])
        finally:
            for writer in held.writers:
                writer.close()
            served.uvicorn.should_exit = True
            await serving
            held.consumer.close()


async def _posted(held: Held, port: int, name: str) -> bytes:
    """The status of the answer; the connection stays open, so that only the answer makes room."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    held.writers.append(writer)
    body = msgspec.json.encode(call(name))
    head = "POST /events HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return (await reader.readline()).split()[1]


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  no signal for a held line exists
        await asyncio.sleep(0.001)


def test_a_request_beyond_the_bound_waits_unread_for_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "UNREAD_WAIT", 60.0)
    held = Held(concurrency=1)

    async def story(served: Server, port: int) -> None:
        first = asyncio.ensure_future(_posted(held, port, "a"))
        await held.going.acquire()
        others = [asyncio.ensure_future(_posted(held, port, name)) for name in "bcd"]
        await _until(lambda: sum(bool(line.held) for line in served.connections.values()) == 3)
        waited = [line for line in served.connections.values() if line.held]
        held.finish.set()
        assert await asyncio.gather(first, *others) == [b"200"] * 4
        assert all(line._turn.cancelled() for line in waited), "the next request has its whole time"

    play(_served(held, story))


def test_a_request_that_waited_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "UNREAD_WAIT", 0.0)
    held = Held(concurrency=1)

    async def story(served: Server, port: int) -> None:
        first = asyncio.ensure_future(_posted(held, port, "a"))
        await held.going.acquire()
        assert await _posted(held, port, "b") == b"503"
        held.finish.set()
        assert await first == b"200"
        assert await _posted(held, port, "b") == b"200"

    play(_served(held, story))


def test_no_more_bytes_wait_than_may_be_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "UNREAD_WAIT", 60.0)
    held = Held(concurrency=1, max_body=300, max_in_flight=300)

    async def story(served: Server, port: int) -> None:
        first = asyncio.ensure_future(_posted(held, port, "a"))
        await held.going.acquire()
        second = asyncio.ensure_future(_posted(held, port, "b"))
        await _until(lambda: any(line.held for line in served.connections.values()))
        assert await _posted(held, port, "c") == b"503"
        held.finish.set()
        assert [await first, await second] == [b"200", b"200"]

    play(_served(held, story))
