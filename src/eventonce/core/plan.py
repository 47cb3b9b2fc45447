"""The events of one call on their way in: read, routed and given their claims, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from eventonce import envelope
from eventonce.clock import wall_clock
from eventonce.core import engine
from eventonce.core.ports import UNDECIDED, Effects, Task
from eventonce.core.reasons import forgotten
from eventonce.core.routing import Route, ignored
from eventonce.envelope.reader import NoEvent
from eventonce.errors import EnvelopeError
from eventonce.rules import Ruleset
from eventonce.types import Event, Outcome

Incoming = bytes | bytearray | memoryview | str | Mapping[str, Any] | Event
"""What people give: JSON as bytes or text, a decoded object, or an event that was read before."""


class End(NamedTuple):
    """The moment at which somebody will end this process."""

    at: float
    """By the monotonic clock."""
    lease: int
    """The milliseconds until then: what a fact's lease may last at most."""
    last_call: float
    """When a handler may begin at the latest, by the same clock."""


class Batch:
    """What the engine shall do, and the outcomes of what never reaches it, in the order asked."""

    def __init__(self, consumer: str) -> None:
        self._consumer = consumer
        self.tasks: list[Task] = []
        self.asynchronous = False
        self._outcomes: list[Outcome] = []
        self._places: list[int] = []
        self._refused: list[tuple[int, bytes]] = []

    def plan(
        self,
        events: Iterable[Incoming],
        rules: Ruleset,
        route_of: Callable[[str], Route | None],
        *,
        nonce: int,
        max_bytes: int,
        unhandled: Callable[[Event], Outcome] = ignored,
        redrive: bool = False,
        end: End | None = None,
        tries: int | None = None,
        clock: Callable[[], int] = wall_clock,
    ) -> None:
        """Read each event and find its handler, rule and claim."""
        for incoming in events:
            try:
                if type(incoming) is not Event:
                    event = envelope.read(incoming, max_bytes=max_bytes)
                elif len(incoming.raw) <= max_bytes:
                    event = incoming
                else:
                    # Held to the same limit, whoever read it.
                    raise envelope.too_large(len(incoming.raw), max_bytes)
            except EnvelopeError as error:
                known = incoming if type(incoming) is Event else None
                self._refuse(as_bytes(incoming), Outcome(known, "invalid", str(error), error=error))
                continue
            route = route_of(event.type)
            if route is None:
                self._leave(event, unhandled(event))
                continue
            try:
                rule, claim = rules.plan(event, nonce)
                also = rules.also(event, rule, nonce)
            except EnvelopeError as error:
                self._refuse(
                    envelope.kept(event),
                    Outcome(event, "invalid", str(error), error.rule, error=error),
                )
                continue
            if redrive:
                claim = msgspec.structs.replace(claim, redrive=True)
                also = [msgspec.structs.replace(older, redrive=True) for older in also]
            task = Task(event, rule, claim, route.handler, also)
            if event.replay and not redrive:
                _judge_replay(task, clock)
            if end is not None:
                _fit(task, end)
            if tries is not None:
                _bound(task, tries)
            self.tasks.append(task)
            self._places.append(len(self._outcomes))
            self._outcomes.append(UNDECIDED)
            if route.asynchronous:
                self.asynchronous = True

    def _leave(self, event: Event, outcome: Outcome) -> None:
        """No handler takes it: what is not kept needs nothing more."""
        if outcome.status in engine.LETTERED:
            self._refuse(envelope.kept(event), outcome)
        else:
            self._outcomes.append(outcome)

    def _refuse(self, raw: bytes, outcome: Outcome) -> None:
        self._refused.append((len(self._outcomes), raw))
        self._outcomes.append(outcome)

    async def process(self, effects: Effects) -> list[Outcome]:
        """Bring every event to its outcome."""
        if self._refused:
            kept = await engine.refuse(
                [raw for _, raw in self._refused],
                [self._outcomes[place] for place, _ in self._refused],
                effects,
                self._consumer,
            )
            for (place, _), outcome in zip(self._refused, kept, strict=True):
                self._outcomes[place] = outcome
        await engine.process(self.tasks, effects, self._consumer)
        for place, task in zip(self._places, self.tasks, strict=True):
            self._outcomes[place] = task.outcome
        return self._outcomes


def _judge_replay(task: Task, clock: Callable[[], int]) -> None:
    """Let a replay only look where its rule says so, or where its record may be gone."""
    rule = task.rule
    if rule.on_replay == "force" or (rule.shadow and rule.on_replay == "missing"):
        return
    task.forgotten = forgotten(task.event, task.claim, clock())
    if task.forgotten and rule.on_replay == "missing":
        task.forgotten += ". If it did not, redrive this letter"
    if task.forgotten or rule.on_replay == "report":
        task.claim = msgspec.structs.replace(task.claim, peek=True)


def _fit(task: Task, end: End) -> None:
    """No lease shall outlast a process that is ended: what it left would wait for nobody.

    A state's claim keeps its rule's lease: an older version waits for a newer one as long as some
    of its own leases last, and that must not depend on who asks.
    """
    task.ends, task.last_call = end.at, end.last_call
    task.covered = task.claim.lease >= end.lease
    if task.claim.order is None and task.covered:
        task.claim = msgspec.structs.replace(task.claim, lease=max(1, end.lease))


def _bound(task: Task, tries: int) -> None:
    """Nobody brings it more often than this."""
    task.deliveries = tries
    if tries < task.claim.attempts:
        task.claim = msgspec.structs.replace(task.claim, attempts=tries)


def as_bytes(incoming: object) -> bytes:
    """What was given, as a letter can keep it, whatever it is."""
    match incoming:
        case Event():
            return envelope.kept(incoming)
        case NoEvent():
            return incoming.kept
        case bytes() | bytearray() | memoryview():
            return bytes(incoming)
        case str():
            return incoming.encode("utf-8", "surrogatepass")
        case _:
            try:
                return msgspec.json.encode(incoming)
            except Exception:  # noqa: BLE001  it could not be read either; its look is all there is
                return repr(incoming).encode()
