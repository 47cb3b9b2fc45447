"""The messages of a dead-letter queue, read as letters and held only for as long as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Self

from eventonce.aws.sqs import Queue
from eventonce.errors import EventonceError
from eventonce.letterbox.messages import is_whole, letter_of
from eventonce.types import Letter

LOOKED_AT: Final = 30
"""Seconds a message is hidden from others while the queue is looked through; it is given back at
the end, and comes back by itself if we do not reach that."""

RUN: Final = 300
"""Seconds a message is hidden while its event runs again. If it takes longer another may run it:
the store knows that the event is held, or done."""

WAIT: Final = 1
"""Second to wait for a message: any at all makes SQS ask all of its servers."""


class Held(NamedTuple):
    """A letter, and the message it came in."""

    letter: Letter
    message: str = ""
    whole: bool = True
    """Whether it holds the event, and one alone; if not, it cannot be run from here."""


class DeadLetters:
    """Reads a queue to its end; what was not deleted is given back when the block is left."""

    def __init__(self, queue: Queue, consumer: str, *, visibility: int = LOOKED_AT) -> None:
        self._queue = queue
        self._consumer = consumer
        self._visibility = visibility
        self._receipts: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Whatever is not given back comes back by itself, so no trouble here may hide another's.
        with suppress(EventonceError):
            self._queue.delay([(receipt, 0) for receipt in self._receipts.values()])
        self._receipts.clear()
        self._queue.close()

    def read(self) -> Iterator[list[Held]]:
        """The letters, a few at a time, each once, until the queue has no other to give."""
        seen: set[str] = set()
        while messages := self._queue.receive(wait=WAIT, visibility=self._visibility):
            # The last receipt is the one that counts.
            self._receipts |= {one["MessageId"]: one["ReceiptHandle"] for one in messages}
            fresh = [one for one in messages if one["MessageId"] not in seen]
            if len(fresh) < len(messages):
                # The queue is so long that its first messages are back before its last ones came:
                # unless all are held for longer, these come round for ever.
                self._visibility = max(1, self._visibility) * 2
            seen.update(one["MessageId"] for one in fresh)
            yield [
                Held(letter_of(one, self._consumer), one["MessageId"], is_whole(one))
                for one in fresh
            ]

    def delete(self, settled: Sequence[Held]) -> int:
        """Delete these messages; answers how many the queue let go."""
        receipts = {self._receipts.pop(held.message): held.message for held in settled}
        refused = self._queue.delete(list(receipts))
        for receipt in refused:
            self._receipts[receipts[receipt]] = receipt
        return len(receipts) - len(refused)
