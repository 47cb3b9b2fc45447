"""The consumer, which users create: a store, a name, rules and handlers, and the ways in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, wraps
from math import inf
from os import PathLike
from typing import Any, Final, Self, TypeVar, overload

from eventonce import envelope, presets
from eventonce.arguments import (
    check_count,
    check_function,
    check_iterable,
    check_seconds,
    check_texts,
)
from eventonce.clock import wall_clock
from eventonce.core.outcomes import finish
from eventonce.core.plan import Deadline, Handler, Plan, Refusal
from eventonce.core.planner import Incoming, Planner
from eventonce.core.ports import LetterSink, Observer, Store, StoreAdmin, offers
from eventonce.core.routing import Route, route_to
from eventonce.envelope.headers import header_names
from eventonce.errors import ConfigError
from eventonce.rules import Rule, Ruleset
from eventonce.runtime import redrive
from eventonce.runtime.inline import until_executed
from eventonce.runtime.invoke import Scope, as_failure
from eventonce.runtime.retention import Retention, kept_for
from eventonce.runtime.running_batch import CopyWait, RunningBatch
from eventonce.runtime.runtime import COPY_WAIT, ONE, Runtime
from eventonce.runtime.shared_process import INSIDE_HANDLER, InsideHandler
from eventonce.stores import open_store
from eventonce.types import Claim, Event, Job, Letter, Outcome

H = TypeVar("H", bound=Handler)
RuleSpec = str | PathLike[str] | Rule


class Consumer:
    """Settles each event once, for one named purpose.

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
        letters: str | LetterSink | None = None,
        keep_letters: float | str | None = None,
        unhandled: str = "ignore",
        keep_headers: Sequence[str] = (),
        sealing_keys: Sequence[str] = (),
        clock: Callable[[], int] = wall_clock,
    ) -> None:
        """`handler` takes the events that no `on` takes. `secrets` key every digest: the first is
        in use, the others are the old ones of a rotation. `threads` is the most plain handlers that
        run side by side under `process_async`. `letters` is the place of dead letters: `sqs://name`
        for an SQS queue; without it, the store. `keep_letters` is how long the store keeps dead
        letters, such as "90d"; without it, for ever. `unhandled` is the policy for events whose
        type no handler takes: "ignore" acknowledges them, "letter" keeps each as a dead letter,
        "fail" leaves them to their transport; the first event of each type is logged as a warning.
        `max_bytes` is the limit of one event for every way in. `keep_headers` names HTTP headers
        that stay with an event, in addition to the usual ones and those that the rules name. With
        `sealing_keys`, dead letters and results are stored encrypted: the first key seals, every
        key opens. A key is 32 bytes in base64 or hexadecimal, or `kms://KEY`."""
        opened: Any = open_store(store) if isinstance(store, str) else store
        if not offers(opened, Store):
            raise ConfigError(
                "Consumer: expected a store, or the URI of one such as 'sqlite:///eventonce.db', "
                f"not {type(store).__name__}"
            )
        opened, sink = _with_seal(opened, letters, sealing_keys)
        check_count("Consumer: threads", threads)
        check_count("Consumer: max_bytes", max_bytes)
        check_function("Consumer: clock", clock)
        _check_observers(observers)
        kept = kept_for("Consumer: keep_letters", keep_letters)
        if name is None:
            if not getattr(opened, "embedded", False):
                raise ConfigError(
                    "Consumer: a shared store needs a name, such as name='crm-sync': it is part of "
                    "every key, so that consumers of one table do not hide events from each other"
                )
            name = "default"
        self.name = name
        self.max_bytes = max_bytes
        self.store: Store = opened
        self.admin: StoreAdmin = opened
        self.rules = Ruleset(presets.resolve(rules), name=name, secrets=secrets)
        check_texts("Consumer: keep_headers", keep_headers)
        self._keep_headers = header_names(keep_headers)
        self._sealing_keys = sealing_keys
        self.runtime = Runtime(
            name,
            opened,
            sink,
            Planner(self.rules, max_bytes, clock),
            handler=handler,
            unhandled=unhandled,
            threads=threads,
            observers=observers,
            clock=clock,
        )
        if self.rules.has_brief_results:
            self.runtime.keep_brief_results()
        if kept is not None:
            self.runtime.retention = Retention(self.admin, name, kept, clock)

    @property
    def observers(self) -> list[Observer]:
        """The observers, which get every outcome; more may be appended."""
        return self.runtime.observers

    @observers.setter
    def observers(self, observers: Sequence[Observer]) -> None:
        _check_observers(observers)
        self.runtime.observers = list(observers)

    @cached_property
    def kept_headers(self) -> frozenset[str]:
        """The HTTP headers that stay with an event, in addition to those that always do."""
        return self._keep_headers | self.rules.headers

    @overload
    def on(self, pattern: H) -> H: ...
    @overload
    def on(self, pattern: str = "*") -> Callable[[H], H]: ...
    def on(self, pattern: str | H = "*") -> H | Callable[[H], H]:
        """Register a handler for the event types that this glob matches; the first registered wins.

        `*` stands for any characters, dots too; without a pattern the handler takes every type.
        """
        if not isinstance(pattern, str):
            return self.on()(pattern)

        def register(handler: H) -> H:
            self.runtime.routes.add(pattern, handler)
            return handler

        return register

    def process(
        self,
        events: Iterable[Incoming] | Incoming,
        *,
        deadline: float | None = None,
        margin: float = 0.0,
        deliveries: int | None = None,
        wait: float = 0.0,
    ) -> list[Outcome]:
        """Run the new events; return one outcome for each event, in order.

        `deadline` is the number of seconds until this process is ended: no lease is renewed beyond
        that moment, and the first lease of a fact does not last longer either. A number below 0
        counts as 0. Once no more than `margin` seconds are left, no handler begins: events that
        wait are freed.

        `deliveries` is the number of deliveries after which the transport drops an event: the event
        is given up at that attempt, and so kept as a dead letter, even if its rule allows more.

        `wait` is the number of seconds that a copy may wait for the run of its original in another
        process, before it is `busy`. A copy waits for a run of this process in any case.
        """
        started = time.perf_counter()
        end, most, copy_wait = None, inf, CopyWait(COPY_WAIT)
        if deadline is not None or deliveries is not None or margin or wait:
            if deliveries is not None:
                check_count("process: deliveries", deliveries)
                most = deliveries
            end, left = _deadline(deadline, margin)
            check_seconds("process: wait", wait)
            copy_wait = CopyWait(min(COPY_WAIT, left), min(wait, left))
        planned = self.runtime.plan(events, deadline=end, deliveries=most)
        return self.runtime.tell(self.runtime.run(planned, copy_wait), started)

    async def process_async(
        self, events: Iterable[Incoming] | Incoming, *, wait: float = 0.0
    ) -> list[Outcome]:
        """Do the same on an event loop: async handlers run on the loop, plain ones in threads."""
        check_seconds("process_async: wait", wait)
        started = time.perf_counter()
        runtime = self.runtime
        planned = runtime.plan(events)
        outcomes = await runtime.awaiting.process(
            planned, CopyWait(COPY_WAIT, wait), awaits=runtime.routes.asynchronous
        )
        return runtime.tell(outcomes, started)

    @overload
    def once(self, event: Incoming) -> AbstractContextManager[Job]: ...
    @overload
    def once(self, event: Callable[[Job], Any]) -> Callable[[Incoming], Any]: ...
    def once(self, event: Incoming | Callable[[Job], Any]) -> Any:
        """Guard existing code, as a decorator or around a block.

        `@consumer.once` turns a function of a job into a function of an event: it runs only for new
        events, and returns the `Outcome`; for an `async def` function, an awaitable of it.

        `with consumer.once(event) as job: if job.run: …`: the end of the block completes the event,
        an exception frees it for another attempt. After the block `job.outcome` is the outcome, and
        its `ack` says whether the transport may forget the event.
        """
        if isinstance(event, ONE):
            return self._block(event)
        if not callable(event):
            raise ConfigError(
                f"once: expected one event, or a function, not {type(event).__name__}"
            )
        route = route_to(event)
        if route.asynchronous:

            @wraps(event)
            async def guarded_async(event: Incoming) -> Outcome:
                started = time.perf_counter()
                planned = self.runtime.plan([event], lambda _: route)
                outcomes = await self.runtime.awaiting.process(
                    planned, CopyWait(COPY_WAIT), awaits=True
                )
                return self.runtime.tell(outcomes, started)[0]

            return guarded_async

        @wraps(event)
        def guarded(event: Incoming) -> Outcome:
            started = time.perf_counter()
            planned = self.runtime.plan([event], lambda _: route)
            return self.runtime.tell(self.runtime.run(planned, CopyWait(COPY_WAIT)), started)[0]

        return guarded

    @contextmanager
    def _block(self, event: Incoming) -> Iterator[Job]:
        started = time.perf_counter()
        planned = self.runtime.plan([event], lambda _: _BLOCK)
        batch = RunningBatch(self.runtime, planned, CopyWait(COPY_WAIT))
        ended = False
        try:
            if until_executed(batch) is None:
                ended = True
                yield _not_run(planned[0], self.runtime.tell(batch.result(), started)[0])
                return
            (run,) = batch.runs
            job = run.start()
            scope = None
            if self.runtime.transactions is not None:
                scope = Scope(run, job, self.runtime.transactions)
                job.connect = scope.connect
            try:
                with InsideHandler(), batch.inside(run):
                    yield job
            except BaseException as error:
                finish(run, error=as_failure(error))
                if scope is not None:
                    scope.roll_back(error)
                raise
            else:
                finish(run, job.result)
                if scope is not None:
                    scope.commit()
            finally:
                until_executed(batch)
                ended = True
                job.outcome = self.runtime.tell(batch.result(), started)[0]
        except BaseException as error:
            # The garbage collector may leave an abandoned block in any context.
            if not isinstance(error, GeneratorExit):
                INSIDE_HANDLER.set(batch.called_in)
            if not ended:
                batch.interrupted()
            raise

    @property
    def asynchronous(self) -> bool:
        """Whether some handler is `async def`: the events of one call then run side by side."""
        return self.runtime.routes.asynchronous

    def letters(self) -> Iterator[Letter]:
        """Return the dead letters of this consumer in its store, oldest first."""
        return self.admin.letters(self.name)

    def redrive(self, letters: Iterable[Letter] | None = None) -> list[Outcome]:
        """Run these dead letters again, or all of them; drop each whose event is settled now."""
        if letters is not None:
            check_iterable("redrive", letters, "dead letters")
        chosen = list(self.letters() if letters is None else letters)
        for letter in chosen:
            if not isinstance(letter, Letter):
                raise ConfigError(
                    "redrive: expected dead letters, as consumer.letters() gives them, not "
                    f"{type(letter).__name__}"
                )
        others = {letter.consumer for letter in chosen} - {self.name}
        if others:
            # An event that is done for one consumer would be dropped as a copy for the other.
            raise ConfigError(f"redrive: {self.name!r} cannot run dead letters of {sorted(others)}")
        outcomes = self.runtime.run_again([letter.event for letter in chosen])
        redrive.settle(self.admin, zip(chosen, outcomes, strict=True), self.runtime.clock())
        return outcomes

    def use(self, rules: Ruleset) -> None:
        """Plan all further events by these rules; events that are planned already keep the old."""
        if not isinstance(rules, Ruleset):
            raise ConfigError(f"use: expected a Ruleset, not {type(rules).__name__}")
        if rules.name != self.name:
            raise ConfigError(
                f"use: these rules are for the consumer {rules.name!r}, and this consumer is "
                f"{self.name!r}: the name is part of every key, so that every copy would be new"
            )
        self.rules = rules
        self.__dict__.pop("kept_headers", None)
        if rules.has_brief_results:
            self.runtime.keep_brief_results()
        self.runtime.planner = Planner(rules, self.max_bytes, self.runtime.clock)

    def over(self, store: Store, *, clock: Callable[[], int] = wall_clock) -> Consumer:
        """Return a consumer with the same name, rules and handlers over another store."""
        mine = self.runtime
        other = Consumer(
            store,
            name=self.name,
            rules=(),
            threads=mine.threads,
            unhandled=mine.unhandled.policy,
            max_bytes=self.max_bytes,
            sealing_keys=self._sealing_keys,
            clock=clock,
        )
        other.use(self.rules)
        other.runtime.routes = mine.routes.wrapped(lambda handler: handler)
        other._keep_headers = self._keep_headers
        return other

    def close(self) -> None:
        """Stop the threads and close the store."""
        self.runtime.close()
        if self.runtime.letters is not self.admin:
            self.runtime.letters.close()
        self.admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_observers(observers: Sequence[Observer]) -> None:
    check_iterable("Consumer: observers", observers, "functions")
    for observer in observers:
        if not hasattr(observer, "batch"):
            check_function("Consumer: an observer", observer)


