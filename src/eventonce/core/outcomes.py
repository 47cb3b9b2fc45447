"""The end of one run: its settlement, its outcome and its dead letter. `engine` decides their
order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from eventonce import envelope
from eventonce.core import redaction
from eventonce.core.plan import Plan, Refusal, Run
from eventonce.core.reasons import (
    GIVEN_UP_BEFORE,
    NOT_STARTED,
    REFUSED,
    SAME_BATCH,
    given_up_after,
    reason,
)
from eventonce.core.sealed import key_of
from eventonce.core.status import Status
from eventonce.errors import Reject, Retry
from eventonce.types import Letter, Outcome, Settlement, Verdict, effect_id

MAX_RESULT: Final = 65_536
"""The most bytes of a result that is kept for copies: every store can hold more in a record."""

LONGEST_BACKOFF: Final = 900_000
"""A quarter of an hour, the longest an SQS message timer can wait."""

REPORTED_VERDICTS: Final = frozenset[str](("run", "dead", "conflict"))
"""The verdicts on which a replay would run or be kept, if it were not only reported."""


def followed(run: Run, leader: Run) -> Outcome:
    """Return the outcome of a copy in the same batch: acknowledged only if its leader is."""
    led = leader.outcome
    if led.status in ("done", "unguarded", "duplicate"):
        mine, first = run.claim.by, leader.claim.by
        if led.status == "duplicate" and mine == first:
            same = leader.same_id
        else:
            same = mine == first if mine and first else None
        why = reason(run.claim, Verdict("duplicate", same_id=same))
        run.same_id = same
        return _outcome(run, "duplicate", why, led)
    if led.status == "dead" and leader.token:
        return _outcome(run, "dead", GIVEN_UP_BEFORE)
    if led.ack:
        return _outcome(run, led.status, led.reason, led)
    return _outcome(run, "busy", f"{SAME_BATCH} {led.status}", led)


def suppressed(run: Run, verdict: Verdict, now: Callable[[], int]) -> Outcome:
    """Return the outcome of an event whose claim was not granted."""
    why = reason(run.claim, verdict)
    if verdict.kind == "run":
        why = run.plan.forgotten or why
    if run.claim.peek and run.plan.rule.on_replay == "report" and verdict.kind in REPORTED_VERDICTS:
        return _outcome(run, "ignored", f"replay, reported only: {why}")
    if verdict.kind == "run":
        return _outcome(run, "dead", why)
    if verdict.kind == "error":
        return again(run, "failed", why, now() + backoff(1), verdict.error)
    if verdict.kind == "busy":
        return again(run, "busy", why, now() + verdict.wait)
    outcome = _outcome(run, verdict.kind, why)
    if verdict.result is None:
        return outcome
    sealed = key_of(verdict.result)
    if sealed:
        note = f"{why}; its result is sealed with the key {sealed!r}, and not opened"
        return msgspec.structs.replace(outcome, reason=note)
    return msgspec.structs.replace(outcome, result=msgspec.json.decode(verdict.result))


def settlement(run: Run) -> Settlement:
    """Return the settlement of a run whose handler has finished."""
    if run.error is None:
        return Settlement(run.claim, run.token, "complete", run.result)
    if run.outcome.status == "dead":
        return Settlement(run.claim, run.token, "bury")
    # The attempt does not count if the handler never began, if the store or the network failed, or
    # if the dead letter could not be stored: another run has to bring its error again.
    spared = run.job is None or run.blameless or run.letter_away
    return Settlement(run.claim, run.token, "return" if spared else "release")


def done(run: Run) -> Outcome:
    """Return the outcome of a run that returned and is settled."""
    plan = run.plan
    return Outcome(
        plan.event,
        "done",
        run.note,
        plan.rule.name,
        run.claim.key,
        run.value,
        None,
        None,
        "",
        run.attempt,
        run.took,
        None,
        run.claim.order,
    )


def not_done(run: Run, now: int) -> Outcome:
    """Return the outcome of a run without a completion: its handler did not begin, its settlement
    was refused, or it ran unguarded."""
    if run.job is None:
        return again(run, "fenced", NOT_STARTED, now + backoff(1))
    if run.kept in REFUSED:
        return again(run, "fenced", REFUSED[run.kept], now + backoff(1))
    outcome = _outcome(run, "unguarded", run.unguarded)
    return msgspec.structs.replace(outcome, result=run.value, shadowed=run.shadowed)


def raised(run: Run, error: Exception, now: int) -> Outcome:
    """Return the outcome of a run that raised: another attempt, or a dead letter."""
    text = _text(error)
    if run.plan.rule.redact:
        text = _redacted(text, error, run.plan)
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    attempt = run.attempt
    last = attempt >= run.plan.deliveries
    if run.job is None and not last:
        # A handler that did not begin is no reason to give up, also at the last attempt.
        return again(run, "failed", text, now)
    if isinstance(error, Reject):
        why = f": {text}" if text else ""
        return _outcome(run, "dead", f"rejected by the handler{why}", error=error)
    spent = attempt - run.spared >= run.claim.attempts and not run.blameless
    if (spent or last) and not run.unguarded:
        return _outcome(run, "dead", f"{given_up_after(attempt)}: {said}", error=error)
    after = error.after if isinstance(error, Retry) else None
    delay = backoff(attempt) if after is None else int(after * 1000)
    return again(run, "failed", said, now + delay, error)


def _text(error: Exception) -> str:
    """Return the text of an exception, as any store can keep it; empty if the exception raises
    another one when it is asked."""
    try:
        return str(error).encode(errors="backslashreplace").decode().replace("\0", "\\x00")
    except Exception:  # noqa: BLE001  an exception may have code of the user
        return ""


def _redacted(text: str, error: Exception, plan: Plan) -> str:
    """Return the text of an exception without the redacted values. If only a cause of the exception
    has such a value, the text says so, and the log leaves the traceback out."""
    from traceback import format_exception  # noqa: PLC0415  slow to import, and few events fail

    kept = redaction.without_values(text, plan.event, plan.rule.redact)
    if redaction.REDACTED in kept or isinstance(error, Reject | Retry):
        return kept
    try:
        traced = "".join(format_exception(error))
    except Exception:  # noqa: BLE001  an exception may have code of the user
        traced = ""
    if redaction.without_values(traced, plan.event, plan.rule.redact) == traced:
        return kept
    return f"{kept} (its cause: {redaction.REDACTED})"


def backoff(attempt: int) -> int:
    """Return the milliseconds to the next attempt, doubling from 1000; transports add jitter."""
    return int(min(LONGEST_BACKOFF, 1000 * 2 ** min(attempt - 1, 20)))


def finish(run: Run, value: object = None, error: Exception | None = None) -> None:
    """Note the value that a handler returned, or the error that it raised."""
    run.error = error
    if value is not None:
        run.value = value
        run.result, run.note = _kept_for_copies(value)
    # Last: from here on another thread may settle the run.
    run.finished = True


def _kept_for_copies(value: object) -> tuple[bytes | None, str]:
    """Return a result as it is kept, or why it is not kept. A refused result does not fail the run:
    the effect has happened, and another run would repeat it."""
    try:
        result = msgspec.json.encode(value)
    except Exception as refused:  # noqa: BLE001  a result may be any object, with code of its own
        return None, f"its result is not kept for copies: {refused}"
    if len(result) > MAX_RESULT:
        size = len(result)
        return None, f"its result is not kept for copies: {size} bytes, the limit is {MAX_RESULT}"
    return result, ""


def letter_of_refusal(refusal: Refusal, consumer: str, now: int) -> Letter:
    """Return the dead letter of input without a key. The same bytes, with the same headers that are
    kept, give the same dead letter."""
    from hashlib import blake2b  # noqa: PLC0415  slow to import, and little input is invalid

    raw = refusal.raw
    name = blake2b(consumer.encode() + b"\0" + raw, digest_size=16).hexdigest()
    # The id is a hash of all bytes: input that differs only in a redacted value is another letter.
    event, paths = refusal.outcome.event, refusal.redact
    kept = redaction.encode(event, paths) if paths and event is not None else raw
    return _letter(name, kept, refusal.outcome, consumer, now)


def letter_of(run: Run, consumer: str, now: int) -> Letter:
    """Return the dead letter of a run that was given up."""
    name = effect_id(run.claim)
    if run.claim.order is None and run.claim.digest:
        # Other content with the same key is another dead letter.
        name += f"-{run.claim.digest.hex()}"
    event, paths = run.plan.event, run.plan.rule.redact
    raw = redaction.encode(event, paths) if paths else envelope.encode(event)
    return _letter(name, raw, run.outcome, consumer, now, run.attempt)


def _letter(
    name: str, raw: bytes, outcome: Outcome, consumer: str, now: int, attempt: int = 0
) -> Letter:
    return Letter(
        id=name,
        consumer=consumer,
        status=outcome.status,
        reason=outcome.reason,
        rule=outcome.rule,
        key=outcome.key,
        event=raw,
        at=now,
        attempt=attempt,
    )


def _outcome(
    run: Run,
    status: Status,
    why: str,
    led: Outcome | None = None,
    error: BaseException | None = None,
) -> Outcome:
    return Outcome(
        event=run.plan.event,
        status=status,
        reason=why,
        rule=run.plan.rule.name,
        key=run.claim.key,
        result=None if led is None else led.result,
        error=error if led is None else led.error,
        retry_at=None if led is None else led.retry_at,
        attempt=run.attempt if run.job is not None else 0,
        took=run.took,
        same_id=run.same_id,
        order=run.claim.order,
    )


def again(
    run: Run, status: Status, why: str, retry_at: int, error: BaseException | None = None
) -> Outcome:
    """Return the outcome of an event that must be delivered again, at `retry_at` or later."""
    return msgspec.structs.replace(_outcome(run, status, why, error=error), retry_at=retry_at)
