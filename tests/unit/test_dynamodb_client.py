"""The client that a DynamoDB store makes: quick to load, and equal to a client of botocore."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import botocore.session
import pytest

from eventonce.aws.models import Models
from eventonce.errors import EventonceError
from eventonce.stores.dynamodb import DynamoDBStore

MADE = """
import sys
from eventonce.stores.dynamodb import DynamoDBStore
DynamoDBStore.from_uri("dynamodb://table?region=eu-central-1")
print(*sorted(sys.modules))
"""
FUNCTION = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "HOME": "/nowhere"}
SLOW = {"asyncio", "boto3", "botocore", "concurrent.futures", "logging", "s3transfer", "urllib3"}


def loaded(**environment: str) -> set[str]:
    command = [sys.executable, "-c", MADE]
    done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    return SLOW & set(done.stdout.split())


def test_a_function_opens_a_store_without_loading_slow_modules() -> None:
    assert loaded(**FUNCTION) == set()


def test_botocore_makes_the_client_outside_a_function_without_boto3_and_asyncio() -> None:
    assert loaded(**FUNCTION, AWS_USE_DUALSTACK_ENDPOINT="false").isdisjoint({"boto3", "asyncio"})
    assert "botocore" in loaded(**FUNCTION, AWS_USE_DUALSTACK_ENDPOINT="false")


def test_the_client_has_the_same_models_as_a_client_of_botocore(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    session = botocore.session.Session()
    usual = session.create_client("dynamodb", region_name="eu-central-1")
    session = botocore.session.Session()
    session.register_component("data_loader", Models.of(session))
    ours = session.create_client("dynamodb", region_name="eu-central-1")
    assert ours.meta.endpoint_url == usual.meta.endpoint_url
    assert ours.meta.service_model.operation_names == usual.meta.service_model.operation_names
    for name in usual.meta.service_model.operation_names:
        assert dir(ours.meta.service_model.operation_model(name).input_shape) == dir(
            usual.meta.service_model.operation_model(name).input_shape
        )


def test_models_of_the_user_are_searched_in_the_folder_of_aws_data_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELS", str(tmp_path))
    monkeypatch.setenv("AWS_DATA_PATH", "$MODELS/here")
    paths = Models.of(botocore.session.Session()).search_paths
    assert str(tmp_path / "here") in paths
    monkeypatch.delenv("AWS_DATA_PATH")
    assert "" not in Models.of(botocore.session.Session()).search_paths


def test_a_profile_that_does_not_exist_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(EventonceError, match="ProfileNotFound"):
        DynamoDBStore.from_uri("dynamodb://table?region=eu-central-1&profile=nosuch")
