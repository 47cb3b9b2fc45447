"""The object users hold: a store, a name, rules and handlers, and the ways to give it events."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast, overload

from eventonce import engine, envelope, presets
from eventonce.batch import Batch, Incoming
from eventonce.clock import wall_clock
from eventonce.errors import ConfigError
from eventonce.ports import Handler, Observer, Shelf, Store
from eventonce.routing import Route, Routes
from eventonce.rules import Rule, Ruleset
from eventonce.runners import AroundBlock, Inline, Scope, World, drive
from eventonce.stores import open_store
from eventonce.types import Claim, Event, Job, Letter, Outcome

if TYPE_CHECKING:
    from eventonce.aio import Asynchronous

H = TypeVar("H", bound=Handler)
RuleSpec = str | PathLike[str] | Rule

SETTLED: Final = frozenset[str](("done", "duplicate", "stale", "unchanged", "unguarded"))
"""The outcomes after which a letter that was run again has nothing left to say."""

ONE: Final = (bytes, bytearray, memoryview, str, Mapping, Event)
"""What is one event, and not several."""

log = logging.getLogger("eventonce")


class Consumer:
    """Makes each event take effect once, for one named purpose.

    Safe to use from many threads. Consumers may share a store: each has its own name and runs
    every event for itself.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        name: str | None = None,
        rules: RuleSpec | Sequence[RuleSpec] = "auto",
        handler: Handler | None = None,
        secrets: Sequence[bytes] = (),
        observers: Sequence[Observer] = (),
        threads: int = 32,
        max_bytes: int = envelope.MAX_BYTES,
        clock: Callable[[], int] = wall_clock,
    ) -> None:
        """`handler` takes what no `on` does. `secrets` key every digest, the first in use and the
        others as a rotation's old ones. `threads` bounds the plain handlers that run side by side
        under `process_async`."""
        opened: Any = open_store(store) if isinstance(store, str) else store
        if name is None:
            if not getattr(opened, "embedded", False):
                raise ConfigError(
                    "Consumer: a shared store needs a name, such as name='crm-sync': it is part of "
                    "every key, so that consumers of one table do not hide events from each other"
                )
            name = "default"
        self.name = name
        self.store: Store = opened
        self.shelf: Shelf = opened
        self.rules = Ruleset(presets.resolve(rules), name=name, secrets=secrets)
        self.observers: list[Observer] = list(observers)
        self._routes = Routes(handler)
        self._world = World(opened, opened, clock)
        self._threads = threads
        self._max_bytes = max_bytes

    @overload
    def on(self, pattern: H) -> H: ...
    @overload
    def on(self, pattern: str = "*") -> Callable[[H], H]: ...
    def on(self, pattern: str | H = "*") -> H | Callable[[H], H]:
        """Register a handler for the event types this glob matches; the first registered wins.

        `*` stands for any characters, dots too; with no pattern the handler takes everything.
        """
        if not isinstance(pattern, str):
            return self.on()(pattern)

        def register(handler: H) -> H:
            self._routes.add(pattern, handler)
            return handler

        return register

    def process(self, events: Iterable[Incoming] | Incoming) -> list[Outcome]:
        """Run what is new; one outcome per event, in order."""
        started = time.perf_counter()
        return self._told(self._run(self._batch(events)), started)

    async def process_async(self, events: Iterable[Incoming] | Incoming) -> list[Outcome]:
        """The same on an event loop: async handlers run on it, plain ones in threads."""
        started = time.perf_counter()
        outcomes = await self._batch(events).process(self._asynchronous.effects())
        return self._told(outcomes, started)

    @contextmanager
    def once(self, event: Incoming) -> Iterator[Job]:
        """Guard code that is already there: `with consumer.once(event) as job: if job.run: …`.

        Leaving the block completes it, an exception frees it to be tried again; `job.outcome` then
        says what became of it, and its `ack` whether the transport may forget the event.
        """
        started = time.perf_counter()
        batch = self._batch([event], lambda _: _BLOCK)
        effects = AroundBlock(self._world)
        processing = batch.process(effects)
        suppressed = _stepped(processing)
        if suppressed is not None:
            yield _not_run(batch, self._told(suppressed, started)[0])
            return
        (task,) = effects.tasks
        job = task.started()
        transactions = self._world.transactions
        scope = Scope(task, job, transactions) if transactions is not None else None
        ticket = self._world.renewer.watch(effects.tasks)
        try:
            yield job
        except BaseException as error:
            reason = error if isinstance(error, Exception) else InterruptedError(repr(error))
            engine.finish(task, error=reason)
            if scope is not None:
                scope.undo(error)
            raise
        else:
            engine.finish(task, job.result)
            if scope is not None:
                scope.keep()
        finally:
            self._world.renewer.leave(ticket)
            settled = cast("list[Outcome]", _stepped(processing))
            job.outcome = self._told(settled, started)[0]

    def letters(self) -> Iterator[Letter]:
        """The events this consumer gave up, oldest first."""
        return self.shelf.letters(self.name)

    def redrive(self, letters: Iterable[Letter] | None = None) -> list[Outcome]:
        """Run letters again, all if none are named; a letter that is settled by it is dropped."""
        chosen = list(self.letters() if letters is None else letters)
        others = {letter.consumer for letter in chosen} - {self.name}
        if others:
            # What is done for one consumer would be called done for the other, and dropped.
            raise ConfigError(f"redrive: {self.name!r} cannot run letters of {sorted(others)}")
        started = time.perf_counter()
        batch = self._batch([letter.event for letter in chosen], redrive=True)
        outcomes = self._told(self._run(batch), started)
        settled = [
            letter.id
            for letter, outcome in zip(chosen, outcomes, strict=True)
            if outcome.status in SETTLED
        ]
        self.shelf.drop_letters(settled)
        return outcomes

    def over(self, store: Store, *, clock: Callable[[], int] = wall_clock) -> Consumer:
        """The same name, rules and handlers over another store: for tests, and for moving house."""
        other = Consumer(store, name=self.name, rules=(), threads=self._threads, clock=clock)
        other.rules = self.rules
        other._routes = self._routes.wrapped(lambda handler: handler)
        other._max_bytes = self._max_bytes
        return other

    def wrap(self, around: Callable[[Handler], Handler]) -> None:
        """Put something around every handler registered so far, such as a tracer or a fault."""
        self._routes = self._routes.wrapped(around)

    def close(self) -> None:
        """Stop the threads and let go of the store."""
        self._world.renewer.close()
        if "_asynchronous" in self.__dict__:
            self.__dict__.pop("_asynchronous").close()
        self.shelf.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _batch(
        self,
        events: Iterable[Incoming] | Incoming,
        route_of: Callable[[str], Route | None] | None = None,
        *,
        redrive: bool = False,
    ) -> Batch:
        if route_of is None and not self._routes:
            raise ConfigError(
                "Consumer: there is no handler yet; register one with @consumer.on() or handler=…"
            )
        batch = Batch(self.name)
        batch.plan(
            [events] if isinstance(events, ONE) else events,
            self.rules,
            route_of or self._routes.of,
            nonce=random.getrandbits(52) | 1,
            max_bytes=self._max_bytes,
            redrive=redrive,
        )
        return batch

    def _run(self, batch: Batch) -> list[Outcome]:
        if batch.asynchronous:
            return self._asynchronous.run(batch.process(self._asynchronous.effects()))
        return drive(batch.process(Inline(self._world)))

    @cached_property
    def _asynchronous(self) -> Asynchronous:
        from eventonce.aio import Asynchronous  # noqa: PLC0415  asyncio is slow to import

        return Asynchronous(self._world, self._threads)

    def _told(self, outcomes: list[Outcome], started: float) -> list[Outcome]:
        seconds = time.perf_counter() - started
        for observer in self.observers:
            for outcome in outcomes:
                try:
                    observer(outcome, seconds)
                except Exception:
                    log.exception("observer %r failed", observer)
        return outcomes


def _unreachable(_: Job) -> None:
    raise AssertionError("the body of the `with` is the handler")


_BLOCK: Final = Route(_unreachable, asynchronous=False)


def _stepped(processing: Coroutine[Any, Any, list[Outcome]]) -> list[Outcome] | None:
    """Let the engine go on; its outcomes if it came to the end, None if it waits for the block."""
    try:
        processing.send(None)
    except StopIteration as stop:
        return cast("list[Outcome]", stop.value)
    return None


def _not_run(batch: Batch, outcome: Outcome) -> Job:
    claim = batch.tasks[0].claim if batch.tasks else Claim(b"", 0, 0, 0, 0)
    job = Job(outcome.event or Event(b"", b"null"), claim, rule=outcome.rule, run=False)
    job.outcome = outcome
    job.result = outcome.result
    return job
