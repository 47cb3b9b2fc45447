"""The table and the credentials of a URI: mistakes are reported, and no secret with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventonce.errors import ConfigError, EventonceError, StoreMismatch
from eventonce.stores import open_store
from eventonce.stores.dynamodb import DynamoDBStore
from tests.integration.dynamodb.asks import facts
from tests.integration.dynamodb.between import Between, hang_up, refuse
from tests.servers.aws import REGION

SECRET = "hunter2-hunter2"


@pytest.fixture(params=["on_ministack", "by_botocore"])
def endpoint(request: pytest.FixtureRequest) -> str:
    """One emulator is enough for these few requests."""
    return str(request.getfixturevalue(request.param))


def test_no_credentials_is_a_configuration_error(
    table: str, between: Between, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    store = DynamoDBStore.from_uri(f"dynamodb://{table}?region={REGION}&endpoint={between.url}")
    with pytest.raises(ConfigError, match="no AWS credentials"):
        store.claim(facts(1))
    with pytest.raises(ConfigError, match="ProfileNotFound"):
        DynamoDBStore.from_uri(f"dynamodb://{table}?region={REGION}&profile=nobody")


def test_no_region_is_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"\?region=eu-central-1"):
        DynamoDBStore.from_uri("dynamodb://tab")


@pytest.mark.parametrize(
    "uri",
    [
        f"dynamodb://AKIA:{SECRET}@table?region=x",
        f"dynamodb://table?region=x&endpoint=http://user:{SECRET}@127.0.0.1:1",
        "dynamodb://table/more",
        "dynamodb://",
        "dynamodb://t",
        "dynamodb://table?regoin=x",
        "dynamodb://table?region=x&timeout=soon",
        "dynamodb://table?region=x&timeout=-1",
        "dynamodb://table?region=x&key=a'b",
        "dynamodb://table?region=x&key=token",
        "dynamodb://table?region=x&key=a&expiry=a",
        "dynamodb://table?region=x&endpoint=nonsense",
        "dynamodb://table?region=not%20a%20region",
    ],
)
def test_a_bad_uri_is_refused_without_repeating_a_secret(uri: str) -> None:
    with pytest.raises(ConfigError) as told:
        open_store(uri)
    assert SECRET not in str(told.value)


@pytest.mark.parametrize("uri", ["dynamodb://", "dynamodb:///", "dynamodb://?region=eu-central-1"])
def test_a_uri_without_a_table_is_refused_for_its_table_and_not_its_region(
    uri: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"'' cannot be .* dynamodb://TABLE\?region=REGION"):
        open_store(uri)


def test_secrets_are_in_no_message(
    table: str, between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", f"token-{SECRET}")
    store = DynamoDBStore.from_uri(
        f"dynamodb://{table}?region={REGION}&endpoint={between.url}&timeout=0.3"
    )
    said = f"the canonical string should have been x-amz-security-token:token-{SECRET}"
    for trick in (refuse("InvalidSignatureException", said), hang_up, refuse("Expired", "no")):
        with between.spoiling(trick), pytest.raises(EventonceError) as told:
            store.claim(facts(1))
        assert SECRET not in str(told.value)


def test_the_error_of_a_missing_table_names_the_command_with_the_whole_uri(endpoint: str) -> None:
    uri = f"dynamodb://nowhere?region={REGION}&endpoint={endpoint}&key=pk&expiry=ttl"
    with pytest.raises(StoreMismatch) as told:
        open_store(uri).claim(facts(1))
    assert f'eventonce store create "{uri}"' in str(told.value)
