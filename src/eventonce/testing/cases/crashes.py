"""Crashes: a worker is gone at the worst moment, and the next one finds the store in order."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import count
from typing import Final

import msgspec

from eventonce.core.ledger import LONGEST_LEASE
from eventonce.core.ports import Store
from eventonce.testing.cases.samples import DAY, EPOCH, MINUTE, fact, new_keys, settlements, version
from eventonce.testing.factory import StoreFactory, opened
from eventonce.testing.workers import Log, Task, one_log, worker_to_kill
from eventonce.types import Claim, Settlement, Verdict

KILLS: Final = 3
BATCH: Final = 200
"""Runs settled in one call by the worker that is killed: enough that a kill falls into the call."""


def a_run_that_never_ends_is_taken_over_and_at_last_given_up(factory: StoreFactory) -> None:
    """A crash of a run that was alone counts: with two attempts the third ask finds it dead."""
    (key,) = new_keys(1)
    tokens = []
    for attempt in (1, 2):
        with opened(factory) as store:
            now = EPOCH + (attempt - 1) * MINUTE
            (run,) = store.claim([fact(key, attempts=2, alone=True)], now=now)
            assert (run.kind, run.attempt, run.wait) == ("run", attempt, MINUTE)
            assert run.alone == (attempt == 2)
            assert store.claim([fact(key, attempts=2)], now=now + MINUTE - 1)[0].kind == "busy"
            tokens.append(run.token)
    assert tokens == sorted(set(tokens))
    with opened(factory) as store:
        for now in (EPOCH + 2 * MINUTE, EPOCH + 3 * MINUTE):
            assert store.claim([fact(key, attempts=2)], now=now)[0].kind == "dead"
        (run,) = store.claim([fact(key, attempts=2, redrive=True)], now=EPOCH + 4 * MINUTE)
        assert (run.kind, run.attempt) == ("run", 1)


def a_run_that_shared_its_process_is_not_given_up_for_the_others_crash(
    factory: StoreFactory,
) -> None:
    """Nobody knows who ended the process, so the attempt is spared and the next run is alone."""
    (key,) = new_keys(1)
    with opened(factory) as store:
        for crash in range(4):
            (run,) = store.claim([fact(key, attempts=1)], now=EPOCH + crash * MINUTE)
            assert (run.kind, run.attempt, run.spared) == ("run", crash + 1, crash)
            assert run.alone == (crash > 0)
        again = fact(key, attempts=1)
        now = EPOCH + 4 * MINUTE
        (beside,) = store.claim([again], now=now)
        (alone,) = store.claim([msgspec.structs.replace(again, alone=True)], now=now + 1)
        assert (alone.kind, alone.token) == ("run", beside.token)
        assert store.claim([fact(key, attempts=1)], now=now + MINUTE)[0].kind == "dead"


def an_attempt_that_is_returned_does_not_count(factory: StoreFactory) -> None:
    """What the store or the network did to a run is not the event's attempt."""
    with opened(factory) as store:
        one, other = new_keys(2)
        claims = [fact(one, attempts=1), version(other, 3, attempts=1)]
        for times in range(3):
            runs = store.claim(claims, now=EPOCH)
            assert [(it.kind, it.attempt, it.spared) for it in runs] == [
                ("run", times + 1, times)
            ] * 2
            ended = settlements(claims, runs, "return")
            assert store.settle(ended, now=EPOCH) == ["kept", "kept"]
            assert store.settle(ended, now=EPOCH) == ["kept", "kept"], "its reply was lost"


def a_lease_granted_by_a_clock_that_was_ahead_is_cut_down(factory: StoreFactory) -> None:
    """A worker crashed while the clock was days ahead; then the clock was set right."""
    with opened(factory) as store:
        keys = new_keys(2)
        store.claim([fact(keys[0]), version(keys[1], 3)], now=EPOCH + 3 * DAY)
        ask = [fact(keys[0]), version(keys[1], 3)]
        for now, wait in ((EPOCH, LONGEST_LEASE), (EPOCH + MINUTE, LONGEST_LEASE - MINUTE)):
            verdicts = store.claim(ask, now=now)
            assert [(it.kind, it.wait) for it in verdicts] == [("busy", wait)] * 2
        runs = store.claim(ask, now=EPOCH + LONGEST_LEASE)
        assert [run.kind for run in runs] == ["run", "run"]


