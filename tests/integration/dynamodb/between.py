"""A proxy between a store and its emulator: counts the requests, and spoils chosen requests."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.helpers import PATIENCE
from tests.servers.http import Handler, served


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


Forward = Callable[[bytes], Reply]
Trick = Callable[[str, bytes, Forward], Reply | None]
"""The treatment of a request: its operation, its body, and the way on. The result None hangs up."""


class Between:
    """The tricks that wait for a request each, and the requests so far."""

    def __init__(self, url: str) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.keys: set[str] = set()
        """The access keys that requests were signed with."""
        self.always: Trick | None = None
        self._tricks: list[tuple[str, Trick]] = []
        self._to = urlsplit(url).netloc
        self._lock = threading.Lock()

    def spoil(self, operation: str, *tricks: Trick) -> None:
        """Apply these tricks, one after the other, to the next requests of this operation."""
        self._tricks += [(operation, trick) for trick in tricks]

    @contextmanager
    def spoiling(self, trick: Trick) -> Iterator[None]:
        """Apply this trick to every request."""
        self.always = trick
        try:
            yield
        finally:
            self.always = None

    def count(self) -> list[str]:
        """The operations requested since the last count."""
        asked, self.asked = self.asked, []
        return asked

    def answer(self, operation: str, body: bytes, headers: dict[str, str]) -> Reply | None:
        with self._lock:
            self.asked.append(operation)
            written = {name.lower(): value for name, value in headers.items()}
            signed = written.get("authorization", "").partition("Credential=")[2]
            self.keys.add(signed.partition("/")[0])
            trick = self.always
            for place, (wanted, waiting) in enumerate(self._tricks):
                if wanted == operation:
                    trick = waiting
                    del self._tricks[place]
                    break

        def forward(body: bytes) -> Reply:
            way = http.client.HTTPConnection(self._to, timeout=PATIENCE)
            try:
                way.request("POST", "/", body, headers)
                told = way.getresponse()
                return Reply(told.status, dict(told.getheaders()), told.read())
            finally:
                way.close()

        return forward(body) if trick is None else trick(operation, body, forward)


@contextmanager
def standing(url: str) -> Iterator[Between]:
    """A proxy before this endpoint until the block is left."""
    between = Between(url)

    class Forwarding(Handler):
        protocol_version = "HTTP/1.1"
        wbufsize = 65_536
        disable_nagle_algorithm = True

        def reply(self) -> None:
            operation = self.headers.get("x-amz-target", "").rpartition(".")[2]
            headers = {
                name: value
                for name, value in self.headers.items()
                if name.lower() not in ("host", "content-length", "connection", "expect")
            }
            reply = between.answer(operation, self.body(), headers)
            if reply is None:
                self.close_connection = True
                return
            dropped = ("content-length", "transfer-encoding", "connection")
            said = [it for it in reply.headers.items() if it[0].lower() not in dropped]
            self.answer(reply.status, reply.body, said)

        def send_response(self, code: int, message: str | None = None) -> None:
            self.send_response_only(code, message)  # the date and the server are the emulator's

    with served(Forwarding) as port:
        between.url = f"http://127.0.0.1:{port}"
        yield between


def refuse(code: str, message: str = "told so", status: int = 400) -> Trick:
    """Answer with this error, and forward nothing."""
    body = json.dumps({"__type": f"com.amazonaws.dynamodb#{code}", "message": message}).encode()
    headers = {"content-type": "application/x-amz-json-1.0"}
    return lambda _, __, ___: Reply(status, headers, body)


def hang_up(_: str, __: bytes, ___: Forward) -> None:
    """Lose the request."""


def lose_the_reply(_: str, body: bytes, forward: Forward) -> None:
    """Forward the request, and hang up."""
    forward(body)


def held_up(by: threading.Event) -> Trick:
    """Answer, but not before this event is set."""

    def trick(_: str, body: bytes, forward: Forward) -> Reply:
        by.wait(PATIENCE)
        return forward(body)

    return trick


def fail_statement(which: int, code: str) -> Trick:
    """Let one statement of the batch fail, and do the others."""

    def trick(_: str, body: bytes, forward: Forward) -> Reply:
        asked = json.loads(body)
        del asked["Statements"][which]
        told = Reply(200, {}, b"")
        answer: Any = {"Responses": []}
        if asked["Statements"]:
            told = forward(json.dumps(asked).encode())
            answer = json.loads(told.body)
        answer["Responses"].insert(which, {"Error": {"Code": code, "Message": "told so"}})
        return told._replace(headers=_unsummed(told), body=json.dumps(answer).encode())

    return trick


def leave_keys(count: int) -> Trick:
    """Read all but the last keys, and answer that these are unprocessed."""

    def trick(_: str, body: bytes, forward: Forward) -> Reply:
        asked = json.loads(body)
        ((table, wanted),) = asked["RequestItems"].items()
        left = dict(wanted, Keys=wanted["Keys"][-count:])
        wanted["Keys"] = wanted["Keys"][:-count]
        told = Reply(200, {}, b"")
        answer: Any = {"Responses": {}}
        if wanted["Keys"]:
            told = forward(json.dumps(asked).encode())
            answer = json.loads(told.body)
        answer["UnprocessedKeys"] = {table: left}
        return told._replace(headers=_unsummed(told), body=json.dumps(answer).encode())

    return trick


def dated(seconds: float) -> Trick:
    """Answer with a date this far from the true date, as a wrong clock of the service would."""

    def trick(_: str, body: bytes, forward: Forward) -> Reply:
        told = forward(body)
        date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + seconds))
        headers = {name: value for name, value in told.headers.items() if name.lower() != "date"}
        return told._replace(headers={**headers, "date": date})

    return trick


def _unsummed(reply: Reply) -> dict[str, str]:
    """The headers without the checksum of the original body."""
    return {name: value for name, value in reply.headers.items() if "crc32" not in name.lower()}
