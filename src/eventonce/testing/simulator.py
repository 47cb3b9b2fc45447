"""Whole consumers under a seeded schedule of crashes, pauses, lost replies, redeliveries,
reorderings and clock jumps, over the real engine and a real store.

`simulate(seed)` raises `Violation` with the whole schedule if a promise is broken;
`python -m eventonce.testing.simulator SEED` plays one seed again and prints its schedule.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec

from eventonce import envelope
from eventonce.core.engine import Ask, Batch, Enter, Execute, Keep, Settle, Wait
from eventonce.core.outcomes import finish, settlement
from eventonce.core.plan import Run
from eventonce.core.planner import Planner
from eventonce.core.routing import Route, ignored
from eventonce.errors import StoreUnavailable
from eventonce.rules import Rule, Ruleset
from eventonce.stores.memory import MemoryStore
from eventonce.testing.harness import CLOCK_START, ManualClock
from eventonce.types import (
    Claim,
    Job,
    Outcome,
    Settlement,
    SettleResult,
    Verdict,
    effect_id,
)

RULE_LEASE: Final = 10_000
FAULTY_STEPS: Final = 400
"""Steps with faults, before the steps without faults in which all work must end."""

CALM_STEPS: Final = 4_000
"""The most steps without faults: many times what a schedule of this size needs."""

RULES: Final = (
    Rule(name="fact", match="fact", key=["detail.call"], lease=RULE_LEASE / 1000, attempts=4),
    Rule(
        name="state",
        match="state",
        subject=["detail.agent"],
        order="detail.version",
        state=["detail.status"],
        at="detail.at",
        unchanged_within="500ms",
        lease=RULE_LEASE / 1000,
        attempts=4,
    ),
)


class Violation(AssertionError):
    """A promise was broken under this seed."""


@dataclass
class Sink:
    """The target of the handlers' effects; it checks tokens, as the docs ask of a sink of
    states."""

    effects: Counter[str] = field(default_factory=Counter)
    tokens: dict[bytes, int] = field(default_factory=dict)
    shown: dict[bytes, Claim] = field(default_factory=dict)
    """The current version of each subject."""
    backwards: list[str] = field(default_factory=list)

    def take(self, job: Job) -> None:
        """Apply the effect of the job, unless a run with a higher token came before."""
        order = job.claim.order
        if order is None:
            self.effects[job.effect_id] += 1
            return
        if job.token < self.tokens.get(job.key, 0):
            return
        self.tokens[job.key] = job.token
        before = self.shown.get(job.key)
        if before is not None and before.order is not None and order < before.order:
            self.backwards.append(f"{job.effect_id}: {before.order} was followed by {order}")
        self.shown[job.key] = job.claim
        self.effects[job.effect_id] += 1


@dataclass(eq=False)
class Worker:
    """One worker in the middle of a batch."""

    name: str
    deliveries: list[bytes]
    processing: Generator[None, None, list[Outcome]] = field(init=False)
    runs: Sequence[Run] = ()
    """The runs whose handlers are running, and whose leases are renewed."""


def _handler(_: Job) -> None:
    raise AssertionError("the simulation runs effects itself")


def _memory(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


class Simulation:
    """One schedule, from its seed."""

    def __init__(self, seed: int, open_store: Callable[[ManualClock], Any] = _memory) -> None:
        self.seed = seed
        self.clock = ManualClock()
        self.store = open_store(self.clock)
        self.sink = Sink()
        self.trace: list[str] = []
        self._random = random.Random(seed)
        self._calm = False
        self._queue: list[tuple[int, bytes]] = []
        self._workers: list[Worker] = []
        self._outcomes: dict[bytes, list[Outcome]] = {}
        self._settled: dict[str, int] = {}
        self._started = 0
        self._rules = Ruleset(RULES, name="simulated")
        self._planner = Planner(self._rules, 1 << 20, self.clock)
        self._facts = [_event("fact", n, call=f"call-{n}") for n in range(4)]
        self._states = [
            _event(
                "state",
                n,
                agent=f"agent-{n % 2}",
                version=n // 2,
                status=status,
                at=CLOCK_START + n * 100,
            )
            for n, status in enumerate("AABBACBA")
        ]
        self._states.append(
            _event("state", 99, agent="agent-0", version=2, status="T", at=CLOCK_START + 950)
        )

    def goes_wrong(self, chance: float) -> bool:
        """Return whether a fault happens now; never in the calm steps."""
        return not self._calm and self._random.random() < chance

    def note(self, worker: Worker, what: str) -> None:
        """Write a line of the schedule."""
        self.trace.append(f"{self.clock.now - CLOCK_START:>8} {worker.name}: {what}")

    def granted(self, claims: Sequence[Claim], verdicts: Sequence[Verdict]) -> None:
        """Check that nothing that was completed before is granted."""
        for claim, verdict in zip(claims, verdicts, strict=True):
            if verdict.kind == "run" and effect_id(claim) in self._settled:
                self._broken(f"{effect_id(claim)} was granted again after it was completed")

    def settled(self, settlements: Sequence[Settlement], answers: Sequence[SettleResult]) -> None:
        """Check that at most one run completes a fact or a version."""
        for one, kept in zip(settlements, answers, strict=True):
            if one.action == "complete" and kept == "kept":
                name = effect_id(one.claim)
                if self._settled.setdefault(name, one.token) != one.token:
                    self._broken(f"{name} was completed by two runs")

    def play(self) -> None:
        """Play the steps with faults, then those without; then check every promise."""
        events = [*self._facts, *self._states]
        for event in events:
            for _ in range(self._random.choice((1, 1, 2, 3))):
                self._queue.append((self.clock.now + self._random.randrange(5_000), event))
        for _ in range(FAULTY_STEPS):
            self._step()
        self._calm = True
        for _ in range(CALM_STEPS):
            if not self._queue and not self._workers:
                break
            self._step()
        self._check(events)

    def _step(self) -> None:
        roll = self._random.random()
        if roll < 0.25 or not self._workers:
            self._start_worker()
        elif self.goes_wrong(0.04):
            self._crash(self._random.choice(self._workers))
        elif self.goes_wrong(0.03):
            self._advance(self._random.choice((RULE_LEASE // 2, RULE_LEASE + 1, 4 * RULE_LEASE)))
        elif self.goes_wrong(0.02):
            self._advance(-self._random.choice((1, 500, 120_000)))
        elif roll < 0.4:
            self._renew(self._random.choice(self._workers))
        else:
            self._continue(self._random.choice(self._workers))
        if self._calm and not self._workers:
            self._advance(RULE_LEASE)
        elif self._random.random() < 0.3:
            self._advance(self._random.choice((1, 50, 400)))

    def _advance(self, milliseconds: int) -> None:
        self.clock.now += milliseconds

    def _start_worker(self) -> None:
        visible = [entry for entry in self._queue if entry[0] <= self.clock.now]
        if not visible or len(self._workers) >= 3:
            self._advance(100)
            return
        self._random.shuffle(visible)
        taken = visible[: self._random.randrange(1, 5)]
        for entry in taken:
            self._queue.remove(entry)
        self._started += 1
        deliveries = [event for _, event in taken]
        planned = self._planner.plan_all(
            deliveries,
            lambda _: Route(_handler, asynchronous=False),
            ignored,
            self._random.getrandbits(52) | 1,
            redrive=False,
        )
        batch = Batch(planned, "simulated", self.clock)
        worker = Worker(f"w{self._started}", deliveries)
        worker.processing = self._driven(worker, batch)
        self._workers.append(worker)
        self.note(worker, "takes " + ", ".join(_name(event) for event in deliveries))

    def _driven(self, worker: Worker, batch: Batch) -> Generator[None, None, list[Outcome]]:
        """Run the batch, with a possible interruption before and after every request."""
        steps = batch.steps()
        answer: Any = None
        error: StoreUnavailable | None = None
        while True:
            try:
                request = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as stop:
                return cast("list[Outcome]", stop.value)
            answer, error = None, None
            yield
            match request:
                case Ask():
                    answer = yield from self._asked(worker, request.claims)
                case Settle():
                    try:
                        answer = yield from self._told(worker, [*map(settlement, request.runs)])
                    except StoreUnavailable as lost:
                        error = lost
                case Execute():
                    yield from self._run(worker, request.runs)
                case Keep():
                    self.store.put_letters(request.letters)
                case Enter():
                    # Each worker is a separate process, and runs one batch at a time.
                    answer = request.alone
                case Wait():
                    answer = self.goes_wrong(0.3)
            yield

    def _asked(
        self, worker: Worker, claims: Sequence[Claim]
    ) -> Generator[None, None, list[Verdict]]:
        answer = self.store.claim(claims)
        if self.goes_wrong(0.05):
            self.note(worker, "reply to claim lost, claimed again")
            yield
            answer = self.store.claim(claims)
        self.granted(claims, answer)
        return cast("list[Verdict]", answer)

    def _told(
        self, worker: Worker, settlements: Sequence[Settlement]
    ) -> Generator[None, None, list[SettleResult]]:
        answer = self.store.settle(settlements)
        self.settled(settlements, answer)
        if self.goes_wrong(0.05):
            self.note(worker, "reply to settle lost, settled again")
            yield
            answer = self.store.settle(settlements)
        if self.goes_wrong(0.03):
            self.note(worker, "reply to settle lost for good")
            raise StoreUnavailable("simulated")
        return cast("list[SettleResult]", answer)

    def _run(self, worker: Worker, runs: Sequence[Run]) -> Generator[None, None, None]:
        worker.runs = runs
        for run in runs:
            yield
            if self.goes_wrong(0.1):
                finish(run, error=ValueError("simulated"))
                continue
            self.sink.take(run.start())
            yield
            finish(run, "ran")
            if self.goes_wrong(0.2):
                # The gate's timer settles this run while the others still run.
                (run.kept,) = yield from self._settled_early(worker, run)
        worker.runs = ()

    def _settled_early(
        self, worker: Worker, run: Run
    ) -> Generator[None, None, list[SettleResult] | tuple[None]]:
        try:
            return (yield from self._told(worker, [settlement(run)]))
        except StoreUnavailable:
            return (None,)

    def _continue(self, worker: Worker) -> None:
        try:
            worker.processing.send(None)
        except StopIteration as stop:
            self._workers.remove(worker)
            for event, outcome in zip(worker.deliveries, stop.value, strict=True):
                self._answered(worker, event, outcome)

    def _answered(self, worker: Worker, event: bytes, outcome: Outcome) -> None:
        self.note(worker, f"{_name(event)} {outcome.status}: {outcome.reason}")
        if not outcome.ack or self.goes_wrong(0.1):
            # Not acknowledged, or the acknowledgement was lost: the event comes again.
            later = max(outcome.retry_at or 0, self.clock.now) + self._random.randrange(1_000)
            self._queue.append((later, event))
        if outcome.ack:
            self._outcomes.setdefault(event, []).append(outcome)

    def _crash(self, worker: Worker) -> None:
        self.note(worker, "dies")
        self._workers.remove(worker)
        worker.processing.close()
        for event in worker.deliveries:
            self._queue.append((self.clock.now + RULE_LEASE, event))

    def _renew(self, worker: Worker) -> None:
        live = [run for run in worker.runs if run.token and not run.finished]
        if live:
            self.store.settle([Settlement(run.claim, run.token, "extend") for run in live])

    def _check(self, events: Sequence[bytes]) -> None:
        letters = {letter.id for letter in self.store.letters()}
        if self._queue or self._workers:
            self._broken("some events never came to an end")
        for event in events:
            if not self._outcomes.get(event):
                self._broken(f"{_name(event)} was never acknowledged")
        for fact in self._facts:
            done = [o for o in self._outcomes[fact] if o.status == "done"]
            name = self._outcomes[fact][0].key.hex()
            if len(done) > 1:
                self._broken(f"{_name(fact)} was settled {len(done)} times")
            if not self.sink.effects[name] and name not in letters:
                self._broken(f"{_name(fact)} is lost: no effect and no dead letter")
        for line in self.sink.backwards:
            self._broken(f"a subject went backwards: {line}")
        self._check_newest(letters)

    def _check_newest(self, letters: set[str]) -> None:
        """Check that the sink shows the newest state, unless its version is a dead letter."""
        claims = [self._rules.plan(envelope.read(event), 1)[1] for event in self._states]
        for key in {claim.key for claim in claims}:
            newest = max(claim.order or 0 for claim in claims if claim.key == key)
            last = [claim for claim in claims if claim.key == key and claim.order == newest]
            if any(effect_id(claim) in letters for claim in last):
                continue
            shown = self.sink.shown.get(key)
            if shown is None or shown.digest not in {claim.digest for claim in last}:
                self._broken(f"the sink shows {shown and shown.order}, the newest is {newest}")

    def _broken(self, what: str) -> None:
        schedule = "\n".join(self.trace)
        raise Violation(f"{schedule}\nseed {self.seed}: {what}")


def _event(kind: str, number: int, **detail: object) -> bytes:
    return msgspec.json.encode(
        {"id": f"{kind}-{number}", "source": "simulated", "detail-type": kind, "detail": detail}
    )


def _name(event: bytes) -> str:
    return str(msgspec.json.decode(event)["id"])


def simulate(seed: int, open_store: Callable[[ManualClock], Any] = _memory) -> Simulation:
    """Play the schedule of this seed; raise `Violation` if it breaks a promise."""
    simulation = Simulation(seed, open_store)
    simulation.play()
    return simulation


if __name__ == "__main__":
    print(  # noqa: T201  a command
        "\n".join(simulate(int(sys.argv[1])).trace)
    )
