"""A round of concurrent calls: clients start at one moment, and their calls and answers become a
history; if no order explains the history, a timeline is printed."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Final

import msgspec

from eventonce.clock import wall_clock
from eventonce.testing.cases.samples import HOUR, SECOND, fact, new_keys
from eventonce.testing.clients import Call, Client, Reply, Turn
from eventonce.testing.linearizability import Answer, Operation, Violation, violation
from eventonce.types import Action, Claim, Settlement, Verdict

TURN_LEAD: Final = 0.001
"""Seconds for telling all clients their turn, before its moment."""
CLOCK_PROBES: Final = 3
"""Grants from which a client learns the store's time: the fastest is the most exact."""


class Run(msgspec.Struct, frozen=True):
    """A run that was granted to a client."""

    client: Client
    claim: Claim
    verdict: Verdict

    @property
    def until(self) -> int:
        """The end of the lease by the store's clock; the token has the instant of the grant."""
        return self.verdict.token // 1_000 + self.claim.lease

    def settled(self, action: Action) -> Settlement:
        """Return the settlement of this run; its result names its token."""
        token = self.verdict.token
        return Settlement(
            self.claim, token, action, b"%d" % token if action == "complete" else None
        )


Calls = Mapping[Client, Sequence[Call]]


class Recorder:
    """One round: its clients, their history, and the runs that were granted to them."""

    def __init__(
        self,
        clients: Sequence[Client],
        chance: random.Random,
        *,
        served: bool,
        transactional: bool,
    ) -> None:
        self.clients = clients
        self.served = served
        """Whether a server gives the time and holds the locks."""
        self.transactional = transactional
        self.chance = chance
        self.history = OperationHistory()
        self.runs: list[Run] = []
        self.off: dict[Client, tuple[int, int]] = {}
        """The least and the most milliseconds by which the store's clock is ahead of ours, for each
        client."""

    def play(
        self, calls: Calls, moment: float = 0.0, meanwhile: Callable[[], None] | None = None
    ) -> None:
        """Let these clients make these calls, all from one moment on, and record the replies."""
        begun = self.begin(calls, moment)
        if meanwhile is not None:
            meanwhile()
        self.gather(calls, begun)

    def begin(self, calls: Calls, moment: float = 0.0) -> tuple[int, int]:
        """Start the calls of these clients; return the time before the start."""
        moment = max(moment, time.monotonic() + TURN_LEAD)
        begun = wall_clock(), time.monotonic_ns()
        for client, turn in calls.items():
            client.begin(Turn(tuple(turn), moment))
        return begun

    def gather(self, calls: Calls, begun: tuple[int, int]) -> None:
        """Wait for these clients, and record their replies."""
        for client, turn in calls.items():
            replies: list[Reply | None] = [*client.replies()]
            replies += [None] * (len(turn) - len(replies))
            for call, reply in zip(turn, replies, strict=True):
                self._record(client, call, reply, begun)

    def alone(self, client: Client, *calls: Call) -> None:
        """Let one client make these calls."""
        self.play({client: calls})

    def together(self, clients: Sequence[Client], call: Callable[[], Call]) -> None:
        """Let each of these clients make such a call, at one moment."""
        self.play({client: [call()] for client in clients})

    def over(self, runs: Sequence[Run]) -> None:
        """Wait until the leases of these runs have ended by the store's clock."""
        until = max((run.until for run in runs), default=0) - self.ahead
        while (left := until - wall_clock()) >= 0:
            time.sleep((left + 1) / SECOND)

    @property
    def ahead(self) -> int:
        """The least milliseconds by which the store's clock is ahead of ours."""
        return min(low for low, _ in self.off.values())

    def granted(self, client: Client | None, keys: Sequence[bytes]) -> list[Run]:
        """Return the latest run of each of these keys, of this client or of anyone."""
        latest: dict[bytes, Run] = {}
        for run in self.runs:
            if run.claim.key in keys and client in (None, run.client):
                first = latest.setdefault(run.claim.key, run)
                if run.verdict.token > first.verdict.token:
                    latest[run.claim.key] = run
        return list(latest.values())

    def read_clocks(self) -> None:
        """Learn how far the store's clock is from ours: each grant has its instant."""
        # Two clocks always differ by fractions of a millisecond.
        slack = int(self.served)
        for client in self.clients:
            claims = [fact(key) for key in new_keys(CLOCK_PROBES)]
            self.alone(client, *(Call("claim", (claim,)) for claim in claims))
            least, most = -inf, inf
            for claim in claims:
                (it,) = self.history.keys.pop(claim.key)
                assert isinstance(it.answer, Verdict)
                instant = it.answer.token // 1_000
                least, most = max(least, instant - it.latest), min(most, instant - it.earliest)
            low, high = sorted((int(least), int(most)))
            off = (0, 0) if low <= 0 <= high else (low, high)
            self.off[client] = off[0] - slack, off[1] + slack
        self.runs.clear()

    def _record(
        self, client: Client, call: Call, reply: Reply | None, begun: tuple[int, int]
    ) -> None:
        low, high = self.off.get(client, (0, 0))
        called = begun[1] if reply is None else reply.called
        if call.now is not None:
            window = call.now, call.now
        elif reply is None or reply.answers is None:
            earliest = (begun[0] if reply is None else reply.earliest) + low
            window = earliest, earliest + HOUR
        else:
            window = reply.earliest + low, reply.latest + high
        for i, ask in enumerate(call.asks):
            answer = None if reply is None or reply.answers is None else reply.answers[i]
            if isinstance(answer, Verdict) and answer.kind == "error":
                answer = None
            returned = None if reply is None or answer is None else reply.returned
            operation = Operation(client.name, ask, answer, called, returned, *window)
            self.history.add(operation)
            if isinstance(answer, Verdict) and operation.granted:
                self.runs.append(Run(client, operation.claim, answer))


