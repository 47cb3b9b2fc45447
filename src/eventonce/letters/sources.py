"""The sources of dead letters: a store, or an SQS queue, which is read to its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Final, Self

from eventonce.aws.dlq import FoundLetter, read_message
from eventonce.aws.sqs import Queue
from eventonce.clock import wall_clock
from eventonce.consumer import Consumer
from eventonce.core.ports import StoreAdmin
from eventonce.core.status import DEAD_LETTERS, EFFECTIVE
from eventonce.errors import EventonceError
from eventonce.privacy import Sealer, opened_letter
from eventonce.types import Outcome

STORE: Final = "store"
"""The word for the store in `--from` and in links."""

LIST_VISIBILITY: Final = 30
"""Seconds that a message is hidden from others while the queue is listed. It is made visible at the
end, and becomes visible by itself if the process is killed."""

REDRIVE_VISIBILITY: Final = 300
"""Seconds that a message is hidden while its event runs again. If the run takes longer, another
redrive may receive the message: the store then answers that the event is held, or done."""

RECEIVE_WAIT: Final = 1
"""Seconds to wait for a message: with any wait, SQS asks all of its servers."""

READ_TOGETHER: Final = 100
"""The most dead letters of a store in one batch."""


class StoreLetterSource:
    """The dead letters of a store."""

    def __init__(self, admin: StoreAdmin, consumer: str | None, *, close: bool = True) -> None:
        self._admin = admin
        self._consumer = consumer
        self._close = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._close:
            self._admin.close()

    def read(self, *, ordered: bool = False) -> Iterator[list[FoundLetter]]:  # noqa: ARG002  as below
        """Yield batches, oldest first, each dead letter once: a letter that is rewritten meanwhile
        would come again."""
        seen: set[str] = set()
        letters = self._admin.letters(self._consumer)
        while some := list(islice(letters, READ_TOGETHER)):
            fresh = [FoundLetter(letter) for letter in some if letter.id not in seen]
            seen.update(letter.id for letter in some)
            yield fresh

    def drop(self, batch: Sequence[FoundLetter]) -> int:
        """Delete these dead letters, and return the number that were found."""
        return self._admin.drop_letters([one.letter.id for one in batch])

    def run_again(self, consumer: Consumer, batch: Sequence[FoundLetter]) -> list[Outcome]:
        """Redrive these dead letters; the consumer deletes the settled ones."""
        return consumer.redrive(one.letter for one in batch)


class QueueLetterSource:
    """The dead letters of a queue; each becomes visible again unless it is dropped or settled."""

    def __init__(
        self,
        queue: Queue,
        consumer: str | None,
        sealer: Sealer,
        *,
        visibility: int = LIST_VISIBILITY,
    ) -> None:
        self._queue = queue
        self._consumer = consumer
        self._sealer = sealer
        self._visibility = visibility
        self._receipts: dict[str, str] = {}
        self._began = wall_clock()
        self._given_up: set[bytes] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # The messages become visible by themselves later: an error here must not hide another.
        with suppress(EventonceError):
            self._queue.delay([(receipt, 0) for receipt in self._receipts.values()])
        self._receipts.clear()
        self._queue.close()

    def read(self, *, ordered: bool = False) -> Iterator[list[FoundLetter]]:
        """Yield batches as the queue delivers them, without events that this redrive gave up again:
        their new dead letters may go to the same queue. A queue has no order: with `ordered` all
        dead letters are read first, and come oldest first in one batch."""
        if ordered:
            yield sorted(chain.from_iterable(self.read()), key=lambda one: one.letter.at)
            return
        seen: set[str] = set()
        while messages := self._queue.receive(wait=RECEIVE_WAIT, visibility=self._visibility):
            # Only the last receipt of a message can delete it.
            self._receipts |= {one["MessageId"]: one["ReceiptHandle"] for one in messages}
            fresh = [one for one in messages if one["MessageId"] not in seen]
            if len(fresh) < len(messages):
                # The queue is so long that its first messages are visible again before the last
                # were received: with the same visibility, the loop would never end.
                self._visibility = max(1, self._visibility) * 2
            seen.update(one["MessageId"] for one in fresh)
            batch = [read_message(one, self._consumer or "default") for one in fresh]
            opened = (one._replace(letter=opened_letter(one.letter, self._sealer)) for one in batch)
            yield [
                one
                for one in opened
                if self._consumer in (None, one.letter.consumer)
                and not (one.letter.key in self._given_up and one.letter.at >= self._began)
            ]

    def drop(self, batch: Sequence[FoundLetter]) -> int:
        """Delete these dead letters, and return the number that the queue deleted."""
        receipts = {self._receipts.pop(one.message): one.message for one in batch}
        refused = self._queue.delete(list(receipts))
        for receipt in refused:
            self._receipts[receipts[receipt]] = receipt
        return len(receipts) - len(refused)

    def run_again(self, consumer: Consumer, batch: Sequence[FoundLetter]) -> list[Outcome]:
        """Redrive these dead letters. Delete the settled ones, and those that the consumer has
        written as new dead letters, with the newest reason."""
        whole = [one for one in batch if one.whole]
        outcomes = consumer.runtime.run_again([one.letter.event for one in whole])
        forgettable = []
        for one, outcome in zip(whole, outcomes, strict=True):
            if outcome.status in EFFECTIVE | DEAD_LETTERS:
                forgettable.append(one)
            if outcome.status in DEAD_LETTERS:
                self._given_up.add(outcome.key)
        self.drop(forgettable)
        absent = [Outcome(None, "invalid", one.letter.reason) for one in batch if not one.whole]
        return outcomes + absent


LetterSource = StoreLetterSource | QueueLetterSource


def open_queue(
    uri: str, consumer: str | None, sealer: Sealer, *, to_change: bool
) -> QueueLetterSource:
    """Return the dead letters in this queue; `to_change` hides them from other readers for
    longer."""
    visibility = REDRIVE_VISIBILITY if to_change else LIST_VISIBILITY
    queue = Queue.from_uri(uri, awaited=False)
    return QueueLetterSource(queue, consumer, sealer, visibility=visibility)
