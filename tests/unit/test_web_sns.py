"""SNS beside the receiver's other senders: its settings, its answers, and the requests that the
receiver makes for it. The tests of a whole receiver are in `test_receiver_sns`."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler

import pytest

from eventonce import ConfigError, Consumer, Rule
from eventonce.aws import lambda_handler
from eventonce.web import Serve, receiver, sns
from eventonce.web.authentication import Authenticator
from eventonce.web.sns import MAX_ANSWER, MOST_FETCHES, Fetches, fetched
from tests.servers.http import Handler, served
from tests.unit.asking import JSON, ask, asked
from tests.unit.endpoint import PATIENT, Endpoint, call

TOPIC = "arn:aws:sns:eu-central-1:123456789012:calls"
SNS = {"x-amz-sns-message-type": "Notification", "content-type": "text/plain; charset=UTF-8"}


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "calls",
        "arn:aws:sqs:eu-central-1:123456789012:calls",
        "arn:aws:sns:eu-central-1:1234:calls",
        "arn:aws:sns:eu-central-1:123456789012:*",
        "arn:aws:sns:eu-central-1:123456789012:calls.fifo",
        "arn:aws:sns:example.com/:123456789012:calls",
        "arn:aws-elsewhere:sns:eu-central-1:123456789012:calls",
        TOPIC + ":2bcfbf39-05c3-41de-beaa-fcfcc21c8f55",
    ],
)
def test_a_text_that_is_no_arn_of_a_topic_is_named(topic: str) -> None:
    with pytest.raises(ConfigError, match=r"sns_topics holds .* must be the ARN"):
        Authenticator(Serve(sns_topics=[topic]))


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r'sns_topics needs: pip install -e "\.\[sns\]"'):
        Authenticator(Serve(sns_topics=[TOPIC]))
    assert Authenticator(Serve()).ways == []


def test_topics_are_a_way_to_authenticate() -> None:
    consumer = Consumer("memory:", rules="auto", handler=lambda _: None)
    app = receiver(consumer, Serve(sns_topics=[TOPIC], **PATIENT))
    refused = ask(app, call("a"))
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "AmazonSNS")
    described = ask(app, path="/openapi.json", method="GET").body
    assert described["paths"]["/events"]["post"]["security"] == [{"sns": []}]


def test_plain_text_is_read_only_with_the_header_that_no_page_can_send() -> None:
    endpoint = Endpoint()
    plain = {"content-type": "text/plain; charset=UTF-8"}
    assert ask(endpoint.app, call("a"), headers=plain).status == 415
    assert ask(endpoint.app, call("a"), headers=SNS).statuses == ["done"]
    assert (
        ask(
            endpoint.app, call("b"), headers=SNS | {"content-type": "text/plain; charset=latin-1"}
        ).status
        == 415
    )
    endpoint.consumer.close()


def test_sns_gets_503_where_other_senders_get_429(monkeypatch: pytest.MonkeyPatch) -> None:
    """SNS counts any 4xx as delivered, and would not send a held event again."""
    # A copy waits this long for the run of the same event in this process.
    monkeypatch.setattr("eventonce.consumer.COPY_WAIT", 0.01)
    entered, leave = threading.Event(), threading.Event()

    def handle(_: object) -> None:
        entered.set()
        leave.wait()

    rule = Rule(name="call", match="call", key=["detail.call"])
    consumer = Consumer("memory:", rules=rule, handler=handle)
    app = receiver(consumer, Serve(anyone_may_send_events=True, **PATIENT))

    async def both() -> list[int]:
        first = asyncio.ensure_future(asked(app, call("a")))
        await asyncio.to_thread(entered.wait)
        answers = [await asked(app, call("a"), headers=headers) for headers in (JSON, SNS)]
        leave.set()
        assert all(answer.headers["retry-after"] for answer in answers)
        return [(await first).status, *(answer.status for answer in answers)]

    assert asyncio.run(both()) == [200, 429, 503]
    consumer.close()


def test_a_function_behind_http_answers_sns_with_503_too() -> None:
    rule = Rule(name="call", match="call", key=["detail.call"])
    consumer = Consumer("memory:", rules=rule, handler=lambda _: None)
    handler = lambda_handler(consumer)

    def invoked(headers: dict[str, str]) -> int:
        request = {
            "version": "2.0",
            "headers": headers,
            "requestContext": {"http": {"method": "POST", "path": "/"}},
            "body": '{"detail-type": "call", "id": "1", "detail": {"call": "a"}}',
        }
        return int(handler(request, None)["statusCode"])

    with consumer.once({"detail-type": "call", "id": "1", "detail": {"call": "a"}}):
        assert [invoked(JSON), invoked(SNS)] == [429, 503]
    consumer.close()


Page = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture
def server() -> Iterator[Callable[[Page], str]]:
    """An HTTP server with the answers of a test, for the requests that the receiver makes."""
    page: list[Page] = []

    class Answering(Handler):
        def reply(self) -> None:
            page[0](self)

    with served(Answering) as port:

        def answering(with_: Page) -> str:
            page[:] = [with_]
            return f"http://127.0.0.1:{port}/"

        yield answering


def replying(status: int, body: bytes, **headers: str) -> Page:
    def reply(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)

    return reply


def test_a_whole_answer_is_fetched_up_to_the_limit(server: Callable[[Page], str]) -> None:
    assert fetched(server(replying(200, b"x" * MAX_ANSWER))) == b"x" * MAX_ANSWER
    with pytest.raises(OSError, match="more than 65536 bytes"):
        fetched(server(replying(200, b"x" * (MAX_ANSWER + 1))))


@pytest.mark.parametrize("status", [201, 204, 301, 302, 303, 307, 308, 403, 404, 500])
def test_no_redirect_is_followed_and_no_other_status_is_an_answer(
    server: Callable[[Page], str], status: int
) -> None:
    with pytest.raises(OSError, match=str(status)):
        fetched(server(replying(status, b"", Location="/elsewhere")))


def test_a_fetch_whose_answer_does_not_come_or_does_not_end_times_out(
    server: Callable[[Page], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sns, "FETCH_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(OSError, match="timed"):
        fetched(f"http://127.0.0.1:{silent.getsockname()[1]}/")

    ended = threading.Event()

    def drip(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        with suppress(ConnectionError):
            for _ in range(100):
                if not ended.wait(0.02):
                    request.wfile.write(b"x")

    url = server(drip)
    with pytest.raises(TimeoutError):
        fetched(url)
    ended.set()


def test_a_fetch_whose_answer_is_no_http_is_an_error() -> None:
    def talk(odd: socket.socket) -> None:
        client, _ = odd.accept()
        with client:
            client.recv(1 << 16)
            client.sendall(b"no HTTP\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as odd:
        asking = threading.Thread(target=talk, args=(odd,))
        asking.start()
        with pytest.raises(OSError, match="no HTTP answer"):
            fetched(f"http://127.0.0.1:{odd.getsockname()[1]}/")
        asking.join()


def test_callers_of_one_url_share_a_fetch_and_concurrent_fetches_are_bounded() -> None:
    leave, urls = threading.Event(), []

    def fetch(url: str) -> bytes:
        urls.append(url)
        leave.wait()
        return url.encode()

    async def many() -> None:
        under_way = Fetches(fetch)
        waiting = [
            asyncio.ensure_future(under_way.ask(str(number)))
            for number in [*range(MOST_FETCHES), 0, 0]
        ]
        await asyncio.sleep(0)
        refused = await under_way.ask("one more")
        leave.set()
        assert isinstance(refused, OSError)
        assert "limit" in str(refused)
        answers = await asyncio.gather(*waiting)
        assert answers == [b"0", b"1", b"2", b"3", b"0", b"0"]
        assert sorted(urls) == ["0", "1", "2", "3"]
        # The answer is not kept for later callers.
        assert await under_way.ask("0") == b"0"
        assert len(urls) == MOST_FETCHES + 1

    asyncio.run(many())


def test_the_wait_for_a_fetch_is_bounded_however_long_the_fetch_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sns, "FETCH_TIMEOUT", 0.05)
    leave = threading.Event()

    def fetch(_: str) -> bytes:
        leave.wait(3)
        return b""

    answer = asyncio.run(Fetches(fetch).ask("u"))
    leave.set()
    assert isinstance(answer, TimeoutError)
