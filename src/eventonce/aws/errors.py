"""Errors of AWS as our errors: the resource, the cause and the remedy.

The module needs no driver: botocore's errors are known by their names. Of connection and signature
errors only the name is shown, because their texts may contain credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from eventonce.errors import ConfigError, EventonceError, SourceUnavailable

Kind = Literal[
    "absent",
    "busy",
    "denied",
    "expired",
    "misconfigured",
    "no_credentials",
    "not_reached",
    "not_renewed",
    "refused",
    "strange",
    "unknown_caller",
]
"""The meaning of an error for the caller. `refused` is any other answer of the service; `strange`
is an answer that is not the service's; `not_reached` is no answer."""

_CODES: Final[Mapping[Kind, str]] = {
    "absent": (
        "AWS.SimpleQueueService.NonExistentQueue NoSuchBucket NoSuchKey QueueDeletedRecently "
        "NotFoundException QueueDoesNotExist ResourceNotFound ResourceNotFoundException"
    ),
    "busy": (
        "BandwidthLimitExceeded InternalException InternalFailure InternalServerError "
        "KMS.ThrottlingException KmsThrottled LimitExceededException OverLimit "
        "PriorRequestNotComplete ProvisionedThroughputExceeded "
        "ProvisionedThroughputExceededException RequestLimitExceeded RequestThrottled "
        "RequestThrottledException RequestTimeout RequestTimeoutException ServiceUnavailable "
        "SlowDown ThrottledException Throttling ThrottlingError ThrottlingException "
        "TooManyRequestsException TransactionConflict TransactionConflictException "
        "TransactionInProgressException"
    ),
    "denied": "AccessDenied AccessDeniedException KMS.AccessDeniedException KmsAccessDenied",
    "expired": "ExpiredToken ExpiredTokenException RequestExpired",
    "unknown_caller": (
        "IncompleteSignature IncompleteSignatureException InvalidAccessKeyId "
        "InvalidClientTokenId InvalidSignatureException MissingAuthenticationToken "
        "MissingAuthenticationTokenException OptInRequired SignatureDoesNotMatch "
        "UnrecognizedClientException"
    ),
}
"""The error codes of the services, of a whole request or of one entry, separated by spaces."""

_KINDS: Final[Mapping[str, Kind]] = {
    code: kind for kind, codes in _CODES.items() for code in codes.split()
}

_TYPES: Final[Mapping[str, Kind]] = {
    "NoCredentialsError": "no_credentials",
    "PartialCredentialsError": "no_credentials",
    "ProfileNotFound": "no_credentials",
    "CredentialRetrievalError": "not_renewed",
    "SSOError": "not_renewed",
    "TokenRetrievalError": "not_renewed",
    "InvalidEndpointConfigurationError": "misconfigured",
    "InvalidRegionError": "misconfigured",
    "NoRegionError": "misconfigured",
    "UnknownEndpointError": "misconfigured",
    # The driver did not find a field in the answer.
    "AttributeError": "strange",
    "KeyError": "strange",
    "TypeError": "strange",
    # Before ValueError: the error of a certificate is both.
    "OSError": "not_reached",
    "ValueError": "misconfigured",
}
"""The errors of botocore and of Python, each with its subclasses."""

STALE_KINDS: Final = frozenset[Kind](("expired", "no_credentials", "not_renewed", "unknown_caller"))
"""The kinds after which a new client may find other credentials, such as a renewed file."""

PASSING_KINDS: Final = frozenset[Kind](
    ("absent", "busy", "expired", "not_reached", "not_renewed", "strange")
)
"""The kinds that are worth a retry. Every other kind is a mistake in the configuration, except
`refused`, whose cause is unknown."""

