"""Histories: clients call at the same moments, are paused and killed, and the law explains all.

Every call is recorded with its times, and every key's operations are then put in an order in which
the law gives each of the store's answers (`linearizability`). Some scenes name the instant of each
call, so that the law's answer is exact; the others leave it to the store's own clock.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from msgspec.structs import replace

from eventonce.clock import wall_clock
from eventonce.core.ports import Transactional, offers
from eventonce.testing.cases.samples import (
    DAY,
    EPOCH,
    SECOND,
    fact,
    new_keys,
    version,
)
from eventonce.testing.clients import Call, Client, ProcessClient, ThreadClient
from eventonce.testing.factory import StoreFactory, opened
from eventonce.testing.recorder import EVENTS, TURN_LEAD, Calls, Recorder, Run
from eventonce.testing.workers import SWITCH_INTERVAL
from eventonce.types import Action, Claim, Settlement

CLIENTS: Final = 4
"""The clients of a round; two of them are killed at its end."""
SHARED_KEYS: Final = 6
"""Keys that the clients of one scene share."""
VOLLEYS: Final = 5
"""How often in a scene all clients call at one moment: with more, the search for an order of a
key's operations takes longer; more keys find more."""
SHORT_LEASE: Final = 25
"""The lease in milliseconds, if the store's clock ends it: a few calls, so that they meet its
end."""
BRIEF: Final = 0.25
"""Seconds for which a transaction locks a record that others wait for."""
LONG: Final = 5.0
"""The same, at most, if others do not wait for ever: a server skips a locked record after a while,
and the transaction ends as soon as they have their answers."""
MOST_ROUNDS: Final = 20
"""Rounds in which each of `EVENTS` must occur; the first one should have them all."""

ACTIONS: Final[Sequence[Action]] = (
    *("complete", "complete", "complete"),
    *("release", "release", "extend", "extend", "bury"),
)


Scene = Callable[[Recorder], None]


def every_history_of_processes_is_linearizable(factory: StoreFactory) -> None:
    """Processes race, are paused for longer than a lease, and are killed in the middle of calls."""
    _play(factory, _processes)


def every_history_of_threads_is_linearizable(factory: StoreFactory) -> None:
    """Threads race, on their own handles and on a shared one; replies are lost."""
    _play(factory, _threads)


Cast = Callable[[StoreFactory, ExitStack], Sequence[Client]]
"""A function that starts the clients of a round."""


def _play(factory: StoreFactory, cast: Cast) -> None:
    """Play as many rounds as `EVENTONCE_HISTORIES` says; `EVENTONCE_SEED` draws others."""
    rounds = int(os.environ.get("EVENTONCE_HISTORIES", "1"))
    seed = int(os.environ.get("EVENTONCE_SEED", "1"))
    reached: set[str] = set()
    with opened(factory) as store:
        transactional = offers(store, Transactional)
    for number in range(max(rounds, MOST_ROUNDS)):
        if number >= rounds and reached >= EVENTS:
            return
        scenes = [one_instant, races_at_given_instants, races, a_paused_client]
        if transactional and not number % 10:
            scenes.append(long_transactions)
        scenes.append(killed_clients)
        with ExitStack() as stack:
            chance = random.Random(f"{seed}/{number}")
            clients = cast(factory, stack)
            recorder = Recorder(
                clients, chance, served=factory.own_clock, transactional=transactional
            )
            recorder.read_clocks()
            for scene in scenes:
                scene(recorder)
            try:
                recorder.history.check()
            except AssertionError as error:
                error.add_note(f"EVENTONCE_SEED={seed}, round {number}")
                raise
            reached |= recorder.history.reached
    assert reached >= EVENTS, f"{sorted(EVENTS - reached)} never seen in {MOST_ROUNDS} rounds"


def _processes(factory: StoreFactory, stack: ExitStack) -> Sequence[Client]:
    clients = []
    for i in range(CLIENTS):
        clients.append(ProcessClient(f"client {i}", factory))
        stack.callback(clients[i].kill)
    for client in clients:
        client.worker.ready()
    return clients


def _threads(factory: StoreFactory, stack: ExitStack) -> Sequence[Client]:
    stack.callback(sys.setswitchinterval, sys.getswitchinterval())
    sys.setswitchinterval(SWITCH_INTERVAL)
    own, shared = stack.enter_context(opened(factory)), stack.enter_context(opened(factory))
    clients = [ThreadClient(f"client {i}", shared if i else own) for i in range(CLIENTS)]
    for client in clients:
        stack.callback(client.kill)
    return clients


