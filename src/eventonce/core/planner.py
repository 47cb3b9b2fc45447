"""The planner: reads events, and finds the handler, the rule and the claim of each.

One place for every way in: `process`, `filter`, `redrive` and all that read without running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final

import msgspec

from eventonce import envelope
from eventonce.core.plan import Deadline, Handler, Plan, Refusal
from eventonce.core.reasons import forgotten
from eventonce.core.routing import Route
from eventonce.core.sealed import key_of
from eventonce.core.status import DEAD_LETTERS
from eventonce.envelope.reader import NoEvent
from eventonce.errors import EnvelopeError, SealedError
from eventonce.rules import Ruleset
from eventonce.types import Claim, Event, Outcome

Incoming = bytes | bytearray | memoryview | str | Mapping[str, Any] | Event
"""An event as callers give it: JSON as bytes or text, a decoded object, or an `Event`."""

REDRIVE_ALLOWANCE: Final = 1 << 19
"""Bytes that a dead letter may have besides its event: the headers, at most 64 KiB, and the
transport id, which may be one of them. Each can be twice as long when escaped as JSON."""

REDRIVEN: Final = "redrive"
"""The channel of a dead letter that runs again."""

_NO_ROUTE: Final[tuple[Handler | None, bool]] = (None, False)
"""The route of an event that is planned but not run."""


class Planner:
    """A planner of events by one consumer's rules; it has no store and no clock of its own."""

    def __init__(
        self,
        rules: Ruleset,
        max_bytes: int,
        clock: Callable[[], int],
        *,
        remembers: bool = True,
    ) -> None:
        """`remembers`: whether the store outlives the process; only then can a replay be older than
        the records."""
        self.rules = rules
        self.max_bytes = max_bytes
        self._clock = clock
        self._remembers = remembers

    def plan_all(
        self,
        events: Iterable[Incoming],
        route_of: Callable[[str], Route | None],
        unhandled: Callable[[Event], Outcome],
        nonce: int,
        *,
        redrive: bool,
        deadline: Deadline | None = None,
        deliveries: float = inf,
    ) -> list[Plan | Refusal]:
        """Return a plan for each event that a handler takes, and a refusal for each other."""
        limit = self.max_bytes + (REDRIVE_ALLOWANCE if redrive else 0)
        planned: list[Plan | Refusal] = []
        plan = self.plan
        type_, route = None, None
        for incoming in events:
            if redrive and type(incoming) is bytes and key_of(incoming):
                planned.append(_sealed(incoming))
                continue
            try:
                if type(incoming) is not Event:
                    event = envelope.read(incoming, max_bytes=limit)
                elif len(incoming.raw) > limit:
                    raise envelope.too_large(len(incoming.raw), limit)
                else:
                    event = incoming
            except EnvelopeError as error:
                known = incoming if type(incoming) is Event else None
                outcome = Outcome(known, "invalid", str(error), error=error)
                planned.append(Refusal(outcome, as_bytes(incoming), self._redacted(known)))
                continue
            if redrive:
                event = msgspec.structs.replace(event, channel=REDRIVEN)
            # Events of one batch mostly have one type.
            if event.type != type_:
                type_ = event.type
                route = route_of(type_)
            if route is None:
                outcome = unhandled(event)
                if outcome.status in DEAD_LETTERS:
                    paths = self.rules.redacted_in(event)
                    planned.append(Refusal(outcome, envelope.encode(event), paths))
                else:
                    planned.append(Refusal(outcome, b""))
                continue
            planned.append(plan(event, nonce, route, redrive, deadline, deliveries))
        return planned

    def plan(
        self,
        event: Event,
        nonce: int,
        route: Route | None = None,
        redrive: bool = False,  # noqa: FBT001, FBT002  by position, for speed
        deadline: Deadline | None = None,
        deliveries: float = inf,
    ) -> Plan | Refusal:
        """Return the plan for one event; without a route, for a caller that runs no handler."""
        try:
            rule, claim = self.rules.plan(event, nonce)
            older: Sequence[Claim] = ()
            if rule.also or self.rules.rotated:
                older = self.rules.also(event, rule, nonce)
        except EnvelopeError as error:
            return self._invalid(event, error)
        handler, asynchronous = route or _NO_ROUTE
        if not (redrive or event.replay or deadline) and deliveries >= claim.attempts:
            return Plan(event, rule, claim, older, handler, asynchronous, "", deliveries)
        lost, covered = "", False
        if redrive:
            claim = msgspec.structs.replace(claim, redrive=True)
            older = [msgspec.structs.replace(one, redrive=True) for one in older]
        elif event.replay and rule.on_replay != "force":
            looks = rule.on_replay == "report"
            if looks or not rule.shadow:
                lost = forgotten(event, claim, self._clock()) if self._remembers else ""
                if lost and not looks:
                    lost += ". If it did not, redrive this dead letter"
                if lost or looks:
                    claim = msgspec.structs.replace(claim, peek=True)
        if deadline is not None:
            covered = claim.lease >= deadline.lease
            if covered and claim.order is None:
                # A lease must not outlast the process: its event would wait in vain. A state keeps
                # its rule's lease: an older version waits for a newer one for some of its own
                # leases, and that time must not depend on the process that asks.
                claim = msgspec.structs.replace(claim, lease=max(1, deadline.lease))
        if deliveries < claim.attempts:
            claim = msgspec.structs.replace(claim, attempts=int(deliveries))
        return Plan(
            event, rule, claim, older, handler, asynchronous, lost, deliveries, deadline, covered
        )

    def _invalid(self, event: Event, error: EnvelopeError) -> Refusal:
        outcome = Outcome(event, "invalid", str(error), error.rule, error=error)
        return Refusal(outcome, envelope.encode(event), self._redacted(event))

    def _redacted(self, event: Event | None) -> Sequence[str]:
        return () if event is None else self.rules.redacted_in(event)


def _sealed(letter: bytes) -> Refusal:
    """Return the refusal of a dead letter that cannot be opened here: it stays as it is."""
    error = SealedError(
        f"sealed with the key {key_of(letter)!r}, and not opened: check the sealing_keys"
    )
    return Refusal(Outcome(None, "failed", str(error), error=error), letter)


def as_bytes(incoming: object) -> bytes:
    """Return the bytes that a dead letter keeps of an input of any type."""
    match incoming:
        case Event():
            return envelope.encode(incoming)
        case NoEvent():
            return incoming.with_headers
        case bytes() | bytearray() | memoryview():
            return bytes(incoming)
        case str():
            return incoming.encode("utf-8", "surrogatepass")
        case _:
            try:
                return msgspec.json.encode(incoming)
            except Exception:  # noqa: BLE001  no JSON can be made of it; its `repr` is all there is
                return repr(incoming).encode()
