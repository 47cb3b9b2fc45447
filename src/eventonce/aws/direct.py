"""AWS without botocore: signed requests over connections that stay open. Botocore takes longer to
load than everything else in a function, and most of a worker's time.

If the environment alone gives the credentials and the endpoint, as in Lambda, botocore is not
loaded. Otherwise a client of botocore gives the endpoint once, and the credentials of each request.
"""

from __future__ import annotations

import os
import random
import re
import select
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib.util import find_spec
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit
from zlib import crc32

import msgspec

from eventonce.aws import errors
from eventonce.aws.sessions import IDLE_CONNECTIONS, Access
from eventonce.aws.sigv4 import ALGORITHM, Credentials, signed
from eventonce.types import NO_HEADERS

RETRY_PAUSE: Final = 1.0
"""The most seconds before the second attempt of a request; doubled before each further attempt."""

RETRY_TOKENS: Final = 500
RETRY_COST: Final = 5
"""The tokens of a client, and the tokens that a retry takes: while a service fails for minutes,
retries stop. A request that succeeds gives tokens back."""

_UNDERSTOOD: Final = frozenset(
    (
        "AWS_ACCESS_KEY_ID",
        "AWS_CA_BUNDLE",
        "AWS_CONFIG_FILE",
        "AWS_DEFAULT_REGION",
        "AWS_EC2_METADATA_DISABLED",
        "AWS_EXECUTION_ENV",
        "AWS_REGION",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_SHARED_CREDENTIALS_FILE",
    )
)
"""The variables that this module reads, or that change nothing. Any other AWS variable, also of a
later release, may change the endpoint or the credentials: then botocore is used."""

_HARMLESS: Final = ("AWS_LAMBDA_", "AWS_XRAY_")
_ELSEWHERE: Final = ("AWS_", "BOTO")

_DEFAULT_FILES: Final = {
    "AWS_CONFIG_FILE": "~/.aws/config",
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
}

_REGIONS: Final = re.compile(r"(?:us|eu|ap|sa|ca|me|af|il|mx)-[a-z]+-\d")
"""The regions whose endpoints end in amazonaws.com; for other partitions botocore is used."""

_PROXIES_OF_SYSTEM: Final = ("darwin", "win32")
"""The systems that have settings of proxies outside the environment."""


def of_environment() -> Credentials | None:
    """Return the credentials of the environment; None if there are none."""
    key = os.environ.get("AWS_ACCESS_KEY_ID", "")
    secret = os.environ.get("AWS_SECRET_ACCESS_KEY", "")
    if not key or not secret:
        return None
    return Credentials(key, secret, os.environ.get("AWS_SESSION_TOKEN", ""))


class Endpoint(NamedTuple):
    """The endpoint and the credentials for the requests of one service."""

    service: str
    region: str
    """The region of the signature."""
    url: str
    credentials: Callable[[], Credentials | None] = of_environment
    """The function that returns the current credentials."""
    certificates: str | None = None
    """The file of certificates to trust; None for botocore's usual one."""


class Reply(NamedTuple):
    """The answer of the service; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ServiceError(Exception):
    """An error of the service; `response` has the same form as in botocore's `ClientError`."""

    def __init__(self, response: dict[str, Any]) -> None:
        super().__init__(response["Error"]["Code"])
        self.response = response


class NoCredentialsError(Exception):
    """The environment has no credentials any more; `errors` knows this class by its name."""


class ChecksumError(HTTPException):
    """The answer was damaged on its way."""


def endpoint_of(service: str, access: Access) -> Endpoint | None:
    """Return the endpoint; None if the environment and the URI do not say all that is needed."""
    set_here = {name for name, value in os.environ.items() if value}
    region = (
        access.region or os.environ.get("AWS_DEFAULT_REGION") or os.environ.get("AWS_REGION") or ""
    )
    if (
        access.profile
        or of_environment() is None
        or not _REGIONS.fullmatch(region)
        or sys.platform in _PROXIES_OF_SYSTEM
        or any(map(_is_for_botocore, set_here))
        or any(map(_is_file, _DEFAULT_FILES))
    ):
        return None
    url = access.endpoint or f"https://{service}.{region}.amazonaws.com"
    return Endpoint(service, region, url) if _is_plain(url) else None


