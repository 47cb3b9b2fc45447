"""Timeouts that share one timer: each is due in time, unless it is cleared."""

from __future__ import annotations

import asyncio
from functools import partial

from eventonce.web.admission import Timeouts


def test_timeouts_that_are_not_cleared_are_due_in_the_order_of_their_start() -> None:
    async def story() -> list[str]:
        timeouts, due = Timeouts(0.02), asyncio.Queue[str]()
        for name in "abc":
            number = timeouts.set(asyncio.get_running_loop(), partial(due.put_nowait, name))
            if name == "b":
                timeouts.clear(number)
            # The last is set while the timer of the first runs, and is due after it.
            await asyncio.sleep(0.005)
        found = [await due.get(), await due.get()]
        # The timer has ended with the last timeout, and starts again.
        timeouts.set(asyncio.get_running_loop(), partial(due.put_nowait, "d"))
        return [*found, await due.get()]

    assert asyncio.run(asyncio.wait_for(story(), 60)) == ["a", "c", "d"]


def test_the_timer_of_an_ended_loop_does_not_prevent_the_timer_of_the_next_loop() -> None:
    timeouts = Timeouts(0.01)

    async def ended() -> None:
        timeouts.clear(timeouts.set(asyncio.get_running_loop(), lambda: None))

    async def story() -> None:
        due = asyncio.Event()
        timeouts.set(asyncio.get_running_loop(), due.set)
        await due.wait()

    asyncio.run(ended())
    asyncio.run(asyncio.wait_for(story(), 60))
