"""Errors of DynamoDB as errors of eventonce: `aws.errors`, with the errors of a table added.

No credential is repeated: of connection and signature errors only the name is shown; the driver's
own error is the cause.
"""

from __future__ import annotations

from typing import Final

import msgspec

from eventonce.aws import errors as aws
from eventonce.errors import (
    ConfigError,
    EventonceError,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)

_INVALID: Final = frozenset(("ValidationError", "ValidationException"))


class TableRef(msgspec.Struct, frozen=True):
    """The name of the table in errors."""

    table: str
    where: str = ""
    """The region; or the endpoint, if it is not Amazon's."""
    uri: str = ""
    """The URI, as the command line takes it."""

    def command(self, verb: str) -> str:
        """Return the command to type."""
        return f'eventonce store {verb} "{self.uri}"'

    def __str__(self) -> str:
        return f"DynamoDB table {self.table}" + (f" ({self.where})" if self.where else "")


def explain(error: Exception, ref: TableRef) -> EventonceError:
    """Return our error for the driver's."""
    code, message = aws.code_of(error), aws.message_of(error)
    return _error(aws.kind_of(error), code, message, type(error).__name__, ref)


def refusal(code: str, message: str, ref: TableRef) -> EventonceError:
    """Return our error for the error of one statement in a request."""
    return _error(aws.kind_of_code(code), code, message, "", ref)


def _error(kind: aws.Kind, code: str, message: str, name: str, ref: TableRef) -> EventonceError:
    check = f"`{ref.command('check')}` shows what is missing"
    if kind == "absent":
        return StoreMismatch(
            f"{ref}: there is no such table for these credentials. Create it: "
            f"{ref.command('create')}"
        )
    if code in _INVALID:
        if "exceeded" in message:
            return StoreError(
                f"{ref}: too large for one item or key of DynamoDB ({message}). Nothing of it was "
                f"written."
            )
        return StoreMismatch(f"{ref}: the table is not as eventonce needs it ({message}). {check}.")
    said = f"{ref}: {aws.text(kind, code, message, name=name, noun='table')}"
    if kind == "denied":
        said += f" {check}."
    if kind in aws.PASSING_KINDS:
        return StoreUnavailable(said)
    return (StoreError if kind == "refused" else ConfigError)(said)
