"""Tokens of AWS IAM in place of a password, for ElastiCache and MemoryDB.

A token is the signed request to connect as a user, valid for a quarter of an hour; it is signed
here, anew for each connection, and nothing is asked for over the network but the credentials.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as ConnectionLost

from eventonce.errors import ConfigError

LIFE: Final = 900
"""Seconds for which a token can be used; the services take no longer ones."""

_SERVERLESS: Final = {"ResourceType": "ServerlessCache"}
_SERVICES: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "elasticache": ("elasticache", {}),
    "serverless": ("elasticache", _SERVERLESS),
    "memorydb": ("memorydb", {}),
}


class Tokens(CredentialProvider):
    """Gives the driver a user and a new token whenever it connects."""

    def __init__(self, user: str, url: str, service: str, region: str) -> None:
        self._user = user
        self._url = url
        self._service = service
        self._region = region
        self._signer: Any = None

    def get_credentials(self) -> tuple[str, str]:
        # Of botocore, which is slow to import, and need not be installed by others.
        from botocore.exceptions import BotoCoreError, NoCredentialsError  # noqa: PLC0415

        request = {"method": "GET", "url": self._url, "body": {}, "headers": {}, "context": {}}
        try:
            if self._signer is None:
                self._signer = self._signing()
            token: str = self._signer.generate_presigned_url(
                request, operation_name="connect", expires_in=LIFE, region_name=self._region
            )
        except NoCredentialsError as error:
            raise ConfigError(f"RedisStore: iam= finds no AWS credentials ({error})") from error
        except BotoCoreError as error:
            # Such as a role whose service does not answer now.
            raise ConnectionLost(f"no AWS credentials for a token: {error}") from error
        return self._user, token.removeprefix("http://")

    def _signing(self) -> Any:
        import botocore.session  # noqa: PLC0415  likewise
        from botocore.model import ServiceId  # noqa: PLC0415  likewise
        from botocore.signers import RequestSigner  # noqa: PLC0415  likewise

        session = botocore.session.get_session()
        # botocore itself does not read the name that Lambda and ECS give it.
        configured = session.get_config_variable("region") or os.environ.get("AWS_REGION", "")
        self._region = self._region or configured
        if not self._region:
            raise ConfigError("RedisStore: iam= needs a region: region= in the URI, or AWS_REGION")
        return RequestSigner(
            ServiceId(self._service),
            self._region,
            self._service,
            "v4",
            session.get_credentials(),
            session.get_component("event_emitter"),
        )


def tokens(iam: str, user: str, region: str) -> Tokens:
    """The tokens of `iam=name`, `iam=serverless/name` or `iam=memorydb/name`."""
    kind, _, name = iam.rpartition("/")
    service = _SERVICES.get(kind or "elasticache")
    if service is None or not name:
        raise ConfigError(
            "RedisStore: iam= takes the name of the cache or replication group, serverless/name, "
            "or memorydb/name"
        )
    query = {"Action": "connect", "User": user, **service[1]}
    return Tokens(user, f"http://{name}/?{urlencode(query)}", service[0], region)
