"""Clients of AWS: their number, their replacement and their region."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore import exceptions

from eventonce.aws import errors, sessions
from eventonce.aws.sessions import Access, Client, connect
from eventonce.errors import ConfigError, EventonceError, SourceUnavailable


class Made:
    """Clients that count themselves."""

    def __init__(self, *raises: Exception) -> None:
        self.clients: list[Made] = []
        self.closed = False
        self._raises = list(raises)

    def __call__(self) -> Made:
        self.clients.append(Made(*self._raises[len(self.clients) :][:1]))
        return self.clients[-1]

    def ask(self) -> dict[str, Any]:
        if self._raises:
            raise self._raises[0]
        return {"answer": True}

    def close(self) -> None:
        self.closed = True


def client_of(made: Any, **options: Any) -> Client:
    return Client(made, lambda error: errors.explain(error, "SQS queue orders"), **options)


def test_many_threads_share_one_client() -> None:
    made, barrier = Made(), threading.Barrier(8)
    client = client_of(made)

    def current(_: int) -> Any:
        barrier.wait(10)
        return client.current

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(current, range(8))) == set(made.clients)
    assert len(made.clients) == 1


def test_a_fork_makes_a_client_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made()
    client = client_of(made)
    before = client.current
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert client.current is not before
    assert not before.closed, "its connections are the other process's too"


def test_a_client_that_was_given_is_neither_replaced_nor_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "CLIENT_AGE", 0.0)
    made, given = Made(), Made(exceptions.NoCredentialsError())
    client = client_of(made, given=given)
    for _ in range(2):
        with pytest.raises(ConfigError, match="no AWS credentials"):
            client.call("ask")
    client.close()
    assert (client.current, given.closed, made.clients) == (given, False, [])


@pytest.mark.parametrize(("age", "clients"), [(0.0, 2), (3600.0, 1)])
def test_a_client_without_credentials_is_made_anew_but_not_for_every_call(
    age: float, clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "CLIENT_AGE", age)
    made = Made(exceptions.NoCredentialsError())
    client = client_of(made)
    with pytest.raises(ConfigError):
        client.call("ask")
    if clients == 2:
        assert client.call("ask") == {"answer": True}
    else:
        with pytest.raises(ConfigError):
            client.call("ask")
    assert len(made.clients) == clients


def test_a_closed_client_is_made_again_when_it_is_needed() -> None:
    made = Made()
    client = client_of(made)
    first = client.current
    client.close()
    assert first.closed
    assert client.call("ask") == {"answer": True}
    assert len(made.clients) == 2


@pytest.mark.parametrize(
    ("said", "environment", "region"),
    [
        ("eu-west-1", {"AWS_DEFAULT_REGION": "eu-west-2", "AWS_REGION": "eu-west-3"}, "eu-west-1"),
        (None, {"AWS_DEFAULT_REGION": "eu-west-2", "AWS_REGION": "eu-west-3"}, "eu-west-2"),
        (None, {"AWS_REGION": "eu-west-3"}, "eu-west-3"),
    ],
)
def test_the_region_is_the_uris_or_botocores_or_else_aws_region(
    said: str | None, environment: dict[str, str], region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    client = connect("sqs", Access(said), read_timeout=1, attempts=1)
    assert client.meta.region_name == region
    client.close()


def test_a_missing_region_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    client = client_of(lambda: connect("sqs", Access(), read_timeout=1, attempts=1))
    with pytest.raises(ConfigError, match="AWS_REGION, with \\?region="):
        client.call("receive_message")


@pytest.mark.parametrize(
    ("error", "kind", "ours"),
    [
        (exceptions.EndpointConnectionError(endpoint_url="http://x"), "not_reached", "unavailable"),
        (exceptions.UnauthorizedSSOTokenError(), "not_renewed", "unavailable"),
        (exceptions.SSOTokenLoadError(error_msg="x"), "not_renewed", "unavailable"),
        (exceptions.ProfileNotFound(profile="x"), "no_credentials", "configuration"),
        (exceptions.InvalidRegionError(region_name="x"), "misconfigured", "configuration"),
        (OSError("x"), "not_reached", "unavailable"),
        (KeyError("x"), "strange", "unavailable"),
        (ValueError("x"), "misconfigured", "configuration"),
    ],
)
def test_an_error_of_the_driver_has_one_meaning(error: Exception, kind: str, ours: str) -> None:
    assert errors.kind_of(error) == kind
    expected: type[EventonceError] = SourceUnavailable if ours == "unavailable" else ConfigError
    assert type(errors.explain(error, "queue")) is expected


def test_a_transient_error_becomes_the_exception_class_that_the_store_names() -> None:
    class Away(EventonceError):
        """A store's own."""

    told = errors.explain(OSError("secret"), "DynamoDB table t", noun="table", unavailable=Away)
    assert type(told) is Away
    assert str(told).startswith("DynamoDB table t: not reached (OSError)")
