"""What several modules of unit tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from eventonce.stores.memory import MemoryStore
from eventonce.testing.harness import ManualClock
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
