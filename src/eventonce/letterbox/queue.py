"""The letterbox that is an SQS queue: a message a letter, and the store for what does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from eventonce.aws.sqs import Queue
from eventonce.core.ports import LetterSink
from eventonce.errors import SourceUnavailable
from eventonce.letterbox.messages import entry_of
from eventonce.types import Letter


class QueueLetters:
    """Sends letters to a queue, each at least once.

    A letter that no message can hold is kept in the store, and says so. Any other refusal is
    raised: its event is not acknowledged, and comes again.
    """

    def __init__(self, uri: str, store: LetterSink, *, client: Any = None) -> None:
        self._queue = Queue.from_uri(uri, client)
        self._store = store

    def put_letters(self, letters: Sequence[Letter]) -> None:
        """Send these letters; SourceUnavailable where the queue did not take one of them."""
        entries = [entry_of(letter, fifo=self._queue.fifo) for letter in letters]
        sent = {id(entry): letter for entry, letter in zip(entries, letters, strict=True)}
        trouble = ""
        for refused in self._queue.send(entries):
            said = f"{refused.code}: {refused.reason}"
            if refused.unfit:
                self._keep(sent[id(refused.entry)], said)
            else:
                trouble = said
        if trouble:
            raise SourceUnavailable(f"{self._queue} did not take all letters: {trouble}")

    def close(self) -> None:
        """Let go of connections."""
        self._queue.close()

    def _keep(self, letter: Letter, why: str) -> None:
        reason = f"{letter.reason}; kept in the store, not in {self._queue}: {why}"
        self._store.put_letters([replace(letter, reason=reason)])
