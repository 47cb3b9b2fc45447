"""Plan and run: what shall be done with one event, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final, NamedTuple

import msgspec

from eventonce.rules.rule import Rule
from eventonce.types import Claim, Event, Job, Outcome, SettleResult

UNDECIDED: Final = Outcome(event=None, status="busy", reason="not decided yet")

Handler = Callable[[Job], Any]
"""The function that a user writes: a plain or an `async def` function of one job."""


class Deadline(NamedTuple):
    """The moment at which somebody will end this process."""

    at: float
    """By the monotonic clock."""
    lease: int
    """The milliseconds until then: what a fact's lease may last at most."""
    last_start: float
    """When a handler may begin at the latest, by the same clock."""


class Plan(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The decision about one event, made by the planner for every way in."""

    event: Event
    rule: Rule
    claim: Claim
    older: Sequence[Claim] = ()
    """Claims on the keys that older rules and secrets gave this event."""
    handler: Handler | None = None
    asynchronous: bool = False
    """Whether the handler must be awaited."""
    forgotten: str = ""
    """Why nobody can know whether this replayed event took effect, empty where the store can."""
    deliveries: float = inf
    """How often the transport delivers the event at the most: after that many attempts, counted or
    not, the event is lost unless it is kept."""
    deadline: Deadline | None = None
    covered: bool = False
    """Whether the first lease lasts until the deadline, and needs no renewal."""


class Refusal(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An event that no handler runs: invalid, or of a type that no handler takes."""

    outcome: Outcome
    raw: bytes
    """The bytes that a dead letter keeps of the event."""
    redact: Sequence[str] = ()
    """The paths of values that it does not keep."""


class Run(msgspec.Struct, eq=False):
    """One event between its claim and its outcome.

    A run has one owner at a time, who alone writes to it: the engine, then whoever runs the
    handler, then whoever settles. `lost` and `renewed` are the gate's.
    """

    plan: Plan
    claim: Claim
    """The plan's claim, as it is asked now: a later version of a subject has a nonce of its own."""
    token: int = 0
    attempt: int = 1
    spared: int = 0
    """Attempts that do not count towards giving up."""
    unguarded: str = ""
    """Why the handler runs without a token, empty if it has one."""
    shadowed: str = ""
    """The verdict that would have kept it from running, had its rule no `shadow`."""
    same_id: bool | None = None
    """Of a copy: whether the event it is a copy of had the same transport id; None for unknown."""
    traced: Handler | None = None
    """The handler with a span around it, where somebody traces."""
    job: Job | None = None
    """The job of the handler, once the handler was started."""
    finished: bool = False
    value: Any = None
    result: bytes | None = None
    """The value as it is kept for copies."""
    note: str = ""
    error: Exception | None = None
    blameless: bool = False
    """Whether the store or the network, and not the handler, raised the error."""
    letter_away: bool = False
    """Whether it was given up, and the place of its dead letter could not be reached."""
    in_transaction: bool = False
    """Whether its completion is part of the handler's own transaction: nobody else completes it."""
    kept: SettleResult | None = None
    """The result of the settlement, once the store has answered."""
    outcome: Outcome = UNDECIDED
    started: float = 0.0
    """When its handler began, by the monotonic clock; 0 while it waits."""
    took: float = 0.0
    """Seconds that its handler took."""
    renewed: float = 0.0
    """When the lease was granted or last renewed, by the monotonic clock; 0 while none is held."""
    lost: bool = False
    """Whether a renewal was refused: another run has taken over."""

    def start(self) -> Job:
        """The job for the handler, made when the handler is started."""
        plan = self.plan
        job = Job(plan.event, self.claim, plan.rule.name, self.token, self.attempt, lost=self.lost)
        self.job = job
        return job

    def lose(self) -> None:
        """Another run has taken over; the handler can ask."""
        self.lost = True
        if self.job is not None:
            self.job.lost = True