def one_instant(recorder: Recorder) -> None:
    """A run is freed and taken over within a millisecond; its former holder is refused."""
    keys = new_keys(SHARED_KEYS)
    first, *others = recorder.clients
    recorder.alone(first, _claims(keys, EPOCH))
    recorder.together(others, lambda: _claims(keys, EPOCH))
    held = recorder.granted(first, keys)
    recorder.alone(first, _settles(held, "release", EPOCH))
    recorder.together(others, lambda: _claims(keys, EPOCH))
    recorder.play(
        {
            first: [_settles(held, "complete", EPOCH)],
            **{it: [_settles(recorder.granted(it, keys), "extend", EPOCH)] for it in others},
        }
    )
    _completed_by_all(recorder, keys, EPOCH)


def races_at_given_instants(recorder: Recorder) -> None:
    """Every client has its own clock, and claims use all fields."""
    now, keys = EPOCH, new_keys(SHARED_KEYS)
    for _ in range(VOLLEYS):
        now += recorder.chance.choice((0, 1, SECOND - 1, SECOND, SECOND, 3 * SECOND))
        instants = {it: now + recorder.chance.choice((-1, 0, 0, 1)) for it in recorder.clients}
        recorder.play({it: _turn(recorder, it, keys, at) for it, at in instants.items()})


def races(recorder: Recorder) -> None:
    """The store's clock decides, and leases end while calls are in flight."""
    keys = new_keys(SHARED_KEYS)
    for _ in range(VOLLEYS):
        turns = {client: _turn(recorder, client, keys, None) for client in recorder.clients}
        held = recorder.granted(None, keys)
        moment = 0.0
        if held and recorder.chance.random() < 0.7:
            # At the end of one of their leases, by the clock that ends it.
            until = recorder.chance.choice(held).until - recorder.ahead
            late = recorder.chance.choice((-0.3, 0.0, 0.3))
            moment = time.monotonic() + (until - wall_clock() + late) / SECOND
        recorder.play(turns, moment)


def a_paused_client(recorder: Recorder) -> None:
    """A client is paused between its calls, and once in the middle of them, until others took
    over."""
    keys, more = new_keys(SHARED_KEYS), new_keys(SHARED_KEYS)
    first, *others = recorder.clients
    recorder.alone(first, _claims(keys), _claims(more))
    held = recorder.granted(first, keys + more)
    with _paused(first):
        recorder.over(held)
        recorder.together(others, lambda: _claims(keys))
    recorder.play(
        {it: [_settles(recorder.granted(it, keys), "complete")] for it in recorder.clients}
    )
    late = recorder.granted(first, more)

    def pause() -> None:
        time.sleep(TURN_LEAD + recorder.chance.random() * 2 * TURN_LEAD)
        with _paused(first):
            # Not until the others are done: an embedded store may be locked as long.
            time.sleep(2 * SHORT_LEASE / SECOND)

    claimed = _claims(keys), _settles(late, "complete"), _claims(more)
    turns: Calls = {first: claimed, **{it: [_claims(more), _claims(keys)] for it in others}}
    recorder.play(turns, meanwhile=pause)
    _completed_by_all(recorder, more)


@contextmanager
def _paused(client: Client) -> Iterator[None]:
    """Pause a process; a thread is not paused."""
    if isinstance(client, ProcessClient):
        client.worker.pause()
    try:
        yield
    finally:
        if isinstance(client, ProcessClient):
            client.worker.go_on()


def killed_clients(recorder: Recorder) -> None:
    """One client dies after a call, with its answer; one at any moment of its claim or completion.
    Their answers stay true, and calls without an answer took effect or did not."""
    *rest, lost, killed = recorder.clients
    keys, more = new_keys(SHARED_KEYS), new_keys(SHARED_KEYS)
    recorder.alone(lost, _claims(keys), _claims(more))
    third = SHARED_KEYS // 3
    held = recorder.granted(lost, keys)
    recorder.alone(lost, _settles(held[:third], "complete"))
    recorder.alone(lost, replace(_settles(held[third : 2 * third], "complete"), lost=True))
    recorder.clients = rest
    _taken_over(recorder, keys, held)
    mine = new_keys(SHARED_KEYS)
    recorder.alone(killed, _claims(mine))
    held = recorder.granted(killed, mine)
    calls: tuple[Call, ...] = (_settles(held, "complete"), _claims(more))
    if recorder.transactional and recorder.chance.random() < 0.5:
        calls = (_commit(held[:1], 2 * TURN_LEAD), *calls)

    def kill() -> None:
        time.sleep(TURN_LEAD + recorder.chance.random() * 2 * TURN_LEAD)
        if isinstance(killed, ProcessClient):
            killed.kill()

    recorder.play({killed: calls}, meanwhile=kill)
    _taken_over(recorder, mine + more, recorder.granted(None, mine + more))


