"""SQS without the driver of AWS: botocore still chooses the address and the credentials."""

from __future__ import annotations

import select
import ssl
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from eventonce.aws.direct import (
    Endpoint,
    ServiceClient,
    ServiceError,
    endpoint_as_found,
    endpoint_of,
)
from eventonce.aws.sessions import Access, connect, connected
from eventonce.aws.sqs import Queue
from eventonce.aws.sqs_client import connect_sqs
from eventonce.errors import SourceUnavailable
from tests.helpers import PATIENCE
from tests.servers.http import Handler, served
from tests.servers.sns import self_signed
from tests.unit.aws_service import FUNCTION, KEYS, REGION, say, serving

pytestmark = pytest.mark.usefixtures("environment")

SERVICES = """
[default]
services = emulated
[services emulated]
sqs =
  endpoint_url = http://127.0.0.1:4566
"""


class Sent(Exception):
    """A request of botocore that is stopped before it is sent."""


def asked_by_botocore(access: Access) -> tuple[str, str]:
    """The host of a request, and the scope of its signature."""

    def stop(request: Any, **_: Any) -> None:
        raise Sent(request)

    client = connect("sqs", access, read_timeout=1, attempts=1)
    client.meta.events.register("before-send.sqs", stop)
    with pytest.raises(Sent) as sent:
        client.list_queues()
    client.close()
    (request,) = sent.value.args
    signed = request.headers["Authorization"].decode()
    return urlsplit(request.url).netloc, "/".join(signed.split(",")[0].split("/")[2:4])


def found(access: Access) -> Endpoint | None:
    client, session = connected("sqs", access, read_timeout=1, attempts=1)
    try:
        return endpoint_as_found(client, session, "list_queues")
    finally:
        client.close()


def made(access: Access) -> Any:
    client = connect_sqs(access, read_timeout=PATIENCE, attempts=1)
    client.close()
    return client


@pytest.mark.parametrize(
    ("said", "access"),
    [
        ({}, Access()),
        ({}, Access(region="us-east-1")),
        ({}, Access(region="cn-north-1")),
        ({}, Access(region="us-gov-west-1")),
        ({}, Access(endpoint="http://127.0.0.1:4566")),
        ({"AWS_USE_FIPS_ENDPOINT": "true"}, Access(region="us-west-2")),
        ({"AWS_USE_DUALSTACK_ENDPOINT": "true"}, Access()),
        ({"AWS_ENDPOINT_URL_SQS": "http://127.0.0.1:4566"}, Access()),
        ({"AWS_ENDPOINT_URL": "https://vpce-1.sqs.eu-central-1.vpce.amazonaws.com"}, Access()),
        ({"AWS_CONFIG_FILE": "services"}, Access()),
    ],
)
def test_a_request_goes_where_botocore_would_send_it(
    said: dict[str, str], access: Access, environment: Any, tmp_path: Path
) -> None:
    if "AWS_CONFIG_FILE" in said:
        said = {"AWS_CONFIG_FILE": str(tmp_path / "services")}
        (tmp_path / "services").write_text(SERVICES)
    environment(**FUNCTION, **said)
    endpoint = found(access)
    assert endpoint is not None
    ours = urlsplit(endpoint.url).netloc, f"{endpoint.region}/{endpoint.service}"
    assert ours == asked_by_botocore(access)
    assert isinstance(made(access), ServiceClient)
    if not said and endpoint_of("sqs", access) is not None:
        assert endpoint.url.rstrip("/") == endpoint_of("sqs", access).url  # type: ignore[union-attr]


KEEPALIVE = "[default]\ntcp_keepalive = true\n"


