"""The table of metrics: name, meaning, unit and labels of each.

The page `docs/metrics.md`, the text for Prometheus, the lines for CloudWatch, the alert rules and
the dashboards are made from this table, or held to it by a test.
"""

from __future__ import annotations

from itertools import product
from typing import Final, Literal, get_args

import msgspec

from eventonce.core.status import DEAD_LETTERS as LETTERS
from eventonce.core.status import MEANINGS
from eventonce.types import Action, SettleResult

Kind = Literal["counter", "gauge", "histogram"]

MOST_TYPES: Final = 200
"""The most types with a handler that have a label of their own: senders choose types, and a label
for each would fill the memory of the collector."""

MOST_UNHANDLED: Final = 50
"""The most types without a handler that have a label of their own: the other events of a bus must
not use up the labels of types with a handler."""

MOST_ERRORS: Final = 50
"""The most classes of exceptions that have a label of their own."""

OTHER_LABEL: Final = "other"
"""The label of all further types and classes."""

CONSUMER: Final = "consumer"
"""The label that all metrics have: the name of the consumer."""

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
LONG_SECONDS: Final = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14_400, 86_400)
SIZES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
RECEIVES: Final = (1, 2, 3, 5, 10, 20, 50, 100)


class Metric(msgspec.Struct, frozen=True, eq=False):
    """One metric."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()
    """The labels beside the consumer's name."""
    bounds: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets."""
    emf: str = ""
    """The name in CloudWatch, with the labels that are part of it; empty for no such metric."""
    zeros: tuple[tuple[str, ...], ...] = ()
    """The labels of a counter that are known beforehand and begin with 0: Prometheus sees no
    increase in a series that begins with 1."""


EVENTS: Final = Metric(
    "eventonce_events_total",
    "counter",
    "events",
    "Events by what became of them, and why.",
    ("status", "cause", "rule", "type"),
    emf="events_{status}",
)
DEAD_LETTERS: Final = Metric(
    "eventonce_dead_letters_total",
    "counter",
    "events",
    "Events that were given up and are kept whole as dead letters; their copies do not count, "
    "unless no handler takes their type.",
    ("status",),
    emf="dead_letters",
    zeros=tuple((status,) for status in MEANINGS if status in LETTERS),
)
EXPIRED_LETTERS: Final = Metric(
    "eventonce_expired_letters_total",
    "counter",
    "dead letters",
    "Dead letters that this process dropped because they were older than `keep_letters`.",
    zeros=((),),
)
HANDLER_SECONDS: Final = Metric(
    "eventonce_handler_seconds",
    "histogram",
    "seconds",
    "The time that a handler took for one event, whether it returned or raised.",
    ("rule",),
    SECONDS,
    emf="handler_seconds",
)
LAG_SECONDS: Final = Metric(
    "eventonce_lag_seconds",
    "histogram",
    "seconds",
    "The time between an event's own time, as its envelope has it, and its effect.",
    (),
    LONG_SECONDS,
    emf="lag_seconds",
)
RECEIVED: Final = Metric(
    "eventonce_receives",
    "histogram",
    "deliveries",
    "How often the queue had delivered an event by the time of its outcome.",
    (),
    RECEIVES,
    emf="receives",
)
BATCH_SIZE: Final = Metric(
    "eventonce_batch_size",
    "histogram",
    "events",
    "Events that were processed together; of `eventonce run` always one.",
    (),
    SIZES,
    emf="batch_size",
)
BATCH_SECONDS: Final = Metric(
    "eventonce_batch_seconds",
    "histogram",
    "seconds",
    "The time from a batch's arrival to its outcomes: waiting, store and handlers.",
    (),
    SECONDS,
    emf="batch_seconds",
)
STORE_SECONDS: Final = Metric(
    "eventonce_store_call_seconds",
    "histogram",
    "seconds",
    "The time of one call to the store: `claim` asks, `settle` completes, frees and renews.",
    ("call",),
    SECONDS,
    emf="store_{call}_seconds",
)
STORE_SIZE: Final = Metric(
    "eventonce_store_call_size",
    "histogram",
    "events",
    "Claims or settlements that shared one call to the store.",
    ("call",),
    SIZES,
)
STORE_ERRORS: Final = Metric(
    "eventonce_store_errors_total",
    "counter",
    "errors",
    "Calls that the store did not answer, and claims that it could not judge.",
    ("call", "error"),
    emf="store_errors",
)
SETTLEMENTS: Final = Metric(
    "eventonce_settlements_total",
    "counter",
    "settlements",
    "Settlements by what was asked, and whether the store accepted them. `extend` is a lease "
    "that was renewed; `fenced` is a run that another one has taken over.",
    ("action", "result"),
    emf="settlements_{result}",
    zeros=tuple(product(get_args(Action), get_args(SettleResult))),
)
TAKEOVERS: Final = Metric(
    "eventonce_takeovers_total",
    "counter",
    "runs",
    "Runs that took over from a run which ended with its process, or outlived its lease.",
    emf="takeovers",
    zeros=((),),
)
IN_FLIGHT: Final = Metric(
    "eventonce_in_flight",
    "gauge",
    "events",
    "Events of this process that are claimed and not yet settled.",
)
STORE_KEYS: Final = Metric(
    "eventonce_store_keys",
    "gauge",
    "keys",
    "Keys that the store holds, of all consumers, looked up at most once a minute.",
)
STORE_LETTERS: Final = Metric(
    "eventonce_store_letters",
    "gauge",
    "dead letters",
    "Dead letters that the store holds now, of all consumers.",
)
STORE_BYTES: Final = Metric(
    "eventonce_store_bytes",
    "gauge",
    "bytes",
    "The size of the store, where the store can tell.",
)

METRICS: Final = (
    *(EVENTS, DEAD_LETTERS, EXPIRED_LETTERS),
    *(HANDLER_SECONDS, LAG_SECONDS, RECEIVED, BATCH_SIZE, BATCH_SECONDS),
    *(STORE_SECONDS, STORE_SIZE, STORE_ERRORS, SETTLEMENTS, TAKEOVERS),
    *(IN_FLIGHT, STORE_KEYS, STORE_LETTERS, STORE_BYTES),
)
"""All metrics, in the order of the page."""

CAUSES: Final = {
    "first_attempt": "ran at its first attempt",
    "later_attempt": "ran after an attempt that failed or was taken over",
    "same_id": "a copy under the transport id of the event that took effect: delivered again",
    "other_id": "a copy under another transport id: published again",
    "unknown_id": "a copy, where one of the two has no transport id",
    "older_version": "older than the version of its subject that was applied",
    "same_state": "the state that its subject already has",
    "no_handler": "no handler takes its type",
    "replay": "an archive replay that is only reported, or that the store may have forgotten",
    "another_run": "another run holds its lease",
    "newer_version": "a newer version of its subject was tried and is not settled",
    "alone": "its last run ended with its process, and another such event runs alone",
    "same_batch": "its copy in the same batch is not settled",
    "not_begun": "its turn did not come in time, or another run took over before it",
    "lease_lost": "ran, but outlived its lease, and another run took over",
    "unknown_run": "ran, but the store no longer knows the run",
    "store": "the store did not answer",
    "shadow": "a copy that ran because its rule is in shadow mode",
    "rejected": "the handler raised Reject",
    "never_returned": "its last attempt never returned",
    "given_up_before": "a copy of an event that was given up",
    "content_differs": "the same key as an event that took effect, with other content",
    "not_an_event": "the bytes are no event",
    "no_key": "the rule finds no key in the event",
}
"""The causes, each with its meaning. Where a handler raised, the cause is the class of its
exception."""
