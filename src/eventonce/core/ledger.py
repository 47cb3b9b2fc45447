"""The law: what one claim gets from one record, and which settlements of a run are believed.

Pure functions over frozen data. Every store either calls them inside its own transaction or says
the same in its own language and is held to them by the contract suite in `eventonce.testing`.
`docs/states.md` draws what stands here.
"""

from __future__ import annotations

from typing import Final

import msgspec

from eventonce.types import Claim, Settlement, SettleResult, Verdict

KEPT_DIGESTS: Final = 16
"""Versions remembered at one order: whole-second orders tie a handful, and a record stays small."""

NEWER_WAIT_LEASES: Final = 3
"""Leases an older version waits for a newer one that was tried and not settled: one for the run,
one for the transport to bring it again, one for that second run."""


UNSETTLED: Final = 86_400_000
"""A day: as long as EventBridge retries, the attempts of an event that has no effect yet are
counted, and one that was given up stays given up, however short its rule's `remember` is."""


LONGEST_LEASE: Final = 900_000
"""A quarter of an hour, unless the claim's own lease is longer: a lease that ends later than this
from now was granted by a clock that was set back since. It is cut down to this by whoever meets it;
a run that is alive renews it long before, and every transport keeps an event for longer."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """All that is known of one key; it lives until the later of `expires` and `held_until`."""

    token: int = 0
    """Rises with every run granted; only its holder settles."""
    attempt: int = 0
    nonce: int = 0
    """The ask that holds the lease; 0 once the run is settled in any way."""
    held_until: int = 0
    expires: int = 0
    done: bool = False
    """Whether the latest run completed."""
    by: bytes = b""
    result: bytes | None = None
    digests: tuple[bytes, ...] = ()
    """A fact's verified content, or the versions completed at `order`, the latest last."""
    dead: tuple[bytes, ...] = ()
    """The digests that were given up: of the fact, or of the versions given up at `tried`."""
    order: int | None = None
    """A state's completed version; from here on the fields are a state's alone."""
    at: int = 0
    """The applied event's own time."""
    tried: int | None = None
    """The highest order ever granted: nothing older may be applied, whatever became of it."""
    trying: bytes = b""
    """Which version at `tried` the attempts belong to."""
    dirty: bool = False
    """Set at a grant, cleared only by a completion: the effect may be half there."""
    alone: bool = False
    """Whether the latest run had its process alone: if it ends with it, that is its own doing."""
    spared: int = 0
    """Attempts that do not count towards giving up: what ended them was not this event's doing."""


Judged = tuple[Verdict, Record | None]
Settled = tuple[SettleResult, Record | None]
"""The answer, and the record to write (None: leave what is there)."""

NOTHING: Final = Record()


def lives(record: Record, now: int) -> bool:
    """Whether the record still counts; one that does not is as good as swept."""
    return now < record.expires or now < record.held_until


def judge(record: Record | None, claim: Claim, now: int) -> Judged:
    """The verdict on a claim."""
    if record is None or not lives(record, now):
        answer = _grant(NOTHING, claim, now, 1)
    elif claim.order is None:
        answer = _judge_fact(record, claim, now)
    else:
        answer = _judge_state(record, claim, claim.order, now)
    if claim.peek:
        verdict = answer[0]
        return (Verdict("run") if verdict.kind == "run" else verdict), None
    return answer


def _judge_fact(record: Record, claim: Claim, now: int) -> Judged:
    if record.done:
        if claim.digest and record.digests and claim.digest not in record.digests:
            return Verdict("conflict", same_id=_same_id(record, claim)), None
        return _duplicate(record, claim, now)
    if record.dead and not claim.redrive:
        return Verdict("dead"), None
    if now < record.held_until:
        return _held(record, claim, now)
    return _next_attempt(record, claim, now)


