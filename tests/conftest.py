"""Fixtures and hooks of all tests."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers import Run, runner

pytest_plugins = ["pytester"]

# The import of the tests makes a million objects, which live as long as the process: the garbage
# collector need not look at them, then or later.
gc.disable()

# The same examples every time, and none of them judged by how fast this machine happens to be.
settings.register_profile(
    "steady",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# For `make quick`: the first of the same examples.
settings.register_profile("quick", settings.get_profile("steady"), max_examples=15)
settings.load_profile("steady")


# A shell lets a background job ignore Ctrl-C, and `nohup` lets it ignore a hangup. The programs
# that the tests start would inherit this; they do not inherit a function of this process.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


LOGGERS = ("", "eventonce", "eventonce.outcomes")


def pytest_collection_finish() -> None:
    """Let the garbage collector begin, with the objects that the tests make from now on."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Leave the log as it was: commands that run in the process of the tests choose its level."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    handlers = [list(logger.handlers) for logger in loggers]
    result = yield
    for logger, level, before in zip(loggers, levels, handlers, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = before
    return result


@pytest.fixture
def run(
    capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """The command line in a folder of the test's own, without a variable of the environment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("EVENTONCE_")]:
        monkeypatch.delenv(name)
    return runner(capsysbinary)


@pytest.fixture(scope="session")
def dynamodb_local_url() -> Iterator[str]:
    """One DynamoDB Local for a test process: Java takes as long to start as many tests last."""
    from tests.servers.aws import dynamodb_local  # the unit tests do without AWS' driver

    with dynamodb_local() as url:
        yield url


@pytest.fixture(scope="session")
def ministack_url() -> Iterator[str]:
    """One ministack for a test process; each test uses names of its own."""
    from tests.servers.aws import ministack  # as above

    with ministack() as url:
        yield url


@pytest.fixture(scope="module")
def endpoint(ministack_url: str) -> Iterator[str]:
    """An emulated account, whose credentials this process has."""
    from tests.servers.aws import emulated  # as above

    with emulated():
        yield ministack_url
