"""Every contact-centre event is settled once, and none is dropped without proof."""

from eventonce.consumer import Consumer
from eventonce.core.plan import Handler
from eventonce.core.ports import (
    Delivery,
    LetterSink,
    Observer,
    Source,
    Store,
    StoreAdmin,
)
from eventonce.errors import (
    ConfigError,
    EnvelopeError,
    EventonceError,
    Reject,
    Retry,
    SourceUnavailable,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)
from eventonce.rules import Rule
from eventonce.types import (
    Claim,
    Event,
    Job,
    Letter,
    Outcome,
    Settlement,
    SettleResult,
    Status,
    Verdict,
)

__version__ = "0.1.0"

__all__ = [
    "Claim",
    "ConfigError",
    "Consumer",
    "Delivery",
    "EnvelopeError",
    "Event",
    "EventonceError",
    "Handler",
    "Job",
    "Letter",
    "LetterSink",
    "Observer",
    "Outcome",
    "Reject",
    "Retry",
    "Rule",
    "SettleResult",
    "Settlement",
    "Source",
    "SourceUnavailable",
    "Status",
    "Store",
    "StoreAdmin",
    "StoreError",
    "StoreMismatch",
    "StoreUnavailable",
    "Verdict",
    "__version__",
]
