"""Results that are kept for a shorter time than the records of their events.

Such a result is a record of its own, with its own key and its own time to be remembered. It expires
like any record, so no store needs code for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from eventonce.core.ports import Store
from eventonce.log import log
from eventonce.rules.keys import blake2b
from eventonce.types import Claim, Settlement, SettleResult, Verdict

RESULT_LEASE: Final = 10_000
"""Milliseconds between the claim and the completion of a result's record: one call to the store."""

RESULT_ATTEMPTS: Final = 1_000_000
"""A limit that is never reached: a result's record is not given up if processes end in between."""


def result_key(key: bytes) -> bytes:
    """Return the key of the record that holds the result for this key."""
    return blake2b(key, digest_size=16, person=b"eventonce result").digest()


class BriefResults:
    """A store whose results with `keep_result` are records of their own. If such a result cannot be
    written or read, the event is not affected: a copy gets no result."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        verdicts = self._store.claim(claims, now)
        asked = [
            place
            for place, verdict in enumerate(verdicts)
            if verdict.kind == "duplicate" and claims[place].keep_result and verdict.result is None
        ]
        if not asked:
            return verdicts
        looks = [replace(_result_claim(claims[place]), peek=True) for place in asked]
        try:
            found = self._store.claim(looks, now)
        except Exception as error:  # noqa: BLE001  the first call has granted runs
            log().warning("a copy gets no result: %s", error)
            return verdicts
        for place, look in zip(asked, found, strict=True):
            if look.kind == "duplicate":
                verdicts[place] = replace(verdicts[place], result=look.result)
        return verdicts

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        settled = self._store.settle([without_result(one) for one in settlements], now)
        brief = [
            one
            for one, kept in zip(settlements, settled, strict=True)
            if kept == "kept" and one.result is not None and one.claim.keep_result
        ]
        if brief:
            try:
                self._keep(brief, now)
            except Exception as error:  # noqa: BLE001  the first call has settled the events
                log().warning("a result is not kept for copies: %s", error)
        return settled

    def _keep(self, settlements: Sequence[Settlement], now: int | None) -> None:
        claims = [_result_claim(one.claim) for one in settlements]
        runs = self._store.claim(claims, now)
        # Without `run` the result is stored already: this settlement is a repetition.
        ended = [
            Settlement(claim, run.token, "complete", one.result)
            for claim, run, one in zip(claims, runs, settlements, strict=True)
            if run.token
        ]
        if ended:
            self._store.settle(ended, now)


def without_result(settlement: Settlement) -> Settlement:
    """Return the settlement for the event's record, without a result that has its own record."""
    if settlement.result is None or settlement.claim.keep_result is None:
        return settlement
    return replace(settlement, result=None)


def _result_claim(claim: Claim) -> Claim:
    return replace(
        claim,
        key=result_key(claim.key),
        lease=RESULT_LEASE,
        remember=claim.keep_result or 0,
        attempts=RESULT_ATTEMPTS,
        sliding=False,
        unchanged_within=0,
        redrive=False,
        alone=False,
    )
