"""The fast paths of the Lua scripts, each at its limits, compared with the law.

Most claims and settlements are answered without unpacking a record; the contract suite's random
programs seldom reach the millisecond or the byte at which a script must leave its fast path.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import pytest
from msgspec.structs import replace

from eventonce.core.ledger import UNSETTLED
from eventonce.stores.redis import RedisStore
from eventonce.testing.cases.samples import DAY, MINUTE, SECOND
from eventonce.testing.cases.steps import Ask, Ending, Forget, Program, Settle, Wait, WaitFor, play
from eventonce.types import Action, Claim
from tests.servers.valkey import serving

FACT: Final = b"f1"
STATE: Final = b"s1"
ACTIONS: Final[tuple[Action, ...]] = ("complete", "release", "bury", "extend")


@pytest.fixture(scope="module")
def store() -> Iterator[RedisStore]:
    with serving() as node:
        store = RedisStore.from_uri(node.uri)
        yield store
        store.close()


def _fact(**terms: Any) -> Ask:
    return Ask((replace(Claim(FACT, 0, MINUTE, 10 * DAY, 3, b"here"), **terms),))


def _state(order: int, digest: bytes, **terms: Any) -> Ask:
    claim = Claim(STATE, 0, MINUTE, 10 * DAY, 3, digest=digest, order=order)
    return Ask((replace(claim, **terms),))


def _end(action: Action = "complete", *, ago: int = 0, result: bytes | None = None) -> Settle:
    return Settle((Ending(action, ago, "every byte" if result else "nothing"),))


def test_copies_of_a_completed_fact_follow_the_law(store: RedisStore) -> None:
    """Every form of a completed fact and every kind of copy, before, at and after its end."""
    ids, contents = (b"here", b"there", b""), (b"", b"A-------", b"B")
    for by, other, digest, another in product(ids, ids, contents, contents):
        for result, remember, off in product((b"", b"result"), (10 * DAY, 500), (-1, 0, 1)):
            play(
                [
                    _fact(by=by, digest=digest, remember=remember),
                    _end(result=result),
                    _fact(by=other, digest=another, remember=remember),
                    WaitFor(FACT, "expires", off),
                    _fact(by=other, digest=another, remember=remember),
                    Forget(FACT),
                ],
                store,
            )


def test_sliding_windows_follow_the_law(store: RedisStore) -> None:
    """A copy extends the time for which a fact is remembered, and never shortens it."""
    for digest, result, remember, later in product(
        (b"", b"A-------"), (b"", b"result"), (10 * DAY, 500, SECOND), (1, 499, DAY)
    ):
        first = _fact(digest=digest, remember=remember, sliding=True)
        shorter = _fact(digest=digest, remember=remember // 2, sliding=True)
        play(
            [first, _end(result=result), Wait(later), first, Wait(1), shorter, Wait(1), first],
            store,
        )


def test_runs_of_every_length_follow_the_law(store: RedisStore) -> None:
    """A fact has the short form only if its life is a number of days and little more."""
    for run, remember in product(
        (0, 1, 65_535, 65_536, 65_537, 10 * MINUTE),
        (DAY, 127 * DAY, 128 * DAY, 10 * DAY + 65_535, 10 * DAY + 65_536, DAY - 1, 1),
    ):
        ask = _fact(remember=remember, lease=20 * MINUTE)
        play([ask, Wait(run), _end(), _end(), ask, WaitFor(FACT, "expires", -1), ask], store)


def test_takeovers_within_a_millisecond_follow_the_law(store: RedisStore) -> None:
    """Tokens that are no whole milliseconds must be returned unchanged."""
    for times, run in product(range(1, 3), (0, 1)):
        tries = [step for _ in range(times) for step in (_fact(), _end("release"))]
        ran = (_fact(), _end("extend"), Wait(run), _end())
        play([*tries, *ran, _fact(), _end(ago=1), _end()], store)


def test_a_run_that_was_overtaken_settles_nothing(store: RedisStore) -> None:
    for action in ACTIONS:
        ended = WaitFor(FACT, "held_until")
        play([_fact(), ended, _fact(), _end(action, ago=1), _end(), _end(action, ago=1)], store)


@pytest.mark.parametrize("end", ["held_until", "expires"])
@pytest.mark.parametrize("action", ACTIONS)
def test_settlements_at_the_end_of_a_lease_or_record_follow_the_law(
    store: RedisStore, action: Action, end: str
) -> None:
    """Leases that are shorter and longer than the memory, for facts and for states."""
    for lease, remember, off, which in product(
        (500, MINUTE, 30 * DAY), (250, MINUTE, 10 * DAY), (-1, 0, 1), (True, False)
    ):
        ask, key = (
            (_fact(lease=lease, remember=remember), FACT)
            if which
            else (_state(1, b"A", lease=lease, remember=remember), STATE)
        )
        held = WaitFor(key, "held_until" if end == "held_until" else "expires", off)
        play([ask, held, _end(action), ask, _end("extend"), _end(action), ask], store)


def test_runs_during_which_the_clock_is_set_back_follow_the_law(store: RedisStore) -> None:
    for ask in (_fact(), _state(1, b"A")):
        for action in ACTIONS:
            play(
                [ask, Wait(-5 * SECOND), _end("extend"), _end(action), ask, Wait(MINUTE), ask],
                store,
            )


def test_a_version_given_up_beside_a_version_of_the_same_order_is_remembered_for_a_day(
    store: RedisStore,
) -> None:
    a, b = _state(1, b"A", remember=SECOND), _state(1, b"B", remember=SECOND)
    program: Program = [a, _end("bury"), b, _end(), a, WaitFor(STATE, "expires", -1), a, b]
    play(program, store)
    play([a, _end("bury"), b, _end(), Wait(UNSETTLED - 1), a, Wait(1), a], store)


def test_batches_with_mixed_terms_follow_the_law(store: RedisStore) -> None:
    """Terms that change from claim to claim, and back, in one call."""
    claims = tuple(
        Claim(
            b"%02d" % n,
            0,
            (MINUTE, SECOND)[n % 2],
            (10 * DAY, MINUTE, 500)[n % 3],
            3,
            (b"here", b"", b"elsewhere")[n % 3],
            n % 5 == 0,
            (b"", b"A", b"B-------")[n % 3],
            (None, n % 4)[n % 2],
            n,
            (0, 500)[n % 2],
        )
        for n in range(40)
    )
    ends = tuple(
        Ending(
            ("complete", "extend", "release", "bury", "complete")[n % 5],
            n,
            ("nothing", "every byte")[n % 2],
        )
        for n in range(40)
    )
    play(
        [
            Ask(claims),
            Settle(ends),
            Ask(claims),
            Wait(SECOND),
            Ask(claims),
            Settle(ends),
            Ask(claims),
        ],
        store,
    )