def _judge_state(record: Record, claim: Claim, order: int, now: int) -> Judged:
    if record.order is not None:
        if order < record.order:
            verdict = Verdict("stale", order=record.order)
            return verdict, _remembered(record, claim, now)
        if order == record.order and claim.digest in record.digests:
            return _duplicate(record, claim, now)
    this_version = order == record.tried and claim.digest == record.trying
    given_up = order == record.tried and claim.digest in record.dead
    if given_up and not claim.redrive:
        return Verdict("dead"), None
    if now < record.held_until:
        return _held(record, claim, now)
    if record.tried is not None and order < record.tried:
        # A newer version may have had its effect. Applying this one now would turn the subject
        # back, so it waits for the newer one to be settled and is then kept as a dead letter.
        until = record.held_until + NEWER_WAIT_LEASES * claim.lease
        if now < until and not record.dead:
            return Verdict("busy", wait=until - now, order=record.tried), None
        return Verdict("dead", order=record.tried), None
    if _unchanged(record, claim):
        unchanged = msgspec.structs.replace(
            record,
            order=order,
            by=claim.by,
            digests=(claim.digest,),
            expires=max(record.expires, now + claim.remember),
        )
        return Verdict("unchanged", order=record.order), unchanged
    if this_version:
        return _next_attempt(record, claim, now)
    return _grant(record, claim, now, 1)


def _unchanged(record: Record, claim: Claim) -> bool:
    """By the events' own times: a copy may arrive days late, and must not be judged by that."""
    return (
        not record.dirty
        and bool(record.digests)
        and claim.digest == record.digests[-1]
        and 0 <= claim.at - record.at < claim.unchanged_within
    )


def _held(record: Record, claim: Claim, now: int) -> Judged:
    held_until = _cut_down(record.held_until, claim, now)
    wait = held_until - now
    own = record.nonce == claim.nonce
    alone = record.alone or (own and claim.alone)
    if own:
        verdict = Verdict("run", record.token, record.attempt, wait, spared=record.spared)
    else:
        verdict = Verdict("busy", wait=wait)
    if (held_until, alone) == (record.held_until, record.alone):
        return verdict, None
    return verdict, msgspec.structs.replace(record, held_until=held_until, alone=alone)


def _cut_down(held_until: int, claim: Claim, now: int) -> int:
    return min(held_until, now + max(claim.lease, LONGEST_LEASE))


def _next_attempt(record: Record, claim: Claim, now: int) -> Judged:
    """A run that was not settled ended with its process. If other runs shared that process, one of
    them may have ended it: the attempt does not count, and the next run should be alone."""
    crashed = record.nonce != 0
    if claim.redrive:
        return _grant(record, claim, now, 1, crashed=crashed)
    spared = record.spared + (crashed and not record.alone)
    if record.attempt - spared >= claim.attempts:
        return _give_up(record, claim, now)
    return _grant(record, claim, now, record.attempt + 1, spared, crashed=crashed)


def _duplicate(record: Record, claim: Claim, now: int) -> Judged:
    # At a tie the record speaks of the version completed last, and must not answer for another.
    latest = claim.order is None or claim.digest == record.digests[-1]
    verdict = Verdict(
        "duplicate",
        same_id=_same_id(record, claim) if latest else None,
        order=record.order,
        result=record.result if latest else None,
    )
    return verdict, _remembered(record, claim, now)


def _same_id(record: Record, claim: Claim) -> bool | None:
    return record.by == claim.by if record.by and claim.by else None


def _remembered(record: Record, claim: Claim, now: int) -> Record | None:
    """A sliding window starts again with every copy; a fixed one does not."""
    if not claim.sliding or record.expires >= now + claim.remember:
        return None
    return msgspec.structs.replace(record, expires=now + claim.remember)


def _give_up(record: Record, claim: Claim, now: int) -> Judged:
    return Verdict("dead", attempt=record.attempt), _buried(record, claim, now)


def _buried(record: Record, claim: Claim, now: int) -> Record:
    return msgspec.structs.replace(
        record,
        nonce=0,
        held_until=min(record.held_until, now),
        expires=max(record.expires, now + max(claim.remember, UNSETTLED)),
        dead=(*record.dead, claim.digest)[-KEPT_DIGESTS:],
    )