def endpoint_as_found(client: Any, session: Any, operation: str) -> Endpoint | None:
    """Return the endpoint of this client of botocore, with the credentials of its session; None
    if a request needs more, such as a proxy."""
    from botocore.utils import get_environ_proxies  # noqa: PLC0415  see above

    found = session.get_credentials()
    if found is None:
        return None
    parts = urlsplit(client.generate_presigned_url(operation))
    said = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    url = f"{parts.scheme}://{parts.netloc}{parts.path}"
    if (
        said.get("X-Amz-Algorithm") != ALGORITHM
        or session.get_config_variable("tcp_keepalive")
        or not hasattr(select, "poll")  # Windows
        or not _is_plain(url)
        or get_environ_proxies(url).get(parts.scheme)
    ):
        return None

    def credentials() -> Credentials:
        now = found.get_frozen_credentials()
        return Credentials(now.access_key, now.secret_key, now.token or "")

    *_, region, service, _ = said["X-Amz-Credential"].split("/")
    trusted = session.get_config_variable("ca_bundle")
    return Endpoint(service, region, url, credentials, trusted)


def _is_plain(url: str) -> bool:
    parts = urlsplit(url)
    return not (parts.path.strip("/") or parts.query or parts.fragment)


def _is_for_botocore(name: str) -> bool:
    if name.lower().endswith("_proxy"):
        return name.lower() != "no_proxy"
    return (
        name.startswith(_ELSEWHERE) and name not in _UNDERSTOOD and not name.startswith(_HARMLESS)
    )


def _is_file(variable: str) -> bool:
    path = os.environ.get(variable) or _DEFAULT_FILES[variable]
    return os.path.exists(os.path.expanduser(path))  # noqa: PTH110,PTH111  pathlib loads slowly


class Service(NamedTuple):
    """One service: the names and the encoding of its operations."""

    target: str
    """The prefix of every operation's name in a request."""
    encode: Callable[[dict[str, Any]], bytes]
    decode: Callable[[str, bytes], dict[str, Any]]
    """The function from an operation and the body of its answer to the answer."""
    refusal: Callable[[bytes], dict[str, Any]] = lambda _: {}
    """The function from the body of an error to its fields beside code and message."""
    headers: Mapping[str, str] = NO_HEADERS


class Meta(NamedTuple):
    """The part of a boto3 client's `meta` that is used here."""

    endpoint_url: str
    region_name: str


