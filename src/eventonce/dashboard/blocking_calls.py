"""Calls that block, such as those to a store: each in a thread, and none waited for without end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Final, TypeVar

from eventonce.errors import EventonceError

log = logging.getLogger("eventonce.dashboard")

ANSWER_PATIENCE: Final = 5.0
"""Seconds that a page waits for an answer."""

MOST_CALLS: Final = 4
"""Calls at the same time to one place: whoever asks further waits for one of them."""

Answer = TypeVar("Answer")


class Unavailable(Exception):
    """A place did not answer; the text says which, and why."""


class BlockingCalls:
    """Asks one place, such as the store."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._room = asyncio.Semaphore(MOST_CALLS)

    async def __call__(self, call: Callable[[], Answer], within: float = ANSWER_PATIENCE) -> Answer:
        """The answer of the call; `Unavailable` if it fails, or does not come in time.

        The thread of a call that does not return keeps its room: a place that hangs has
        `MOST_CALLS` threads and no more, and they do not keep the process from its end.
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
            except BaseException as error:  # noqa: BLE001  whoever asked is told
                failed = error
            with suppress(RuntimeError):  # The loop has ended, and nobody waits.
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
            # A driver of somebody's own may raise anything.
            log.exception("the %s cannot be asked", self._place)
            said = f"{type(error).__name__}; the log of the dashboard says more"
            raise Unavailable(f"The {self._place} cannot be asked: {said}") from error
