"""The webhook against a receiver that refuses, answers late, hangs up, or kills the sender."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from eventonce import Consumer, Rule
from eventonce.config import load
from eventonce.sinks import Webhook
from eventonce.testing.harness import ManualClock
from eventonce.types import Outcome
from tests.helpers import PATIENCE, call
from tests.servers import free_port
from tests.servers.hook import Call, Hook, Reply, hooked
from tests.servers.sns import self_signed

CALL = Rule(name="call", match="call", key=["detail.call"], attempts=4, lease="1s")


@pytest.fixture
def hook() -> Iterator[Hook]:
    with hooked() as hook:
        yield hook


@pytest.fixture
def sink(hook: Hook) -> Iterator[Webhook]:
    sink = Webhook(hook.url, headers={"X-Api-Key": "a-long-secret"}, timeout=PATIENCE)
    yield sink
    sink.close()


@pytest.fixture
def consumer(sink: Webhook) -> Iterator[Consumer]:
    with Consumer("memory:", rules=CALL, handler=sink, clock=ManualClock()) as consumer:
        yield consumer


def processed(consumer: Consumer, number: int = 1) -> Outcome:
    (outcome,) = consumer.process([call(number)])
    return outcome


def test_the_event_is_posted_with_its_effect_id(consumer: Consumer, hook: Hook) -> None:
    outcome = processed(consumer)
    (got,) = hook.calls
    assert (outcome.status, got.path, got.body) == ("done", "/hook", call(1))
    assert got.key == outcome.key.hex()
    assert got.headers["content-type"] == "application/json"
    assert got.headers["x-api-key"] == "a-long-secret"


def test_a_receiver_that_is_busy_is_asked_again_with_the_same_key(
    consumer: Consumer, hook: Hook
) -> None:
    hook.replies(Reply(429, headers=(("Retry-After", "7"),)), Reply(503), Reply(200))
    busy, away, done = (processed(consumer) for _ in range(3))
    assert [busy.status, away.status, done.status] == ["failed", "failed", "done"]
    assert busy.retry_at == ManualClock().now + 7_000
    assert away.retry_at == ManualClock().now + 2_000
    assert len({got.key for got in hook.calls}) == 1
    assert len(hook.calls) == 3
    assert processed(consumer).status == "duplicate"
    assert len(hook.calls) == 3


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("999999999999", 3600),
        ("Fri, 15 Nov 9999 12:00:00 GMT", 3600),
        ("-5", 1),
        ("soon", 1),
    ],
)
def test_a_retry_after_header_is_limited_to_an_hour_and_ignored_if_invalid(
    consumer: Consumer, hook: Hook, said: str, seconds: int
) -> None:
    hook.replies(Reply(429, headers=(("Retry-After", said),)))
    assert processed(consumer).retry_at == ManualClock().now + seconds * 1_000


@pytest.mark.parametrize("status", [401, 407, 408, 409, 425, 429, 500, 502, 504])
def test_a_temporary_refusal_fails_the_attempt(consumer: Consumer, hook: Hook, status: int) -> None:
    hook.replies(Reply(status))
    assert processed(consumer).status == "failed"


@pytest.mark.parametrize("status", [400, 403, 404, 410, 413, 422])
def test_a_permanent_refusal_makes_a_dead_letter_at_once(
    consumer: Consumer, hook: Hook, status: int
) -> None:
    hook.replies(Reply(status, b"no such\n customer, a-long-secret\x00" + b"!" * 900))
    assert processed(consumer).status == "dead"
    (letter,) = consumer.letters()
    assert f"http://127.0.0.1:{hook.port} answered {status}" in letter.reason
    assert "no such customer" in letter.reason
    assert "a-long-secret" not in letter.reason
    assert len(letter.reason) < 400


def test_a_redirect_is_not_followed(consumer: Consumer, hook: Hook) -> None:
    hook.replies(Reply(307, headers=(("Location", "/elsewhere"),)))
    assert processed(consumer).status == "dead"
    assert len(hook.calls) == 1
    assert "redirects are not followed" in next(consumer.letters()).reason


def test_after_a_long_outage_redrive_sends_the_dead_letter_with_the_same_key(
    consumer: Consumer, hook: Hook
) -> None:
    hook.replies(Reply(500))
    assert [processed(consumer).status for _ in range(4)] == ["failed"] * 3 + ["dead"]
    hook.replies(Reply(200))
    assert [outcome.status for outcome in consumer.redrive()] == ["done"]
    assert len({got.key for got in hook.calls}) == 1


def test_a_refused_connection_fails_the_attempt_and_no_path_is_shown() -> None:
    sink = Webhook(f"http://127.0.0.1:{free_port()}/secret-path")
    with Consumer("memory:", rules=CALL, handler=sink) as consumer:
        outcome = processed(consumer)
    assert outcome.status == "failed"
    assert "ConnectionRefusedError" in outcome.reason
    assert "secret-path" not in outcome.reason


def test_a_late_answer_fails_the_attempt(hook: Hook) -> None:
    late = threading.Event()

    def dawdle(_: Call) -> Reply:
        late.wait(60)
        return Reply()

    hook.answer = dawdle
    with Consumer("memory:", rules=CALL, handler=Webhook(hook.url, timeout=0.3)) as consumer:
        outcome = processed(consumer)
    late.set()
    assert outcome.status == "failed"
    assert "TimeoutError" in outcome.reason


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_answer_that_comes_byte_by_byte_times_out_as_a_whole(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte arrives in time; the whole answer never would."""
    stop = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    if scheme == "https":
        known, key = self_signed(tmp_path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(known, key)
        listener = context.wrap_socket(listener, server_side=True)
        monkeypatch.setenv("SSL_CERT_FILE", str(known))

    def drip() -> None:
        # On a busy machine the client may be gone before it has sent anything.
        with suppress(OSError):
            peer, _ = listener.accept()
            with peer:
                peer.recv(65_536)
                peer.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                while not stop.wait(0.05):
                    peer.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    sink = Webhook(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/", timeout=0.5)
    with Consumer("memory:", rules=CALL, handler=sink) as consumer:
        outcome = processed(consumer)
    stop.set()
    thread.join()
    listener.close()
    assert "TimeoutError" in outcome.reason


def test_a_connection_is_kept_for_the_next_event(consumer: Consumer, hook: Hook) -> None:
    hook.replies(Reply(200, b"thanks"), Reply(204), Reply(500, b"x" * 1000), Reply(200))
    for number in range(4):
        processed(consumer, number)
    assert len({got.peer for got in hook.calls}) == 1


def test_a_kept_connection_that_the_receiver_closed_costs_no_attempt(
    consumer: Consumer, hook: Hook
) -> None:
    processed(consumer, 1)
    first = hook.calls[0].peer
    hook.answer = lambda got: None if got.peer == first else Reply()
    assert processed(consumer, 2).status == "done"
    assert len({got.peer for got in hook.calls}) == 2


def test_a_request_whose_new_connection_is_closed_fails_and_is_not_repeated_at_once(
    consumer: Consumer, hook: Hook
) -> None:
    hook.answer = lambda _: None
    outcome = processed(consumer)
    assert (outcome.status, len(hook.calls)) == ("failed", 1)


def test_a_very_long_answer_does_not_disturb_the_next_event(consumer: Consumer, hook: Hook) -> None:
    hook.replies(Reply(200, b"x" * 1_000_000), Reply(200))
    assert [processed(consumer, number).status for number in range(2)] == ["done", "done"]


def test_many_threads_share_a_sink(hook: Hook, sink: Webhook) -> None:
    with Consumer("memory:", rules=CALL, handler=sink, threads=8) as consumer:
        outcomes = asyncio.run(
            consumer.process_async([call(n, filler="x" * 5000) for n in range(60)])
        )
    assert {outcome.status for outcome in outcomes} == {"done"}
    assert sorted(got.body for got in hook.calls) == sorted(
        call(n, filler="x" * 5000) for n in range(60)
    )
    assert len({got.peer for got in hook.calls}) <= 8


def test_the_child_of_a_fork_does_not_share_connections_with_its_parent(
    hook: Hook, tmp_path: Path
) -> None:
    code = """
import os, sys
from eventonce.envelope import read
from eventonce.sinks import Webhook
from eventonce.types import Claim, Job

sink = Webhook(sys.argv[1])
def post(number):
    sink(Job(read(b'{"detail-type": "t", "detail": {}}'), Claim(bytes([number]), 1, 1, 1, 1)))
post(1)
child = os.fork()
if not child:
    post(2)
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
post(3)
sys.exit(code)
"""
    subprocess.run([sys.executable, "-c", code, hook.url], check=True, timeout=PATIENCE)
    peers = {got.key: got.peer for got in hook.calls}
    assert peers["01"] != peers["02"]
    assert peers["02"] != peers["03"]


def test_a_certificate_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, key = self_signed(tmp_path)
    with hooked(certificate=(known, key)) as hook:
        doubting = Webhook(hook.url, timeout=PATIENCE)
        with Consumer("memory:", rules=CALL, handler=doubting) as consumer:
            refused = processed(consumer)
        monkeypatch.setenv("SSL_CERT_FILE", str(known))
        trusting = Webhook(hook.url, timeout=PATIENCE)
        with Consumer("memory:", rules=CALL, handler=trusting) as consumer:
            taken = [processed(consumer, number).status for number in range(2)]
        trusting.close()
    assert refused.status == "failed"
    assert "SSLCertVerificationError" in refused.reason
    assert taken == ["done", "done"]
    assert len({got.peer for got in hook.calls}) == 1


def work(url: str, database: str) -> None:
    """The killed process: one event into the webhook."""
    with Consumer(f"sqlite:///{database}", rules=CALL, handler=Webhook(url)) as consumer:
        consumer.process([call(1)])


def test_a_worker_killed_between_effect_and_settlement_sends_the_same_key_again(
    hook: Hook, tmp_path: Path
) -> None:
    database = str(tmp_path / "store.db")
    started: list[subprocess.Popen[bytes]] = []
    ready = threading.Event()

    def kill(_: Call) -> Reply | None:
        # The receiver has the event: the effect has happened, and the sender gets no answer.
        ready.wait(PATIENCE)
        started[0].kill()
        started[0].wait()
        return None

    hook.answer = kill
    command = [sys.executable, "-m", __name__, hook.url, database]
    started.append(subprocess.Popen(command, cwd=Path(__file__).parents[2]))
    ready.set()
    assert started[0].wait(PATIENCE) == -9
    hook.answer = lambda _: Reply()
    sink = Webhook(hook.url, timeout=PATIENCE)
    with Consumer(f"sqlite:///{database}", rules=CALL, handler=sink) as consumer:
        end = time.monotonic() + PATIENCE
        while (outcome := processed(consumer)).status == "busy" and time.monotonic() < end:
            time.sleep(0.05)
    sink.close()
    assert outcome.status == "done"
    assert len(hook.calls) == 2
    assert len({got.key for got in hook.calls}) == 1


def test_headers_in_the_configuration_file_are_filled_in_from_the_environment(
    hook: Hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_KEY", "hush")
    path = tmp_path / "eventonce.toml"
    path.write_text(
        f'store = "memory:"\n[[sink]]\nto = "{hook.url}"\ntimeout = 20\n'
        'headers = { Authorization = "Bearer ${HOOK_KEY}" }\n'
    )
    with load(path).consumer() as consumer:
        assert processed(consumer).status == "done"
    assert hook.calls[0].headers["authorization"] == "Bearer hush"


if __name__ == "__main__":
    work(*sys.argv[1:])
    os._exit(0)
