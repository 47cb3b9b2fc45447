"""`eventonce store` against a server that is away: the same exit code for every shared store."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from eventonce.cli import main


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is reserved, and where no server listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize("command", ["check", "create", "migrate"])
@pytest.mark.parametrize(
    "uri",
    [
        "redis://127.0.0.1:{}",
        "redis+cluster://127.0.0.1:{}",
        "postgresql://me@127.0.0.1:{}/calls",
        "dynamodb://calls?region=eu-central-1&endpoint=http://127.0.0.1:{}",
    ],
)
def test_a_server_that_is_away_is_exit_code_3(
    closed_port: int,
    uri: str,
    command: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "here")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "here")
    with pytest.raises(SystemExit) as stop:
        main(["store", command, uri.format(closed_port)])
    assert stop.value.code == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("eventonce: ")
