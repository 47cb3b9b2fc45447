"""The errors of eventonce, and the two exceptions that handlers raise."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final


class EventonceError(Exception):
    """Something went wrong in eventonce."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class ConfigError(EventonceError):
    """The configuration is wrong; trying again will not help."""


def unreadable(path: object, error: OSError | UnicodeDecodeError) -> ConfigError:
    """Return the error about a file that cannot be read; the system's text repeats the path."""
    why = "not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
    return ConfigError(f"{path} cannot be read: {why}")


def install_hint(extra: str) -> str:
    """Return the command that installs an extra: in a clone, because eventonce is not on a package
    index yet."""
    return f'pip install -e ".[{extra}]" in a clone of eventonce'


def module_of(extra: str, name: str, user: str) -> Any:
    """Return a module that an extra installs; ConfigError says that its user needs the extra."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(f"{user}: {install_hint(extra)}") from error


class EnvelopeError(EventonceError):
    """The bytes are not an event, or the key is incomplete."""

    def __init__(self, message: str | None = None, *, place: str = "", rule: str = "") -> None:
        super().__init__(message)
        self.place = place
        """The place in the event: a dotted path or a byte offset; empty if neither fits."""
        self.rule = rule
        """The rule that takes the event and finds no key in it; empty if no rule was asked."""


class StoreError(EventonceError):
    """The store refused or failed; the driver's own error is the cause."""


def refused_in_transaction(what: str) -> StoreError:
    """Return the error about a call that is not for the transaction of a handler."""
    return StoreError(
        f"{what} is refused inside a handler's transaction: all that the handler writes commits "
        f"together with the completion. To commit something separately, use a connection of your "
        f"own."
    )


class StoreUnavailable(StoreError):
    """The store cannot be reached now; nothing is acknowledged, try again."""


class StoreMismatch(StoreError):
    """The store has a schema or a format that this version cannot use."""


def newer_record(form: str = "an unknown form") -> StoreMismatch:
    """Return the error about a record in a form that this release does not know."""
    return StoreMismatch(
        f"a record has {form}, which this release cannot read: a newer eventonce wrote it. Install "
        f"that release here too."
    )


class SealedError(StoreError):
    """The content is sealed, and is not opened: the key is missing, or the content was changed."""


class SourceUnavailable(EventonceError):
    """The queue cannot be reached now; nothing is lost, try again."""


MAX_AFTER: Final = 14 * 86_400
"""The most seconds that a retry may wait: two weeks, the longest that a queue keeps a message."""


class Retry(Exception):
    """Raised by a handler: try this event again, after so many seconds if given."""

    def __init__(self, reason: str = "", *, after: float | None = None) -> None:
        super().__init__(reason)
        if after is not None and not (isinstance(after, int | float) and 0 <= after <= MAX_AFTER):
            raise ValueError(f"Retry: after must be 0 to {MAX_AFTER} seconds, not {after!r}")
        self.after = after


class Reject(Exception):
    """Raised by a handler: this event can never succeed; keep it as a dead letter."""
