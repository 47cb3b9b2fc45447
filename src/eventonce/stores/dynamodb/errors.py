"""What went wrong at DynamoDB, as our errors: which table, what happened, what to do.

Nothing that a credential could stand in is repeated: of connection and signature errors only the
name is told, the driver's own error is the cause.
"""

from __future__ import annotations

from typing import Final

import msgspec
from botocore import exceptions

from eventonce.errors import (
    ConfigError,
    EventonceError,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)

PASSING: Final = frozenset(
    [
        "InternalServerError",
        "ProvisionedThroughputExceeded",
        "RequestLimitExceeded",
        "ThrottlingError",
        "TransactionConflict",
    ]
)
"""Why one statement of a batch may fail and pass a moment later."""

_DENIED: Final = frozenset(("AccessDenied", "AccessDeniedException"))
_ABSENT: Final = frozenset(("ResourceNotFound", "ResourceNotFoundException"))
_INVALID: Final = frozenset(("ValidationError", "ValidationException"))
_UNKNOWN_CALLER: Final = frozenset(
    [
        "IncompleteSignature",
        "IncompleteSignatureException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    ]
)
_EXPIRED: Final = frozenset(("ExpiredToken", "ExpiredTokenException", "RequestExpired"))
_BUSY: Final = PASSING.union(
    [
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ServiceUnavailable",
        "ThrottlingException",
        "TransactionConflictException",
        "TransactionInProgressException",
    ]
)

_NO_CREDENTIALS: Final = (
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.ProfileNotFound,
)
_MISCONFIGURED: Final = (
    exceptions.NoRegionError,
    exceptions.InvalidRegionError,
    exceptions.UnknownEndpointError,
    exceptions.InvalidEndpointConfigurationError,
)


_NOT_RENEWED: Final = (
    exceptions.CredentialRetrievalError,
    exceptions.SSOError,
    exceptions.TokenRetrievalError,
)
_NOT_REACHED: Final = (
    exceptions.ConnectionError,
    exceptions.HTTPClientError,
    exceptions.IncompleteReadError,
    OSError,
)


class TableRef(msgspec.Struct, frozen=True):
    """Which table, as errors name it."""

    table: str
    where: str = ""
    """The region, or the endpoint where it is not Amazon's own."""
    uri: str = ""
    """What the command line takes."""

    def __str__(self) -> str:
        return f"DynamoDB table {self.table}" + (f" ({self.where})" if self.where else "")


def explain(error: Exception, ref: TableRef) -> EventonceError:
    """Our error for the driver's."""
    if isinstance(error, exceptions.ClientError):
        details = error.response.get("Error", {})
        code, message = str(details.get("Code", "")), str(details.get("Message", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        return refusal("InternalServerError" if status >= 500 else code, message, ref)
    if isinstance(error, _NO_CREDENTIALS):
        return ConfigError(
            f"{ref}: no AWS credentials were found ({type(error).__name__}). Give the process a "
            f"role, set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or pass your "
            f"own client: DynamoDBStore(client, table)."
        )
    if isinstance(error, _NOT_RENEWED):
        return StoreUnavailable(
            f"{ref}: the AWS credentials could not be renewed ({type(error).__name__}). Sign in "
            f"again, such as by `aws sso login`; the work goes on by itself once that is done."
        )
    if isinstance(error, _MISCONFIGURED):
        return ConfigError(
            f"{ref}: {type(error).__name__}. Name the region, such as "
            f"dynamodb://{ref.table}?region=eu-central-1, or set AWS_REGION."
        )
    if isinstance(error, _NOT_REACHED):
        return StoreUnavailable(
            f"{ref}: not reached ({type(error).__name__}). Nothing was acknowledged; trying "
            f"again is safe. If it stays so, look at the network path and the endpoint."
        )
    return StoreError(f"{ref}: {type(error).__name__}")


def not_dynamodb(operation: str, ref: TableRef) -> StoreUnavailable:
    """Our error for an answer that claims success, and is not DynamoDB's."""
    return StoreUnavailable(
        f"{ref}: the answer to {operation} is not DynamoDB's, so that nothing is known of what "
        f"was asked. Nothing was acknowledged; trying again is safe. Look at the endpoint, and at "
        f"proxies on the way."
    )


def refusal(code: str, message: str, ref: TableRef) -> EventonceError:
    """Our error for what the service said, of a request or of one statement in it."""
    if code in _BUSY:
        return StoreUnavailable(
            f"{ref}: {code}. The service is throttling or failing for a moment; trying again is "
            f"safe. If it stays so, look at the table's limits and for a hot key."
        )
    if code in _ABSENT:
        return StoreMismatch(
            f"{ref}: there is no such table for these credentials. Create it with: "
            f'eventonce store create "{ref.uri}"'
        )
    if code in _DENIED:
        return ConfigError(
            f"{ref}: permission denied ({message}). Grant the role what `eventonce infra iam` "
            f'prints; `eventonce store check "{ref.uri}"` says what is missing.'
        )
    if code in _EXPIRED:
        return StoreUnavailable(
            f"{ref}: the AWS credentials have expired ({code}). Renew them, such as by "
            f"`aws sso login`; the work goes on by itself once they are."
        )
    if code in _UNKNOWN_CALLER:
        return ConfigError(
            f"{ref}: AWS does not accept the credentials ({code}). Look at the access key, its "
            f"secret and session token, and at this machine's clock: a signature more than some "
            f"minutes off is refused."
        )
    if code in _INVALID:
        if "exceeded" in message:
            return StoreError(
                f"{ref}: more than DynamoDB stores in one item or key ({message}). Nothing of it "
                f"was written."
            )
        return StoreMismatch(
            f"{ref}: the table is not as eventonce needs it ({message}). "
            f'`eventonce store check "{ref.uri}"` says what differs.'
        )
    return StoreError(f"{ref}: {code}: {message}")
