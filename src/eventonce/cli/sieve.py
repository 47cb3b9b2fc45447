"""What passes lines on once: claims them, writes the new ones, settles them when they are flushed.

Not the engine: where the effect is to write a line there is no handler to run, to renew for or to
try again, and a filter is measured against a script that does nothing but parse.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Final, NamedTuple

from msgspec.structs import replace

from eventonce.cli.output import write_whole
from eventonce.clock import wall_clock
from eventonce.core.plan import Plan, Refusal
from eventonce.core.planner import Planner
from eventonce.core.reasons import reason
from eventonce.core.status import COPIES
from eventonce.errors import EnvelopeError, StoreError
from eventonce.rules import Ruleset
from eventonce.runtime.gate import Gate
from eventonce.types import Claim, Settlement, Verdict

RECENT: Final = 50_000
"""Facts passed on in this run that are known without asking the store, twice at the most: copies
mostly come soon after, and a dictionary of this size stays in the processor's cache."""


class Refused(NamedTuple):
    """A line that was neither passed on nor dropped as a copy."""

    at: int
    """The line's place among those given."""
    status: str
    reason: str


Asked = tuple[Claim, int, Sequence[Claim]]
"""A claim, its line's place, and the claims that older rules and secrets make; a bare tuple, for a
named one takes as long to make as the key of an event."""


Passed = tuple[float, bytes]
"""Of a line that was passed on: until when it is known, and the hash of its transport id."""


class Sorted(NamedTuple):
    """What is to be asked of the store for some lines."""

    lines: Sequence[bytes]
    groups: list[list[Asked]]
    """One after the other: a version of a subject is judged after the one before it is settled."""
    followers: dict[int, list[tuple[Claim, int]]]
    """By the place of a line that is asked for: the copies of it among these lines."""
    known: Counter[bool | None]
    """Copies of lines that this run passed on before: whether they had the same transport id."""
    refused: list[Refused]
    held: dict[int, Refused]
    """The replays that are only looked at, and what becomes of those that are new."""


