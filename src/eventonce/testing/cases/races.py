"""Races: many workers at once, each with its own handle, and never two winners."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from itertools import cycle
from typing import Final, get_args

from msgspec.structs import replace

from eventonce.core.ports import Store
from eventonce.testing.cases.samples import EPOCH, MINUTE, SECOND, fact, new_keys, version
from eventonce.testing.factory import StoreFactory, admin_of, opened
from eventonce.testing.workers import Log, Runner, Task, ticks
from eventonce.types import Action, Settlement

WORKERS: Final = 8
TICKS: Final = 100
"""The length of a race: two workers must meet inside a call, on a busy machine too."""
FEWEST_CALLS: Final = 40
"""The least calls of each worker, if a call takes longer than a tick."""
KEYS_PER_TICK: Final = 12
"""Keys that all workers claim at the same tick."""
TICK_LEASE: Final = 1
"""The lease in milliseconds, one tick: a run that is not settled by the next tick is taken over."""
MANY_ATTEMPTS: Final = 10**6
"""The attempts of a claim that must not be given up."""


def each_key_is_granted_once(factory: StoreFactory, runner: Runner) -> None:
    """All workers claim all keys at the same moment; one gets the run, the others get busy."""
    log = runner(factory, _claim_all, _tasks(new_keys(TICKS * KEYS_PER_TICK), EPOCH))
    _one_run_a_key(log)
    assert {verdict.kind for _, verdict in log.asked} == {"run", "busy"}


def each_key_is_taken_over_once(factory: StoreFactory, runner: Runner) -> None:
    """After the end of a lease, one worker gets the run; the former worker can no longer settle."""
    keys = new_keys(TICKS * KEYS_PER_TICK)
    dead = {key: fact(key) for key in keys}
    later = EPOCH + MINUTE
    with opened(factory) as store:
        held = dict(zip(keys, store.claim(list(dead.values()), now=EPOCH), strict=True))
        log = runner(factory, _claim_all, _tasks(keys, later))
        _one_run_a_key(log)
        assert {run.attempt for _, run in log.runs} == {2}
        assert all(run.token > held[claim.key].token for claim, run in log.runs)
        actions: Iterator[Action] = cycle(get_args(Action))
        taken = [claim.key for claim, _ in log.runs]
        late = [Settlement(dead[key], held[key].token, next(actions)) for key in taken]
        assert set(store.settle(late, now=later)) == {"fenced"}
        _complete_all(store, log, later)


def a_sweep_beside_the_work_drops_nothing_that_lives(factory: StoreFactory, runner: Runner) -> None:
    """An expired key is claimed while it is swept: the new run must not be deleted with the old
    record."""
    keys = new_keys(TICKS * KEYS_PER_TICK)
    claims = [fact(key, remember=SECOND) for key in keys]
    later = EPOCH + SECOND
    with opened(factory) as store:
        runs = store.claim(claims, now=EPOCH)
        _complete_all(store, Log(asked=tuple(zip(claims, runs, strict=True))), EPOCH)
        log = runner(factory, _claim_or_sweep, [Task(SWEEPER, keys, later), *_tasks(keys, later)])
        # A key that is being swept may be busy; it is free a moment later.
        missed = [fact(key) for key in keys if key not in {claim.key for claim, _ in log.runs}]
        again = tuple(zip(missed, store.claim(missed, now=later), strict=True))
        log = replace(log, asked=(*log.asked, *again))
        _one_run_a_key(log)
        _complete_all(store, log, later)


def no_fact_completes_twice(factory: StoreFactory, runner: Runner) -> None:
    """Workers complete, release, renew, crash and settle late, all at once."""
    log = runner(factory, _work_on_facts, _tasks(new_keys(4 + TICKS // 2), EPOCH))
    winners: dict[bytes, set[int]] = defaultdict(set)
    for settlement in log.completions:
        winners[settlement.claim.key].add(settlement.token)
    assert winners
    assert all(len(tokens) == 1 for tokens in winners.values())
    granted = [(claim.key, run.token) for claim, run in log.runs]
    assert len(granted) == len(set(granted)), "one token was given to two runs"
    for key, (token,) in winners.items():
        assert max(it for at, it in granted if at == key) == token, "an overtaken run completed"
    for claim, verdict in log.asked:
        if verdict.kind == "duplicate":
            (token,) = winners[claim.key]
            assert verdict.result == str(token).encode(), "a copy was served another's result"


def no_subject_goes_back(factory: StoreFactory, runner: Runner) -> None:
    """Versions race, and crash; ordered by tokens, runs never fall and completions always rise."""
    subjects = new_keys(4)
    log = runner(factory, _work_on_versions, _tasks(subjects, EPOCH))
    for subject in subjects:
        runs = {run.token: claim.order or 0 for claim, run in log.runs if claim.key == subject}
        granted = [order for _, order in sorted(runs.items())]
        assert granted == sorted(granted), "an older version ran after a newer one"
        done = {it.token: it.claim.order or 0 for it in log.completions if it.claim.key == subject}
        applied = [order for _, order in sorted(done.items())]
        assert applied == sorted(set(applied)), "a version was applied twice"


def _one_run_a_key(log: Log) -> None:
    asked = {claim.key for claim, _ in log.asked}
    assert len(log.runs) == len(asked)
    assert {claim.key for claim, _ in log.runs} == asked


def _complete_all(store: Store, log: Log, now: int) -> None:
    done = [Settlement(claim, run.token, "complete") for claim, run in log.runs]
    assert set(store.settle(done, now=now)) == {"kept"}


SWEEPER: Final = -1
"""The seed of the worker that sweeps."""


def _tasks(keys: tuple[bytes, ...], now: int) -> list[Task]:
    return [Task(seed, keys, now) for seed in range(WORKERS)]


def _moments() -> Iterator[int]:
    """Yield the ticks of one race."""
    end = None
    for calls, tick in enumerate(ticks()):
        end = tick + TICKS if end is None else end
        if calls >= FEWEST_CALLS and tick >= end:
            return
        yield tick


def _claim_all(store: Store, task: Task) -> Iterator[Log]:
    """Yield the keys of each tick; in some ticks all workers use the same order."""
    chance = random.Random(task.seed)
    for tick in _moments():
        keys = list(task.keys[tick % TICKS :: TICKS])
        if tick % 2:
            keys = list({*keys, chance.choice(task.keys)})
            chance.shuffle(keys)
        claims = [fact(key) for key in keys]
        yield Log(asked=tuple(zip(claims, store.claim(claims, now=task.now), strict=True)))


def _claim_or_sweep(store: Store, task: Task) -> Iterator[Log]:
    if task.seed != SWEEPER:
        yield from _claim_all(store, task)
    else:
        for _ in _moments():
            admin_of(store).sweep(2 * KEYS_PER_TICK, now=task.now)


def _work_on_facts(store: Store, task: Task) -> Iterator[Log]:
    """Half of the workers settle before they claim: at the end of a lease both holders meet."""
    chance = random.Random(task.seed)
    mine: list[Settlement] = []
    for tick in _moments():
        now = task.now + tick
        # New keys are added, because the old ones are soon done.
        first = tick % TICKS // 2
        keys = chance.sample(task.keys[first : first + 4], 2)
        claims = [fact(key, lease=TICK_LEASE, attempts=MANY_ATTEMPTS) for key in keys]
        ending = {it.claim.key: it for it in mine[-3:] if chance.random() < 0.5}
        batch = [_ended(it, chance) for it in ending.values()]
        if task.seed % 2:
            answers = store.settle(batch, now=now)
            verdicts = store.claim(claims, now=now)
        else:
            verdicts = store.claim(claims, now=now)
            answers = store.settle(batch, now=now)
        mine.extend(
            Settlement(claim, verdict.token, "complete", str(verdict.token).encode())
            for claim, verdict in zip(claims, verdicts, strict=True)
            if verdict.kind == "run"
        )
        yield Log(
            asked=tuple(zip(claims, verdicts, strict=True)),
            settled=tuple(zip(batch, answers, strict=True)),
        )


def _ended(run: Settlement, chance: random.Random) -> Settlement:
    action = chance.choice(("complete", "complete", "release", "extend"))
    return replace(run, action=action)


def _work_on_versions(store: Store, task: Task) -> Iterator[Log]:
    chance = random.Random(task.seed)
    for tick in _moments():
        now = task.now + tick
        # A newer version with every tick, with copies and older ones among them.
        claims = [
            version(key, tick - chance.randrange(6), lease=TICK_LEASE)
            for key in chance.sample(task.keys, 2)
        ]
        verdicts = store.claim(claims, now=now)
        batch = [
            Settlement(claim, verdict.token, "complete")
            for claim, verdict in zip(claims, verdicts, strict=True)
            if verdict.kind == "run" and chance.random() < 0.5
        ]
        yield Log(
            asked=tuple(zip(claims, verdicts, strict=True)),
            settled=tuple(zip(batch, store.settle(batch, now=now), strict=True)),
        )
