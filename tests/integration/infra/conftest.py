"""An emulated account, its clients, and a deployment with names of each test's own."""

from __future__ import annotations

import secrets
from functools import cache
from typing import Any

import boto3
import pytest

from eventonce.infra.stack import deploy
from eventonce.infra.topology import Infra, topology_of
from tests.integration.infra.account import SOURCE, Client, Deploy
from tests.servers.aws import REGION


@pytest.fixture(scope="module")
def client(endpoint: str) -> Client:
    return cache(lambda service: boto3.client(service, region_name=REGION, endpoint_url=endpoint))


@pytest.fixture
def name() -> str:
    return f"calls-{secrets.token_hex(4)}"


@pytest.fixture
def deployed(endpoint: str, name: str) -> Deploy:
    """Deploy a stack of this test's own."""

    def deployed(*, dry_run: bool = False, store: str = "redis://elsewhere", **said: Any) -> Any:
        infra = Infra(**{"source": SOURCE, "region": REGION, "endpoint": endpoint, **said})
        return deploy(
            infra, topology_of(infra, name=name, store=store), store=store, dry_run=dry_run
        )

    return deployed
