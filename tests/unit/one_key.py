"""One key and the claims on it, for the tests of the law."""

from __future__ import annotations

import msgspec

from eventonce.core import ledger
from eventonce.types import Action, Claim, Settlement, SettleResult, Verdict

T0 = 1_764_000_000_000
SECOND = 1_000
LEASE = 60 * SECOND
DAY = 86_400 * SECOND
REMEMBER = 10 * DAY
A, B, C = b"state A", b"state B", b"state C"


class Key:
    """One key's record, and the law applied to it."""

    def __init__(self) -> None:
        self.record: ledger.Record | None = None

    def claim(self, claim: Claim, now: int) -> Verdict:
        verdict, record = ledger.judge(self.record, claim, now)
        self.record = self.record if record is None else record
        return verdict

    def settle(
        self, action: Action, claim: Claim, run: Verdict, now: int, result: bytes | None = None
    ) -> SettleResult:
        settlement = Settlement(claim, run.token, action, result)
        kept, record = ledger.settle(self.record, settlement, now)
        self.record = self.record if record is None else record
        return kept

    def done(self, claim: Claim, now: int, result: bytes | None = None) -> Verdict:
        """Claim and complete, at once."""
        run = self.claim(claim, now)
        assert run.kind == "run"
        assert self.settle("complete", claim, run, now, result) == "kept"
        return run

    def used_up(self, claim: Claim, now: int) -> int:
        """Crash alone in every attempt; returns the time at which the last lease has ended."""
        for attempt in range(1, claim.attempts + 1):
            run = self.claim(msgspec.structs.replace(claim, alone=True), now)
            assert (run.kind, run.attempt) == ("run", attempt)
            now += run.wait
        return now


def fact(nonce: int = 1, **terms: object) -> Claim:
    claim = Claim(b"fact", nonce, LEASE, REMEMBER, 3, by=b"id-1")
    return msgspec.structs.replace(claim, **terms)


def state(order: int, digest: bytes, nonce: int = 1, **terms: object) -> Claim:
    claim = msgspec.structs.replace(fact(nonce), order=order, digest=digest, at=T0)
    return msgspec.structs.replace(claim, **terms)
