"""Where letters are, as the command line goes through them: on a store's shelf or in a queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Final, Self

from eventonce.aws.dlq import LIST_VISIBILITY, REDRIVE_VISIBILITY, DeadLetters, Held
from eventonce.aws.sqs import Queue
from eventonce.cli.options import opened
from eventonce.clock import wall_clock
from eventonce.config import Config
from eventonce.consumer import Consumer
from eventonce.core.ports import StoreAdmin
from eventonce.core.status import DEAD_LETTERS, EFFECTIVE
from eventonce.errors import ConfigError
from eventonce.types import Outcome

STORE: Final = "store"
"""What `--from` calls the store."""

TOGETHER: Final = 100
"""Letters run as one batch: their leases must not wait for too many others."""


class Stored:
    """The letters of a store."""

    def __init__(self, shelf: StoreAdmin, consumer: str | None) -> None:
        self._shelf = shelf
        self._consumer = consumer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shelf.close()

    def read(self) -> Iterator[list[Held]]:
        """A few at a time, oldest first, each once: one that is rewritten meanwhile is younger."""
        seen: set[str] = set()
        letters = self._shelf.letters(self._consumer)
        while some := list(islice(letters, TOGETHER)):
            fresh = [Held(letter) for letter in some if letter.id not in seen]
            seen.update(letter.id for letter in some)
            yield fresh

    def all(self) -> Iterator[Held]:
        """Every one, oldest first."""
        return chain.from_iterable(self.read())

    def drop(self, held: Sequence[Held]) -> int:
        """Forget these; answers how many there were."""
        return self._shelf.drop_letters([one.letter.id for one in held])

    def run_again(self, consumer: Consumer, held: Sequence[Held]) -> list[Outcome]:
        """Run these; the consumer drops those that are settled."""
        return consumer.redrive(one.letter for one in held)


class Queued:
    """The letters of a queue, each given back unless it was dropped or settled."""

    def __init__(self, letters: DeadLetters, consumer: str | None) -> None:
        self._letters = letters
        self._consumer = consumer
        self._began = wall_clock()
        self._given_up: set[bytes] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._letters.__exit__()

    def read(self) -> Iterator[list[Held]]:
        """A few at a time, as the queue gives them; not what was given up again meanwhile, whose
        new letters may come to this very queue."""
        for held in self._letters.read():
            yield [
                one
                for one in held
                if self._consumer in (None, one.letter.consumer)
                and not (one.letter.key in self._given_up and one.letter.at >= self._began)
            ]

    def all(self) -> Iterator[Held]:
        """Every one, oldest first: a queue gives them in no order."""
        return iter(sorted(chain.from_iterable(self.read()), key=lambda one: one.letter.at))

    def drop(self, held: Sequence[Held]) -> int:
        """Delete these; answers how many the queue let go."""
        return self._letters.delete(held)

    def run_again(self, consumer: Consumer, held: Sequence[Held]) -> list[Outcome]:
        """Run these, and delete what is settled, or is a letter of this consumer now: that one says
        the newest reason."""
        whole = [one for one in held if one.whole]
        outcomes = consumer.run_again([one.letter.event for one in whole])
        forgettable = []
        for one, outcome in zip(whole, outcomes, strict=True):
            if outcome.status in EFFECTIVE | DEAD_LETTERS:
                forgettable.append(one)
            if outcome.status in DEAD_LETTERS:
                self._given_up.add(outcome.key)
        self._letters.delete(forgettable)
        absent = [Outcome(None, "invalid", one.letter.reason) for one in held if not one.whole]
        return outcomes + absent


def opened_place(
    place: str | None,
    said: Config,
    store: str | None,
    config: Path | None,
    name: str | None,
    *,
    to_run: bool = False,
    own: Consumer | None = None,
) -> Stored | Queued:
    """Where `--from` points, or the file, or else the store: that of one's own consumer, if it is
    to run them, for what it does there no other store would know."""
    if own is not None and name not in (None, own.name):
        raise ConfigError(f"--handler: {own.name!r} cannot run letters of {name!r}")
    consumer = own.name if own is not None else name or said.name or None
    where = place or said.letters or STORE
    if where == STORE:
        return Stored(opened(config, store) if own is None else own.shelf, consumer)
    queue = Queue.from_uri(where, awaited=False)
    visibility = REDRIVE_VISIBILITY if to_run else LIST_VISIBILITY
    return Queued(DeadLetters(queue, consumer or "default", visibility=visibility), consumer)
