"""A running batch, inline or in stages: its steps, its entry into the process, the leases that it
holds, and how long its copies may wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from eventonce.core.engine import Batch, Steps, Wait
from eventonce.core.plan import Handler, Plan, Refusal, Run
from eventonce.runtime.gate import LeasedRuns, is_overdue
from eventonce.runtime.shared_process import INSIDE_HANDLER, THIS_PROCESS
from eventonce.types import Claim, Outcome

if TYPE_CHECKING:
    from eventonce.runtime.runtime import Runtime

PAUSES: Final = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Seconds before the store is asked again for a key that another process holds."""

AT_ONCE: Final = 0.001
"""Seconds before the store is asked again for a key whose run has just ended."""


class Trace(Protocol):
    """The spans of one batch. Its methods do not raise."""

    def inside(self, run: Run) -> AbstractContextManager[None]:
        """Return a block for the handler of this run: calls inside it become part of the trace."""
        ...

    def around(self, run: Run) -> Handler | None:
        """Return the handler of this run, called within `inside`."""
        ...

    def end(self, outcomes: Sequence[Outcome] | None) -> None:
        """End the trace with these outcomes; None if the batch was interrupted."""
        ...


class Tracer(Protocol):
    """A tracer of batches."""

    def begin(self, planned: Sequence[Plan | Refusal]) -> Trace | None:
        """Begin the trace of a batch, in the context of its caller; None if it is not traced."""
        ...


class CopyWait(msgspec.Struct, frozen=True, gc=False):
    """Seconds that a copy may wait for the run it is a copy of, before it is `busy`."""

    here: float
    """Seconds for a run of this process."""
    elsewhere: float = 0.0
    """Seconds for a run of another process; the store is asked again and again."""


class RunningBatch:
    """One batch that runs in this process, inline or in stages; the `HostProcess` of its steps."""

    steps: Steps[list[Outcome]] | None = None
    """The engine's requests, each of which is sent its answer."""
    leased: LeasedRuns | None = None
    outcomes: list[Outcome] | None = None
    """The outcomes of all events, once they are known."""
    trace: Trace | None = None
    _waits_since = 0.0

    def __init__(
        self, runtime: Runtime, planned: Sequence[Plan | Refusal], copy_wait: CopyWait
    ) -> None:
        self._batch = batch = Batch(planned, runtime.name, runtime.clock)
        self.runs = batch.runs
        self.runtime = runtime
        self._copy_wait = copy_wait
        self.called_in = INSIDE_HANDLER.get()
        """The mark of the handler that this batch is called in, False for none."""
        self.nested = self.called_in is not False
        """Whether a handler waits for this batch."""
        if runtime.tracer is not None:
            self.trace = trace = runtime.tracer.begin(planned)
            if trace is not None:
                for run in self.runs:
                    run.traced = trace.around(run)

    def begin(self) -> Steps[list[Outcome]]:
        """Begin the engine's steps, which refer to this object until they have ended."""
        self.steps = steps = self._batch.steps(self)
        return steps

    def enter(self) -> bool:
        """Enter beside others, if no wait is needed; return whether the batch entered."""
        return THIS_PROCESS.enter(self)

    def entering(self, *, alone: bool) -> Generator[None, None, bool | None]:
        """Yield while the batch waits for others of this process; return whether it is alone."""
        return THIS_PROCESS.entering(self, alone=alone, nested=self.nested)

    def execute(self, runs: Sequence[Run]) -> None:
        """Renew the leases of these runs until the round ends."""
        # Stored before `renew`: `leave` lets it go, even if a signal comes in between.
        self.leased = leased = LeasedRuns(runs)
        self.runtime.gate.renew(leased)

    def wait(self, wanted: Wait, wake: Callable[[], None]) -> float:
        """Return the seconds after which the store is asked again, 0 for never; `wake` is called
        when it may be asked earlier."""
        if self.nested:
            # The other run may be that of the handler which waits for this batch.
            return 0.0
        gate, keys = self.runtime.gate, [claim.key for claim in wanted.claims]
        now = time.monotonic()
        self._waits_since = self._waits_since or now
        waited = now - self._waits_since
        left = max(0.0, self._copy_wait.here - waited)
        timeouts = [run.plan.rule.timeout / 1000 for run in self.runs if run.plan.rule.timeout]
        if not (timeouts and self._overdue(keys, now)):
            if sum(gate.when_ended(key, wake) for key in keys):
                # By then the run is overdue, unless it has waited for a slot.
                return min([left, *(max(PAUSES[-1], timeout) for timeout in timeouts)])
            if gate.was_busy_here(wanted.claims):
                return min(AT_ONCE, left)
        pause = PAUSES[min(wanted.times, len(PAUSES) - 1)]
        return min(pause, max(0.0, self._copy_wait.elsewhere - waited))

    def _overdue(self, keys: Sequence[bytes], now: float) -> bool:
        """Whether the runs of these keys in this process are all overdue: they may never end."""
        held = [run for run in self.runtime.gate.held() if run.claim.key in keys]
        return bool(held) and all(not run.finished and is_overdue(run, now) for run in held)

    def inside(self, run: Run) -> AbstractContextManager[None]:
        """Return a block for a handler that is the body of a `with`, and no function."""
        return nullcontext() if self.trace is None else self.trace.inside(run)

    def end(self, outcomes: list[Outcome]) -> None:
        """Keep the outcomes of all events, and end the trace."""
        self.outcomes = outcomes
        if self.trace is not None:
            self.trace.end(outcomes)

    def result(self) -> list[Outcome]:
        """Return the outcomes, after `end`."""
        assert self.outcomes is not None
        return self.outcomes

    def interrupted(self) -> None:
        """Settle the finished runs, free the others, and leave."""
        try:
            self.runtime.gate.salvage(self.runs)
        finally:
            # Also if the engine began to leave: it may have been interrupted.
            self.leave([run.claim for run in self.runs])
        # Last: a second interruption here costs no more than a span.
        if self.trace is not None:
            self.trace.end(None)

    def leave(self, claims: Sequence[Claim]) -> None:
        """Let go the leases, and leave the process: the granted runs are settled."""
        self.runtime.gate.let_go(self.leased, claims)
        self.leased = None
        THIS_PROCESS.leave(self)
