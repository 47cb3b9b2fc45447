"""Every contact-centre event is settled once, and none is dropped without proof."""

from eventonce.consumer import Consumer
from eventonce.errors import (
    ConfigError,
    EnvelopeError,
    EventonceError,
    Reject,
    Retry,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)
from eventonce.rules import Rule
from eventonce.types import Event, Job, Letter, Outcome

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "Consumer",
    "EnvelopeError",
    "Event",
    "EventonceError",
    "Job",
    "Letter",
    "Outcome",
    "Reject",
    "Retry",
    "Rule",
    "StoreError",
    "StoreMismatch",
    "StoreUnavailable",
    "__version__",
]