WIDTH: Final = 40
"""The characters of a timeline between the first call and the last return."""

EVENTS: Final = frozenset(("busy", "completed", "duplicate", "fenced", "open", "takeover"))
"""The events that every history must contain: a history without conflicts proves nothing."""


class OperationHistory:
    """The recorded operations on many keys."""

    def __init__(self) -> None:
        self.keys: dict[bytes, list[Operation]] = defaultdict(list)

    def add(self, operation: Operation) -> None:
        """Record one operation."""
        self.keys[operation.claim.key].append(operation)

    @property
    def reached(self) -> set[str]:
        """The `EVENTS` that occurred in this history."""
        return {name for operations in self.keys.values() for it in operations for name in _of(it)}

    def check(self) -> None:
        """Raise an AssertionError with the timeline of the first key that the law does not
        explain."""
        for operations in self.keys.values():
            if found := violation(operations):
                raise AssertionError(timeline(found))


def _of(it: Operation) -> set[str]:
    if it.answer is None:
        return {"open"}
    if isinstance(it.answer, Verdict):
        return {"takeover"} if it.granted and it.answer.attempt > 1 else {it.answer.kind}
    return {"completed" if it.answer == "kept" and it.action == "complete" else it.answer}


def timeline(found: Violation) -> str:
    """Return the operations of one key, a line each, in the order of their calls.

    Times are milliseconds since the first call; instants and tokens count from the earliest
    instant. The numbers are the places in the longest order that the law explains; operations
    that could have come next are followed by the answers of the law.
    """
    operations = found.operations
    start = min(it.called for it in operations)
    end = max(it.returned or it.called for it in operations)
    first = min(it.earliest for it in operations)
    nonces = list(dict.fromkeys(it.claim.nonce for it in operations))
    laws = dict(found.stuck)
    lines = [f"key {operations[0].claim.key.hex()}: {found.reason}", ""]
    for i, it in enumerate(operations):
        place = f"{found.placed.index(i) + 1}." if i in found.placed else ""
        returned = "open" if it.returned is None else f"{(it.returned - start) / 1e6:.2f}"
        lines.append(
            f"{place:>3} {_bar(it, start, end)} {(it.called - start) / 1e6:9.2f} {returned:>9}  "
            f"{it.client:<10} {_asked(it, first, nonces)} -> {_answered(it.answer, first)}"
        )
        lines.extend(f"{'':>78}the law says {_answered(law, first)}" for law in laws.get(i, ()))
    return "\n".join(lines)


def _bar(it: Operation, start: int, end: int) -> str:
    scale = (WIDTH - 1) / max(1, end - start)
    left = int((it.called - start) * scale)
    if it.returned is None:
        return f"{'':<{left}}|{'':->{WIDTH - left - 1}}>"
    width = int((it.returned - start) * scale) - left
    return f"{'':<{left}}{'|' if not width else '|' + '-' * (width - 1) + '|':<{WIDTH - left}} "


def _asked(it: Operation, first: int, nonces: Sequence[int]) -> str:
    number = nonces.index(it.claim.nonce) + 1
    at = f"now=+{it.earliest - first}"
    if it.latest > it.earliest:
        at += f"..{it.latest - first}"
    if not isinstance(it.ask, Claim):
        return f"{it.ask.action} c{number} token=+{it.ask.token - first * 1_000} {at}"
    said = [f"claim c{number} lease={it.ask.lease} attempts={it.ask.attempts}"]
    for name in ("order", "digest", "unchanged_within", "sliding", "redrive", "peek", "alone"):
        value = getattr(it.ask, name)
        if value not in (None, False, 0, b""):
            said.append(f"{name}={value}")
    return " ".join((*said, at))


def _answered(answer: Answer | None, first: int) -> str:
    if not isinstance(answer, Verdict):
        return answer or "?"
    said: list[str] = [answer.kind]
    for field in msgspec.structs.fields(Verdict)[1:]:
        value = getattr(answer, field.name)
        if value != field.default:
            if field.name == "token":
                value = f"+{value - first * 1_000}"
            said.append(f"{field.name}={value}")
    return " ".join(said)
