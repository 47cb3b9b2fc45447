"""An emulated account, clients to look into it, and `apply` with names of each test's own."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import boto3
import pytest

from eventonce.infra.apply import apply
from eventonce.infra.plan import Infra, planned
from tests.integration.infra.account import SOURCE, Apply
from tests.servers.aws import REGION, emulated, ministack


@pytest.fixture(scope="package")
def endpoint() -> Iterator[str]:
    with emulated(), ministack() as url:
        yield url


@pytest.fixture(scope="package")
def client(endpoint: str) -> Callable[[str], Any]:
    return cache(lambda service: boto3.client(service, region_name=REGION, endpoint_url=endpoint))


@pytest.fixture
def name() -> str:
    return f"calls-{secrets.token_hex(4)}"


@pytest.fixture
def applied(endpoint: str, name: str) -> Apply:
    """Apply with a queue, a rule and a table of this test's own."""

    def applied(*, dry_run: bool = False, store: str = "redis://elsewhere", **said: Any) -> Any:
        infra = Infra(**{"source": SOURCE, "region": REGION, "endpoint": endpoint, **said})
        plan = planned(infra, name=name, store=store)
        return apply(infra, plan, dry_run=dry_run)

    return applied