def long_transactions(recorder: Recorder) -> None:
    """A commit outlasts its lease: other clients wait meanwhile, or get busy."""
    first, second, third, fourth = recorder.clients
    (brief,), (long,), (other,) = new_keys(1), new_keys(1), new_keys(1)
    recorder.alone(first, _claims((brief,)))
    recorder.alone(second, _claims((long,)))
    recorder.over(recorder.granted(None, (brief, long)))
    recorder.alone(third, Call("claim", (fact(other, lease=int(BRIEF * SECOND * 0.8)),)))
    commits = {
        first: [_commit(recorder.granted(first, (brief,)), BRIEF)],
        # In an embedded store the others wait for the whole transaction, whatever it locks.
        second: [_commit(recorder.granted(second, (long,)), LONG if recorder.served else BRIEF)],
    }
    begun = recorder.begin(commits)
    for client in commits:
        client.held()
    # The third claims a locked key together with a key whose lease ends while it waits.
    recorder.play({third: [_claims((brief, other))], fourth: [_claims((long,))]})
    for client in commits:
        client.release()
    recorder.gather(commits, begun)
    recorder.over(recorder.granted(None, (other,)))
    _completed_by_all(recorder, (brief, long, other))


def _commit(runs: Sequence[Run], hold: float) -> Call:
    return replace(_settles(runs, "complete"), verb="commit", hold=hold)


def _claims(keys: Sequence[bytes], now: int | None = None) -> Call:
    return Call("claim", tuple(fact(key, lease=SHORT_LEASE) for key in keys), now)


def _settles(runs: Sequence[Run], action: Action, now: int | None = None) -> Call:
    return Call("settle", tuple(run.settled(action) for run in runs), now)


def _taken_over(recorder: Recorder, keys: Sequence[bytes], held: Sequence[Run]) -> None:
    """By the others, before and after the leases of the dead clients end."""
    recorder.together(recorder.clients, lambda: _claims(keys))
    recorder.over(held)
    _completed_by_all(recorder, keys)


def _completed_by_all(recorder: Recorder, keys: Sequence[bytes], now: int | None = None) -> None:
    recorder.together(recorder.clients, lambda: _claims(keys, now))
    recorder.play(
        {it: [_settles(recorder.granted(it, keys), "complete", now)] for it in recorder.clients}
    )
    recorder.together(recorder.clients, lambda: _claims(keys, now))


def _turn(recorder: Recorder, client: Client, keys: Sequence[bytes], now: int | None) -> list[Call]:
    """Return the turn of one client in a volley: it claims some keys, and settles some runs."""
    chance = recorder.chance
    mine = {run.claim.key: run for run in recorder.granted(client, keys)}
    claims: list[Claim] = []
    ends: list[Settlement] = []
    for i, key in enumerate(keys):
        run = mine.get(key)
        drawn = chance.random()
        if run and drawn < 0.4:
            ends.append(run.settled(chance.choice(ACTIONS)))
        elif run and drawn < 0.5:
            claims.append(run.claim)  # its reply may have been lost: the same claim again
        elif drawn < 0.9:
            claims.append(_claim(chance, key, state=i % 2 == 1, exact=now is not None))
    calls = [Call("claim", tuple(claims), now), Call("settle", tuple(ends), now)]
    chance.shuffle(calls)
    return calls


def _claim(chance: random.Random, key: bytes, *, state: bool, exact: bool) -> Claim:
    lease = SECOND if exact else SHORT_LEASE
    remember = chance.choice((10 * DAY, 10 * DAY, 2 * SECOND)) if exact else 10 * DAY
    digest = chance.choice((b"", b"one", b"two"))
    if state:
        claim = version(
            key, chance.randrange(4), lease=lease, remember=remember, attempts=3, digest=digest
        )
        claim = replace(claim, unchanged_within=chance.choice((0, SECOND)))
    else:
        claim = fact(key, lease=lease, remember=remember, attempts=3, digest=digest)
    return replace(
        claim,
        by=chance.choice((b"", b"here", b"there")),
        sliding=chance.random() < 0.2,
        redrive=chance.random() < 0.1,
        peek=chance.random() < 0.1,
    )
