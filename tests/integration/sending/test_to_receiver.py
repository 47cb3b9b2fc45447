"""`eventonce send` to a receiver, and the mistakes that are found before an event is sent."""

from __future__ import annotations

import io
import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventonce import Consumer
from eventonce.cli import main
from eventonce.envelope import read_body
from eventonce.http_report import respond
from eventonce.sending import renewed
from tests.integration.sending.sent import Send, event
from tests.servers.http import Handler, served


class Receiver(Handler):
    """A server that answers like the receiver, with a consumer behind it."""

    consumer: Consumer

    def reply(self) -> None:
        raw = self.body()
        repeated = self.headers.get("x-repeat")
        if repeated:
            self.answer(403, f"repeated:\n{repeated}".encode())
            return
        if self.path == "/elsewhere":
            self.answer(404, b'{"reason": "events go to POST /events"}')
            return
        said = respond(self.consumer.process(read_body(raw)), 0)
        self.answer(said.status, said.body)


@pytest.fixture
def url() -> Iterator[str]:
    consumer = Consumer("memory:", handler=lambda _: None)
    handler = type("R", (Receiver,), {"consumer": consumer})
    with served(handler) as port:
        yield f"http://127.0.0.1:{port}/events"
    consumer.close()


def test_the_answers_of_a_receiver_are_counted(send: Send, url: str) -> None:
    result = send("--url", url, "--copies", "3", "--fresh", events=[event(1), event(2)])
    assert result.code == 0
    assert result.out.startswith("2 events, 3 copies: 6 accepted\n")
    told = send("--url", url, "--json", events=[event(1)]).report
    assert told["answers"] == {"duplicate": 1}


def test_a_status_that_is_no_success_is_a_refusal(send: Send, url: str) -> None:
    Path("events.jsonl").write_text(f"{json.dumps(event(1))}\nnothing\n")
    result = send("--url", url, "--json")
    assert result.code == 1
    assert result.report["answers"] == {"done": 1, "invalid": 1}
    (refusal,) = result.report["refusals"]
    assert (refusal["number"], refusal["code"]) == (2, "HTTP 400")
    assert "not JSON" in refusal["reason"]


def test_the_reason_for_a_whole_request_is_shown_without_its_json(send: Send, url: str) -> None:
    result = send("--url", url.replace("/events", "/elsewhere"), "--json", events=[event(1)])
    assert result.report["answers"] == {"HTTP 404": 1}
    (refusal,) = result.report["refusals"]
    assert refusal["reason"] == "events go to POST /events"


def test_an_unreachable_receiver_is_a_refusal_without_an_answer(send: Send) -> None:
    result = send("--url", "http://127.0.0.1:1/events", "--json", events=[event(1)])
    assert result.code == 1
    assert result.report["answers"] == {"no answer": 1}


def test_a_header_is_never_shown(send: Send, url: str) -> None:
    secret = secrets.token_hex(8)
    result = send("--url", url, "--header", f"X-Api-Key: {secret}", events=[event(1)])
    assert result.code == 0
    assert secret not in result.out + result.err
    for wrong in (secret, f"a b: {secret}", f"x: {secret}\nmore", f"x: {secret}\N{EURO SIGN}"):
        refused = send("--url", url, "--header", wrong)
        assert refused.code == 2
        assert secret not in refused.out + refused.err


@pytest.mark.parametrize(
    "wrong",
    [
        "http://user:S@127.0.0.1:1/",
        "http://127.0.0.1:99999/S",
        "http://[::1/S",
        "http://h/\xe9S",
        "",
    ],
)
def test_an_invalid_url_is_refused_and_not_repeated(send: Send, wrong: str) -> None:
    secret = secrets.token_hex(8)
    refused = send("--url", wrong.replace("S", secret), events=[event(1)])
    assert refused.code == 2
    assert "--url" in refused.err
    assert secret not in refused.out + refused.err


def test_headers_are_sent_and_a_server_that_repeats_them_shows_no_secret(
    send: Send, url: str
) -> None:
    secret = secrets.token_hex(8)
    Path("events.jsonl").write_text("nothing\n")
    result = send("--url", url, "--header", f"X-Repeat: Bearer {secret}")
    assert result.code == 1
    assert "repeated: Bearer ***" in result.out
    assert secret not in result.out + result.err


def test_stdin_is_sent_as_often_as_a_file(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(json.dumps([event(1), event(2)]).encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    with pytest.raises(SystemExit) as stop:
        main(["send", "-", "--url", url, "--copies", "2", "--every", "0", "--json"])
    assert not stop.value.code
    assert json.loads(capsys.readouterr().out)["answers"] == {"done": 2, "duplicate": 2}


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--bus", "b", "--queue", "sqs://q"),
        ("--queue", "sqs://q", "--source", "x"),
        ("--bus", "b", "--header", "a: b"),
        ("--bus", "b", "--copies", "0"),
        ("--bus", "b", "--every", "-1"),
        ("--bus", "b", "--every", "nan"),
        ("--bus", "b", "--every", "inf"),
    ],
)
def test_wrong_options_are_refused(send: Send, args: tuple[str, ...]) -> None:
    assert send(*args, events=[event(1)]).code == 2


def test_an_option_wins_over_the_environment(
    send: Send, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENTONCE_BUS", "b")
    monkeypatch.setenv("EVENTONCE_SOURCE", "s")
    assert send("--url", url, events=[event(1)]).code == 0


@pytest.mark.parametrize(
    ("args", "extra"),
    [
        ("['infra', 'apply', '--source', 'x']", "sqs"),
        ("['send', 'event.json', '--bus', 'b']", "sqs"),
        ("['send', 'event.json', '--queue', 'sqs://q']", "sqs"),
    ],
)
def test_a_missing_extra_is_named(args: str, extra: str, tmp_path: Path) -> None:
    (tmp_path / "event.json").write_text(json.dumps(event(1)))
    script = tmp_path / "without.py"
    script.write_text(
        "import sys\nsys.modules['boto3'] = sys.modules['botocore'] = None\n"
        f"from eventonce.cli import main\nmain({args})\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 2
    assert f'pip install -e ".[{extra}]"' in done.stderr


def test_an_empty_file_is_reported(send: Send, url: str) -> None:
    result = send("--url", url, events=[])
    assert result.code == 2
    assert "no event" in result.err


def test_a_fresh_copy_differs_in_its_id_and_nothing_else() -> None:
    detail = b'{"n": 1.0, "big": 123456789012345678901}'
    raw = b'{"id": "a", "source": "s", "detail-type": "t", "detail": %s}' % detail
    one, two = renewed(raw), renewed(raw)
    assert one != two
    assert json.loads(one) | {"id": "a"} == json.loads(raw)
    assert detail in one
    for other in (b"no", b'{"orderId": 1}'):
        assert renewed(other) == other