def a_run_that_lives_keeps_its_lease_though_the_clock_is_set_back(factory: StoreFactory) -> None:
    """Its renewals go by the clock as it is now."""
    with opened(factory) as store:
        (key,) = new_keys(1)
        claim = fact(key)
        (run,) = store.claim([claim], now=EPOCH + 3 * DAY)
        assert store.claim([fact(key)], now=EPOCH)[0].kind == "busy"
        for now in range(EPOCH, EPOCH + 2 * LONGEST_LEASE, LONGEST_LEASE // 2):
            assert store.settle([Settlement(claim, run.token, "extend")], now=now) == ["kept"]
            (other,) = store.claim([fact(key)], now=now)
            assert (other.kind, other.wait <= LONGEST_LEASE) == ("busy", True)


def a_worker_killed_after_its_claim_is_taken_over(factory: StoreFactory) -> None:
    """Its lease holds to the end, though it is dead; then the next one's attempt is the second."""
    keys = new_keys(3)
    with worker_to_kill(factory, _claim_and_hang, Task(0, keys, EPOCH)) as worker:
        held = next(worker.said())
    assert len(held.runs) == len(keys)
    with opened(factory) as store:
        early = store.claim([fact(key) for key in keys], now=EPOCH + MINUTE - 1)
        assert [verdict.kind for verdict in early] == ["busy"] * len(keys)
        claims = [fact(key) for key in keys]
        runs = store.claim(claims, now=EPOCH + MINUTE)
        assert [(run.kind, run.attempt, run.alone) for run in runs] == [("run", 2, True)] * len(
            keys
        )
        late = [Settlement(claim, verdict.token, "complete") for claim, verdict in held.runs]
        assert store.settle(late, now=EPOCH + MINUTE) == ["fenced"] * len(keys)


def a_worker_killed_after_its_effect_is_not_followed_by_an_older_version(
    factory: StoreFactory,
) -> None:
    """Version 3 may be applied, so 2 may not be: it waits, and 3 has the second attempt."""
    keys = new_keys(1)
    with worker_to_kill(factory, _claim_version_and_hang, Task(0, keys, EPOCH)) as worker:
        next(worker.said())
    with opened(factory) as store:
        (older,) = store.claim([version(keys[0], 2)], now=EPOCH + MINUTE)
        assert (older.kind, older.order) == ("busy", 3)
        claim = version(keys[0], 3)
        (again,) = store.claim([claim], now=EPOCH + MINUTE)
        assert (again.kind, again.attempt) == ("run", 2)
        assert store.settle([Settlement(claim, again.token, "complete")], now=EPOCH + MINUTE) == [
            "kept"
        ]
        (older,) = store.claim([version(keys[0], 2)], now=EPOCH + MINUTE)
        assert (older.kind, older.order) == ("stale", 3)


def an_older_version_waits_three_leases_and_is_then_given_up(factory: StoreFactory) -> None:
    """One for the run, one for its transport to bring it again, one for that second run."""
    (key,) = new_keys(1)
    with opened(factory) as store:
        assert store.claim([version(key, 3)], now=EPOCH)[0].kind == "run"
        for now, kind, wait in (
            (EPOCH + MINUTE, "busy", 3 * MINUTE),
            (EPOCH + 4 * MINUTE - 1, "busy", 1),
            (EPOCH + 4 * MINUTE, "dead", 0),
        ):
            (older,) = store.claim([version(key, 2)], now=now)
            assert (older.kind, older.wait, older.order) == (kind, wait, 3)
        (again,) = store.claim([version(key, 3)], now=EPOCH + 4 * MINUTE)
        assert (again.kind, again.attempt) == ("run", 2)


def a_worker_killed_at_any_moment_leaves_nothing_half_done(factory: StoreFactory) -> None:
    """What it was told is kept stays kept; what it held is held, and then taken over; no more."""
    chance = random.Random(1)
    for kill in range(KILLS):
        keys = new_keys(5 * BATCH)
        with worker_to_kill(factory, _work_without_end, Task(kill, keys, EPOCH)) as worker:
            said = worker.said()
            # The first claim and its settlement at least, or there would be nothing to look for.
            heard = [next(said) for _ in range(chance.randint(2, 5))]
            time.sleep(chance.random() * 0.02)
        _inspect(factory, keys, one_log([*heard, *worker.unread()]))


def _inspect(factory: StoreFactory, keys: tuple[bytes, ...], log: Log) -> None:
    done = {settlement.claim.key: settlement for settlement in log.completions}
    assert done
    with opened(factory) as store:
        verdicts = dict(zip(keys, store.claim(_peeks(keys), now=EPOCH), strict=True))
        assert {verdict.kind for verdict in verdicts.values()} <= {"run", "busy", "duplicate"}
        for key, settlement in done.items():
            assert verdicts[key].kind == "duplicate", "a completion that was kept is gone"
            assert verdicts[key].result == settlement.result
        for claim, _ in log.runs:
            assert verdicts[claim.key].kind != "run", "a grant that was given is gone"
        left = [key for key in keys if verdicts[key].kind != "duplicate"]
        claims = [fact(key) for key in left]
        # What the dead worker had sent may still have reached a server after the look.
        answers = list(zip(claims, store.claim(claims, now=EPOCH + MINUTE), strict=True))
        assert {verdict.kind for _, verdict in answers} <= {"run", "duplicate"}
        runs = [(claim, run) for claim, run in answers if run.kind == "run"]
        for claim, run in runs:
            assert run.attempt in ((2,) if verdicts[claim.key].kind == "busy" else (1, 2))
        ended = [_completed(claim, run) for claim, run in runs]
        assert set(store.settle(ended, now=EPOCH + MINUTE)) <= {"kept"}


def _peeks(keys: tuple[bytes, ...]) -> list[Claim]:
    return [Claim(key, 1, MINUTE, MINUTE, 1, peek=True) for key in keys]


def _completed(claim: Claim, run: Verdict) -> Settlement:
    return Settlement(claim, run.token, "complete", claim.key)


def _claim_and_hang(store: Store, task: Task) -> Iterator[Log]:
    claims = [fact(key) for key in task.keys]
    yield Log(asked=tuple(zip(claims, store.claim(claims, now=task.now), strict=True)))
    _hang()


def _claim_version_and_hang(store: Store, task: Task) -> Iterator[Log]:
    claims = [version(key, 3) for key in task.keys]
    yield Log(asked=tuple(zip(claims, store.claim(claims, now=task.now), strict=True)))
    _hang()


def _work_without_end(store: Store, task: Task) -> Iterator[Log]:
    for start in count(0, BATCH):
        claims = [fact(key) for key in task.keys[start : start + BATCH]]
        if not claims:
            break
        runs = store.claim(claims, now=task.now)
        yield Log(asked=tuple(zip(claims, runs, strict=True)))
        ended = [_completed(claim, run) for claim, run in zip(claims, runs, strict=True)]
        yield Log(settled=tuple(zip(ended, store.settle(ended, now=task.now), strict=True)))
    _hang()


def _hang() -> None:
    time.sleep(3_600)
