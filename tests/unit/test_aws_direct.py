"""Requests to AWS without botocore: when they are possible, and how a bad answer is handled."""

from __future__ import annotations

import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from zlib import crc32

import botocore.session
import pytest
from botocore.retries import standard

from eventonce.aws import direct, errors
from eventonce.aws.direct import Endpoint, NoCredentialsError, ServiceError
from eventonce.aws.sessions import Access
from eventonce.errors import StoreUnavailable
from tests.servers.sns import self_signed
from tests.unit.aws_service import FUNCTION, KEYS, REGION, Answer, Service, say, serving

pytestmark = pytest.mark.usefixtures("environment")


def test_the_environment_of_a_function_is_enough_for_a_direct_request() -> None:
    expected = Endpoint("dynamodb", REGION, f"https://dynamodb.{REGION}.amazonaws.com")
    assert direct.endpoint_of("dynamodb", Access()) == expected


@pytest.mark.parametrize(
    "said",
    [
        "AWS_ACCOUNT_ID",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CREDENTIAL_EXPIRATION",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_DYNAMODB",
        "AWS_PROFILE",
        "AWS_ROLE_ARN",
        "AWS_SOMETHING_NEW",
        "AWS_USE_DUALSTACK_ENDPOINT",
        "AWS_USE_FIPS_ENDPOINT",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "BOTO_CONFIG",
        "HTTPS_PROXY",
        "https_proxy",
    ],
)
def test_any_other_variable_is_left_to_botocore(said: str, environment: Any) -> None:
    environment(**FUNCTION, **{said: "something"})
    assert direct.endpoint_of("dynamodb", Access()) is None
    environment(**FUNCTION, **{said: ""}, NO_PROXY="127.0.0.1")
    assert direct.endpoint_of("dynamodb", Access()) is not None


@pytest.mark.parametrize("missing", [*KEYS, "AWS_REGION"])
def test_a_missing_credential_or_region_is_left_to_botocore(missing: str, environment: Any) -> None:
    said = {**KEYS, "AWS_REGION": REGION}
    environment(**said)
    assert direct.endpoint_of("dynamodb", Access()) is not None
    del said[missing]
    environment(**said)
    assert direct.endpoint_of("dynamodb", Access()) is None


@pytest.mark.parametrize("name", ["config", "credentials"])
def test_a_settings_file_of_aws_is_left_to_botocore(name: str, tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / name).write_text("[default]\n")
    assert direct.endpoint_of("dynamodb", Access()) is None


@pytest.mark.parametrize(
    "access",
    [
        Access(profile="dev"),
        Access(region="cn-north-1"),
        Access(region="us-gov-west-1"),
        Access(region="not a region"),
        Access(endpoint="http://127.0.0.1:8000/path"),
    ],
)
def test_a_profile_an_unusual_region_or_an_endpoint_with_a_path_is_left_to_botocore(
    access: Access,
) -> None:
    assert direct.endpoint_of("dynamodb", access) is None


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_a_system_with_its_own_proxy_settings_is_left_to_botocore(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    assert direct.endpoint_of("dynamodb", Access()) is None


@pytest.mark.parametrize("service", ["dynamodb", "sqs"])
def test_an_endpoint_equals_the_endpoint_of_botocore(service: str) -> None:
    session = botocore.session.Session()
    regions = [
        region
        for partition in session.get_available_partitions()
        for region in session.get_available_regions(service, partition)
    ]
    ours = {region: direct.endpoint_of(service, Access(region)) for region in regions}
    assert sum(one is not None for one in ours.values()) > 20
    for region, endpoint in ours.items():
        if endpoint is not None:
            client = session.create_client(service, region_name=region)
            assert endpoint.url == client.meta.endpoint_url
            client.close()


def test_an_error_that_botocore_retries_is_of_the_kind_busy() -> None:
    codes = {
        *standard.TransientRetryableChecker._TRANSIENT_ERROR_CODES,
        *standard.ThrottledRetryableChecker._THROTTLED_ERROR_CODES,
    } - {"EC2ThrottledException"}
    assert {errors.kind_of_code(code) for code in codes} == {"busy"}
    for status in standard.TransientRetryableChecker._TRANSIENT_STATUS_CODES:
        answer = {"Error": {"Code": ""}, "ResponseMetadata": {"HTTPStatusCode": status}}
        assert errors.kind_of(ServiceError(answer)) == "busy"


def hang_up(to: BaseHTTPRequestHandler) -> None:
    to.close_connection = True


def reset(to: BaseHTTPRequestHandler) -> None:
    to.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    to.close_connection = True


def cut(to: BaseHTTPRequestHandler) -> None:
    to.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}")
    to.close_connection = True


def throttle(to: BaseHTTPRequestHandler) -> None:
    say(400, b'{"__type":"com.amazon#ThrottlingException","message":"slow"}')(to)


@pytest.fixture
def service() -> Iterator[Service]:
    with serving() as service:
        yield service


def test_requests_share_a_connection_and_have_the_credentials_of_the_moment(
    service: Service, environment: Any
) -> None:
    client = service.client()
    assert client.post("DynamoDB_20120810.PutItem", b"{}").status == 200
    environment(**FUNCTION | {"AWS_ACCESS_KEY_ID": "ANOTHER", "AWS_SESSION_TOKEN": "renewed"})
    client.post("DynamoDB_20120810.PutItem", b"{}")
    client.close()
    assert service.connections == 1
    first, second = service.asked
    assert first["x-amz-target"] == "DynamoDB_20120810.PutItem"
    assert "Credential=AKIDEXAMPLE/" in first["authorization"]
    assert "Credential=ANOTHER/" in second["authorization"]
    assert second["x-amz-security-token"] == "renewed"