class Sieve:
    """Plans lines, which asks nothing of the store, and passes them on."""

    def __init__(
        self,
        store: Any,
        rules: Ruleset,
        out: BinaryIO,
        *,
        max_bytes: int,
        remembers: bool = False,
    ) -> None:
        """`remembers` is whether the store outlives this run: only then can a replay be older than
        what is remembered."""
        self._gate = Gate(store)
        self._planner = Planner(rules, max_bytes, wall_clock, remembers=remembers)
        self._out = out
        self.counts: Counter[str] = Counter()
        self.again: Counter[bool | None] = Counter()
        """The duplicates, by whether they had the winner's transport id: `Verdict.redelivery`."""
        self._young: dict[bytes, Passed] = {}
        self._old: dict[bytes, Passed] = {}

    def plan(self, lines: Sequence[bytes]) -> Sorted:
        """Read the lines and find their keys."""
        nonce = random.getrandbits(52) | 1
        read, plan = self._planner.read, self._planner.plan
        young, old, now = self._young, self._old, time.monotonic()
        groups: list[list[Asked]] = []
        asked: dict[bytes, Asked] = {}
        followers: dict[int, list[tuple[Claim, int]]] = {}
        known: Counter[bool | None] = Counter()
        refused: list[Refused] = []
        held: dict[int, Refused] = {}
        for at, line in enumerate(lines):
            try:
                planned = plan(read(line), nonce)
            except EnvelopeError as error:
                if line and not line.isspace():
                    refused.append(Refused(at, "invalid", str(error)))
                continue
            if isinstance(planned, Refusal):
                refused.append(Refused(at, planned.outcome.status, planned.outcome.reason))
                continue
            claim = planned.claim
            if claim.peek:
                held[at] = _held(planned, at)
            before = asked.get(claim.key)
            if before is None:
                passed = young.get(claim.key) or old.get(claim.key)
                if passed is not None and now < passed[0]:
                    known[_redelivery(passed[1], claim.by)] += 1
                    continue
                asked[claim.key] = claim, at, planned.older
            elif (
                before[0].order == claim.order
                and before[0].digest == claim.digest
                and before[0].peek == claim.peek
            ):
                followers.setdefault(before[1], []).append((claim, at))
            else:
                groups.append(list(asked.values()))
                asked = {claim.key: (claim, at, planned.older)}
        groups.append(list(asked.values()))
        return Sorted(lines, groups, followers, known, refused, held)

    def sift(self, plan: Sorted) -> list[Refused]:
        """Pass on what is new; gives back what is neither new nor a copy."""
        refused = list(plan.refused)
        for group in plan.groups:
            self._pass(group, plan, refused)
        self.counts.update(one.status for one in refused)
        self._duplicates(plan.known)
        return sorted(refused)

    def _pass(self, group: Sequence[Asked], plan: Sorted, refused: list[Refused]) -> None:
        unsure: list[Claim] = []
        asking = [
            one for one in group if not one[2] or self._is_unknown(one, plan, refused, unsure)
        ]
        new: list[bytes] = []
        granted: list[Settlement] = []
        verdicts = self._gate.claim([claim for claim, _, _ in asking]) if asking else []
        for (claim, at, _), verdict in zip(asking, verdicts, strict=True):
            if verdict.kind == "run" and verdict.token:
                new.append(plan.lines[at])
                granted.append(Settlement(claim, verdict.token, "complete"))
                copies = plan.followers.get(at, ())
                self._duplicates(Counter(_redelivery(claim.by, copy.by) for copy, _ in copies))
            else:
                self._not_new(claim, at, verdict, plan, refused, unsure)
        if new:
            self._write(new, granted)
        if unsure:
            answers = self._gate.claim([replace(claim, peek=True) for claim in unsure])
            self._duplicates(Counter(answer.redelivery for answer in answers))

    def _is_unknown(
        self, asked: Asked, plan: Sorted, refused: list[Refused], unsure: list[Claim]
    ) -> bool:
        """Whether nothing is known of the event under the keys it had before."""
        claim, at, older = asked
        for verdict in self._gate.claim(older):
            if verdict.kind != "run":
                self._not_new(claim, at, verdict, plan, refused, unsure)
                return False
        return True

    def _not_new(
        self,
        leader: Claim,
        at: int,
        verdict: Verdict,
        plan: Sorted,
        refused: list[Refused],
        unsure: list[Claim],
    ) -> None:
        """Count a line that is not passed on, and the copies of it, which share its fate."""
        if isinstance(verdict.error, StoreError):
            raise verdict.error
        for claim, place in ((leader, at), *plan.followers.get(at, ())):
            if verdict.kind == "run":
                refused.append(plan.held[place])
            elif verdict.kind not in COPIES:
                refused.append(Refused(place, verdict.kind, reason(claim, verdict)))
            elif verdict.kind != "duplicate":
                self.counts[verdict.kind] += 1
            elif claim.by == leader.by:
                self._duplicates({verdict.redelivery: 1})
            elif verdict.redelivery:
                self._duplicates({_redelivery(leader.by, claim.by): 1})
            else:
                # Neither has the leader's id: only the store knows whether it is the winner's.
                unsure.append(claim)

    def _duplicates(self, causes: Mapping[bool | None, int]) -> None:
        if causes:
            self.counts["duplicate"] += sum(causes.values())
            self.again.update(causes)

    def _write(self, new: Sequence[bytes], granted: Sequence[Settlement]) -> None:
        try:
            write_whole(self._out, b"\n".join(new) + b"\n")
            kept = self._gate.settle(granted).count("kept")
            self.counts["done"] += kept
            if kept < len(granted):
                # The reader outlasted the lease, and another filter passed them on too.
                self.counts["fenced"] += len(granted) - kept
            else:
                self._remember(granted)
        except BaseException:
            # Nobody has seen them, or not all of them: the next run shall not wait for the lease.
            freed = [Settlement(one.claim, one.token, "release") for one in granted]
            with suppress(StoreError):
                self._gate.settle(freed, ())
            raise

    def _remember(self, settled: Sequence[Settlement]) -> None:
        """Facts that are done, and will be for as long as their rule says, whatever comes."""
        if len(self._young) > RECENT:
            self._young, self._old = {}, self._young
        now = time.monotonic()
        for one in settled:
            claim = one.claim
            if claim.order is None and not claim.digest and not claim.sliding:
                self._young[claim.key] = now + claim.remember / 1000, claim.by


def _held(plan: Plan, at: int) -> Refused:
    """What becomes of a replay that is only looked at, though it is new."""
    if plan.rule.on_replay == "report":
        why = plan.forgotten or reason(plan.claim, Verdict("run"))
        return Refused(at, "ignored", f"replay, reported only: {why}")
    return Refused(at, "dead", plan.forgotten)


def _redelivery(winner: bytes, by: bytes) -> bool | None:
    """Whether these are the same transport id; None where one is missing: as the law has it."""
    return winner == by if winner and by else None
