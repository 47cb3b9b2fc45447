"""The law: the verdict on one claim, given one record, and which settlements of a run are accepted.

Pure functions over frozen data. A store calls them inside its own transaction, or has the same law
in its own language, and the contract suite in `eventonce.testing` compares it with these functions.
`docs/states.md` is the diagram of the law.
"""

from __future__ import annotations

from typing import Final

import msgspec

from eventonce.types import Claim, Settlement, SettleResult, Verdict

KEPT_DIGESTS: Final = 16
"""Versions remembered at one order: orders in whole seconds tie a few, and records stay small."""

NEWER_WAIT_LEASES: Final = 3
"""Leases that an older version waits for a newer one that was tried and not settled: one for the
run, one until the transport delivers it again, one for the second run."""


UNSETTLED: Final = 86_400_000
"""A day, as long as EventBridge retries. At least for this time the attempts of an event without an
effect are counted, and an event that was given up stays given up, even if `remember` is shorter."""


LONGEST_LEASE: Final = 900_000
"""A quarter of an hour, unless the claim's own lease is longer. A lease that ends later than this
from now was granted by a clock that was set back since. The next claim or renewal shortens it to
this; a living run renews it long before, and every transport keeps an event for longer."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """The data of one key; a record lives until the later of `expires` and `held_until`."""

    token: int = 0
    """Rises with every run that is granted; only the run with this token can settle."""
    attempt: int = 0
    nonce: int = 0
    """The nonce of the claim that holds the lease; 0 once the run is settled in any way."""
    held_until: int = 0
    expires: int = 0
    done: bool = False
    """Whether the latest run completed."""
    by: bytes = b""
    result: bytes | None = None
    digests: tuple[bytes, ...] = ()
    """The digest of a fact's content, or of the versions completed at `order`, the latest last."""
    dead: tuple[bytes, ...] = ()
    """The digests that were given up: of the fact, or of the versions given up at `tried`."""
    order: int | None = None
    """The completed version of a state. Of the fields below, a fact has `alone` and `spared`."""
    at: int = 0
    """The applied event's own time."""
    tried: int | None = None
    """The highest order ever granted: no older version may be applied, however that run ended."""
    trying: bytes = b""
    """The digest of the version at `tried` whose attempts are counted."""
    dirty: bool = False
    """Whether the effect may have happened in part: set by a grant, cleared by a completion."""
    alone: bool = False
    """Whether the latest run was alone in its process: if the process ended, this run ended it."""
    spared: int = 0
    """Attempts that do not count towards giving up, because the event did not cause their end."""


Judged = tuple[Verdict, Record | None]
Settled = tuple[SettleResult, Record | None]
"""The answer, and the record to write (None: leave what is there)."""

NOTHING: Final = Record()


def lives(record: Record, now: int) -> bool:
    """Whether the record still counts; otherwise it has the same effect as no record."""
    return now < record.expires or now < record.held_until


def judge(record: Record | None, claim: Claim, now: int) -> Judged:
    """Return the verdict on a claim, and the record to write."""
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
        # A newer version may have had its effect, and this one would undo it. So this version
        # waits until the newer one is settled; if that takes too long, it becomes a dead letter.
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
    """Whether the state is unchanged, by the events' own times: a copy may arrive days late."""
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
    """Grant another attempt, or give up. A run that was not settled ended with its process. If it
    was not alone there, its attempt does not count, and the next run should be alone."""
    crashed = record.nonce != 0
    if claim.redrive:
        return _grant(record, claim, now, 1, crashed=crashed)
    spared = record.spared + (crashed and not record.alone)
    if record.attempt - spared >= claim.attempts:
        return _give_up(record, claim, now)
    return _grant(record, claim, now, record.attempt + 1, spared, crashed=crashed)


def _duplicate(record: Record, claim: Claim, now: int) -> Judged:
    # At a tie, id and result in the record are those of the version that was completed last.
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
    """Return the record with a later expiry; None unless `sliding`, which every copy extends."""
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
    # Higher than the last token, even if the clock was set back, and not below the clock in
    # microseconds: after a record has expired its tokens must not come back, or a worker that was
    # paused since then could settle the run of another.
    token, held_until, remember = now * 1000, now + claim.lease, claim.remember
    # A call of `max` would be a fifth of the cost of a first grant.
    expires = now + (remember if remember > UNSETTLED else UNSETTLED)  # noqa: FURB136
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
    """Return whether the settlement of a run is accepted, and the record to write."""
    # As `lives`, without the cost of the call.
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
        # The run is freed or buried already: a late renewal must not take the lease back.
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
    """Return the record to write to clear its result; None if there is no result."""
    if record is None or record.result is None:
        return None
    return msgspec.structs.replace(record, result=None)


def completed_fact(settlement: Settlement, now: int) -> Record:
    """Return the record of a completed fact. It depends only on the settlement, so that a store can
    write it with the token as the only condition."""
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
        # A repetition of its own completion. `order` may be higher since, by an unchanged version.
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
