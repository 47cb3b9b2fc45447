"""Tokens of AWS IAM in place of a password, for RDS, Aurora and RDS Proxy.

A token is the signed wish to connect as a user, good for a quarter of an hour: it is signed here,
anew for each connection, and nothing is asked for over the network but the credentials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from eventonce.errors import ConfigError

PORT: Final = 5432
"""Where the URI names none; libpq adds it later, and the signature covers it."""


def tokens(
    service: str, region: str | None, parameters: Mapping[str, Any], shown: str
) -> Callable[[], str]:
    """What gives a new token for each connection."""
    host, user = str(parameters.get("host", "")), parameters.get("user")
    if service != "rds" or not user or not host or "," in host or "password" in parameters:
        raise ConfigError(
            f"store {shown}: iam=rds is for postgresql://user@host/database: with the user's name, "
            f"one host, the instance's or cluster's own name, and no password"
        )
    port = int(parameters.get("port", PORT))
    client: Any = None

    def token() -> str:
        nonlocal client
        try:
            # Slow to import, and not needed by others.
            import boto3  # noqa: PLC0415
            from botocore.exceptions import (  # noqa: PLC0415
                NoCredentialsError,
                NoRegionError,
                PartialCredentialsError,
            )
        except ImportError:
            raise ConfigError(f'store {shown}: iam=rds needs: pip install "boto3>=1.34"') from None
        try:
            client = client or boto3.Session(region_name=region).client("rds")
            signed: str = client.generate_db_auth_token(
                DBHostname=host, Port=port, DBUsername=user, Region=region
            )
        except NoRegionError:
            raise ConfigError(
                f"store {shown}: iam=rds needs a region: region= in the URI, or AWS_DEFAULT_REGION"
            ) from None
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise ConfigError(
                f"store {shown}: iam=rds finds no AWS credentials ({error})"
            ) from error
        return signed

    return token
