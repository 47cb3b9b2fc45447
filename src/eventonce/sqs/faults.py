"""What went wrong at SQS, as our errors: which queue, what happened, what to do.

Nothing that a credential could stand in is repeated: of connection and signature errors only the
name is told, the driver's own error is the cause.
"""

from __future__ import annotations

from typing import Any, Final

from eventonce.errors import ConfigError, EventonceError, SourceUnavailable

_EXPIRED: Final = frozenset(("ExpiredToken", "ExpiredTokenException", "RequestExpired"))
ABSENT: Final = frozenset(
    ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "QueueDeletedRecently")
)
_DENIED: Final = frozenset(
    ("AccessDenied", "AccessDeniedException", "KmsAccessDenied", "KMS.AccessDeniedException")
)
_UNKNOWN_CALLER: Final = frozenset(
    (
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "OptInRequired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    )
)
STALE: Final = _EXPIRED | _UNKNOWN_CALLER
"""After these a client made anew may find other credentials than the one that was refused."""

_NO_CREDENTIALS: Final = frozenset(
    ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound")
)
_NOT_RENEWED: Final = frozenset(
    (
        "CredentialRetrievalError",
        "SSOTokenLoadError",
        "TokenRetrievalError",
        "UnauthorizedSSOTokenError",
    )
)
LACKING: Final = _NO_CREDENTIALS | _NOT_RENEWED
"""After these too: a client that was made while a file of credentials was being written has none,
and never will."""

_MISCONFIGURED: Final = frozenset(
    (
        "InvalidEndpointConfigurationError",
        "InvalidRegionError",
        "NoRegionError",
        "UnknownEndpointError",
    )
)
_BUSY: Final = frozenset(
    (
        "KmsThrottled",
        "KMS.ThrottlingException",
        "OverLimit",
        "RequestLimitExceeded",
        "RequestThrottled",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    )
)


def code_of(error: Exception) -> str:
    """What the service called it, empty if the service did not answer; any 5xx is the service's
    own trouble, whatever it says."""
    response: Any = getattr(error, "response", None)
    if not isinstance(response, dict):
        return ""
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if status >= 500 or status == 429:
        return "ServiceUnavailable"
    code = str(response.get("Error", {}).get("Code", ""))
    return code.rpartition("#")[2]


def explain(error: Exception, queue: object, *, awaited: bool = True) -> EventonceError:
    """Our error for the driver's; whether a queue that is not there is waited for, or a mistake."""
    code = code_of(error)
    if code in ABSENT and not awaited:
        return ConfigError(
            f"{queue}: there is no such queue for these credentials. Look at its name, region and "
            f"account, or make it: eventonce infra apply"
        )
    if code:
        said = str(getattr(error, "response", {}).get("Error", {}).get("Message", ""))
        return _refusal(code, said, queue)
    name = type(error).__name__
    if name in _NO_CREDENTIALS:
        return ConfigError(
            f"{queue}: no AWS credentials were found ({name}). Give the process a role, or set "
            f"AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        )
    if name in _NOT_RENEWED:
        return SourceUnavailable(
            f"{queue}: the AWS credentials could not be renewed ({name}). Sign in again, such as "
            f"by `aws sso login`; the work goes on by itself once that is done."
        )
    if isinstance(error, (AttributeError, KeyError, TypeError)):
        # The driver looked for something in the answer that is not there.
        return strange("the request", queue)
    if name in _MISCONFIGURED or isinstance(error, ValueError):
        return ConfigError(
            f"{queue}: {name}. Name the region, such as sqs://NAME?region=eu-central-1, or set "
            f"AWS_REGION; look at the endpoint, if there is one."
        )
    return SourceUnavailable(
        f"{queue}: not reached ({name}). Nothing is lost; trying again is safe. If it stays so, "
        f"look at the network path and the endpoint."
    )


def strange(operation: str, place: object) -> SourceUnavailable:
    """Our error for an answer that says it is fine, and is not the service's."""
    return SourceUnavailable(
        f"{place}: the answer to {operation} is not the service's. Nothing is lost; trying again "
        f"is safe. Look at the endpoint, and at proxies on the way."
    )


def is_page(answer: Any) -> bool:
    """Whether this was a web page: no AWS service answers with one."""
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(headers.get("content-type", "")).lower().startswith("text/html")


def _refusal(code: str, said: str, queue: object) -> EventonceError:
    if code in _BUSY:
        return SourceUnavailable(
            f"{queue}: {code}. The service is throttling or failing for a moment; trying again is "
            f"safe."
        )
    if code in ABSENT:
        return SourceUnavailable(
            f"{queue}: there is no such queue for these credentials. If it is to be there, look at "
            f"its name, region and account; if it is being made, the work begins once it is."
        )
    if code in _EXPIRED:
        return SourceUnavailable(
            f"{queue}: the AWS credentials have expired ({code}). Renew them, such as by "
            f"`aws sso login`; the work goes on by itself once they are."
        )
    if code in _DENIED:
        return ConfigError(
            f"{queue}: permission denied ({said}). Grant the role what `eventonce infra iam` "
            f"prints."
        )
    if code in _UNKNOWN_CALLER:
        return ConfigError(
            f"{queue}: AWS does not accept the credentials ({code}). Look at the access key, its "
            f"secret and session token, and at this machine's clock: a signature more than some "
            f"minutes off is refused."
        )
    return EventonceError(f"{queue}: {code}: {said}")
