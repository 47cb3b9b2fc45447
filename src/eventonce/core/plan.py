"""Plan and run: the decision about one event, and its way to the outcome."""

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
    """The moment at which this process will be ended."""

    at: float
    """The moment, by the monotonic clock."""
    lease: int
    """The milliseconds until then: the longest lease of a fact."""
    last_start: float
    """When a handler may begin at the latest, by the same clock."""


class Plan(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The decision about one event, made by the planner for every way in."""

    event: Event
    rule: Rule
    claim: Claim
    older: Sequence[Claim] = ()
    """Claims on the keys that this event has under older rules and secrets."""
    handler: Handler | None = None
    asynchronous: bool = False
    """Whether the handler must be awaited."""
    forgotten: str = ""
    """Why it cannot be known whether this replayed event took effect; empty if the store knows."""
    deliveries: float = inf
    """The most deliveries of the event by its transport: after that many attempts, counted or not,
    the event is lost unless it is kept as a dead letter."""
    deadline: Deadline | None = None
    covered: bool = False
    """Whether the first lease lasts until the deadline, and needs no renewal."""


class Refusal(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An event that no handler runs: invalid, or of a type that no handler takes."""

    outcome: Outcome
    raw: bytes
    """The bytes that a dead letter keeps of the event."""
    redact: Sequence[str] = ()
    """The paths of values that the dead letter does not keep."""


class Run(msgspec.Struct, eq=False):
    """One event between its claim and its outcome.

    A run has one owner at a time, and only the owner writes to it: the engine, then the slot that
    runs the handler, then the stage that settles. The gate writes `lost`, `stalled` and `renewed`.
    """

    plan: Plan
    claim: Claim
    """The plan's claim; in a batch, a later version of a subject gets another nonce."""
    token: int = 0
    attempt: int = 1
    spared: int = 0
    """Attempts that do not count towards giving up."""
    suspect: bool = False
    """Whether the run holds its lease and waits to be claimed again, alone: an earlier run ended
    with its process."""
    unguarded: str = ""
    """Why the handler runs without a token; empty if the run has one."""
    shadowed: str = ""
    """The verdict that would prevent the run if the rule had no `shadow`."""
    same_id: bool | None = None
    """Of a copy: whether the first event had the same transport id; None for unknown."""
    traced: Handler | None = None
    """The handler with a span around it, if the batch is traced."""
    job: Job | None = None
    """The job of the handler, once the handler was started."""
    finished: bool = False
    value: Any = None
    result: bytes | None = None
    """The value as it is kept for copies."""
    note: str = ""
    error: Exception | None = None
    blameless: bool = False
    """Whether the attempt does not count: the store, the network or a cancelled caller ended it."""
    letter_away: bool = False
    """Whether the event was given up, and the place of its dead letter could not be reached."""
    in_transaction: bool = False
    """Whether the completion is part of the handler's own transaction, and of no other call."""
    kept: SettleResult | None = None
    """The result of the settlement, once the store has answered."""
    outcome: Outcome = UNDECIDED
    started: float = 0.0
    """When the handler began, by the monotonic clock; 0 while the run waits."""
    took: float = 0.0
    """Seconds that the handler took."""
    renewed: float = 0.0
    """When the lease was granted or last renewed, by the monotonic clock; 0 while none is held."""
    lost: bool = False
    """Whether a renewal was refused: another run has taken over."""
    stalled: bool = False
    """Whether a renewal was left out before the handler began, because its event loop was stopped:
    another run may have taken over."""

    def start(self) -> Job:
        """Make the job for the handler, when the handler is started."""
        plan = self.plan
        job = Job(plan.event, self.claim, plan.rule.name, self.token, self.attempt, lost=self.lost)
        self.job = job
        return job

    def lose(self) -> None:
        """Note that another run has taken over; the handler can read it from its job."""
        self.lost = True
        if self.job is not None:
            self.job.lost = True
