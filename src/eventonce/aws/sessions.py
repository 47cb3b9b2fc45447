"""AWS clients: this module alone makes them, and replaces them after a fork or when their
credentials are stale. They are clients of botocore: nothing of boto3 is needed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from eventonce.aws import errors
from eventonce.core.masking import masked, split
from eventonce.errors import ConfigError, EventonceError, install_hint

CONNECT_TIMEOUT: Final = 3.0
"""Seconds for a connection: if it takes longer, the network is at fault."""

IDLE_CONNECTIONS: Final = 50
"""Connections kept open for threads that call at the same time."""

CLIENT_AGE: Final = 5.0
"""Seconds that a client is kept at least, so that refused credentials do not make one each call."""


class Access(msgspec.Struct, frozen=True):
    """The options to reach a service; a URI may have each of them."""

    region: str | None = None
    endpoint: str | None = None
    profile: str | None = None

    @classmethod
    def from_query(cls, query: str, place: str) -> Access:
        """Return the options of a URI's query; a ConfigError names this place."""
        said = dict(parse_qsl(query, keep_blank_values=True))
        known = cls.__struct_fields__
        unknown = sorted(said.keys() - set(known))
        if unknown:
            raise ConfigError(
                f"{place}: there is no option {masked(unknown[0])!r}; there are {', '.join(known)}"
            )
        parts = split(said.get("endpoint", "https://aws"))
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ConfigError(
                f"{place}: the endpoint must be like http://127.0.0.1:4566, with no user or "
                f"password in it"
            )
        return cls(**{option: value for option, value in said.items() if value})

    def over(self, other: Access) -> Access:
        """Return these options, and the other's where these have none."""
        return Access(
            self.region or other.region,
            self.endpoint or other.endpoint,
            self.profile or other.profile,
        )


def connect(
    service: str,
    access: Access,
    *,
    read_timeout: float,
    attempts: int,
    connect_timeout: float = CONNECT_TIMEOUT,
) -> Any:
    """Return a client of this service; the driver's own error if that fails."""
    return connected(
        service,
        access,
        read_timeout=read_timeout,
        attempts=attempts,
        connect_timeout=connect_timeout,
    )[0]


def connected(
    service: str,
    access: Access,
    *,
    read_timeout: float,
    attempts: int,
    connect_timeout: float = CONNECT_TIMEOUT,
) -> tuple[Any, Any]:
    """Return a client of this service, and its session.

    A request is sent at most `attempts` times. Its parameters are not validated: they always have
    the same shape, and validation is a fifth of the time of a request.
    """
    try:
        import botocore  # noqa: PLC0415  slow to import, and not always needed
        from botocore.config import Config  # noqa: PLC0415  likewise

        from eventonce.aws.models import Models  # noqa: PLC0415  needs botocore
    except ModuleNotFoundError as error:
        extra = "dynamodb" if service == "dynamodb" else "sqs"
        raise ConfigError(f"AWS needs: {install_hint(extra)}") from error
    config = Config(
        connect_timeout=connect_timeout,
        read_timeout=read_timeout,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=IDLE_CONNECTIONS,
        parameter_validation=False,
        # An emulator has no host of its own for each bucket.
        s3={"addressing_style": "path"} if access.endpoint else None,
        # A complete text: otherwise botocore builds one for every request.
        user_agent=f"eventonce Botocore/{botocore.__version__}",
    )
    session = new_session(access.profile)
    session.register_component("data_loader", Models.of(session))
    client = session.create_client(
        service,
        region_name=region_of(session, access.region),
        endpoint_url=access.endpoint,
        config=config,
    )
    return client, session


def new_session(profile: str | None = None) -> Any:
    """Return a session of botocore for one client: threads must not share a session."""
    from botocore.session import Session  # noqa: PLC0415  see above

    return Session(profile=profile)


def region_of(session: Any, said: str | None) -> str | None:
    """Return the given region, or the region that botocore finds, or `AWS_REGION`, which botocore
    does not read, but Lambda, ECS and other SDKs use."""
    return said or session.get_config_variable("region") or os.environ.get("AWS_REGION")


class Client:
    """A client of one service, made when it is first needed; safe in threads and after a fork."""

    def __init__(
        self,
        make: Callable[[], Any],
        explain: Callable[[Exception], EventonceError],
        given: Any = None,
    ) -> None:
        """`make` returns a new client; `explain` turns the driver's error into ours; `given` is
        the user's own client, and is never replaced."""
        self._make = make
        self._explain = explain
        self._given = given
        self._client: Any = None
        self._made = 0.0
        self._process = os.getpid()
        self._lock = threading.Lock()

    @property
    def current(self) -> Any:
        """The client to call now."""
        if self._process != os.getpid():
            # Two processes on one connection would get each other's answers. The lock is replaced
            # too: a thread of the parent may have held it during the fork.
            self._client, self._lock, self._process = None, threading.Lock(), os.getpid()
            if self._given is not None:
                # The client stays usable: only its open connections are closed.
                self._given.close()
        if self._given is not None:
            return self._given
        with self._lock:
            if self._client is None:
                try:
                    self._client, self._made = self._make(), time.monotonic()
                except EventonceError:
                    raise
                except Exception as error:
                    raise self._explain(error) from error
            return self._client

    def call(self, operation: str, /, **asked: Any) -> dict[str, Any]:
        """Send one request; raise our error, with the driver's error as its cause."""
        client = self.current
        try:
            answer: dict[str, Any] = getattr(client, operation)(**asked)
        except Exception as error:
            self._doubt(client, error)
            raise self._explain(error) from error
        return answer

    def close(self) -> None:
        """Close a client that this object made; the next call makes another."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _doubt(self, client: Any, error: Exception) -> None:
        """Drop the client if its credentials are stale, so that the next call reads them anew."""
        if errors.kind_of(error) not in errors.STALE_KINDS:
            return
        with self._lock:
            if self._client is client and time.monotonic() - self._made > CLIENT_AGE:
                self._client = None
