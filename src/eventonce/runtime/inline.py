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
from eventonce.runtime.gate import LeasedRuns
from eventonce.runtime.invoke import invoke
from eventonce.runtime.running_batch import RunningBatch
from eventonce.runtime.shared_process import ENTER_INTERVAL, INSIDE_HANDLER
from eventonce.types import Outcome

if TYPE_CHECKING:
    from eventonce.runtime.on_asyncio import Asynchronous


def process(batch: RunningBatch, asynchronous: Asynchronous | None = None) -> list[Outcome]:
    """Bring every event to its outcome: plain handlers run one after the other, and `asynchronous`
    runs async handlers side by side on a loop."""
    try:
        while (request := until_executed(batch)) is not None:
            _run(batch, request.runs, asynchronous)
    except BaseException:
        # The interrupted code may be just before or after a handler.
        INSIDE_HANDLER.set(batch.called_in)
        batch.interrupted()
        raise
    return batch.result()


def until_executed(batch: RunningBatch) -> Execute | None:
    """Perform requests until handlers must run; return None at the end. A caller that gets an
    exception, or stops before the end, calls `batch.interrupted`."""
    steps = batch.steps or batch.begin()
    try:
        request = steps.send(None)
        while type(request) is not Execute:
            try:
                answer = _perform(batch, request)
            except EventonceError as error:
                request = steps.throw(error)
            else:
                request = steps.send(answer)
        batch.execute(request.runs)
    except StopIteration as stop:
        batch.end(stop.value)
        return None
    return request


def _run(batch: RunningBatch, runs: Sequence[Run], asynchronous: Asynchronous | None) -> None:
    leased = batch.leased
    assert leased is not None
    # `process` resets this if a signal interrupts.
    INSIDE_HANDLER.set(True)
    if asynchronous is None:
        _one_by_one(batch, runs, leased)
    else:
        awaited = [run for run in runs if run.plan.asynchronous]
        plain = [run for run in runs if not run.plan.asynchronous]
        asynchronous.run(awaited, leased, lambda: _one_by_one(batch, plain, leased))
    INSIDE_HANDLER.set(batch.called_in)
    if leased.shared:
        batch.runtime.gate.take_back(leased)


def _one_by_one(batch: RunningBatch, runs: Sequence[Run], leased: LeasedRuns) -> None:
    transactions, finished = batch.runtime.transactions, leased.finished
    for run in runs:
        invoke(run, transactions)
        finished.append(run)


def _perform(batch: RunningBatch, request: Request) -> Any:
    runtime = batch.runtime
    match request:
        case Ask():
            return runtime.gate.claim(request.claims)
        case Settle():
            settlements = [settlement(run) for run in request.runs]
            return runtime.gate.settle(settlements, runtime.pauses)
        case Enter():
            return _entered(batch, alone=request.alone)
        case Keep():
            return runtime.letters.put_letters(request.letters)
        case Wait():
            woken = Event()
            # A wait would block this loop, and the other run may be a block on the same loop.
            seconds = 0.0 if _on_loop() else batch.wait(request, woken.set)
            woken.wait(seconds)
            return seconds > 0
        case _:
            raise AssertionError(request)


def _entered(batch: RunningBatch, *, alone: bool) -> bool | None:
    entering = batch.entering(alone=alone)
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
