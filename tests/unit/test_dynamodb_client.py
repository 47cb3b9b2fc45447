"""The client that a DynamoDB store makes by itself: quickly, and as any other of botocore's."""

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
assert "botocore.client" in sys.modules
loaded = [name for name in ("boto3", "s3transfer") if name in sys.modules]
assert not loaded, loaded
"""


def test_a_store_is_opened_without_what_boto3_adds_to_a_cold_start() -> None:
    subprocess.run([sys.executable, "-c", MADE], check=True)


def test_it_is_made_of_the_same_models_as_any_other_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    session = botocore.session.Session()
    usual = session.create_client("dynamodb", region_name="eu-central-1")
    session = botocore.session.Session()
    session.register_component("data_loader", Models.of(session, "dynamodb"))
    ours = session.create_client("dynamodb", region_name="eu-central-1")
    assert ours.meta.endpoint_url == usual.meta.endpoint_url
    assert ours.meta.service_model.operation_names == usual.meta.service_model.operation_names
    for name in usual.meta.service_model.operation_names:
        assert dir(ours.meta.service_model.operation_model(name).input_shape) == dir(
            usual.meta.service_model.operation_model(name).input_shape
        )


def test_models_of_ones_own_are_looked_for_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELS", str(tmp_path))
    monkeypatch.setenv("AWS_DATA_PATH", "$MODELS/here")
    paths = Models.of(botocore.session.Session(), "dynamodb").search_paths
    assert str(tmp_path / "here") in paths
    monkeypatch.delenv("AWS_DATA_PATH")
    assert "" not in Models.of(botocore.session.Session(), "dynamodb").search_paths


def test_a_profile_that_is_not_there_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(EventonceError, match="ProfileNotFound"):
        DynamoDBStore.from_uri("dynamodb://table?region=eu-central-1&profile=nosuch")
