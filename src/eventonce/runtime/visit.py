"""The visit of a batch to this process, whoever drives it: its place beside others, the leases it
holds, and how long its copies may wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from eventonce.core.engine import Batch, Execute, Request, Wait, done
from eventonce.core.plan import Plan, Refusal, Run
from eventonce.errors import EventonceError
from eventonce.runtime.gate import Hold
from eventonce.runtime.occupancy import HERE, INSIDE
from eventonce.types import Outcome, SettleResult, Verdict

if TYPE_CHECKING:
    from eventonce.runtime.runtime import Runtime

PAUSES: Final = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Seconds before the store is asked again for a key that another process holds."""

AT_ONCE: Final = 0.001
"""Seconds before the store is asked again for a key whose run has just ended."""


class CopyWait(msgspec.Struct, frozen=True, gc=False):
    """Seconds that a copy may wait for the run it is a copy of, before it is `busy`."""

    here: float
    """Seconds for a run of this process."""
    elsewhere: float = 0.0
    """Seconds for a run of another process, which must be asked for."""


class Visit(Batch):
    """One batch in this process."""

    requests: Generator[Request, Any, list[Outcome]] | None = None
    """The steps, once they are begun."""
    hold: Hold | None = None
    straight = False
    """Whether a lone event is on the way of nearly all of them: it is granted, returns and is
    settled. That way is the engine's own, without its requests, which cost as much as all else."""
    answered: Sequence[Any] = ()
    """The answers to the first requests of the engine, for an event that left the straight way."""
    outcomes: list[Outcome] | None = None
    """The outcomes of all events, once they are known."""
    _waits_since = 0.0

    def __init__(
        self, runtime: Runtime, planned: Sequence[Plan | Refusal], copy_wait: CopyWait
    ) -> None:
        Batch.__init__(self, planned, runtime.name, runtime.clock)
        self.runtime = runtime
        self._copy_wait = copy_wait
        self.nested = INSIDE.get()
        """Whether a handler waits for this batch."""

    def admitted(self) -> bool:
        """Whether the batch could enter beside others at once, or has entered already."""
        return bool(self.answered) or HERE.admit(self)

    def begins_straight(self) -> bool:
        """Whether the straight way is open to this batch, and it has entered it."""
        if len(self.runs) != 1 or len(self._planned) != 1:
            return False
        plan = self.runs[0].plan
        if plan.older or plan.claim.peek or plan.asynchronous or not self.admitted():
            return False
        self.straight = True
        return True

    def leaves_straight(self, answer: Any) -> None:
        """The event needs the engine, which goes on after this answer."""
        self.straight = False
        self.answered = [*self.answered, answer]

    def granted(self, verdicts: Sequence[Verdict]) -> bool:
        """Whether the run may begin, and nothing else is to be seen to."""
        verdict = verdicts[0]
        if verdict.kind != "run" or verdict.alone:
            self.leaves_straight(verdicts)
            return False
        run = self.runs[0]
        run.token, run.attempt = verdict.token, verdict.attempt
        self.answered = (verdicts,)
        self.execute(self.runs)
        return True

    def completes(self) -> bool:
        """Whether the handler has returned, and there is nothing but its completion."""
        run = self.runs[0]
        self.straight = run.error is None and run.kept is None
        return self.straight

    def completed(self, answers: Sequence[SettleResult]) -> bool:
        """Whether the completion was kept: then this is the end."""
        if answers[0] != "kept":
            self.leaves_straight(answers)
            return False
        run = self.runs[0]
        run.outcome = done(run)
        self.leave(self.runs)
        self.outcomes = [run.outcome]
        return True

    def replays(self, request: Request) -> bool:
        """Whether this request was carried out on the straight way."""
        return bool(self.answered) or (type(request) is Execute and self.hold is not None)

    def replay(self, request: Request) -> Any:
        """The answer that is known; raised if it is an error."""
        if type(request) is Execute:
            return None
        answer, *self.answered = self.answered
        if isinstance(answer, EventonceError):
            raise answer
        return answer

    def entering(self, *, alone: bool) -> Generator[None, None, bool | None]:
        """Yields while the batch must wait for others of this process; then the answer."""
        return HERE.entering(self, alone=alone, nested=self.nested)

    def execute(self, runs: Sequence[Run]) -> None:
        """Keep the leases of these runs, until the round is at its end."""
        # Ours before it is the gate's: it is let go, whatever comes in between.
        self.hold = hold = Hold(runs)
        self.runtime.gate.keep(hold)

    def wait(self, wanted: Wait, wake: Callable[[], None]) -> float:
        """The seconds after which the store is asked again, 0 for never; `wake` is called when it
        may be asked earlier."""
        if self.nested:
            # The run that it would wait for may be the very one that asks.
            return 0.0
        gate, keys = self.runtime.gate, [claim.key for claim in wanted.claims]
        now = time.monotonic()
        self._waits_since = self._waits_since or now
        waited = now - self._waits_since
        left = max(0.0, self._copy_wait.here - waited)
        if sum(gate.when_ended(key, wake) for key in keys):
            return left
        if gate.ran_beside(wanted.claims):
            return min(AT_ONCE, left)
        pause = PAUSES[min(wanted.times, len(PAUSES) - 1)]
        return min(pause, max(0.0, self._copy_wait.elsewhere - waited))

    def interrupted(self) -> None:
        """Complete what has returned, free the rest, and leave."""
        try:
            self.runtime.gate.salvage(self.runs)
        finally:
            # Perhaps once more, and to its end.
            self.leave(self.runs)

    def leave(self, runs: Sequence[Run]) -> None:
        """The round is at its end: what was granted is settled."""
        self.runtime.gate.let_go(self.hold, [run.claim for run in runs])
        self.hold = None
        HERE.leave(self)