@pytest.mark.parametrize(
    ("said", "endpoint", "ours"),
    [
        ({"HTTPS_PROXY": "http://127.0.0.1:9"}, None, False),
        ({"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "amazonaws.com"}, None, True),
        ({"HTTP_PROXY": "http://127.0.0.1:9"}, None, True),
        ({"HTTP_PROXY": "http://127.0.0.1:9"}, "http://sqs.example", False),
        ({"AWS_ENDPOINT_URL_SQS": "http://127.0.0.1:9/path"}, None, False),
        ({"AWS_CONFIG_FILE": KEEPALIVE}, None, False),
    ],
)
def test_a_request_that_needs_a_proxy_a_path_or_keepalive_is_sent_by_botocore(
    said: dict[str, str],
    endpoint: str | None,
    ours: bool,
    environment: Callable[..., None],
    tmp_path: Path,
) -> None:
    if "AWS_CONFIG_FILE" in said:
        (tmp_path / "settings").write_text(said["AWS_CONFIG_FILE"])
        said = {"AWS_CONFIG_FILE": str(tmp_path / "settings")}
    environment(**FUNCTION, **said)
    assert isinstance(made(Access(endpoint=endpoint)), ServiceClient) is ours


def test_botocore_is_used_on_a_system_that_cannot_detect_a_closed_connection(
    monkeypatch: pytest.MonkeyPatch, environment: Any
) -> None:
    environment(**FUNCTION, AWS_USE_DUALSTACK_ENDPOINT="true")
    monkeypatch.delattr(select, "poll")
    assert not isinstance(made(Access()), ServiceClient)


def test_without_credentials_the_error_is_that_of_botocore(environment: Any) -> None:
    environment(AWS_REGION=REGION, AWS_EC2_METADATA_DISABLED="true")
    client = made(Access())
    assert not isinstance(client, ServiceClient)
    with pytest.raises(Exception, match="Unable to locate credentials"):
        client.list_queues()


def test_credentials_that_botocore_renews_sign_the_next_request(
    environment: Any, tmp_path: Path
) -> None:
    """A process gives credentials for five minutes: botocore renews them before every use."""
    until = (datetime.now(UTC) + timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    calls, script = tmp_path / "calls", tmp_path / "credentials.sh"
    script.write_text(
        f"echo >> {calls}\n"
        'echo \'{"Version":1,"AccessKeyId":"KEY\'$(wc -l < ' + str(calls) + ")'\","
        f'"SecretAccessKey":"s","SessionToken":"t","Expiration":"{until}"}}\'\n'
    )
    settings = tmp_path / "settings"
    settings.write_text(f"[default]\nregion={REGION}\ncredential_process = sh {script}\n")
    environment(AWS_CONFIG_FILE=str(settings))
    with serving() as service:
        client = connect_sqs(Access(endpoint=service.url), read_timeout=PATIENCE, attempts=1)
        assert isinstance(client, ServiceClient)
        client.list_queues()
        client.list_queues()
        client.close()
    first, second = (int(it["authorization"].split("KEY")[1].split("/")[0]) for it in service.asked)
    assert first < second
    assert service.asked[1]["x-amz-security-token"] == "t"


ROLE = "arn:aws:iam::111122223333:role/calls"
ASSUMED = """<{0}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{0}Result><Credentials>
<AccessKeyId>ASSUMED</AccessKeyId><SecretAccessKey>s</SecretAccessKey>
<SessionToken>t</SessionToken><Expiration>2999-01-01T00:00:00Z</Expiration>
</Credentials></{0}Result></{0}Response>"""


class Assumes(Handler):
    """An STS server that lets every caller assume every role."""

    def reply(self) -> None:
        asked = parse_qs(self.body().decode())["Action"][0]
        self.answer(200, ASSUMED.format(asked).encode(), [("content-type", "text/xml")])


@pytest.mark.parametrize(
    "role",
    [
        f"role_arn = {ROLE}\nsource_profile = own",
        f"role_arn = {ROLE}\nweb_identity_token_file = {{folder}}/token",
    ],
    ids=["by a profile", "by a web identity"],
)
def test_the_credentials_of_an_assumed_role_sign_the_requests(
    environment: Any, tmp_path: Path, role: str
) -> None:
    (tmp_path / "token").write_text("of a service account")
    settings = tmp_path / "settings"
    with serving() as service, served(Assumes) as port:
        settings.write_text(
            f"[default]\nregion = {REGION}\n{role.format(folder=tmp_path)}\n"
            "[profile own]\naws_access_key_id = OWN\naws_secret_access_key = s\n"
        )
        environment(AWS_CONFIG_FILE=str(settings), AWS_ENDPOINT_URL_STS=f"http://127.0.0.1:{port}")
        client = connect_sqs(Access(endpoint=service.url), read_timeout=5, attempts=1)
        assert isinstance(client, ServiceClient)
        client.list_queues()
        client.close()
    (asked,) = service.asked
    assert "Credential=ASSUMED/" in asked["authorization"]
    assert asked["x-amz-security-token"] == "t"


def test_the_certificates_of_the_settings_are_trusted(environment: Any, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    settings = tmp_path / "settings"
    settings.write_text(f"[default]\nregion={REGION}\nca_bundle = {certificate}\n")
    environment(**KEYS, AWS_CONFIG_FILE=str(settings))
    with serving(context) as service:
        client = connect_sqs(Access(endpoint=service.url), read_timeout=PATIENCE, attempts=1)
        assert isinstance(client, ServiceClient)
        assert client.list_queues()["ResponseMetadata"]["HTTPStatusCode"] == 200
        client.close()


def test_an_error_has_the_code_of_the_query_protocol_if_sqs_sends_that_code() -> None:
    with serving() as service:
        client = connect_sqs(Access(endpoint=service.url), read_timeout=PATIENCE, attempts=1)
        service.answers += [
            say(400, b'{"__type":"com.amazonaws.sqs#QueueDoesNotExist"}', x_amzn_query_error=said)
            for said in ("AWS.SimpleQueueService.NonExistentQueue;Sender", "nonsense")
        ]
        codes = []
        for _ in range(2):
            with pytest.raises(ServiceError) as told:
                client.receive_message(QueueUrl="u")
            codes.append(told.value.response["Error"]["Code"])
        client.close()
    assert codes == ["AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"]
    assert service.asked[0]["x-amzn-query-mode"] == "true"
    assert service.asked[0]["x-amz-target"] == "AmazonSQS.ReceiveMessage"


BODIES = [b"<html>", b"[]", b"7", b"null", b"[" * 100_000, b"\xff", b"the service is away"]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:9]))
def test_an_answer_that_is_not_from_sqs_does_not_count_as_an_empty_queue(body: bytes) -> None:
    with serving() as service:
        queue = Queue.from_uri(f"{service.url}/111122223333/calls?region={REGION}")
        assert isinstance(queue.client, ServiceClient)
        service.answers.append(say(200, body))
        with pytest.raises(SourceUnavailable, match="is not from the service"):
            queue.receive()
        assert queue.receive() == [], "asked again, the service itself answers"
        queue.close()


@pytest.mark.parametrize("kind", ["text/html", "text/plain; charset=utf-8"])
def test_a_text_that_botocore_reads_as_an_empty_answer_does_not_count_as_an_empty_queue(
    kind: str,
) -> None:
    with serving() as service:
        access = Access(endpoint=service.url, region=REGION)
        client = connect("sqs", access, read_timeout=PATIENCE, attempts=1)
        queue = Queue.from_uri(f"{service.url}/111122223333/calls?region={REGION}", client)
        service.answers.append(say(200, b"the service is away", content_type=kind))
        with pytest.raises(SourceUnavailable, match="is not from the service"):
            queue.receive()
        assert queue.receive() == []
        client.close()


LOADED = """
import sys
from eventonce.aws.sqs import Queue
queue = Queue.from_uri("sqs://calls?region=eu-central-1")
print("http.client" in sys.modules)
queue.client
print("http.client" in sys.modules, "botocore" in sys.modules)
"""


def test_a_queue_loads_no_botocore_and_its_uri_loads_no_http_client() -> None:
    command, environment = [sys.executable, "-c", LOADED], {**KEYS, "HOME": "/nowhere"}
    done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True", "False"]


def test_a_lone_surrogate_is_received_unchanged() -> None:
    with serving() as service:
        client = connect_sqs(Access(endpoint=service.url), read_timeout=PATIENCE, attempts=1)
        service.answers.append(say(200, rb'{"Messages":[{"Body":"half: \ud83d"}]}'))
        assert client.receive_message()["Messages"] == [{"Body": "half: \ud83d"}]
        client.close()
