"""A batch in the caller's thread: for Lambda, scripts, the command line and `with` blocks."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from threading import Event
from typing import TYPE_CHECKING, Any, cast

from eventonce.core.engine import Ask, Enter, Execute, Keep, Request, Settle, Wait
from eventonce.core.outcomes import settlement
from eventonce.core.plan import Run
from eventonce.errors import EventonceError
from eventonce.runtime.gate import Hold
from eventonce.runtime.invoke import invoke
from eventonce.runtime.shared_process import ENTER_INTERVAL, INSIDE_HANDLER
from eventonce.runtime.visit import Visit
from eventonce.types import Outcome

if TYPE_CHECKING:
    from eventonce.runtime.on_asyncio import Asynchronous


class Inline(Visit):
    """One batch: plain handlers run one after the other, async handlers side by side on a loop."""

    def process(self, asynchronous: Asynchronous | None = None) -> list[Outcome]:
        """Bring every event to its outcome; `asynchronous` runs the async handlers."""
        try:
            while (request := self.until_executed()) is not None:
                self._run(request.runs, asynchronous)
        except BaseException:
            # The interrupted code may be just before or after a handler.
            INSIDE_HANDLER.set(self.around)
            self.interrupted()
            raise
        return self.result()

    def result(self) -> list[Outcome]:
        """Return the outcomes, after `until_executed` has returned None."""
        assert self.outcomes is not None
        return self.outcomes

    def until_executed(self) -> Execute | None:
        """Perform requests until handlers must run; return None at the end. A caller that gets an
        exception, or stops before the end, calls `interrupted`."""
        steps = self.requests
        if steps is None:
            steps = self.requests = self.steps()
        try:
            request = steps.send(None)
            while type(request) is not Execute:
                try:
                    answer = self._perform(request)
                except EventonceError as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
            self.execute(request.runs)
        except StopIteration as stop:
            self.outcomes = cast("list[Outcome]", stop.value)
            if self.trace is not None:
                self.trace.end(self.outcomes)
            return None
        return request

    def _run(self, runs: Sequence[Run], asynchronous: Asynchronous | None) -> None:
        hold = self.hold
        assert hold is not None
        # `process` resets this if a signal interrupts.
        INSIDE_HANDLER.set(True)
        if asynchronous is None:
            self._one_by_one(runs, hold)
        else:
            awaited = [run for run in runs if run.plan.asynchronous]
            plain = [run for run in runs if not run.plan.asynchronous]
            asynchronous.run(awaited, hold, lambda: self._one_by_one(plain, hold))
        INSIDE_HANDLER.set(self.around)
        if hold.shared:
            self.runtime.gate.unsettled(hold)

    def _one_by_one(self, runs: Sequence[Run], hold: Hold) -> None:
        transactions = self.runtime.transactions
        for run in runs:
            invoke(run, transactions)
            hold.finished.append(run)

    def _perform(self, request: Request) -> Any:
        runtime = self.runtime
        match request:
            case Ask():
                return runtime.gate.claim(request.claims)
            case Settle():
                settlements = [settlement(run) for run in request.runs]
                return runtime.gate.settle(settlements, runtime.pauses)
            case Enter():
                return self._entered(alone=request.alone)
            case Keep():
                return runtime.letters.put_letters(request.letters)
            case Wait():
                woken = Event()
                # A wait would block this loop, and the other run may be a block on the same loop.
                seconds = 0.0 if _on_loop() else self.wait(request, woken.set)
                woken.wait(seconds)
                return seconds > 0
            case _:
                raise AssertionError(request)

    def _entered(self, *, alone: bool) -> bool | None:
        entering = self.entering(alone=alone)
        while True:
            try:
                next(entering)
            except StopIteration as stop:
                return cast("bool | None", stop.value)
            time.sleep(ENTER_INTERVAL)


def _on_loop() -> bool:
    """Whether this thread runs an event loop."""
    if "asyncio" not in sys.modules:
        # The import is slow; a program without a loop does not need it.
        return False
    from asyncio import _get_running_loop  # noqa: PLC0415  see above

    return _get_running_loop() is not None
