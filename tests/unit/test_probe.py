"""The trial record: its write shows that a store takes writes, and no record stays behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from eventonce.core import ledger
from eventonce.core.ledger import Record
from eventonce.errors import StoreError, StoreUnavailable
from eventonce.stores.memory import MemoryStore
from eventonce.stores.probe import CAN_WRITE, PROBE, new_trial_key, write_finding, write_trial
from eventonce.types import Claim, Settlement, SettleResult, Verdict
from tests.helpers import WatchedStore, away, full

NOW = 1_790_000_000_000
KEY = b"k" * 16


class TwoVerbs:
    """A store of another project: the two verbs, and no other method."""

    def __init__(self) -> None:
        self.now = NOW
        self.records: dict[bytes, Record] = {}

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        (claim,) = claims
        verdict, changed = ledger.judge(self.records.get(claim.key), claim, now or self.now)
        if changed is not None:
            self.records[claim.key] = changed
        return [verdict]

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        (one,) = settlements
        kept, changed = ledger.settle(self.records.get(one.claim.key), one, now or self.now)
        if changed is not None:
            self.records[one.claim.key] = changed
        return [kept]


def test_a_trial_calls_both_verbs_and_leaves_no_record() -> None:
    asked: list[str] = []
    store = WatchedStore(lambda verb, _: asked.append(verb))
    write_trial(store, KEY)
    assert asked == ["claim", "settle"]
    assert store.stats().records == 0


def test_a_trial_needs_only_two_verbs_and_its_record_lives_for_a_millisecond() -> None:
    store = TwoVerbs()
    write_trial(store, KEY)
    (record,) = store.records.values()
    assert not ledger.lives(record, NOW + 1)


def test_a_store_that_answers_and_takes_no_write_fails_the_trial() -> None:
    store = WatchedStore(full())
    assert store.claim([PROBE])[0].kind == "run"
    with pytest.raises(StoreUnavailable, match="full"):
        write_trial(store, KEY)


def test_a_store_that_takes_claims_and_no_settlements_fails_the_trial() -> None:
    with pytest.raises(StoreUnavailable):
        write_trial(WatchedStore(away("settle")), KEY)


def test_a_claim_with_the_verdict_error_fails_the_trial() -> None:
    error = StoreError("too large")
    store = WatchedStore(lambda verb, _: [Verdict("error", error=error)] if verb == "claim" else 0)
    with pytest.raises(StoreError, match="too large"):
        write_trial(store, KEY)


@pytest.mark.parametrize("said", ["unknown", "fenced"])
def test_a_store_that_loses_its_record_at_once_fails_the_trial(said: SettleResult) -> None:
    store = WatchedStore(lambda verb, _: [said] if verb == "settle" else None)
    with pytest.raises(StoreUnavailable, match=f"did not keep a trial record \\({said}\\)"):
        write_trial(store, KEY)


def test_a_trial_that_failed_midway_is_written_anew_under_the_same_key() -> None:
    store = TwoVerbs()
    settle = store.settle
    for _ in range(3):
        store.settle = WatchedStore(away("settle")).settle  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable):
            write_trial(store, KEY)
        # The lease of the earlier trial lasts a millisecond: the verdict `busy` proves no write.
        with pytest.raises(StoreUnavailable, match=r"\(busy\)"):
            write_trial(store, KEY)
        store.now += 1
    store.settle = settle  # type: ignore[method-assign]
    write_trial(store, KEY)
    assert len(store.records) == 1


def test_a_trial_needs_no_right_to_delete() -> None:
    class Undeletable(MemoryStore):
        def forget(self, keys: Sequence[bytes]) -> int:
            raise StoreError("no DELETE for you")

    write_trial(Undeletable(), KEY)


def test_the_trial_keys_of_two_processes_are_different() -> None:
    code = "from eventonce.stores.probe import new_trial_key; print(new_trial_key().hex())"
    keys = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert len({bytes.fromhex(it.stdout) for it in keys} | {new_trial_key(), new_trial_key()}) == 4


def test_a_finding_says_that_a_store_takes_a_write() -> None:
    found = write_finding("memory:")
    assert (found.what, found.fine) == (CAN_WRITE, True)
