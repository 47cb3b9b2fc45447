"""The worlds the explorer walks through: each small enough to be walked whole."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from eventonce.types import Claim
from tests.simulation.world import START, Faults, Scenario

DAY: Final = 86_400_000
A, B, C = b"A", b"B", b"C"


def _fact(**terms: object) -> Claim:
    """Each worker is a process of its own with one event at a time, unless `alone` is not so."""
    return replace(Claim(b"key", 0, 60_000, 10 * DAY, 2, alone=True), **terms)


def _state(order: int, digest: bytes, **terms: object) -> Claim:
    return replace(_fact(order=order, digest=digest, at=START + order), **terms)


SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "a fact, and all that can go wrong",
            (_fact(),),
            2,
            Faults(crash=2, pause=1, lost=1, copy=1, fail=1),
        ),
        Scenario(
            "a fact that shares its process with others",
            (_fact(alone=False),),
            2,
            Faults(crash=2, pause=1, fail=1, spare=1),
        ),
        Scenario(
            "a fact that the store fails",
            (_fact(attempts=1),),
            2,
            Faults(crash=1, lost=1, copy=1, fail=1, spare=2),
        ),
        Scenario(
            "two versions that share their process with others",
            (_state(1, A, alone=False), _state(2, B, alone=False)),
            2,
            Faults(crash=1, fail=1, spare=1),
        ),
        Scenario(
            "a fact, and settlements that arrive late",
            (_fact(),),
            2,
            Faults(crash=1, pause=1, copy=1, fail=1, echo=1),
        ),
        Scenario(
            "a fact that is given up and redriven",
            (_fact(attempts=1),),
            2,
            Faults(crash=1, pause=1, lost=1, copy=1, fail=1, redrive=1),
        ),
        Scenario(
            "a fact that is remembered for half a second",
            (_fact(remember=500),),
            2,
            Faults(crash=1, pause=2, copy=2, fail=1),
        ),
        Scenario(
            "a fact with a sliding window",
            (_fact(remember=500, sliding=True),),
            2,
            Faults(crash=1, pause=3, copy=2),
        ),
        Scenario(
            "a lease longer than the memory",
            (_fact(remember=500, lease=2 * DAY),),
            2,
            Faults(crash=1, pause=2, lost=1, copy=2),
        ),
        Scenario(
            "a fact with contents that differ",
            (_fact(digest=A), _fact(digest=B)),
            2,
            Faults(crash=1, pause=1, copy=1, fail=1),
        ),
        Scenario(
            "two versions",
            (_state(1, A), _state(2, B)),
            2,
            Faults(crash=1, pause=1, lost=1, copy=1, fail=1),
        ),
        Scenario(
            "two versions, one of which may never come back",
            (_state(1, A), _state(2, B)),
            2,
            Faults(crash=2, pause=1, gone=1),
        ),
        Scenario(
            "two versions, and settlements that arrive late",
            (_state(1, A), _state(2, B)),
            2,
            Faults(crash=1, pause=1, echo=1, fail=1),
        ),
        Scenario(
            "two versions, and a clock that is set back",
            (_state(1, A), _state(2, B)),
            2,
            Faults(crash=1, pause=1, back=1, copy=1),
        ),
        Scenario(
            "three versions",
            (_state(1, A), _state(2, B), _state(3, C)),
            3,
            Faults(crash=1, pause=1, copy=1),
        ),
        Scenario(
            "a state that comes back",
            tuple(
                _state(order, digest, unchanged_within=500)
                for order, digest in ((1, A), (2, B), (3, A))
            ),
            2,
            Faults(crash=1, pause=1, copy=1, lost=1),
        ),
        Scenario(
            "the same state, too late by its own time",
            tuple(
                _state(order, A, at=START + at, unchanged_within=500)
                for order, at in ((1, 0), (2, 300), (3, 500))
            ),
            2,
            Faults(crash=1, pause=1, copy=1),
        ),
        Scenario(
            "a tie above an older version",
            (_state(1, C), _state(2, A), _state(2, B)),
            2,
            Faults(crash=1, pause=1, copy=1),
        ),
        Scenario(
            "a state that one version of a tie had",
            tuple(
                _state(order, digest, at=START, unchanged_within=500)
                for order, digest in ((1, A), (1, B), (2, A))
            ),
            2,
            Faults(crash=1, copy=1),
        ),
        Scenario(
            "a tie of which one is given up, hardly remembered",
            tuple(_state(2, digest, attempts=1, remember=500) for digest in (A, B)),
            2,
            Faults(pause=1, copy=1, fail=1, redrive=1),
        ),
        Scenario(
            "a poisoned version and its successor",
            (_state(1, A), _state(2, B)),
            1,
            Faults(crash=2, copy=2, fail=2, redrive=1),
        ),
    )
}
