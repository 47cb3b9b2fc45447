"""Every contact-centre event is settled once, and none is dropped without proof."""

from eventonce.consumer import Consumer
from eventonce.core.ledger import Record
from eventonce.core.plan import Handler
from eventonce.core.ports import (
    BatchObserver,
    Delivery,
    Finding,
    LetterSink,
    Observer,
    Source,
    Stats,
    Store,
    StoreAdmin,
    StoreNames,
    StoreSchema,
    Transaction,
    Transactional,
)
from eventonce.errors import (
    ConfigError,
    EnvelopeError,
    EventonceError,
    Reject,
    Retry,
    SealedError,
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
    "BatchObserver",
    "Claim",
    "ConfigError",
    "Consumer",
    "Delivery",
    "EnvelopeError",
    "Event",
    "EventonceError",
    "Finding",
    "Handler",
    "Job",
    "Letter",
    "LetterSink",
    "Observer",
    "Outcome",
    "Record",
    "Reject",
    "Retry",
    "Rule",
    "SealedError",
    "SettleResult",
    "Settlement",
    "Source",
    "SourceUnavailable",
    "Stats",
    "Status",
    "Store",
    "StoreAdmin",
    "StoreError",
    "StoreMismatch",
    "StoreNames",
    "StoreSchema",
    "StoreUnavailable",
    "Transaction",
    "Transactional",
    "Verdict",
    "__version__",
]
