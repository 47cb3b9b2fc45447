"""The two verbs as calls: their order, their size, and any bytes in them."""

from __future__ import annotations

import random
from itertools import count, product
from typing import Final

from eventonce.clock import wall_clock
from eventonce.testing.cases.samples import (
    DAY,
    EPOCH,
    EVERY_BYTE,
    HOUR,
    fact,
    new_keys,
    settlements,
    version,
)
from eventonce.testing.factory import StoreFactory, opened
from eventonce.types import Settlement

MANY_CLAIMS: Final = 1_000
"""Claims in one call: as many as the command line reads at once."""


def an_empty_batch_has_no_answers(factory: StoreFactory) -> None:
    """An empty call returns nothing and raises nothing."""
    with opened(factory) as store:
        assert store.claim([], now=EPOCH) == []
        assert store.settle([], now=EPOCH) == []


def answers_come_in_the_order_asked(factory: StoreFactory) -> None:
    """However the store sorts its keys, answer n is the answer to claim n."""
    with opened(factory) as store:
        claims = [fact(key) for key in new_keys(60)]
        runs = store.claim(claims, now=EPOCH)
        ended = settlements(claims, runs, results=(b"%d" % place for place in count()))
        random.Random(1).shuffle(ended)
        wrong = {ending.claim.key for ending in ended[::3]}
        answers = store.settle(
            [
                Settlement(it.claim, it.token + (it.claim.key in wrong), it.action, it.result)
                for it in ended
            ],
            now=EPOCH,
        )
        expected = ["fenced" if it.claim.key in wrong else "kept" for it in ended]
        assert answers == expected

        asked = [(fact(it.claim.key), it) for it in reversed(ended)]
        verdicts = store.claim([claim for claim, _ in asked], now=EPOCH)
        for verdict, (_, it) in zip(verdicts, asked, strict=True):
            if it.claim.key in wrong:
                assert verdict.kind == "busy"
            else:
                assert (verdict.kind, verdict.result) == ("duplicate", it.result)


def a_thousand_claims_fit_in_one_call(factory: StoreFactory) -> None:
    """And so do their settlements, and their copies."""
    with opened(factory) as store:
        claims = [fact(key) for key in new_keys(MANY_CLAIMS)]
        runs = store.claim(claims, now=EPOCH)
        assert {run.kind for run in runs} == {"run"}
        ended = settlements(claims, runs)
        assert store.settle(ended, now=EPOCH) == ["kept"] * MANY_CLAIMS
        copies = store.claim([fact(claim.key) for claim in claims], now=EPOCH)
        assert [copy.kind for copy in copies] == ["duplicate"] * MANY_CLAIMS


def any_sixteen_bytes_are_a_key(factory: StoreFactory) -> None:
    """Zero bytes, signs and line ends too; keys that differ in one byte are two keys."""
    telling = (b"\x00", b" ", b"%", b"\n", b"'", b"\x7f", b"\x80", b"\xff")
    with opened(factory) as store:
        (middle,) = new_keys(1)
        keys = [first + middle[1:-1] + last for first, last in product(telling, telling)]
        claims = [fact(key) for key in keys]
        runs = store.claim(claims, now=EPOCH)
        assert [run.kind for run in runs] == ["run"] * len(keys)
        ended = settlements(claims, runs, results=keys)
        assert store.settle(ended, now=EPOCH) == ["kept"] * len(keys)
        copies = store.claim([fact(key) for key in keys], now=EPOCH)
        assert [copy.result for copy in copies] == keys


def a_result_comes_back_as_it_was_given(factory: StoreFactory) -> None:
    """None is not empty, and every byte is kept."""
    results = [None, b"", b"\x00", EVERY_BYTE, EVERY_BYTE * 256]
    with opened(factory) as store:
        claims = [fact(key) for key in new_keys(5)] + [version(key, 1) for key in new_keys(5)]
        runs = store.claim(claims, now=EPOCH)
        expected = results * 2
        ended = settlements(claims, runs, results=expected)
        assert store.settle(ended, now=EPOCH) == ["kept"] * len(ended)
        copies = store.claim(claims, now=EPOCH + DAY)
        assert [copy.result for copy in copies] == expected


def one_bad_claim_does_not_spoil_its_batch(factory: StoreFactory) -> None:
    """An order that no store can hold is the error of that claim, or is held; the others run."""
    with opened(factory) as store:
        first, bad, last = new_keys(3)
        claims = [fact(first), version(bad, 2**70), version(last, 1)]
        verdicts = store.claim(claims, now=EPOCH)
        assert [verdict.kind for verdict in verdicts[::2]] == ["run", "run"]
        assert verdicts[1].kind in {"run", "error"}
        assert (verdicts[1].kind == "error") == (verdicts[1].error is not None)
        ended = settlements(claims[::2], verdicts[::2])
        assert store.settle(ended, now=EPOCH) == ["kept", "kept"]


def without_an_instant_the_stores_clock_decides(factory: StoreFactory) -> None:
    """Milliseconds since the epoch; within an hour of our clock."""
    with opened(factory) as store:
        (key,) = new_keys(1)
        claim = fact(key, lease=DAY)
        before = wall_clock()
        (run,) = store.claim([claim])
        assert run.wait == DAY
        assert abs(run.token // 1000 - before) < HOUR
        assert store.settle([Settlement(claim, run.token, "extend")]) == ["kept"]
        assert store.claim([fact(key, lease=DAY)])[0].kind == "busy"
        assert store.settle([Settlement(claim, run.token, "complete")]) == ["kept"]
        assert store.claim([fact(key)])[0].kind == "duplicate"


def the_next_handle_finds_what_the_last_one_left(factory: StoreFactory) -> None:
    """A handle holds nothing back: what it answered is in the store."""
    done, held, freed = (fact(key) for key in new_keys(3))
    with opened(factory) as store:
        runs = store.claim([done, held, freed], now=EPOCH)
        ended = [
            Settlement(done, runs[0].token, "complete", b"result"),
            Settlement(freed, runs[2].token, "release"),
        ]
        assert store.settle(ended, now=EPOCH) == ["kept", "kept"]
    with opened(factory) as store:
        verdicts = store.claim([fact(it.key) for it in (done, held, freed)], now=EPOCH)
        assert [verdict.kind for verdict in verdicts] == ["duplicate", "busy", "run"]
        assert verdicts[0].result == b"result"
        assert verdicts[2].attempt == 2
        assert verdicts[2].token > runs[2].token
