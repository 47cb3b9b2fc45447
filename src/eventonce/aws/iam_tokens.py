"""Tokens of AWS IAM in place of a password, for RDS, ElastiCache and MemoryDB."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import urlencode

from eventonce.aws.sessions import new_session, region_of
from eventonce.errors import ConfigError

TOKEN_LIFE: Final = 900
"""Seconds for which a token can be used, the longest that the services take."""


class TokenSigner:
    """Signs a new token for each connection.

    A token is the signed request to connect as a user. It is signed in this process; only the
    credentials may need a request over the network.
    """

    def __init__(
        self, place: str, service: str, host: str, user: Mapping[str, str], region: str | None
    ) -> None:
        """Errors name the place. `user` are the parameters of the request beside the action."""
        self._place = place
        self._service = service
        self._url = f"https://{host}/?{urlencode({'Action': 'connect', **user})}"
        self._region = region
        self._signer: Any = None
        self._session: Any = None
        """The session of the signer, which itself refers to it weakly."""

    def check_installed(self) -> None:
        """Raise ConfigError if the library that signs is not installed."""
        if find_spec("botocore") is None:
            raise ConfigError(f'{self._place}: iam= needs: pip install "boto3>=1.34"')

    def sign(self) -> str:
        """Return a new token. ConfigError if something is not set up; botocore's own errors for
        what may pass, such as a service of credentials that does not answer."""
        self.check_installed()
        # Imported here: slow to import, and an extra.
        from botocore.exceptions import (  # noqa: PLC0415
            NoCredentialsError,
            PartialCredentialsError,
        )

        request = {"method": "GET", "url": self._url, "body": {}, "headers": {}, "context": {}}
        try:
            if self._signer is None:
                self._signer = self._new_signer()
            token: str = self._signer.generate_presigned_url(
                request, operation_name="connect", expires_in=TOKEN_LIFE
            )
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise ConfigError(f"{self._place}: iam= finds no AWS credentials ({error})") from error
        return token.removeprefix("https://")

    def _new_signer(self) -> Any:
        from botocore.model import ServiceId  # noqa: PLC0415  likewise
        from botocore.signers import RequestSigner  # noqa: PLC0415  likewise

        self._session = session = new_session()
        region = region_of(session, self._region)
        if not region:
            raise ConfigError(
                f"{self._place}: iam= needs a region: region= in the URI, or AWS_REGION"
            )
        return RequestSigner(
            ServiceId(self._service),
            region,
            self._service,
            "v4",
            session.get_credentials(),
            session.get_component("event_emitter"),
        )
