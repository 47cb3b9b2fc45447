"""Records away from the hot path: shown, forgotten, swept, counted."""

from __future__ import annotations

from typing import Final
from unittest import SkipTest

from eventonce.core import ledger
from eventonce.core.ports import Store
from eventonce.testing.cases.samples import EPOCH, SECOND, fact, new_keys, new_letters, settlements
from eventonce.testing.factory import StoreFactory, admin_of, opened
from eventonce.types import Claim, Settlement

STEP: Final = 7
EXPIRED: Final = 40
LIVE: Final = 30


def a_record_is_shown_as_the_law_has_it(factory: StoreFactory) -> None:
    """Before its claim there is none; a peek makes none."""
    with opened(factory) as store:
        admin = admin_of(store)
        (key,) = new_keys(1)
        assert admin.show(key) is None
        claim = fact(key, by=b"here", digest=b"\x00content")
        verdict, record = ledger.judge(None, claim, EPOCH)
        assert store.claim([claim], now=EPOCH) == [verdict]
        assert admin.show(key) == record
        settlement = Settlement(claim, verdict.token, "complete", b"result")
        _, record = ledger.settle(record, settlement, EPOCH)
        assert store.settle([settlement], now=EPOCH) == ["kept"]
        assert admin.show(key) == record


def an_expired_record_is_not_shown(factory: StoreFactory) -> None:
    """By the store's own clock, swept or not: this one expired in 2001."""
    with opened(factory) as store:
        (key,) = new_keys(1)
        claim = fact(key, remember=SECOND)
        long_ago = 1_000_000_000_000
        (run,) = store.claim([claim], now=long_ago)
        store.settle([Settlement(claim, run.token, "complete")], now=long_ago)
        assert admin_of(store).show(key) is None


def a_forgotten_key_is_new_again(factory: StoreFactory) -> None:
    """Whatever it held; and the answer says how many there were."""
    with opened(factory) as store:
        admin = admin_of(store)
        held, done, kept = keys = new_keys(3)
        claims = [fact(key) for key in keys]
        runs = store.claim(claims, now=EPOCH)
        ended = [Settlement(claims[1], runs[1].token, "complete")]
        assert store.settle(ended, now=EPOCH) == ["kept"]
        assert admin.forget([held, *new_keys(2), done]) == 2
        assert admin.forget([held]) == 0
        assert admin.forget([]) == 0
        assert admin.show(held) is None
        verdicts = store.claim([fact(key) for key in (held, done, kept)], now=EPOCH + 1)
        assert [verdict.kind for verdict in verdicts] == ["run", "run", "busy"]
        assert [verdict.attempt for verdict in verdicts[:2]] == [1, 1]
        late = Settlement(claims[0], runs[0].token, "complete")
        assert store.settle([late], now=EPOCH + 1) == ["fenced"]


def a_sweep_goes_through_everything_in_small_steps(factory: StoreFactory) -> None:
    """A step looks at no more than it was told to; some steps later all that expired is gone."""
    if not factory.sweeps:
        raise SkipTest("the server drops what expired")
    with opened(factory) as store:
        admin = admin_of(store)
        later = EPOCH + SECOND
        there = admin.stats().records if factory.counts else 10_000
        expired, live = new_keys(EXPIRED), new_keys(LIVE)
        _complete(store, [fact(key, remember=2 * SECOND) for key in live[::2]])
        store.claim([fact(key) for key in live[1::2]], now=EPOCH)
        _complete(store, [fact(key, remember=SECOND) for key in expired])
        # One round may have begun before these were there; the next one meets them all.
        steps = 2 * ((there + EXPIRED + LIVE) // STEP + 2)
        swept = [admin.sweep(STEP, now=later) for _ in range(steps)]
        assert all(0 <= step <= STEP for step in swept)
        assert sum(swept) >= EXPIRED
        assert admin.forget(expired) == 0
        assert admin.forget(live) == LIVE


def stats_count_records_and_letters(factory: StoreFactory) -> None:
    """Exactly where the store can, and never below zero."""
    with opened(factory) as store:
        admin = admin_of(store)
        before = admin.stats()
        assert min(before.records, before.letters, before.bytes or 0) >= 0
        if not factory.counts:
            return
        keys, letters = new_keys(5), new_letters(3)
        store.claim([fact(key) for key in keys], now=EPOCH)
        admin.put_letters(letters)
        filled = admin.stats()
        assert (filled.records, filled.letters) == (before.records + 5, before.letters + 3)
        admin.forget(keys[:2])
        admin.drop_letters([letters[0].id])
        emptied = admin.stats()
        assert (emptied.records, emptied.letters) == (before.records + 3, before.letters + 2)


def _complete(store: Store, claims: list[Claim]) -> None:
    runs = store.claim(claims, now=EPOCH)
    ended = settlements(claims, runs)
    assert store.settle(ended, now=EPOCH) == ["kept"] * len(claims)
