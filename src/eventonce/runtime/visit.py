"""One batch in this process, inline or in stages: its place beside others, the leases it holds, and
how long its copies may wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from eventonce.core.engine import Batch, Request, Wait
from eventonce.core.plan import Handler, Plan, Refusal, Run
from eventonce.runtime.gate import Hold
from eventonce.runtime.shared_process import INSIDE_HANDLER, THIS_PROCESS
from eventonce.types import Outcome

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

    def begin(self, planned: Sequence[Plan | Refusal], runs: Sequence[Run]) -> Trace | None:
        """Begin the trace of a batch, in the context of its caller; None if it is not traced."""
        ...


class CopyWait(msgspec.Struct, frozen=True, gc=False):
    """Seconds that a copy may wait for the run it is a copy of, before it is `busy`."""

    here: float
    """Seconds for a run of this process."""
    elsewhere: float = 0.0
    """Seconds for a run of another process; the store is asked again and again."""


class Visit(Batch):
    """One batch in this process."""

    requests: Generator[Request, Any, list[Outcome]] | None = None
    """The requests of the engine, once it has begun."""
    hold: Hold | None = None
    outcomes: list[Outcome] | None = None
    """The outcomes of all events, once they are known."""
    trace: Trace | None = None
    _waits_since = 0.0

    def __init__(
        self, runtime: Runtime, planned: Sequence[Plan | Refusal], copy_wait: CopyWait
    ) -> None:
        Batch.__init__(self, planned, runtime.name, runtime.clock)
        self.runtime = runtime
        self._copy_wait = copy_wait
        self.around = INSIDE_HANDLER.get()
        """The mark of the handler that this batch is called from, False for none."""
        self.nested = self.around is not False
        """Whether a handler waits for this batch."""
        if runtime.tracer is not None:
            self.trace = trace = runtime.tracer.begin(planned, self.runs)
            if trace is not None:
                for run in self.runs:
                    run.traced = trace.around(run)

    def admitted(self) -> bool:
        """Whether the batch could enter beside others at once."""
        return THIS_PROCESS.enter(self)

    def entering(self, *, alone: bool) -> Generator[None, None, bool | None]:
        """Yield while the batch waits for others of this process; return whether it is alone."""
        return THIS_PROCESS.entering(self, alone=alone, nested=self.nested)

    def execute(self, runs: Sequence[Run]) -> None:
        """Renew the leases of these runs until the round ends."""
        # Stored before `keep`: `leave` lets it go, even if a signal comes in between.
        self.hold = hold = Hold(runs)
        self.runtime.gate.keep(hold)

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
        if sum(gate.when_ended(key, wake) for key in keys):
            return left
        if gate.was_busy_here(wanted.claims):
            return min(AT_ONCE, left)
        pause = PAUSES[min(wanted.times, len(PAUSES) - 1)]
        return min(pause, max(0.0, self._copy_wait.elsewhere - waited))

    def inside(self, run: Run) -> AbstractContextManager[None]:
        """Return a block for a handler that is the body of a `with`, and no function."""
        return nullcontext() if self.trace is None else self.trace.inside(run)

    def interrupted(self) -> None:
        """Settle the finished runs, free the others, and leave."""
        try:
            self.runtime.gate.salvage(self.runs)
        finally:
            # Also if the engine began to leave: it may have been interrupted.
            self.leave(self.runs)
        # Last: a second interruption here costs no more than a span.
        if self.trace is not None:
            self.trace.end(None)

    def leave(self, runs: Sequence[Run]) -> None:
        """End the round: the granted runs are settled."""
        self.runtime.gate.let_go(self.hold, [run.claim for run in runs])
        self.hold = None
        THIS_PROCESS.leave(self)
