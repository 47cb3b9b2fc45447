"""Connections to the dashboard: idle clients and live pages keep no other client out."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx
import pytest

from eventonce.dashboard import Resources, dashboard, server
from eventonce.stores.memory import MemoryStore
from tests.helpers import PATIENCE, until

WAIT = 0.3


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    monkeypatch.setattr(server, "HEAD_TIMEOUT", PATIENCE)
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 12)
    app = dashboard(Resources(MemoryStore, name="crm"))
    with server.listen("0") as listening, server.serving(app, listening):
        url = server.url_of(listening)
        with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client:
            client.get(server.link_of(app, listening))
            yield client


WHOLE = b"GET /static/x HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
HALF = b"GET / HTTP/1.1\r\nhost: 127"


@pytest.mark.parametrize("sent", [(), (HALF,), (WHOLE, HALF)], ids=len)
def test_clients_without_a_whole_request_keep_no_other_client_out(
    client: httpx.Client, sent: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = (client.base_url.host, client.base_url.port)
    with ExitStack() as held, monkeypatch.context() as hurried:
        hurried.setattr(server, "HEAD_TIMEOUT", WAIT)
        idle = [held.enter_context(socket.create_connection(place, PATIENCE)) for _ in range(11)]
        for one in idle:
            # On a busy machine the client is cut off before it has sent a byte.
            with suppress(ConnectionError):
                for part in sent:
                    one.sendall(part)
                    if part is WHOLE:
                        one.recv(1 << 16)
        for one in idle:
            with suppress(ConnectionError):
                while one.recv(1 << 16):
                    pass
        # The next client has its whole request ready, but may be slow on a busy machine.
        hurried.undo()
        assert client.get("/store").status_code == 200


def test_a_head_without_end_is_refused(client: httpx.Client) -> None:
    assert client.get("/store", headers={"x": "y" * (1 << 20)}).status_code == 400


def test_the_bytes_after_a_request_of_two_lengths_are_not_read(client: httpx.Client) -> None:
    place = (client.base_url.host, client.base_url.port)
    with socket.create_connection(place, PATIENCE) as sent:
        sent.sendall(
            b"POST /letters/drop HTTP/1.1\r\nhost: 127.0.0.1\r\nsec-fetch-site: same-origin\r\n"
            b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
            b"GET /store HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
        )
        answers = b"".join(iter(lambda: sent.recv(1 << 16), b""))
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert answers.count(b"HTTP/1.1 ") == 1


def test_live_pages_are_limited_and_leave_room_for_other_requests(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventonce.dashboard.event_stream.MOST_STREAMS", 2)
    with client.stream("GET", "/live") as first, client.stream("GET", "/live/store") as second:
        # The iterators are kept, because an iterator that ends closes its stream.
        streams = [first.iter_text(), second.iter_text()]
        assert all(next(one) for one in streams)
        with client.stream("GET", "/live") as refused:
            assert refused.status_code == 503
            assert "Too many live pages" in str(refused.read())
        assert client.get("/store").status_code == 200
    # Both streams have ended, so a new stream is accepted.
    until(lambda: _watches(client))


def _watches(client: httpx.Client) -> bool:
    with client.stream("GET", "/live") as stream:
        return stream.status_code == 200
