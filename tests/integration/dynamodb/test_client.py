"""A client of the caller's own: an object of another kind is refused before any request."""

from __future__ import annotations

from typing import Any

import boto3
import pytest

from eventonce.errors import ConfigError
from eventonce.stores.dynamodb import DynamoDBStore
from tests.servers.aws import REGION


@pytest.fixture
def resource() -> Any:
    return boto3.resource("dynamodb", region_name=REGION)


def test_a_resource_in_place_of_a_client_is_refused(resource: Any) -> None:
    with pytest.raises(ConfigError, match=r'boto3\.client\("dynamodb"\), and this is .*Service'):
        DynamoDBStore(resource, "calls")


def test_a_table_in_place_of_a_client_is_refused(resource: Any) -> None:
    with pytest.raises(ConfigError, match=r'boto3\.client\("dynamodb"\), and this is .*Table'):
        DynamoDBStore(resource.Table("calls"), "calls")


def test_the_client_of_a_resource_is_refused(resource: Any) -> None:
    """This client changes the values of a request, and an emulator may even store them."""
    with pytest.raises(ConfigError, match=r"the client of a boto3\.resource"):
        DynamoDBStore(resource.meta.client, "calls")


def test_another_services_client_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"botocore\.client\.SQS"):
        DynamoDBStore(boto3.client("sqs", region_name=REGION), "calls")
