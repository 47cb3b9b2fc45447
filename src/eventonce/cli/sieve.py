"""What passes lines on once: claims them, writes the new ones, settles them when they are flushed.

Not the engine: where the effect is to write a line there is no handler to run, to renew for or to
try again, and a filter is measured against a script that does nothing but parse.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Final, NamedTuple

from msgspec.structs import replace

from eventonce.cli.output import write_whole
from eventonce.clock import wall_clock
from eventonce.envelope import read
from eventonce.errors import EnvelopeError, StoreError
from eventonce.ports import Store
from eventonce.reasons import forgotten, reason
from eventonce.rules import Rule, Ruleset
from eventonce.runners import settle_patiently
from eventonce.types import Claim, Event, Settlement, Verdict

RECENT: Final = 50_000
"""Facts passed on in this run that are known without asking the store, twice at the most: copies
mostly come soon after, and a dictionary of this size stays in the processor's cache."""

COPIES: Final = frozenset[str](("duplicate", "stale", "unchanged"))


class Refused(NamedTuple):
    """A line that was neither passed on nor dropped as a copy."""

    at: int
    """The line's place among those given."""
    status: str
    reason: str


Asked = tuple[Claim, int, Sequence[Claim]]
"""A claim, its line's place, and the claims that older rules and secrets make; a bare tuple, for a
named one takes as long to make as the key of an event."""


class Plan(NamedTuple):
    """What is to be asked of the store for some lines."""

    lines: Sequence[bytes]
    groups: list[list[Asked]]
    """One after the other: a version of a subject is judged after the one before it is settled."""
    copies: int
    """Lines that are copies of one beside them."""
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
        self._store: Store = store
        self._rules = rules
        self._out = out
        self._max_bytes = max_bytes
        self._remembers = remembers
        self.counts: Counter[str] = Counter()
        self._young: dict[bytes, float] = {}
        self._old: dict[bytes, float] = {}

    def plan(self, lines: Sequence[bytes]) -> Plan:
        """Read the lines and find their keys."""
        nonce = random.getrandbits(52) | 1
        max_bytes, plan, also = self._max_bytes, self._rules.plan, self._rules.also
        young, old, now = self._young, self._old, time.monotonic()
        groups: list[list[Asked]] = []
        asked: dict[bytes, Asked] = {}
        copies = 0
        refused: list[Refused] = []
        held: dict[int, Refused] = {}
        for at, line in enumerate(lines):
            try:
                event = read(line, max_bytes=max_bytes)
                rule, claim = plan(event, nonce)
            except EnvelopeError as error:
                if line and not line.isspace():
                    refused.append(Refused(at, "invalid", str(error)))
                continue
            if event.replay and rule.on_replay != "force":
                why = self._holds(event, rule, claim, at)
                if why is not None:
                    held[at] = why
                    claim = replace(claim, peek=True)
            before = asked.get(claim.key)
            if before is None:
                if claim.key in young or claim.key in old:
                    until = young.get(claim.key) or old[claim.key]
                    if now < until:
                        copies += 1
                        continue
                asked[claim.key] = claim, at, also(event, rule, nonce)
            elif (
                before[0].order == claim.order
                and before[0].digest == claim.digest
                and before[0].peek == claim.peek
            ):
                copies += 1
            else:
                groups.append(list(asked.values()))
                asked = {claim.key: (claim, at, also(event, rule, nonce))}
        groups.append(list(asked.values()))
        return Plan(lines, groups, copies, refused, held)

    def _holds(self, event: Event, rule: Rule, claim: Claim, at: int) -> Refused | None:
        """What keeps a replay from being passed on although it is new, if anything does."""
        why = forgotten(event, claim, wall_clock()) if self._remembers else ""
        if rule.on_replay == "report":
            why = why or reason(claim, Verdict("run"))
            return Refused(at, "ignored", f"replay, reported only: {why}")
        return Refused(at, "dead", why) if why else None

    def sift(self, plan: Plan) -> list[Refused]:
        """Pass on what is new; gives back what is neither new nor a copy."""
        refused = list(plan.refused)
        for group in plan.groups:
            self._pass(group, plan, refused)
        self.counts.update(one.status for one in refused)
        if plan.copies:
            self.counts["duplicate"] += plan.copies
        return sorted(refused)

    def _pass(self, group: Sequence[Asked], plan: Plan, refused: list[Refused]) -> None:
        asking = [one for one in group if not one[2] or self._is_unknown(*one, refused)]
        if not asking:
            return
        new: list[bytes] = []
        granted: list[Settlement] = []
        verdicts = self._store.claim([claim for claim, _, _ in asking])
        for (claim, at, _), verdict in zip(asking, verdicts, strict=True):
            if verdict.token:
                new.append(plan.lines[at])
                granted.append(Settlement(claim, verdict.token, "complete"))
            elif verdict.kind == "run":
                refused.append(plan.held[at])
            else:
                self._not_new(claim, at, verdict, refused)
        if new:
            self._write(new, granted)

    def _is_unknown(
        self, claim: Claim, at: int, older: Sequence[Claim], refused: list[Refused]
    ) -> bool:
        """Whether nothing is known of the event under the keys it had before."""
        for verdict in self._store.claim(older):
            if verdict.kind != "run":
                self._not_new(claim, at, verdict, refused)
                return False
        return True

    def _not_new(self, claim: Claim, at: int, verdict: Verdict, refused: list[Refused]) -> None:
        if isinstance(verdict.error, StoreError):
            raise verdict.error
        if verdict.kind in COPIES:
            self.counts[verdict.kind] += 1
        else:
            refused.append(Refused(at, verdict.kind, reason(claim, verdict)))

    def _write(self, new: Sequence[bytes], granted: Sequence[Settlement]) -> None:
        try:
            write_whole(self._out, b"\n".join(new) + b"\n")
            kept = settle_patiently(self._store, granted).count("kept")
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
                self._store.settle(freed)
            raise

    def _remember(self, settled: Sequence[Settlement]) -> None:
        """Facts that are done, and will be for as long as their rule says, whatever comes."""
        if len(self._young) > RECENT:
            self._young, self._old = {}, self._young
        now = time.monotonic()
        for one in settled:
            claim = one.claim
            if claim.order is None and not claim.digest and not claim.sliding:
                self._young[claim.key] = now + claim.remember / 1000
