"""Blocking calls, for example to a store: each in a thread, with a limited wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Final, TypeVar

from eventonce.errors import EventonceError

log = logging.getLogger("eventonce.dashboard")

ANSWER_WAIT: Final = 5.0
"""Seconds that a page waits for a call."""

MOST_CALLS: Final = 4
"""The most calls at the same time to one place, such as the store; further calls wait."""

Answer = TypeVar("Answer")


class Unavailable(Exception):
    """The store, the history or another place did not answer; the text says which, and why."""


class BlockingCalls:
    """The calls to one place, such as the store."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._room = asyncio.Semaphore(MOST_CALLS)

    async def __call__(self, call: Callable[[], Answer], within: float = ANSWER_WAIT) -> Answer:
        """Return the result of the call; `Unavailable` if it fails or takes too long.

        A call that never returns keeps its place among the `MOST_CALLS`, so a place that hangs has
        no more threads than that. They are daemons: the process can end.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()

        def tell(result: Answer | None, error: BaseException | None) -> None:
            self._room.release()
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]  # there is one without an error

        def run() -> None:
            result, failed = None, None
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001  the caller gets it
                failed = error
            with suppress(RuntimeError):  # The loop has ended, so nothing waits for the result.
                loop.call_soon_threadsafe(tell, result, failed)

        try:
            async with asyncio.timeout(within):
                await self._room.acquire()
                try:
                    Thread(target=run, name=f"eventonce-asks-{self._place}", daemon=True).start()
                except RuntimeError:
                    self._room.release()
                    raise
                return await answer
        except TimeoutError:
            raise Unavailable(
                f"The {self._place} did not answer within {within:g} seconds."
            ) from None
        except (EventonceError, OSError) as error:
            raise Unavailable(f"The {self._place} cannot be asked: {error}") from error
        except Exception as error:
            # The driver of a user's own store may raise anything.
            log.exception("the %s cannot be asked", self._place)
            said = f"{type(error).__name__}; the log of the dashboard says more"
            raise Unavailable(f"The {self._place} cannot be asked: {said}") from error
