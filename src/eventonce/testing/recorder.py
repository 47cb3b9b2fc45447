"""A session: clients are let go at one moment, and what they ask and hear becomes a history."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Final

import msgspec

from eventonce.clock import wall_clock
from eventonce.testing.cases.samples import HOUR, SECOND, fact, new_keys
from eventonce.testing.clients import Call, Client, Reply, Turn
from eventonce.testing.history import History
from eventonce.testing.linearizability import Operation
from eventonce.types import Action, Claim, Settlement, Verdict

LEAD: Final = 0.001
"""Seconds until all clients were told what to do at one moment."""
PROBES: Final = 3
"""Grants from which a client learns the store's time: the quickest of them tells it best."""


class Run(msgspec.Struct, frozen=True):
    """A run that was granted to a client."""

    client: Client
    claim: Claim
    verdict: Verdict

    @property
    def until(self) -> int:
        """The instant at which the lease ends, by the store's clock: a token is its grant's."""
        return self.verdict.token // 1_000 + self.claim.lease

    def settled(self, action: Action) -> Settlement:
        """The settlement of this run; its result names its token."""
        token = self.verdict.token
        return Settlement(
            self.claim, token, action, b"%d" % token if action == "complete" else None
        )


Calls = Mapping[Client, Sequence[Call]]


class Recorder:
    """One round: its clients, the history they make, and the runs they were granted."""

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
        """Whether a server tells the time and keeps the locks."""
        self.transactional = transactional
        self.chance = chance
        self.history = History()
        self.runs: list[Run] = []
        self.off: dict[Client, tuple[int, int]] = {}
        """Milliseconds, at least and at most, by which the store's clock is ahead of ours, as each
        client sees it."""

    def play(
        self, calls: Calls, moment: float = 0.0, meanwhile: Callable[[], None] | None = None
    ) -> None:
        """Let these clients make these calls, all from one moment on, and record what comes."""
        begun = self.begin(calls, moment)
        if meanwhile is not None:
            meanwhile()
        self.gather(calls, begun)

    def begin(self, calls: Calls, moment: float = 0.0) -> tuple[int, int]:
        """Tell these clients what to do; answers when that was."""
        moment = max(moment, time.monotonic() + LEAD)
        begun = wall_clock(), time.monotonic_ns()
        for client, turn in calls.items():
            client.begin(Turn(tuple(turn), moment))
        return begun

    def gather(self, calls: Calls, begun: tuple[int, int]) -> None:
        """Wait for these clients, and record what they say."""
        for client, turn in calls.items():
            replies: list[Reply | None] = [*client.replies()]
            replies += [None] * (len(turn) - len(replies))
            for call, reply in zip(turn, replies, strict=True):
                self._record(client, call, reply, begun)

    def alone(self, client: Client, *calls: Call) -> None:
        """Let one client make these calls."""
        self.play({client: calls})

    def together(self, clients: Sequence[Client], call: Callable[[], Call]) -> None:
        """Let these clients make such a call each, at one moment."""
        self.play({client: [call()] for client in clients})

    def over(self, runs: Sequence[Run]) -> None:
        """Wait until the leases of these runs are over by the store's clock."""
        until = max((run.until for run in runs), default=0) - self.ahead
        while (left := until - wall_clock()) >= 0:
            time.sleep((left + 1) / SECOND)

    @property
    def ahead(self) -> int:
        """Milliseconds by which the store's clock is surely ahead of ours, or less."""
        return min(low for low, _ in self.off.values())

    def granted(self, client: Client | None, keys: Sequence[bytes]) -> list[Run]:
        """The latest run of each of these keys, of this client or of anyone."""
        latest: dict[bytes, Run] = {}
        for run in self.runs:
            if run.claim.key in keys and client in (None, run.client):
                first = latest.setdefault(run.claim.key, run)
                if run.verdict.token > first.verdict.token:
                    latest[run.claim.key] = run
        return list(latest.values())

    def read_clocks(self) -> None:
        """Learn how far the store's clock is from ours: each grant tells its instant."""
        # Two clocks always differ by parts of milliseconds.
        slack = int(self.served)
        for client in self.clients:
            claims = [fact(key) for key in new_keys(PROBES)]
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