_EXPLANATIONS: Final[Mapping[Kind, str]] = {
    "absent": (
        "there is no such {noun} for these credentials. Check its name, region and account; if it "
        "is being created, work begins as soon as it exists."
    ),
    "busy": ("{code}. The service is throttling or failing for a moment; trying again is safe."),
    "denied": (
        "permission denied ({message}). Grant the role what `eventonce infra iam` prints, for a "
        "capture with --role capture."
    ),
    "expired": (
        "the AWS credentials have expired ({code}). Renew them, for example with `aws sso login`; "
        "workers then go on by themselves."
    ),
    "misconfigured": (
        "{name}. Set the region with AWS_REGION, with ?region=eu-central-1 in the URI, or with "
        "--region if the command has this option; check the endpoint, if there is one."
    ),
    "no_credentials": (
        "no AWS credentials were found ({name}). Give the process a role, or set AWS_PROFILE or "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
    ),
    "not_reached": (
        "not reached ({name}). Nothing is lost; trying again is safe. If it stays so, check the "
        "network path and the endpoint."
    ),
    "not_renewed": (
        "the AWS credentials could not be renewed ({name}). Sign in again, for example with "
        "`aws sso login`; workers then go on by themselves."
    ),
    "refused": "{code}: {message}",
    "strange": (
        "the answer to {operation} is not from the service. Nothing is lost; trying again is safe. "
        "Check the endpoint, and proxies on the way."
    ),
    "unknown_caller": (
        "AWS does not accept the credentials ({code}). Check the access key, its secret and "
        "session token, and this machine's clock: a signature that is some minutes off is "
        "refused."
    ),
}
"""The cause and the remedy of an error, by kind."""


def response_of(error: BaseException | None) -> dict[str, Any]:
    """Return the service's answer in this error of the driver; empty if there was none."""
    response = getattr(error, "response", None)
    return response if isinstance(response, dict) else {}


def code_of(error: BaseException) -> str:
    """Return the service's error code; empty if the service did not answer. Any 5xx or 429 is
    `ServiceUnavailable`."""
    response = response_of(error)
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if status >= 500 or status == 429:
        return "ServiceUnavailable"
    return str(response.get("Error", {}).get("Code", "")).rpartition("#")[2]


def message_of(error: BaseException) -> str:
    """Return the service's message; empty if the service did not answer."""
    return str(response_of(error).get("Error", {}).get("Message", ""))


def kind_of_code(code: str) -> Kind:
    """Return the meaning of a service's error code."""
    return _KINDS.get(code, "refused")


def kind_of(error: BaseException) -> Kind:
    """Return the meaning of a driver's error."""
    code = code_of(error)
    if code:
        return kind_of_code(code)
    known = (_TYPES[base.__name__] for base in type(error).__mro__ if base.__name__ in _TYPES)
    return next(known, "not_reached")


def explain(
    error: BaseException,
    place: object,
    *,
    noun: str = "queue",
    awaited: bool = True,
    unavailable: type[EventonceError] = SourceUnavailable,
) -> EventonceError:
    """Return our error for the driver's error, about this place, which is a `noun`.

    `unavailable` is the class of errors that are worth a retry. A missing resource is such an error
    if it is `awaited`, as by a worker; otherwise it is a mistake in the configuration.
    """
    kind = kind_of(error)
    if kind == "absent" and not awaited:
        return ConfigError(
            f"{place}: there is no such {noun} for these credentials. Check its name, region and "
            f"account, or create it: eventonce infra apply"
        )
    said = text(kind, code_of(error), message_of(error), name=type(error).__name__, noun=noun)
    if kind in PASSING_KINDS:
        return unavailable(f"{place}: {said}")
    return (EventonceError if kind == "refused" else ConfigError)(f"{place}: {said}")


def text(
    kind: Kind,
    code: str = "",
    message: str = "",
    *,
    name: str = "",
    noun: str = "",
    operation: str = "the request",
) -> str:
    """Return the cause and the remedy of an error; `name` is the name of the driver's error."""
    said = {"code": code or name, "message": message, "name": name}
    return _EXPLANATIONS[kind].format(**said, noun=noun, operation=operation)


def strange(
    operation: str, place: object, unavailable: type[EventonceError] = SourceUnavailable
) -> EventonceError:
    """Return our error for an answer that reports success but is not from the service."""
    return unavailable(f"{place}: {text('strange', operation=operation)}")


def is_page(answer: Any) -> bool:
    """Whether this answer is a web page or other text: no AWS service sends one, and botocore
    returns it as an empty answer."""
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(headers.get("content-type", "")).lower().startswith(("text/html", "text/plain"))
