"""Fixtures of several modules of unit tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eventonce.aws import direct
from eventonce.stores.memory import MemoryStore
from eventonce.testing.harness import ManualClock
from tests.unit.aws_service import FUNCTION
from tests.unit.endpoint import Endpoint


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.consumer.close()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Sets the variables of AWS to these alone."""

    def set_to(**said: str) -> None:
        for name in list(os.environ):
            if name.startswith(("AWS_", "BOTO")) or name.lower().endswith("_proxy"):
                monkeypatch.delenv(name)
        for name, value in said.items():
            monkeypatch.setenv(name, value)

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(direct, "RETRY_PAUSE", 0.0)
    set_to(**FUNCTION)
    return set_to