def test_without_credentials_nothing_is_sent(service: Service, environment: Any) -> None:
    client = service.client()
    environment(AWS_REGION=REGION)
    with pytest.raises(NoCredentialsError) as told:
        client.post("t", b"{}")
    assert service.asked == []
    assert errors.kind_of(told.value) == "no_credentials"


BAD: dict[str, Answer] = {
    "throttled": throttle,
    "an error of the service": say(500, b"oops"),
    "unavailable": say(503),
    "no answer": hang_up,
    "a reset": reset,
    "a damaged answer": say(200, b'{"a":1}', x_amz_crc32=str(crc32(b'{"a":2}'))),
    "a cut answer": cut,
}


@pytest.mark.parametrize("bad", BAD)
def test_a_request_is_sent_again_after_a_transient_error(bad: str, service: Service) -> None:
    client = service.client()
    service.answers += [BAD[bad], BAD[bad]]
    assert client.post("t", b"{}").body == b"{}"
    assert len(service.asked) == 3
    client.close()


@pytest.mark.parametrize("bad", BAD)
def test_a_transient_error_that_persists_is_reported_as_unavailable(
    bad: str, service: Service
) -> None:
    client = service.client()
    service.answers += [BAD[bad]] * 3
    with pytest.raises((OSError, HTTPException, ServiceError)) as told:
        client.post("t", b"{}")
    assert len(service.asked) == 3
    ours = errors.explain(told.value, "table", unavailable=StoreUnavailable)
    assert type(ours) is StoreUnavailable


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"__type":"a.b#ConditionalCheckFailedException"}', "ConditionalCheckFailedException"),
        (b'{"__type":"ExpiredTokenException:http://x","Message":"m"}', "ExpiredTokenException"),
        (b"<html>", "400"),
        (b'{"message":{}}', "400"),
        (b"\xff", "400"),
    ],
)
def test_a_refusal_is_raised_at_once_without_a_retry(
    body: bytes, code: str, service: Service
) -> None:
    client = service.client()
    service.answers.append(say(400, body))
    with pytest.raises(ServiceError) as told:
        client.post("t", b"{}")
    assert told.value.response["Error"]["Code"] == code
    assert len(service.asked) == 1
    client.close()


def test_a_redirection_is_not_followed(service: Service) -> None:
    client = service.client()
    service.answers.append(say(302, location="http://127.0.0.1:9/"))
    with pytest.raises(ServiceError, match="302"):
        client.post("t", b"{}")
    client.close()


def test_a_slow_answer_raises_a_timeout(service: Service) -> None:
    client = service.client(attempts=1, read_timeout=0.05)
    ended = threading.Event()

    def wait(_: BaseHTTPRequestHandler) -> None:
        ended.wait(20)

    service.answers.append(wait)
    with pytest.raises(TimeoutError):
        client.post("t", b"{}")
    ended.set()


def test_a_connection_that_the_service_closed_is_not_used_again(service: Service) -> None:
    client = service.client(attempts=1)

    def close_afterwards(to: BaseHTTPRequestHandler) -> None:
        say(200)(to)
        to.close_connection = True

    for _ in range(3):
        service.answers.append(close_afterwards)
        client.post("t", b"{}")
        (connection,) = client._idle
        while not direct._is_closed(connection):
            time.sleep(0.001)
    assert service.connections == 3
    client.close()


class Taken(list[Any]):
    """Idle connections, of which another thread takes the last before this thread does."""

    def pop(self, *_: Any) -> Any:
        self.clear()
        raise IndexError


def test_a_client_is_closed_while_another_thread_takes_a_connection(service: Service) -> None:
    client = service.client(attempts=1)
    client._idle = Taken(["a connection"])
    client.close()
    assert client._idle == []


def test_after_many_failures_a_caller_sends_one_request_without_a_retry(service: Service) -> None:
    client = service.client(attempts=2)
    retries = direct.RETRY_TOKENS // direct.RETRY_COST
    service.answers += [throttle] * (2 * retries + 1)
    for _ in range(retries + 1):
        with pytest.raises(ServiceError):
            client.post("t", b"{}")
    assert len(service.asked) == 2 * retries + 1
    for _ in range(direct.RETRY_COST):
        client.post("t", b"{}")
    service.answers += [throttle]
    assert client.post("t", b"{}").status == 200
    client.close()


@pytest.mark.parametrize(
    ("name", "trusted", "variable"),
    [
        ("127.0.0.1", True, "AWS_CA_BUNDLE"),
        ("127.0.0.1", True, "REQUESTS_CA_BUNDLE"),
        ("another.example", True, "AWS_CA_BUNDLE"),
        ("127.0.0.1", False, ""),
    ],
)
def test_only_a_trusted_certificate_of_this_host_is_accepted(
    name: str, trusted: bool, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = self_signed(tmp_path, name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    if trusted:
        monkeypatch.setenv(variable, str(certificate))
    with serving(context) as service:
        client = service.client(attempts=1)
        if trusted and name == "127.0.0.1":
            assert client.post("t", b"{}").status == 200
            client.close()
        else:
            with pytest.raises(ssl.SSLCertVerificationError) as told:
                client.post("t", b"{}")
            assert errors.kind_of(told.value) == "not_reached"
            assert service.asked == []