def _grant(
    record: Record, claim: Claim, now: int, attempt: int, spared: int = 0, *, crashed: bool = False
) -> Judged:
    # Above the token that was there, whatever the clock says, and not below the clock in
    # microseconds: after a record expired its tokens must not come back, or a worker paused since
    # then could settle another's run.
    token, held_until = now * 1000, now + claim.lease
    expires = now + max(claim.remember, UNSETTLED)
    if record is not NOTHING:
        token, expires = max(record.token + 1, token), max(record.expires, expires)
    order = claim.order
    if order is None:
        granted = Record(token, attempt, claim.nonce, held_until, expires, False, claim.by)
        if claim.alone or spared:
            granted = msgspec.structs.replace(granted, alone=claim.alone, spared=spared)
    else:
        granted = msgspec.structs.replace(
            record,
            token=token,
            attempt=attempt,
            nonce=claim.nonce,
            held_until=held_until,
            expires=expires,
            done=False,
            dead=_still_dead(record, claim) if order == record.tried else (),
            tried=order,
            trying=claim.digest,
            dirty=True,
            alone=claim.alone,
            spared=spared,
        )
    if crashed or spared:
        verdict = Verdict("run", token, attempt, claim.lease, alone=crashed, spared=spared)
    else:
        verdict = Verdict("run", token, attempt, claim.lease)
    return verdict, granted


def _still_dead(record: Record, claim: Claim) -> tuple[bytes, ...]:
    return tuple(digest for digest in record.dead if digest != claim.digest)


def settle(record: Record | None, settlement: Settlement, now: int) -> Settled:
    """Whether this run is believed, and what it leaves behind."""
    # `lives`, without the call.
    if record is None or not (now < record.expires or now < record.held_until):
        return "unknown", None
    if record.token != settlement.token:
        return "fenced", None
    claim = settlement.claim
    if settlement.action == "complete":
        if claim.order is None:
            return "kept", completed_fact(settlement, now)
        return "kept", _complete_state(record, settlement, claim.order, now)
    if record.done:
        return "fenced", None
    if settlement.action == "bury":
        if claim.digest in record.dead:
            return "kept", None
        return "kept", _buried(record, claim, now)
    frees = settlement.action in ("release", "return")
    if record.nonce != claim.nonce:
        # Already freed or buried: a renewal that comes late must not take the lease back.
        return ("kept" if frees and claim.digest not in record.dead else "fenced"), None
    if frees:
        return "kept", msgspec.structs.replace(
            record,
            nonce=0,
            held_until=min(record.held_until, now),
            spared=record.spared + (settlement.action == "return"),
        )
    renewed = max(now + claim.lease, _cut_down(record.held_until, claim, now))
    return "kept", msgspec.structs.replace(record, held_until=renewed)


def without_result(record: Record | None) -> Record | None:
    """The record to write where a result is to be cleared; None where there is no result."""
    if record is None or record.result is None:
        return None
    return msgspec.structs.replace(record, result=None)


def completed_fact(settlement: Settlement, now: int) -> Record:
    """A completed fact's record: it depends on nothing but the settlement, so that a store may
    write it with no other condition than the token."""
    claim = settlement.claim
    return Record(
        token=settlement.token,
        expires=now + claim.remember,
        done=True,
        by=claim.by,
        result=settlement.result,
        digests=(claim.digest,) if claim.digest else (),
    )


def _complete_state(record: Record, settlement: Settlement, order: int, now: int) -> Record | None:
    if record.done:
        # Its own completion again. The order may have advanced since, by an unchanged version.
        return None
    claim = settlement.claim
    tie = order == record.order
    dead = _still_dead(record, claim)
    remember = max(claim.remember, UNSETTLED) if dead else claim.remember
    return msgspec.structs.replace(
        record,
        attempt=0,
        nonce=0,
        held_until=0,
        expires=now + remember,
        done=True,
        by=claim.by,
        result=settlement.result,
        digests=(*record.digests, claim.digest)[-KEPT_DIGESTS:] if tie else (claim.digest,),
        dead=dead,
        order=order,
        at=claim.at,
        trying=b"",
        dirty=False,
        alone=False,
        spared=0,
    )
