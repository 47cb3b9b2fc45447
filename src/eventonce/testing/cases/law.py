"""The property test: for any program, the store answers like the law."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from eventonce.testing.cases.samples import DAY, EPOCH, MINUTE
from eventonce.testing.cases.steps import (
    RESULTS,
    Ask,
    AskAgain,
    Ending,
    Forget,
    Program,
    Settle,
    Step,
    Sweep,
    Wait,
    WaitFor,
    play,
)
from eventonce.testing.factory import StoreFactory, opened
from eventonce.types import MAX_ORDER, Claim

FACTS: Final = (b"f1", b"f2")
SUBJECTS: Final = (b"s1", b"s2")
LEASES: Final = (500, MINUTE, 2 * DAY)
"""Leases; the last is longer than some rules remember."""
WINDOWS: Final = (10 * DAY, 10 * DAY, MINUTE, 500, 250)
IDS: Final = (b"here", b"\x00\x00\x00\x00", b"")
DIGESTS: Final = (b"\x00" * 8, b"\x00" * 8, b"\x00" * 7 + b"\x01", b"\xff" * 16, b"")
"""Zero bytes and different lengths: a store that joins them must be able to separate them."""
TIE: Final = b"tie"
ORDERS: Final = (0, 1, 2, 3, -1, MAX_ORDER, -MAX_ORDER)
TIMES: Final = (EPOCH, EPOCH - DAY, 0)
WAITS: Final = (0, 1, 249, 250, 499, 500, MINUTE, 3 * MINUTE, -1, -5 * MINUTE, DAY, 10 * DAY)

Scene = Callable[[Sequence[Claim]], Iterable[Step]]
"""Steps with some claims of the deck."""


def _cards(key: bytes, rule: Claim, events: Iterable[Claim], within: int) -> list[Claim]:
    """Return a few events of one key by one rule: copies and versions that differ little."""
    claims = [
        replace(
            rule,
            key=key,
            by=event.by,
            digest=event.digest,
            order=event.order if key in SUBJECTS else None,
            at=event.at,
            unchanged_within=within,
        )
        for event in events
    ]
    return [card for claim in claims for card in (claim, *_relations(claim))]


def _relations(claim: Claim) -> Iterator[Claim]:
    """Yield versions that tie with this one, or have the same state a little later."""
    if claim.order is not None:
        yield replace(claim, digest=TIE)
        for later in (499, 500):
            yield replace(claim, order=min(claim.order + 1, MAX_ORDER), at=claim.at + later)


def _ask(picks: Iterable[int], settle: Settle | None, *, redrive: bool, peek: bool) -> Scene:
    def scene(deck: Sequence[Claim]) -> Iterable[Step]:
        claims = {claim.key: claim for claim in (deck[pick % len(deck)] for pick in picks)}
        yield Ask(tuple(replace(it, redrive=redrive, peek=peek) for it in claims.values()))
        if settle is not None:
            yield settle

    return scene


def _lapse(pick: int, wait: WaitFor, sweep: Sweep | None, settle: Settle | None) -> Scene:
    def scene(deck: Sequence[Claim]) -> Iterable[Step]:
        claim = deck[pick % len(deck)]
        yield Ask((claim,))
        yield replace(wait, key=claim.key)
        if sweep is not None:
            yield sweep
        yield settle or Ask((claim,))

    return scene


def _alone(step: Step) -> Scene:
    return lambda _: [step]


def _program(deck: Iterable[Iterable[Claim]], scenes: Iterable[Scene]) -> Program:
    cards = [claim for claims in deck for claim in claims]
    return [step for scene in scenes for step in scene(cards)]


# Every strategy is made once: Hypothesis checks those made while drawing again with every draw.
_seldom: Final = st.sampled_from((False,) * 9 + (True,))
_picks: Final = st.integers(0, 15)
_keys: Final = st.sampled_from(FACTS + SUBJECTS)
_rules: Final = st.builds(
    Claim,
    key=st.just(b""),
    nonce=st.just(0),
    lease=st.sampled_from(LEASES),
    remember=st.sampled_from(WINDOWS),
    attempts=st.sampled_from((1, 2, 3)),
    sliding=st.booleans(),
    alone=st.booleans(),
)
_events: Final = st.builds(
    Claim,
    *(st.just(it) for it in (b"", 0, 0, 0, 0)),
    by=st.sampled_from(IDS),
    digest=st.sampled_from(DIGESTS),
    order=st.sampled_from(ORDERS),
    at=st.sampled_from(TIMES),
)
_decks: Final = st.lists(
    st.builds(
        _cards,
        _keys,
        _rules,
        st.lists(_events, min_size=1, max_size=2),
        st.sampled_from((500, 0, DAY)),
    ),
    min_size=1,
    max_size=2,
)
_settles: Final = st.builds(
    Settle,
    st.lists(
        st.builds(
            Ending,
            st.sampled_from(
                ("complete", "complete", "complete", "release", "return", "bury", "extend")
            ),
            st.sampled_from((0, 0, 0, 0, 1, 2, 5)),
            st.sampled_from(tuple(RESULTS)),
            st.sampled_from((0,) * 8 + (-1, 1)),
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
)
_waits: Final = st.builds(
    WaitFor,
    _keys,
    st.sampled_from(("held_until", "held_until", "expires")),
    st.sampled_from((0, -1, 1)),
)
_sweeps: Final = st.builds(Sweep, st.sampled_from((1, 10, 1_000)))
_batches: Final = st.lists(_picks, min_size=1, max_size=3)
_runs: Final = st.builds(_ask, _batches, _settles, redrive=_seldom, peek=_seldom)
_scenes: Final = st.one_of(
    _runs,
    _runs,
    _runs,
    st.builds(_ask, _batches, st.none(), redrive=_seldom, peek=_seldom),
    st.builds(_lapse, _picks, _waits, st.none() | _sweeps, st.none() | _settles),
    st.builds(
        _alone,
        st.one_of(
            _settles,
            _settles,
            st.builds(Wait, st.sampled_from(WAITS)),
            _waits,
            st.builds(AskAgain, st.integers(0, 2)),
            _sweeps,
            st.builds(Forget, _keys),
        ),
    ),
)
programs: Final = st.builds(
    _program,
    _decks,
    st.lists(_scenes, min_size=1, max_size=8) | st.lists(_scenes, min_size=10, max_size=30),
)
"""Programs that use a few claims again and again, like copies."""


def every_answer_is_the_laws(factory: StoreFactory, *, shrink: bool = True) -> None:
    """The programs are the same each time: a random failure is rerun, not read.

    With `EVENTONCE_EXAMPLES` set, that many programs are played, and others each time.
    """
    asked_for = os.environ.get("EVENTONCE_EXAMPLES")
    with opened(factory) as store:

        @settings(
            max_examples=int(asked_for or factory.examples),
            derandomize=asked_for is None,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        )
        @given(programs)
        def answers_alike(program: Program) -> None:
            play(program, store)

        answers_alike()
