"""The event filter: claims lines, writes the new ones, and settles them after the flush.

Not the engine: the effect is to write a line, so there is no handler to run, to renew a lease for
or to try again, and a filter is measured against a script that does nothing but parse.
`filter` beside this module is the command: it reads the input and keeps the rejects.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, BinaryIO, Final, NamedTuple

from msgspec.structs import replace

from eventonce import envelope
from eventonce.cli.output import write_whole
from eventonce.clock import wall_clock
from eventonce.core.plan import Plan, Refusal
from eventonce.core.planner import Planner
from eventonce.core.reasons import reason
from eventonce.core.status import COPIES
from eventonce.errors import EnvelopeError, StoreError
from eventonce.rules import Ruleset
from eventonce.runtime.gate import Gate
from eventonce.runtime.nonces import new_nonce
from eventonce.types import Claim, Settlement, Verdict

RECENT_FACTS: Final = 50_000
"""Facts of this run that are known without asking the store; at most twice this many. Copies mostly
come soon after, and a dictionary of this size stays in the processor's cache."""

Candidate = tuple[Claim, int, Sequence[Claim]]
"""A claim, the index of its line, and the claims under older rules and secrets. A bare tuple,
because creating a named one takes as long as making the key of an event."""

Decided = tuple[int, Claim, str]
"""The index, the claim and the status of a line that was written, or dropped as a copy."""

Written = tuple[float, bytes]
"""A written line in memory: the time until which it is known, and the hash of its transport id."""


class Rejected(NamedTuple):
    """A line that was neither written nor dropped as a copy."""

    at: int
    """The index of the line in its batch."""
    status: str
    reason: str


class Batch(NamedTuple):
    """Lines that were read and have keys; the store has not been asked yet."""

    lines: Sequence[bytes]
    groups: list[list[Candidate]]
    """Candidates in rounds: a version of a subject is judged after the one before it is settled."""
    copies: dict[int, list[tuple[Claim, int]]]
    """The copies of a candidate in this batch, by the index of the candidate's line."""
    known: list[tuple[Claim, int, bool | None]]
    """Copies of lines that this run wrote before, and whether they have the same transport id."""
    rejected: list[Rejected]
    replays: dict[int, Rejected]
    """The replays that are only looked up, with their reject if the store does not know them."""


