"""A worker dies at the worst moment, or its clock is hours off, and the next worker finds the store
in order: leases end by the store's time, and tokens keep runs apart.

A store with a server uses the clock of its server, and no worker's clock. An embedded store has
only the clock of the machine, which all its workers share; if that clock jumps, a lease may end
early, and the token then keeps the two runs apart.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Final
from unittest.mock import patch

from eventonce.core.ports import Store
from eventonce.testing.cases.samples import EPOCH, HOUR, MINUTE, fact, new_keys, version
from eventonce.testing.factory import StoreFactory, opened
from eventonce.testing.workers import Log, Task, one_log, worker_to_kill
from eventonce.types import Claim, Settlement, Verdict

KILLS: Final = 3
BATCH_RUNS: Final = 200
"""Runs settled in one call by the worker that is killed: so many that a kill falls into the
call."""

ASK_INTERVAL: Final = 0.1
"""Seconds between two claims of records that a server may still write: the `wait` of a faulty store
may be long."""

LAST_CALL: Final = 60.0
"""Seconds that a server may need for the last call of a dead worker."""


def a_worker_killed_after_its_claim_is_taken_over(factory: StoreFactory) -> None:
    """The lease of a dead worker holds to its end; then the attempt of the next worker is the
    second."""
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
    """Version 3 may be applied, so 2 must not be: it waits, and 3 has the second attempt."""
    keys = new_keys(1)
    with worker_to_kill(factory, partial(_claim_and_hang, order=3), Task(0, keys, EPOCH)) as worker:
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


def a_worker_killed_at_any_moment_leaves_nothing_half_done(factory: StoreFactory) -> None:
    """Every settlement that the worker saw kept stays kept; the keys that it held are held, and
    then taken over; nothing else changes."""
    chance = random.Random(1)
    for kill in range(KILLS):
        keys = new_keys(5 * BATCH_RUNS)
        with worker_to_kill(factory, _work_without_end, Task(kill, keys, EPOCH)) as worker:
            said = worker.said()
            # At least the first claim and its settlement, so that there is something to check.
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
        left = [fact(key) for key in keys if verdicts[key].kind != "duplicate"]
        # A call of the dead worker may still reach a server after this check.
        answers = _after_the_last_call(store, left)
        assert {verdict.kind for verdict in answers} <= {"run", "duplicate"}
        runs = [(claim, run) for claim, run in zip(left, answers, strict=True) if run.kind == "run"]
        for claim, run in runs:
            assert run.attempt in ((2,) if verdicts[claim.key].kind == "busy" else (1, 2))
        ended = [_completed(claim, run) for claim, run in runs]
        assert set(store.settle(ended, now=EPOCH + MINUTE)) <= {"kept"}


def _after_the_last_call(store: Store, claims: Sequence[Claim]) -> list[Verdict]:
    """Return the verdicts once the leases have ended. A server may still write the last call of the
    dead worker: a record that it writes is busy for a moment. The same claims get the same grants
    when they are asked again."""
    end = time.monotonic() + LAST_CALL
    while True:
        verdicts = store.claim(claims, now=EPOCH + MINUTE)
        if all(verdict.kind != "busy" for verdict in verdicts) or time.monotonic() > end:
            return verdicts
        time.sleep(ASK_INTERVAL)


def _peeks(keys: tuple[bytes, ...]) -> list[Claim]:
    return [Claim(key, 1, MINUTE, MINUTE, 1, peek=True) for key in keys]


def _completed(claim: Claim, run: Verdict) -> Settlement:
    return Settlement(claim, run.token, "complete", claim.key)


def _claim_and_hang(store: Store, task: Task, order: int | None = None) -> Iterator[Log]:
    claims = [fact(key, order=order) for key in task.keys]
    yield Log(asked=tuple(zip(claims, store.claim(claims, now=task.now), strict=True)))
    _hang()


def _work_without_end(store: Store, task: Task) -> Iterator[Log]:
    for start in count(0, BATCH_RUNS):
        claims = [fact(key) for key in task.keys[start : start + BATCH_RUNS]]
        if not claims:
            break
        runs = store.claim(claims, now=task.now)
        yield Log(asked=tuple(zip(claims, runs, strict=True)))
        ended = [_completed(claim, run) for claim, run in zip(claims, runs, strict=True)]
        yield Log(settled=tuple(zip(ended, store.settle(ended, now=task.now), strict=True)))
    _hang()


def _hang() -> None:
    time.sleep(3_600)


def a_worker_whose_clock_is_ahead_completes_no_others_run(factory: StoreFactory) -> None:
    """Two hours ahead, a worker would see a lease of one hour end early, by its own clock."""
    _two_workers(factory, ahead=2 * HOUR)


def a_worker_whose_clock_is_behind_completes_no_others_run(factory: StoreFactory) -> None:
    """Two hours behind, a worker would see a live lease last longer, by its own clock."""
    _two_workers(factory, ahead=-2 * HOUR)


def _two_workers(factory: StoreFactory, ahead: int) -> None:
    with opened(factory) as right, opened(factory) as wrong:
        (key,) = new_keys(1)
        first, second = fact(key, lease=HOUR), fact(key, lease=HOUR)
        (run,) = right.claim([first])
        with machine_clock_off_by(ahead):
            (other,) = wrong.claim([second])
            if other.kind == "run":
                assert ahead > 0, "a clock that is behind took a live lease"
                assert not factory.own_clock, "a worker's clock ended a lease of the server's"
                assert other.token > run.token
            else:
                assert other.kind == "busy"
        ended = right.settle([Settlement(first, run.token, "complete")])
        if other.kind == "run":
            with machine_clock_off_by(ahead):
                ended += wrong.settle([Settlement(second, other.token, "complete")])
            assert ended == ["fenced", "kept"]
        else:
            assert ended == ["kept"]


@contextmanager
def machine_clock_off_by(ms: int) -> Iterator[None]:
    """Shift the clock of this process."""
    now, now_ns = time.time, time.time_ns
    with (
        patch("time.time", lambda: now() + ms / 1_000),
        patch("time.time_ns", lambda: now_ns() + ms * 1_000_000),
    ):
        yield
