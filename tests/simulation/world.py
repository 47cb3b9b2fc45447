"""The nouns of the world around one record: workers, a transport, a clock, a sink, their faults.

`moves` says what may happen in it, `promises` what must hold, `explorer` walks through all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from eventonce.types import Action, Claim, Settlement, SettleResult, Verdict

START: Final = 1_764_000_000_000
"""An epoch time: small integers would hide a token that does not follow the clock."""

T = TypeVar("T")

Phase = Literal[
    "asking", "running", "applied", "completing", "failing", "returning", "burying", "writing"
]
"""`asking`: its claim's reply was lost. `completing`: its completion's was. `writing`: a letter."""


class Broken(AssertionError):
    """A promise was broken."""


class Law(NamedTuple):
    """The two functions under test: an argument, so that a broken law can be tried."""

    judge: Callable[[Any, Claim, int], tuple[Verdict, Any]]
    settle: Callable[[Any, Settlement, int], tuple[SettleResult, Any]]


class Faults(msgspec.Struct, frozen=True, array_like=True):
    """How often each thing may still go wrong."""

    crash: int = 0
    """A worker is gone; its transport brings the event again."""
    pause: int = 0
    """Time passes although a worker has work; an event that outlives its lease comes again."""
    lost: int = 0
    """The store wrote, but its reply did not arrive: the worker asks or settles again."""
    copy: int = 0
    """The transport brings what it has delivered already."""
    fail: int = 0
    """The handler raises, before or after its effect."""
    spare: int = 0
    """The store or the network ends a run: no attempt of the event's."""
    redrive: int = 0
    """A dead letter is run again."""
    echo: int = 0
    """A settlement is sent, and arrives (again) at any later time."""
    gone: int = 0
    """The transport loses an event, and owes it no longer."""
    back: int = 0
    """The clock is set back by a lease."""


class Scenario(NamedTuple):
    """The deliveries, the number of workers, and the faults that may occur."""

    name: str
    versions: tuple[Claim, ...]
    """All on one key: the copies of a fact, or the versions of a subject."""
    workers: int
    faults: Faults


class Worker(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A worker on a version, and the parts of its grant that it holds."""

    version: int
    phase: Phase
    nonce: int
    token: int = 0
    attempt: int = 0
    until: int = 0
    latest: bool = False
    """Whether no other run was granted since."""
    redrive: bool = False
    forgotten: bool = False
    """Whether it slept until its key was forgotten: its place is no longer known."""


class Echo(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A settlement under way."""

    version: int
    action: Action
    nonce: int
    token: int
    latest: bool


class Ghost(msgspec.Struct, frozen=True):
    """The memory of the promises, apart from the law."""

    top: int
    """The highest token granted."""
    held: int
    """When the lease of the latest run ends."""
    running: int
    """The version whose run is the latest and not settled yet; -1 for none."""
    remembered: int
    """Until when the key must be known."""
    settled: tuple[int, ...]
    """Until when each version must count as settled; 0 if it never was."""
    buried: tuple[int, ...]
    """Until when each version must count as given up; 0 if it was not."""
    runs: tuple[int, ...]
    """How often each version was granted since it was last settled, given up or forgotten."""
    spared: tuple[int, ...]
    """How many of these were ended by something else than the event."""
    gone: tuple[bool, ...]
    last: int
    """The version completed last; -1 for none."""
    forgot: bool
    """Whether the key was ever forgotten: what came before has then lost its order."""


class State(msgspec.Struct, frozen=True):
    """Everything there is at one instant."""

    now: int
    record: Any
    here: tuple[bool, ...]
    """Which versions the transport would deliver now."""
    letters: tuple[bool, ...]
    workers: tuple[Worker, ...]
    echoes: tuple[Echo, ...]
    faults: Faults
    sink_token: int
    """The sink refuses a write with a lower token than it has seen."""
    sink: int
    """The version it holds; -1 for none, or for one that is no longer remembered."""
    ghost: Ghost


class Runtime(NamedTuple):
    """One scenario under one law."""

    law: Law
    scenario: Scenario


def begin(scenario: Scenario) -> State:
    """Everything is on its way, nothing has arrived."""
    some = len(scenario.versions)
    ghost = Ghost(
        top=0,
        held=0,
        running=-1,
        remembered=0,
        settled=(0,) * some,
        buried=(0,) * some,
        runs=(0,) * some,
        spared=(0,) * some,
        gone=(False,) * some,
        last=-1,
        forgot=False,
    )
    return State(
        now=START,
        record=None,
        here=(True,) * some,
        letters=(False,) * some,
        workers=(),
        echoes=(),
        faults=scenario.faults,
        sink_token=0,
        sink=-1,
        ghost=ghost,
    )


def put(items: tuple[T, ...], places: tuple[int, ...], value: T) -> tuple[T, ...]:
    """The items, with this value in these places."""
    return tuple(value if place in places else item for place, item in enumerate(items))