class ServiceClient:
    """A client of one service. Each operation is a method, such as `put_item`, with the arguments
    and the answer of boto3's method, so that callers can use either client. Thread-safe, but not
    for use after a fork. Requests are retried under the conditions of botocore's standard mode."""

    def __init__(
        self,
        service: Service,
        endpoint: Endpoint,
        *,
        connect_timeout: float,
        read_timeout: float,
        attempts: int,
    ) -> None:
        self._idle: list[HTTPConnection] = []
        self.meta = Meta(endpoint.url, endpoint.region)
        self.service = service
        parts = urlsplit(endpoint.url)
        self._scope = endpoint.region, endpoint.service
        self._credentials = endpoint.credentials
        self._certificates = endpoint.certificates
        self._tls = parts.scheme == "https"
        self._address = parts.hostname or "", parts.port
        default = 443 if self._tls else 80
        at_default = parts.port in (None, default)
        self._host = parts.netloc.rpartition(":")[0] if parts.port and at_default else parts.netloc
        self._headers = {
            **service.headers,
            "content-type": "application/x-amz-json-1.0",
            "host": self._host,
        }
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._attempts = attempts
        self._tokens = RETRY_TOKENS
        self._context: Any = None

    def __getattr__(self, operation: str) -> Callable[..., dict[str, Any]]:
        if operation.startswith("_"):
            raise AttributeError(operation)
        return partial(self._call, _operation_of(operation))

    def post(self, target: str, body: bytes) -> Reply:
        """Return the answer to this operation; ServiceError if it reports an error."""
        headers = {**self._headers, "x-amz-target": target}
        attempt = 1
        while True:
            try:
                reply = self._exchange(headers, body)
            except (OSError, HTTPException, ServiceError) as error:
                if attempt == self._attempts or not self._may_retry(error):
                    raise
            else:
                self._tokens = min(RETRY_TOKENS, self._tokens + (RETRY_COST if attempt > 1 else 1))
                return reply
            time.sleep(random.uniform(0, RETRY_PAUSE * 2 ** (attempt - 1)))
            attempt += 1

    def close(self) -> None:
        """Close the connections; the next call opens another."""
        with suppress(IndexError):  # another thread was quicker
            while self._idle:
                self._idle.pop().close()

    def __del__(self) -> None:
        """Close the connections of a store that nobody closed."""
        self.close()

    def _call(self, operation: str, /, **asked: Any) -> dict[str, Any]:
        service = self.service
        reply = self.post(service.target + operation, service.encode(asked))
        answer = service.decode(operation, reply.body)
        return {**answer, "ResponseMetadata": _metadata(reply)}

    def _may_retry(self, error: Exception) -> bool:
        # No lock: a race between two threads miscounts a few tokens, which does no harm.
        if errors.kind_of(error) not in ("busy", "not_reached") or self._tokens < RETRY_COST:
            return False
        self._tokens -= RETRY_COST
        return True

    def _exchange(self, headers: Mapping[str, str], body: bytes) -> Reply:
        """Sign and send one request; return its answer."""
        credentials = self._credentials()
        if credentials is None:
            raise NoCredentialsError
        sent = signed(headers, body, credentials, self._scope, time.time())
        connection = self._connection()
        try:
            connection.request("POST", "/", body, {**sent, "user-agent": "eventonce"})
            answer = connection.getresponse()
            said = {name.lower(): value for name, value in answer.getheaders()}
            reply = Reply(answer.status, said, answer.read())
        except BaseException:
            connection.close()
            raise
        # Without a socket, the connection was closed because the answer asked for it.
        if connection.sock is not None and len(self._idle) < IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.close()
        checksum = reply.headers.get("x-amz-crc32")
        if checksum is not None and checksum != str(crc32(reply.body)):
            raise ChecksumError
        if reply.status >= 300:
            raise ServiceError(_error(reply) | self.service.refusal(reply.body))
        return reply

    def _connection(self) -> HTTPConnection:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was quicker
                break
            if not _is_closed(connection):
                return connection
            connection.close()
        return self._connected()

    def _connected(self) -> HTTPConnection:
        host, port = self._address
        connection = (
            HTTPSConnection(host, port, timeout=self._connect_timeout, context=self._tls_context())
            if self._tls
            else HTTPConnection(host, port, timeout=self._connect_timeout)
        )
        try:
            connection.connect()
        except BaseException:
            connection.close()
            raise
        connection.sock.settimeout(self._read_timeout)
        return connection

    def _tls_context(self) -> Any:
        if self._context is None:
            import ssl  # noqa: PLC0415  Python may be built without it

            self._context = ssl.create_default_context(cafile=self._certificates or _certificates())
        return self._context


def _is_closed(connection: HTTPConnection) -> bool:
    """Whether the server closed the connection: nothing else makes an idle connection readable."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _certificates() -> str | None:
    """Return the file of certificates that botocore trusts; None for the system's own."""
    said = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE")
    if said:
        return said
    try:
        from certifi import where  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415
    except ModuleNotFoundError:
        found = find_spec("botocore")
        folders = found.submodule_search_locations if found else None
        return f"{folders[0]}/cacert.pem" if folders else None
    return str(where())


class _Error(msgspec.Struct):
    """The fields that the body of every error has."""

    type_: str = msgspec.field(default="", name="__type")
    message: str = ""
    Message: str = ""


def _error(reply: Reply) -> dict[str, Any]:
    try:
        said = msgspec.json.decode(reply.body, type=_Error)
    except (ValueError, RecursionError):
        said = _Error()  # not from the service: the page of a proxy
    code = said.type_.partition(":")[0].rpartition("#")[2] or str(reply.status)
    # The code of the old query protocol, which botocore uses too.
    older = reply.headers.get("x-amzn-query-error", "").split(";")
    if len(older) == 2 and older[0]:
        code = older[0]
    return {
        "Error": {"Code": code, "Message": said.message or said.Message},
        "ResponseMetadata": _metadata(reply),
    }


@cache
def _operation_of(method: str) -> str:
    """Return the operation of a method of boto3: `PutItem` for `put_item`."""
    return "".join(map(str.title, method.split("_")))


def _metadata(reply: Reply) -> dict[str, Any]:
    """Return the metadata that botocore adds to an answer."""
    return {"HTTPStatusCode": reply.status, "HTTPHeaders": reply.headers}
