"""Dead letters for the command line: their places, a store or a queue; the consumers that run them
again; and the forecast of a dry run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final, Self

from msgspec.structs import replace

from eventonce.aws.dlq import LIST_VISIBILITY, REDRIVE_VISIBILITY, DeadLetters, Held
from eventonce.aws.sqs import Queue
from eventonce.cli.options import Settings
from eventonce.cli.output import standard_output, write_whole
from eventonce.clock import wall_clock
from eventonce.consumer import Consumer
from eventonce.core.plan import Handler, Refusal
from eventonce.core.ports import StoreAdmin
from eventonce.core.reasons import reason
from eventonce.core.status import DEAD_LETTERS, EFFECTIVE
from eventonce.errors import ConfigError
from eventonce.sinks import imported
from eventonce.sinks.json_lines import line_of
from eventonce.types import Job, Outcome

STORE: Final = "store"
"""The name of the store in `--from`."""

TOGETHER: Final = 100
"""Dead letters that run as one batch: a lease must not wait for too many others."""


class Stored:
    """The dead letters of a store."""

    def __init__(self, admin: StoreAdmin, consumer: str | None) -> None:
        self._admin = admin
        self._consumer = consumer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()

    def read(self) -> Iterator[list[Held]]:
        """Batches, oldest first, each dead letter once: a rewritten one would come again."""
        seen: set[str] = set()
        letters = self._admin.letters(self._consumer)
        while some := list(islice(letters, TOGETHER)):
            fresh = [Held(letter) for letter in some if letter.id not in seen]
            seen.update(letter.id for letter in some)
            yield fresh

    def all(self) -> Iterator[Held]:
        """All dead letters, oldest first."""
        return chain.from_iterable(self.read())

    def drop(self, held: Sequence[Held]) -> int:
        """Delete these; the number that were found."""
        return self._admin.drop_letters([one.letter.id for one in held])

    def run_again(self, consumer: Consumer, held: Sequence[Held]) -> list[Outcome]:
        """Run these; the consumer deletes the settled ones."""
        return consumer.redrive(one.letter for one in held)


class Queued:
    """The dead letters of a queue; each becomes visible again unless it is dropped or settled."""

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
        """Batches, as the queue gives them, without the events that were given up again meanwhile:
        their new dead letters may come to this very queue."""
        for held in self._letters.read():
            yield [
                one
                for one in held
                if self._consumer in (None, one.letter.consumer)
                and not (one.letter.key in self._given_up and one.letter.at >= self._began)
            ]

    def all(self) -> Iterator[Held]:
        """All dead letters, oldest first: a queue gives them in no order."""
        return iter(sorted(chain.from_iterable(self.read()), key=lambda one: one.letter.at))

    def drop(self, held: Sequence[Held]) -> int:
        """Delete these; the number that the queue deleted."""
        return self._letters.delete(held)

    def run_again(self, consumer: Consumer, held: Sequence[Held]) -> list[Outcome]:
        """Run these, and delete the settled ones and those that the consumer has written as dead
        letters again, with the newest reason."""
        whole = [one for one in held if one.whole]
        outcomes = consumer.runtime.run_again([one.letter.event for one in whole])
        forgettable = []
        for one, outcome in zip(whole, outcomes, strict=True):
            if outcome.status in EFFECTIVE | DEAD_LETTERS:
                forgettable.append(one)
            if outcome.status in DEAD_LETTERS:
                self._given_up.add(outcome.key)
        self._letters.delete(forgettable)
        absent = [Outcome(None, "invalid", one.letter.reason) for one in held if not one.whole]
        return outcomes + absent


def open_letters(
    source: str | None, settings: Settings, *, to_run: bool = False, own: Consumer | None = None
) -> Stored | Queued:
    """The place that `--from` or the file names, or else the store. If `own` is to run the dead
    letters, it is its store: no other store knows what it does there."""
    name = settings.given_name
    if own is not None and name not in (None, own.name):
        raise ConfigError(f"--handler: {own.name!r} cannot run dead letters of {name!r}")
    consumer = own.name if own is not None else settings.file.name or None
    where = source or settings.file.letters or STORE
    if where == STORE:
        return Stored(settings.open_store() if own is None else own.admin, consumer)
    queue = Queue.from_uri(where, awaited=False)
    visibility = REDRIVE_VISIBILITY if to_run else LIST_VISIBILITY
    return Queued(DeadLetters(queue, consumer or "default", visibility=visibility), consumer)


class Runners:
    """The consumers that run dead letters, one for each name, opened when first needed."""

    def __init__(self, handler: str | None, settings: Settings) -> None:
        target: Any = None if handler is None else imported(handler)
        self.own: Consumer | None = target if isinstance(target, Consumer) else None
        """The consumer that `--handler` names, with its own store, name and rules."""
        if self.own is not None and settings.given_store is not None:
            raise ConfigError(f"--handler: {handler} has its own store; remove --store")
        if self.own is None and target is not None and not callable(target):
            raise ConfigError(f"--handler: {handler} is neither a function nor a Consumer")
        self.to_stdout = target is None and not settings.file.sink
        self._handler: Handler | None = _to_stdout if self.to_stdout else target
        self._settings = settings
        self._made: dict[str, Consumer] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for consumer in self._made.values():
            consumer.close()

    def of(self, name: str) -> Consumer:
        """The consumer for dead letters of this name: yours, or one with the file's rules."""
        if name not in self._made:
            self._made[name] = self.own or self._opened(name)
        return self._made[name]

    def _opened(self, name: str) -> Consumer:
        file = self._settings.file
        file = file if self._handler is None else replace(file, sink=[])
        consumer = file.consumer(store=self._settings.open_store(), name=name)
        if self._handler is not None:
            consumer.on()(self._handler)
        return consumer


def by_consumer(held: Sequence[Held]) -> dict[str, list[Held]]:
    """The dead letters of each consumer."""
    found: dict[str, list[Held]] = {}
    for one in held:
        found.setdefault(one.letter.consumer, []).append(one)
    return found


def foreseen(consumer: Consumer, held: Held) -> tuple[str, str]:
    """The verdict that a redrive of this dead letter would get, and why; the store is only read."""
    letter = held.letter
    if not held.whole:
        return "invalid", letter.reason
    (planned,) = consumer.runtime.plan([letter.event], redrive=True)
    if isinstance(planned, Refusal):
        return planned.outcome.status, planned.outcome.reason
    claims = [replace(one, peek=True) for one in (*planned.older, planned.claim)]
    for asked, verdict in zip(claims, consumer.store.claim(claims), strict=True):
        if verdict.kind != "run":
            return verdict.kind, reason(asked, verdict)
    return "run", ""


def _to_stdout(job: Job) -> None:
    write_whole(standard_output(), line_of(job.event.raw))
