"""A service of AWS that gives the answers of a test, and the environment of a function."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from eventonce.aws.direct import Endpoint, ServiceClient
from eventonce.stores.dynamodb.client import DYNAMODB
from tests.servers.http import Handler, served

REGION = "eu-central-1"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}
FUNCTION = {
    **KEYS,
    "AWS_SESSION_TOKEN": "token",
    "AWS_REGION": REGION,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EXECUTION_ENV": "AWS_Lambda_python3.13",
    "AWS_LAMBDA_FUNCTION_NAME": "calls",
    "AWS_LAMBDA_RUNTIME_API": "127.0.0.1:9001",
    "AWS_XRAY_CONTEXT_MISSING": "LOG_ERROR",
    "AWS_XRAY_DAEMON_ADDRESS": "127.0.0.1:2000",
}
"""The variables that Lambda sets."""

Answer = Callable[[BaseHTTPRequestHandler], None]


class Service:
    """A server that gives its answers in their order, and 200 when no answer is left."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[dict[str, str]] = []
        self.connections = 0
        self.url = ""

    def client(self, *, attempts: int = 3, read_timeout: float = 20.0) -> ServiceClient:
        endpoint = Endpoint("dynamodb", REGION, self.url)
        return ServiceClient(
            DYNAMODB, endpoint, connect_timeout=5.0, read_timeout=read_timeout, attempts=attempts
        )


def say(status: int, body: bytes = b"{}", **headers: str) -> Answer:
    def answer(to: BaseHTTPRequestHandler) -> None:
        to.send_response(status)
        for name, value in {"content-length": str(len(body)), **headers}.items():
            to.send_header(name.replace("_", "-"), value)
        to.end_headers()
        to.wfile.write(body)

    return answer


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Service]:
    service = Service()

    class Answering(Handler):
        protocol_version = "HTTP/1.1"
        # An answer in two pieces takes 40 ms: the second waits until the first is confirmed.
        wbufsize = -1

        def setup(self) -> None:
            super().setup()
            service.connections += 1

        def reply(self) -> None:
            self.body()
            service.asked.append({name.lower(): value for name, value in self.headers.items()})
            (service.answers.pop(0) if service.answers else say(200))(self)

    with served(Answering, tls) as port:
        service.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        yield service