class EventFilter:
    """The filter. It reads lines into a batch without the store, then writes the new lines."""

    def __init__(
        self,
        store: Any,
        rules: Ruleset,
        out: BinaryIO,
        *,
        max_bytes: int,
        remembers: bool = False,
        traces: bool = False,
        step: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`remembers`: whether the store outlives this run; only then can a replay be older than
        the records. `traces`: whether `decided` is kept. `step` is entered from a claim until the
        lines are written and settled, so that an interruption can wait for that."""
        self._gate = Gate(store)
        self._planner = Planner(rules, max_bytes, wall_clock, remembers=remembers)
        self._out = out
        self._traces = traces
        self._step = step
        self.counts: Counter[str] = Counter()
        self.same_id: Counter[bool | None] = Counter()
        """The number of duplicates by `Verdict.same_id`."""
        self.decided: list[Decided] = []
        """The lines of the latest batch that were written, or dropped as copies; empty without
        `traces`."""
        self._recent: dict[bytes, Written] = {}
        self._less_recent: dict[bytes, Written] = {}

    def plan(self, lines: Sequence[bytes]) -> Batch:
        """Read the lines and make their keys."""
        nonce = new_nonce()
        read, plan, limit = envelope.read, self._planner.plan, self._planner.max_bytes
        recent, less_recent, now = self._recent, self._less_recent, time.monotonic()
        batch = Batch(lines, [], {}, [], [], {})
        group: dict[bytes, Candidate] = {}
        for at, line in enumerate(lines):
            try:
                planned = plan(read(line, limit), nonce)
            except EnvelopeError as error:
                if line and not line.isspace():
                    batch.rejected.append(Rejected(at, "invalid", str(error)))
                continue
            if isinstance(planned, Refusal):
                outcome = planned.outcome
                batch.rejected.append(Rejected(at, outcome.status, outcome.reason))
                continue
            claim = planned.claim
            key = claim.key
            if claim.peek:
                batch.replays[at] = _new_replay(planned, at)
            before = group.get(key)
            if before is None:
                written = recent.get(key) or less_recent.get(key)
                if written is not None and now < written[0]:
                    batch.known.append((claim, at, _same_id(written[1], claim.by)))
                    continue
                group[key] = claim, at, planned.older
            elif (
                before[0].order == claim.order
                and before[0].digest == claim.digest
                and before[0].peek == claim.peek
            ):
                batch.copies.setdefault(before[1], []).append((claim, at))
            else:
                batch.groups.append(list(group.values()))
                group = {key: (claim, at, planned.older)}
        batch.groups.append(list(group.values()))
        return batch

    def write_new(self, batch: Batch) -> list[Rejected]:
        """Write the new lines, count the copies, and return the other lines."""
        rejected = list(batch.rejected)
        self.decided = []
        for group in batch.groups:
            with self._step():
                self._write_group(group, batch, rejected)
        self.counts.update(one.status for one in rejected)
        for claim, at, same_id in batch.known:
            self._drop_duplicate(claim, at, same_id)
        return sorted(rejected)

    def _write_group(
        self, group: Sequence[Candidate], batch: Batch, rejected: list[Rejected]
    ) -> None:
        unsure: list[tuple[Claim, int]] = []
        asked = [
            one
            for one in group
            if not one[2] or self._is_unknown_to_older_rules(one, batch, rejected, unsure)
        ]
        lines, copies, traces = batch.lines, batch.copies, self._traces
        new: list[bytes] = []
        granted: list[Settlement] = []
        verdicts = self._gate.claim([claim for claim, _, _ in asked]) if asked else []
        for (claim, at, _), verdict in zip(asked, verdicts, strict=True):
            if verdict.kind == "run" and verdict.token:
                new.append(lines[at])
                granted.append(Settlement(claim, verdict.token, "complete"))
                if traces:
                    self.decided.append((at, claim, "done"))
                if at in copies:
                    for copy, place in copies[at]:
                        self._drop_duplicate(copy, place, _same_id(claim.by, copy.by))
            else:
                self._count_known(claim, at, verdict, batch, rejected, unsure)
        if new:
            self._write(new, granted)
        if unsure:
            answers = self._gate.claim([replace(claim, peek=True) for claim, _ in unsure])
            for (claim, at), answer in zip(unsure, answers, strict=True):
                self._drop_duplicate(claim, at, answer.same_id)

    def _is_unknown_to_older_rules(
        self,
        candidate: Candidate,
        batch: Batch,
        rejected: list[Rejected],
        unsure: list[tuple[Claim, int]],
    ) -> bool:
        """Whether the store knows none of the keys that the event had before."""
        claim, at, older = candidate
        for verdict in self._gate.claim(older):
            if verdict.kind != "run":
                self._count_known(claim, at, verdict, batch, rejected, unsure)
                return False
        return True

    def _count_known(
        self,
        leader: Claim,
        leader_at: int,
        verdict: Verdict,
        batch: Batch,
        rejected: list[Rejected],
        unsure: list[tuple[Claim, int]],
    ) -> None:
        """Count a line that is not written, and its copies with the same verdict."""
        if isinstance(verdict.error, StoreError):
            raise verdict.error
        for claim, at in ((leader, leader_at), *batch.copies.get(leader_at, ())):
            if verdict.kind == "run":
                rejected.append(batch.replays[at])
            elif verdict.kind not in COPIES:
                rejected.append(Rejected(at, verdict.kind, reason(claim, verdict)))
            elif verdict.kind != "duplicate":
                self.counts[verdict.kind] += 1
                if self._traces:
                    self.decided.append((at, claim, verdict.kind))
            elif claim.by == leader.by:
                self._drop_duplicate(claim, at, verdict.same_id)
            elif verdict.same_id:
                self._drop_duplicate(claim, at, _same_id(leader.by, claim.by))
            else:
                # Neither has the leader's id: only the store knows whether it is the winner's.
                unsure.append((claim, at))

    def _drop_duplicate(self, claim: Claim, at: int, same_id: bool | None) -> None:  # noqa: FBT001  as the law answers
        self.counts["duplicate"] += 1
        self.same_id[same_id] += 1
        if self._traces:
            self.decided.append((at, claim, "duplicate"))

    def _write(self, new: Sequence[bytes], granted: Sequence[Settlement]) -> None:
        try:
            # Joined with the last newline: adding it would copy all lines once more.
            write_whole(self._out, b"\n".join((*new, b"")))
            kept = self._gate.settle(granted).count("kept")
            self._gate.let_go(None, [one.claim for one in granted])
            self.counts["done"] += kept
            if kept < len(granted):
                # Writing took longer than the lease, and another filter wrote these lines, too.
                self.counts["fenced"] += len(granted) - kept
            else:
                self._remember(granted)
        except BaseException:
            # The lines were not written whole: the next run must not wait for the lease.
            freed = [Settlement(one.claim, one.token, "release") for one in granted]
            with suppress(StoreError):
                self._gate.settle(freed, ())
            raise

    def _remember(self, settled: Sequence[Settlement]) -> None:
        """Remember these facts in memory, for as long as their rule remembers them."""
        if len(self._recent) > RECENT_FACTS:
            self._recent, self._less_recent = {}, self._recent
        recent, now = self._recent, time.monotonic()
        for one in settled:
            claim = one.claim
            if claim.order is None and not claim.digest and not claim.sliding:
                recent[claim.key] = now + claim.remember / 1000, claim.by


def _new_replay(plan: Plan, at: int) -> Rejected:
    """Return the reject of a replay that is only looked up, if the store does not know it."""
    if plan.rule.on_replay == "report":
        why = plan.forgotten or reason(plan.claim, Verdict("run"))
        return Rejected(at, "ignored", f"replay, reported only: {why}")
    return Rejected(at, "dead", plan.forgotten)


def _same_id(winner: bytes, by: bytes) -> bool | None:
    """Whether the transport ids are the same, as the law says; None if one is missing."""
    return winner == by if winner and by else None
