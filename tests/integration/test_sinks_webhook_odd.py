"""The webhook against servers that send more, less or other bytes than HTTP asks for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import pytest

from eventonce import Consumer, Reject, Retry, Rule
from eventonce.envelope import read
from eventonce.sinks import Webhook
from eventonce.types import Claim, Job
from tests.helpers import PATIENCE
from tests.servers.hook import Reply, hooked

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Spoken(NamedTuple):
    """A server that sends the given bytes, and nothing else."""

    port: int
    asked: list[int]
    """The connection of every request, by its number."""
    idle: threading.Event
    """Set by the client once the answer was read: from then on, unasked bytes may be sent."""
    unasked: threading.Event
    """Set once the unasked bytes were sent."""


Answers = Callable[[int], list[bytes]]
"""The bytes that are sent on the connection of this number: to the first request, unasked after it,
to the second request, and so on; the connection is closed at the end."""


@contextmanager
def speaking(answers: Answers, host: str = "127.0.0.1") -> Iterator[Spoken]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family)
    spoken = Spoken(listener.getsockname()[1], [], threading.Event(), threading.Event())

    def serve(peer: socket.socket, number: int) -> None:
        with suppress(OSError), peer, peer.makefile("rb") as lines:
            for place, said in enumerate(answers(number)):
                if place % 2 == 0:
                    length = 0
                    while (line := lines.readline()) not in (b"\r\n", b""):
                        name, _, value = line.partition(b":")
                        length = int(value) if name.lower() == b"content-length" else length
                    if not line:
                        return
                    lines.read(length)
                    spoken.asked.append(number)
                elif said:
                    spoken.idle.wait(PATIENCE)
                peer.sendall(said)
                if place % 2 == 1:
                    spoken.unasked.set()

    def listen() -> None:
        number = 0
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            peer.settimeout(PATIENCE)
            threading.Thread(target=serve, args=(peer, number), daemon=True).start()
            number += 1

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield spoken
    finally:
        # A listener that is only closed continues to listen in the thread that waits for it.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def job(number: int) -> Job:
    event = read(b'{"detail-type": "t", "detail": {}}')
    return Job(event, Claim(bytes([number]), 1, 1000, 1000, 5))


def sink_of(spoken: Spoken, host: str = "127.0.0.1") -> Webhook:
    return Webhook(f"http://{host}:{spoken.port}/", timeout=PATIENCE)


@pytest.mark.parametrize("interim", ["100 Continue", "102 Processing", "103 Early Hints"])
def test_an_interim_answer_is_skipped(interim: str) -> None:
    early = f"HTTP/1.1 {interim}\r\nLink: </style.css>\r\n\r\n".encode()
    with speaking(lambda _: [early + OK, b"", early + OK]) as spoken:
        sink = sink_of(spoken)
        sink(job(1))
        sink(job(2))
        sink.close()
    assert spoken.asked == [0, 0], "and the connection is kept"


@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request", "408 Request Timeout"])
def test_an_unasked_answer_is_not_taken_for_the_answer_to_the_next_event(status: str) -> None:
    """Some servers send an answer before they close a connection that was idle for a while."""
    said = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode()
    refused = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
    with speaking(lambda number: [refused] if number else [OK, said, b""]) as spoken:
        sink = sink_of(spoken)
        sink(job(1))
        spoken.idle.set()
        assert spoken.unasked.wait(PATIENCE)
        with pytest.raises(Retry, match="503"):
            sink(job(2))
        sink.close()
    assert spoken.asked == [0, 1]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\nuntil it is closed",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it",
        b"HTTP/1.1 200 OK\r\nContent-Length: none\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
    ],
)
def test_a_success_is_accepted_whatever_form_its_body_has(answer: bytes) -> None:
    with speaking(lambda _: [answer]) as spoken:
        sink = sink_of(spoken)
        sink(job(1))
        sink(job(2))
        sink.close()
    assert len(spoken.asked) == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 ",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 99999 Odd\r\n\r\n",
    ],
)
def test_an_invalid_or_missing_answer_is_retried(answer: bytes) -> None:
    with speaking(lambda _: [answer]) as spoken:
        sink = sink_of(spoken)
        with pytest.raises(Retry, match="did not answer"):
            sink(job(1))
        sink.close()


def test_an_address_of_ipv6_needs_no_port() -> None:
    without_port = Webhook("http://[::1]/")._client._pool
    assert (without_port.host, without_port.port) == ("::1", 80)


def test_an_address_of_ipv6_is_called_and_shown_with_brackets() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    with speaking(lambda _: [OK, b"", missing], host="::1") as spoken:
        sink = sink_of(spoken, "[::1]")
        sink(job(1))
        with pytest.raises(Reject, match=rf"http://\[::1\]:{spoken.port} answered 404"):
            sink(job(2))
        sink.close()


def test_no_log_has_the_path_or_the_query_of_a_webhook(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with hooked() as hook:
        sink = Webhook(f"http://127.0.0.1:{hook.port}/hooks/T0PSECRET1?key=Q0PSECRET2")
        sink(job(1))
        sink.close()
        assert hook.calls[0].path == "/hooks/T0PSECRET1?key=Q0PSECRET2"
    assert f"127.0.0.1:{hook.port}" in caplog.text, "urllib3 logs its requests"
    assert "SECRET" not in caplog.text


def test_an_event_that_is_not_read_in_time_is_retried() -> None:
    """A body larger than all buffers on the way, to a server that reads none of it."""
    raw = b'{"detail-type": "t", "detail": {"filler": "' + b"x" * (16 << 20) + b'"}}'
    large = Job(read(raw, max_bytes=len(raw)), Claim(b"1", 1, 1000, 1000, 5))
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        sink = Webhook(f"http://127.0.0.1:{deaf.getsockname()[1]}/", timeout=0.3)
        with pytest.raises(Retry, match="did not answer: TimeoutError"):
            sink(large)
        sink.close()


def test_no_secret_that_a_server_repeats_gets_into_a_dead_letter() -> None:
    """Many answers with status 404 repeat the path, and many refusals repeat the token."""
    secrets = ("T0PSECRET1", "Q0PSECRET2", "B0PSECRET3", "E0P SECRET4")
    said = "no /hooks/T0PSECRET1/E0P SECRET4?key=Q0PSECRET2 here, and B0PSECRET3 is no token"
    with hooked() as hook:
        hook.replies(Reply(404, said.encode()))
        url = f"http://127.0.0.1:{hook.port}/hooks/T0PSECRET1/E0P%20SECRET4?key=Q0PSECRET2"
        sink = Webhook(url, headers={"Authorization": "Bearer B0PSECRET3"})
        rule = Rule(name="t", key=["detail.a"])
        with Consumer("memory:", rules=rule, handler=sink) as consumer:
            consumer.process([{"id": "1", "detail-type": "t", "detail": {"a": 1}}])
            (letter,) = consumer.letters()
        sink.close()
    assert "here, and *** is no token" in letter.reason
    assert not any(secret in letter.reason for secret in secrets)
