"""`eventonce serve` as a process, over real sockets: slow, large and many requests."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.helpers import PATIENCE
from tests.servers.receiver import Receiving, receiving

SETTINGS = """
store = "memory:"
[[sink]]
to = "handlers:handle"
[serve]
"""
EVENT = {"id": "a", "detail-type": "call", "source": "s", "detail": {}}


def serving(folder: Path, more: str) -> AbstractContextManager[Receiving]:
    (folder / "handlers.py").write_text("def handle(job): pass")
    return receiving(folder, SETTINGS + more)


def rest(line: socket.socket) -> bytes:
    """The bytes that arrive until the server ends the connection."""
    said = b""
    try:
        while piece := line.recv(65_536):
            said += piece
    except ConnectionResetError:
        pass
    return said


GET = b"GET /health HTTP/1.1\r\nhost: x\r\n"
HEAD = b"POST /events HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
TRIES = 20


@contextmanager
def answered(receiver: Receiving, said: bytes) -> Iterator[tuple[socket.socket, bytes]]:
    """A connection on which these bytes were sent, and the beginning of the answer.

    On a busy machine a client may be too slow for an impatient receiver, which ends the connection
    before the client has sent anything: the client tries again.
    """
    for _ in range(TRIES):
        with receiver.connect() as line:
            try:
                line.sendall(said)
                begins = line.recv(65_536)
            except ConnectionError:
                continue
            if begins:
                yield line, begins
                return
    raise AssertionError("never answered")


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiving]:
    with serving(tmp_path_factory.mktemp("patient"), "max_body = 100_000") as receiver:
        yield receiver


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiving]:
    """A receiver with short time-outs: requests that must arrive are sent by `answered`."""
    more = 'header_timeout = "300ms"\nbody_timeout = "300ms"'
    with serving(tmp_path_factory.mktemp("impatient"), more) as receiver:
        yield receiver


def test_a_body_that_is_declared_too_large_is_refused_before_it_is_sent(
    patient: Receiving,
) -> None:
    with patient.connect() as line:
        line.sendall(HEAD + b"content-length: 100001\r\nexpect: 100-continue\r\n\r\n")
        assert line.recv(65_536).startswith(b"HTTP/1.1 413")


def test_a_chunked_body_that_grows_too_large_is_refused_while_it_is_sent(
    patient: Receiving,
) -> None:
    chunk = b"1000\r\n" + b" " * 0x1000 + b"\r\n"
    with patient.connect() as line:
        line.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk * 30 + b"0\r\n\r\n")
        assert line.recv(65_536).startswith(b"HTTP/1.1 413")


def test_clients_that_do_not_finish_their_headers_are_cut_off(impatient: Receiving) -> None:
    beginnings = [b"", b"POST /ev", HEAD, HEAD + b"x-long: "]
    with ExitStack() as stack:
        lines = [stack.enter_context(impatient.connect()) for _ in beginnings]
        for line, said in zip(lines, beginnings, strict=True):
            line.sendall(said)
        assert [rest(line) for line in lines] == [b""] * len(lines)
    with answered(impatient, HEALTH) as (_, begins):
        assert begins.startswith(b"HTTP/1.1 200")


CUT_OFF = r"reset|[Bb]roken pipe"


def _send_piece_by_piece(line: socket.socket, piece: bytes) -> None:
    """Send a little again and again, until the server has ended the connection."""
    pause = threading.Event()
    for _ in range(PATIENCE * 20):
        line.sendall(piece)
        pause.wait(0.05)


def test_a_client_that_sends_its_headers_piece_by_piece_is_cut_off(impatient: Receiving) -> None:
    with impatient.connect() as line:
        line.sendall(HEAD)
        with pytest.raises(OSError, match=CUT_OFF):
            _send_piece_by_piece(line, b"x-a: b\r\n")


def test_a_second_request_on_a_connection_has_no_more_time_than_the_first(
    impatient: Receiving,
) -> None:
    with answered(impatient, HEALTH) as (line, begins):
        assert begins.startswith(b"HTTP/1.1 200")
        with pytest.raises(OSError, match=CUT_OFF):
            _send_piece_by_piece(line, b"x")


@pytest.mark.parametrize(
    "said",
    [HEAD + b"content-length: 50\r\n\r\n{", HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n"],
    ids=["declared", "chunked"],
)
def test_a_client_that_does_not_finish_its_body_gets_408_and_is_cut_off(
    impatient: Receiving, said: bytes
) -> None:
    with answered(impatient, said) as (line, begins):
        assert (begins + rest(line)).startswith(b"HTTP/1.1 408")


def test_a_client_that_sends_its_body_piece_by_piece_is_cut_off(impatient: Receiving) -> None:
    with impatient.connect() as line:
        line.sendall(HEAD + b"content-length: 90000\r\n\r\n")
        with pytest.raises(OSError, match=CUT_OFF):
            _send_piece_by_piece(line, b" ")


def test_a_client_that_goes_on_sending_after_its_answer_is_cut_off(impatient: Receiving) -> None:
    with answered(impatient, HEAD + b"content-length: 100000000\r\n\r\n") as (line, begins):
        assert begins.startswith(b"HTTP/1.1 413")
        with pytest.raises(OSError, match=CUT_OFF):
            _send_piece_by_piece(line, b" " * 100)


def test_a_client_that_does_not_read_its_answers_is_cut_off(impatient: Receiving) -> None:
    with impatient.connect() as line, pytest.raises(OSError, match=CUT_OFF):
        _send_piece_by_piece(line, b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 500)


def test_a_head_of_more_than_64_kib_is_refused_however_it_arrives(patient: Receiving) -> None:
    for size, status in ((60_000, 200), (100_000, 431)):
        with patient.connect() as line:
            # In one piece: a socket may deliver the whole head at once.
            line.sendall(GET + b"x-a: " + b"b" * size + b"\r\n\r\n")
            assert line.recv(65_536).startswith(b"HTTP/1.1 %d" % status)


def test_headers_without_end_are_refused(patient: Receiving) -> None:
    with patient.connect() as line:
        line.sendall(HEAD)
        with pytest.raises(OSError, match=CUT_OFF):
            _send_piece_by_piece(line, b"x-a: " + b"b" * 10_000 + b"\r\n")


def test_headers_without_end_are_refused_behind_an_earlier_request_too(patient: Receiving) -> None:
    with patient.connect() as line:
        line.sendall(HEALTH + GET)
        with pytest.raises(OSError, match=CUT_OFF):
            _send_piece_by_piece(line, b"x-a: " + b"b" * 10_000 + b"\r\n")


def test_a_connection_goes_on_after_a_refused_request(patient: Receiving) -> None:
    with patient.connect() as line:
        # Refused before its body has arrived; the parser then skips the body.
        line.sendall(b"POST /events HTTP/1.1\r\nhost: x\r\ncontent-length: 90000\r\n\r\n")
        assert _answer(line).startswith(b"HTTP/1.1 415")
        line.sendall(b" " * 90_000 + HEALTH)
        assert _answer(line).startswith(b"HTTP/1.1 200")


def _answer(line: socket.socket) -> bytes:
    """One whole answer: its head and its body may arrive separately."""
    said = b""
    while True:
        head, _, body = said.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if length is not None and len(body) >= int(length[1]):
            return said
        piece = line.recv(65_536)
        assert piece, said
        said += piece


def test_idle_connections_are_closed_to_make_room_for_new_requests(tmp_path: Path) -> None:
    more = 'concurrency = 1\nheader_timeout = "10m"\nanswer_within = "1m"'
    with serving(tmp_path, more) as receiver, ExitStack() as stack:
        lines = [stack.enter_context(receiver.connect()) for _ in range(50)]
        assert receiver.ask(EVENT).status == 200
        # The oldest connections were closed; the newest are still open.
        assert rest(lines[0]) == b""
        lines[-1].sendall(HEALTH)
        assert lines[-1].recv(65_536).startswith(b"HTTP/1.1 200")
