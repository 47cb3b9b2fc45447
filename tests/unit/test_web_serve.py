"""`eventonce serve` before it serves: the settings that it refuses, and its error messages."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from eventonce import ConfigError
from eventonce.cli import main
from eventonce.web import Serve
from eventonce.web.admission import limits
from eventonce.web.server import Server, listen
from tests.helpers import Run

Refused = Callable[..., str]


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Refused:
    monkeypatch.chdir(tmp_path)

    def start(*words: str, settings: str = "") -> str:
        Path("eventonce.toml").write_text(settings)
        with pytest.raises(SystemExit) as ended:
            main(["serve", *words])
        assert ended.value.code == 2
        return capsys.readouterr().err

    return start


SINK = 'store = "memory:"\n[[sink]]\nto = "os:getpid"\n'


def test_serve_without_a_sink_and_a_handler_is_refused(refused: Refused) -> None:
    assert "[[sink]]" in refused()
    assert "expected MODULE:NAME" in refused("--handler", "os:nothing")


def test_a_port_that_is_taken_is_named(refused: Refused) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused("--port", port, settings=SINK)
    assert f"cannot listen on 127.0.0.1:{port}" in said


@pytest.mark.parametrize("port", ["abc", "70000"])
def test_a_port_that_is_no_port_is_refused_with_the_numbers_that_are_allowed(
    run: Run, port: str
) -> None:
    told = run("serve", "--port", port)
    assert told.code == 2
    assert f"{port!r} is not a port: give a number from 0 to 65535" in told.err


def test_an_unknown_or_impossible_setting_is_named(refused: Refused) -> None:
    assert "serve.api_key: there is no such field" in refused(
        settings=SINK + '[serve]\napi_key = "hunter2"\n'
    )
    said = refused(settings=SINK + '[serve]\nbody_timeout = "quick"\n')
    assert "body_timeout" in said
    said = refused(settings=SINK + '[serve]\nwebhook_secrets = ["hunter2!"]\n')
    assert "webhook_secrets" in said
    assert "hunter2" not in said


def test_credentials_are_read_from_the_environment_too(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENTONCE_SNS_TOPICS", "calls")
    assert "sns_topics: holds 'calls'" in refused(settings=SINK)
    monkeypatch.setenv("EVENTONCE_USERS", "a1:pw a2:")
    assert "users: holds an empty text" in refused(settings=SINK)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ({"port": 65_536}, "port is 65536: it must be 0 to 65535"),
        ({"port": -1}, "port is -1"),
        ({"host": "a" * 64}, "cannot listen on"),
        ({"host": ".."}, "cannot listen on"),
    ],
)
def test_an_impossible_port_or_host_is_named(where: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        listen(Serve(**where))


async def _app(*_: Any) -> None:
    """Never called."""


def test_uvicorn_gets_the_settings_that_differ_from_its_defaults() -> None:
    config = Server(_app, limits(Serve(header_timeout="20s", drain="1500ms"))).config
    assert config.timeout_keep_alive == 20
    assert config.timeout_graceful_shutdown == 2
    # No header of a client changes its address, and no access log is written.
    assert not config.proxy_headers
    assert not config.access_log


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "203.0.113.9"])
def test_only_loopback_is_listened_on_without_credentials(host: str) -> None:
    with pytest.raises(ConfigError, match="no authentication is set"):
        listen(Serve(host=host, port=0))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost"])
def test_loopback_is_listened_on_under_each_of_its_names(host: str) -> None:
    with listen(Serve(host=host, port=0)) as listening:
        assert ip_address(listening.getsockname()[0]).is_loopback
        # Only then asyncio sets TCP_NODELAY; otherwise short answers are sent 40 ms late.
        assert listening.proto == socket.IPPROTO_TCP


def test_a_missing_extra_is_named() -> None:
    code = "import sys; sys.modules['uvicorn'] = None; import eventonce.web.server"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert 'ConfigError: serve needs: pip install -e ".[web]"' in done.stderr
