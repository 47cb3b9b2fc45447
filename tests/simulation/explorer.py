"""A breadth-first walk through everything that can happen in a `world`, checking its promises.

The law is pure, so a state that is reached twice need not be walked from twice: what differs only
in the absolute time, or in tokens that compare alike, is one state.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import astuple

from tests.simulation.moves import calm, moves, without_faults
from tests.simulation.world import Broken, Law, Runtime, Scenario, State, begin

CALM_STEPS: Final = 200
"""Far more than a handful of events need: a run that is not done by then goes round in circles."""

LONG_PAST: Final = -1_000_000
"""Milliseconds; longer than the leases for which an older version waits, the furthest that any
promise looks back."""

_encode = msgspec.msgpack.Encoder().encode


class Found(NamedTuple):
    """How far the walk came, and the story of the first broken promise, if any."""

    states: int
    moves: int
    broken: str = ""
    story: tuple[str, ...] = ()


def explore(law: Law, scenario: Scenario) -> Found:
    """Walk through every state that can be reached; stop at the first broken promise."""
    world = Runtime(law, scenario)
    start = begin(scenario)
    key = _key(start)
    came: dict[bytes, tuple[bytes, str]] = {key: (b"", "")}
    ends_well: tuple[set[bytes], set[bytes]] = (set(), set())
    walk = deque([(key, start)])
    made = 0
    while walk:
        key, state = walk.popleft()
        try:
            for newest_first, known in enumerate(ends_well):
                _calm_down(world, state, known, newest_first=bool(newest_first))
            for label, after in moves(world, state):
                made += 1
                reached = _key(after)
                if reached not in came:
                    came[reached] = (key, label)
                    walk.append((reached, after))
        except Broken as broken:
            return Found(len(came), made, str(broken), _story(came, key))
    return Found(len(came), made)


def _calm_down(world: Runtime, state: State, known: set[bytes], *, newest_first: bool) -> None:
    """From here on nothing goes wrong: then all must end well, and soon."""
    after: State | None = without_faults(state)
    for _ in range(CALM_STEPS):
        if after is None:
            return
        key = _key(after)
        if key in known:
            return
        known.add(key)
        after = calm(world, after, newest_first=newest_first)
    raise Broken("nothing goes wrong any more, and still it does not end")


def _story(came: dict[bytes, tuple[bytes, str]], key: bytes) -> tuple[str, ...]:
    told = []
    while key:
        key, label = came[key]
        told.append(label)
    return tuple(reversed(told))[1:]


def _key(state: State) -> bytes:
    """The same for two states from which the same can happen."""
    now, record, ghost = state.now, state.record, state.ghost
    # What has passed has passed, unless the clock may still be set back.
    past = LONG_PAST if state.faults.back else 0
    tokens = {state.sink_token, ghost.top}
    tokens.update(worker.token for worker in state.workers)
    tokens.update(echo.token for echo in state.echoes)
    if record is not None:
        tokens.add(record.token)
    # A token's place among the others, and its distance to the clock while that still matters.
    place = {
        token: (index, max(0, token - now * 1000)) for index, token in enumerate(sorted(tokens))
    }
    kept: tuple[Any, ...] = ()
    if record is not None:
        token, attempt, nonce, held_until, expires, *rest = astuple(record)
        held = max(held_until - now, LONG_PAST)
        kept = (place[token], attempt, nonce, held, max(expires - now, past), rest)
    workers = []
    for worker in state.workers:
        version, phase, nonce, token, attempt, until, *rest = astuple(worker)
        workers.append((version, phase, nonce, place[token], attempt, max(until - now, past), rest))
    return _encode(
        (
            kept,
            workers,
            [
                (echo.version, echo.action, echo.nonce, place[echo.token], echo.latest)
                for echo in state.echoes
            ],
            (state.here, state.letters, state.faults, place[state.sink_token], state.sink),
            (place[ghost.top], max(ghost.held - now, past), max(ghost.remembered - now, past)),
            [(until > 0, max(until - now, past)) for until in (*ghost.settled, *ghost.buried)],
            (ghost.runs, ghost.gone, ghost.last, ghost.forgot),
        )
    )