def _deadline(seconds: float | None, margin: float) -> tuple[Deadline | None, float]:
    """Return the deadline, and the seconds for which handlers may begin."""
    check_seconds("process: margin", margin)
    if seconds is None:
        return None, inf
    check_seconds("process: deadline", seconds, negative=True)
    if seconds == inf:
        return None, inf
    seconds = max(0.0, seconds)
    at = time.monotonic() + seconds
    until = Deadline(at, int(seconds * 1000), at - margin if margin else inf)
    return until, max(0.0, seconds - margin)


def _letter_sink(letters: str | LetterSink | None, store: LetterSink) -> LetterSink:
    if letters is None or letters == "":
        return store
    if not isinstance(letters, str):
        if not hasattr(letters, "put_letters"):
            raise ConfigError(
                "letters: expected sqs://NAME, or a LetterSink, which has put_letters, not "
                f"{type(letters).__name__}"
            )
        return letters
    from eventonce.aws.dlq import QueueLetterSink  # noqa: PLC0415  only for a queue

    try:
        return QueueLetterSink(letters, store)
    except ConfigError as error:
        raise ConfigError(f"letters: {error}") from error


def _with_seal(
    store: Any, letters: str | LetterSink | None, keys: Sequence[str]
) -> tuple[Any, LetterSink]:
    """Return the store and the place of dead letters; both seal if there are keys."""
    if not keys:
        return store, _letter_sink(letters, store)
    from eventonce.privacy import SealedLetters, Sealer, sealed  # noqa: PLC0415  only to seal

    sealer = Sealer(keys)
    sink = _letter_sink(letters, store)
    store, inner = sealed(store, sealer), store
    return store, store if sink is inner else SealedLetters(sink, sealer)


def _unreachable(_: Job) -> None:
    raise AssertionError("the body of the `with` is the handler")


_BLOCK: Final = Route(_unreachable, asynchronous=False)


def _not_run(planned: Plan | Refusal, outcome: Outcome) -> Job:
    claim = planned.claim if type(planned) is Plan else Claim(b"", 0, 0, 0, 0)
    job = Job(outcome.event or Event(b"", b"null"), claim, rule=outcome.rule, run=False)
    job.outcome = outcome
    job.result = outcome.result
    return job
