"""The line of an outcome in a log: the same for `run`, `serve`, Lambda and `process`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eventonce.core.reasons import GIVEN_UP, GIVEN_UP_BEFORE
from eventonce.core.redaction import REDACTED
from eventonce.core.routing import SHOWN
from eventonce.core.status import COPIES, DEAD_LETTERS, FAILURES
from eventonce.errors import EventonceError, Reject, Retry
from eventonce.log import on_one_line
from eventonce.types import Outcome

if TYPE_CHECKING:
    # Not imported at run time: every import makes the start of a Lambda function slower.
    from logging import Logger

INFO: Final = 20
WARNING: Final = 30
"""The levels of `logging`."""

EXPECTED: Final = (EventonceError, Reject, Retry)
"""Errors that are logged without a traceback: code raises them on purpose, with the reason."""


def is_copy(outcome: Outcome) -> bool:
    """Whether the event is a copy of an event that took effect or that was given up. In shadow mode
    copies run, and are logged as copies."""
    return (
        outcome.status in COPIES or outcome.shadowed in COPIES or outcome.reason == GIVEN_UP_BEFORE
    )


def write_line(
    outcome: Outcome, logger: Logger, level: int = WARNING, *, more: int = 0, advice: str = ""
) -> None:
    """Write the line: ids and the reason, never the event's content; a handler's error adds its
    traceback. `more` is the number of other outcomes that this line stands for."""
    event, error = outcome.event, outcome.error
    # Not for a copy in the same batch, which is `busy` with the error of the event that it follows.
    raised = outcome.status in FAILURES | DEAD_LETTERS and not isinstance(error, EXPECTED)
    # The traceback would show the value that is redacted in the reason.
    raised = raised and REDACTED not in outcome.reason
    status: str = outcome.status
    if status in DEAD_LETTERS and outcome.reason != GIVEN_UP_BEFORE:
        status = f"{GIVEN_UP}: {status}"
    reason = on_one_line(outcome.reason) or "ran"
    if advice:
        reason = f"{reason}; {advice}"
    fields = {
        # The message of a JSON line, which has the rest as fields.
        "message": f"{status}: {reason}",
        "status": outcome.status,
        "type": on_one_line(event.type[:SHOWN]) if event is not None else "",
        "id": on_one_line(event.id[:SHOWN]) if event is not None else "",
        "rule": outcome.rule,
        "key": outcome.key.hex(),
        "attempt": outcome.attempt,
        "more": more,
    }
    logger.log(
        level,
        "%s type=%s id=%s rule=%s key=%s: %s%s",
        status,
        fields["type"] or "-",
        fields["id"] or "-",
        outcome.rule or "-",
        fields["key"] or "-",
        reason,
        f"; {more} more like it since the last line" if more else "",
        exc_info=error if raised else None,
        extra={"fields": {name: value for name, value in fields.items() if value}},
    )
