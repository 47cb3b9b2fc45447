"""The writes of an answer to its connection: one write for a complete answer."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.server import ServerState

from eventonce.http_report import JSON, Answer
from eventonce.web import Serve
from eventonce.web.admission import limits
from eventonce.web.responses import WHOLE, App, Receive, Scope, Send, send_answer
from eventonce.web.server import Server

ASKED = b"GET /%s HTTP/1.1\r\nhost: test\r\n\r\n"


class Wire(asyncio.Transport):
    """A connection that lists its writes, and notes after how many writes it is closed."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 80)})
        self.written: list[bytes] = []
        self.closed_after: int | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert self.closed_after is None
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed_after is not None

    def close(self) -> None:
        self.closed_after = len(self.written)

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def whole(scope: Scope, _: Receive, send: Send) -> None:
    await send_answer(Answer(200, JSON, scope["path"].encode()), send)


def wire_after(asked: bytes, app: App = whole) -> Wire:
    """The connection after these bytes came in, and all tasks have ended."""

    async def asking() -> Wire:
        wire, server = Wire(), Server(app, limits(Serve()))
        server.loop = asyncio.get_running_loop()
        server.config.load()
        made: Any = server.config.http_protocol_class
        connection = made(config=server.config, server_state=ServerState(), app_state={})
        connection.connection_made(wire)
        connection.data_received(asked)
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
        connection.connection_lost(None)
        return wire

    return asyncio.run(asking())


def test_a_complete_answer_is_written_at_once() -> None:
    (written,) = wire_after(ASKED % b"one").written
    head, _, body = written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body == b"/one"


def test_requests_that_came_together_are_answered_one_after_the_other() -> None:
    first, second = wire_after(ASKED % b"one" + ASKED % b"two").written
    assert first.endswith(b"/one")
    assert second.endswith(b"/two")


def test_a_connection_is_closed_after_its_last_answer_was_written() -> None:
    wire = wire_after(b"GET /last HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
    assert [text.rpartition(b"\r\n")[2] for text in wire.written] == [b"/last"]
    assert wire.closed_after == 1


def test_an_answer_that_comes_in_pieces_is_written_in_pieces() -> None:
    async def pieces(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (b"a", b"b"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    assert len(wire_after(ASKED % b"many", pieces).written) == 4


def test_the_head_of_a_cancelled_answer_is_still_written() -> None:
    async def breaks(_: Scope, __: Receive, send: Send) -> None:
        headers = [(b"content-length", b"9")]
        await send({"type": "http.response.start", "status": 200, "headers": headers, WHOLE: True})
        raise asyncio.CancelledError

    (written,) = wire_after(ASKED % b"one", breaks).written
    assert written.endswith(b"content-length: 9\r\n\r\n")
