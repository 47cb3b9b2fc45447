"""The causes of copies, and what to do about each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

Cause = Literal[
    "redelivery",
    "overlapping-rules",
    "target-retry",
    "re-publish",
    "second-integration",
    "cross-region",
    "replay",
    "double-emission",
    "unknown",
]

REMEDIES: Final[Mapping[str, str]] = {
    "redelivery": "the queue delivered again: a handler slower than the visibility time-out, or "
    "a failure. eventonce drops it; a longer visibility time-out makes fewer",
    "overlapping-rules": "two rules of one bus, or two targets of one rule, both match these "
    "types: remove one (aws events list-rule-names-by-target names them)",
    "target-retry": "the target did not answer, or failed: Lambda tries again after one and two "
    "minutes, EventBridge for 24 hours. Look at the errors of the target",
    "re-publish": "the source published again under a new id, after an outage: only a business "
    "key recognises it, and the window must be longer than the source's retries",
    "second-integration": "two integrations of one organisation publish the same events: remove "
    "one, or let one of them have other topics",
    "cross-region": "a bus of another region forwards its events: they have new ids here. Filter "
    "the forwarded ones by a rule, or keep the business key",
    "replay": "an archive was replayed. Rules say what becomes of it: on_replay",
    "double-emission": "the source told the same thing twice within half a second: a key without "
    "the time of the notice, or a state rule with unchanged_within, recognises it",
    "unknown": "the capture does not say when and through which channel the copies arrived: "
    "docs/study.md shows a line that does",
}
