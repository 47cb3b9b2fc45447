"""The gate: the only code that calls the store's two verbs, one for each consumer.

The gate makes one call for all claims or settlements of one moment, renews the leases of runs,
settles finished runs while others of their batch still run, and knows which keys run here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec

from eventonce import forks
from eventonce.core.ledger import LONGEST_LEASE
from eventonce.core.outcomes import settlement
from eventonce.core.plan import Run
from eventonce.core.ports import Store, StoreMeter
from eventonce.errors import StoreError, StoreUnavailable
from eventonce.log import Outage, log
from eventonce.runtime.lane import MOST_ITEMS, Lane
from eventonce.types import Claim, Settlement, SettleResult, Verdict, effect_id

if TYPE_CHECKING:
    from eventonce.runtime.stages import Starter

SETTLE_PAUSES: Final = (0.05, 0.2, 1.0)
"""Seconds between tries to settle while the store is away: the effect has happened, so a retry is
worth a wait, but the transport's own deadline must not pass meanwhile."""

RENEWALS: Final = 3
"""A lease is renewed when a third of it has passed: two renewals may fail before it ends."""

SETTLE_INTERVAL: Final = 1.0
"""Seconds after which a finished run is settled although others of its batch still run. So a crash
costs at most a second's work, and a quick batch is still settled in one call."""

OUTAGE_GAP: Final = 2 * LONGEST_LEASE / 1000 / RENEWALS
"""Seconds after a failed renewal in which its lease is tried again, or is held no longer."""

TIMER_IDLE: Final = 60.0
"""Seconds that the timer sleeps at the most; its thread ends if it then has no runs to visit."""


class LeasedRuns:
    """The runs of a batch whose handlers run: their leases are renewed until `Gate.let_go`.

    The thread that runs a handler appends the finished run to `finished`. Only the part that takes
    a run out of `finished` settles it: the timer after `SETTLE_INTERVAL`, else the engine.
    """

    __slots__ = ("due", "finished", "runs", "shared", "starter", "taken")

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.shared = len(runs) > 1
        """Whether a finished run may have to wait for others."""
        self.finished: list[Run] = []
        self.taken = 0
        """Finished runs that the timer is settling now."""
        self.due = inf
        """The moment when the timer visits these runs, by the monotonic clock."""
        self.starter: Starter | None = None
        """The starter of their async handlers, if the handlers have a loop that may stop."""


class Gate:
    """The calls of one consumer to its store; safe in many threads."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.meter: StoreMeter | None = None
        """Counts the calls to the store; None if they are not counted."""
        self._claims: Lane[Claim, Verdict] = Lane(self._grant, attrgetter("key"), self._free)
        of_claim = attrgetter("claim.key")
        self._settlements: Lane[Settlement, SettleResult] = Lane(self._tell, of_claim)
        self._begin()
        forks.register(self, Gate._begin)

    def _begin(self) -> None:
        """Begin without runs. Also called in the child of a fork: the runs are the parent's."""
        self._claims.reset()
        self._settlements.reset()
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._leased: set[LeasedRuns] = set()
        self._running: dict[bytes, Mapping[int, int]] = {}
        """The keys that run in this process: the tokens of their runs, by the nonces of the claims.
        A key has two runs where the first outlived its lease. The keys of one call share a mapping,
        which is never changed."""
        self._busy_here: dict[tuple[bytes, int], None] = {}
        """Claims, by key and nonce, that were `busy` while their key ran in this process; a hint,
        with at most `MOST_ITEMS` entries."""
        self._waiters: dict[bytes, list[Callable[[], None]]] = {}
        self._timer_due = inf
        self._timer: threading.Thread | None = None
        self._outage = Outage()
        self._failed = 0.0
        """The outage of the store, as the timer sees it, and its last failure (monotonic clock)."""

    def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        """Claim in the store, in one call with all claims that come meanwhile. A caller that is
        interrupted holds no lease afterwards."""
        try:
            return self._claims.ask(claims)
        except StoreError:
            raise
        except BaseException:
            # The claims may be granted, and the answer lost. Asking again gives the same answer.
            with suppress(Exception):
                self._free(claims, self._claims.ask(claims))
            raise

    def settle(
        self, settlements: Sequence[Settlement], pauses: Sequence[float] = SETTLE_PAUSES
    ) -> list[SettleResult]:
        """Settle in the store, and retry for a while if it is away; a repetition is always safe."""
        for pause in pauses:
            try:
                return self._settlements.ask(settlements)
            except StoreUnavailable:
                time.sleep(pause)
        return self._settlements.ask(settlements)

    def renew(self, leased: LeasedRuns) -> None:
        """Renew the leases of these runs until `let_go`."""
        now = time.monotonic()
        shortest = inf
        for run in leased.runs:
            run.renewed = now
            if run.claim.lease < shortest and run.token and not run.plan.covered:
                shortest = run.claim.lease
        if shortest < inf:
            leased.due = now + min(shortest, LONGEST_LEASE) / 1000 / RENEWALS
        if leased.shared:
            leased.due = min(leased.due, now + SETTLE_INTERVAL)
        # Without the lock, because `add` is atomic; the timer visits a copy.
        self._leased.add(leased)
        if leased.due < self._timer_due:
            with self._lock:
                if leased.due < self._timer_due:
                    self._start_or_wake(leased.due)

    def let_go(self, leased: LeasedRuns | None, claims: Sequence[Claim]) -> None:
        """Stop renewing these leases, because the outcomes are known, and wake the batches that
        wait for one of the keys. Idempotent: an interrupted caller calls it again."""
        running = self._running
        woken: list[Callable[[], None]] = []
        with self._lock:
            if leased is not None:
                self._leased.discard(leased)
            for claim in claims:
                runs = running.get(claim.key)
                if runs is None:
                    continue
                if len(runs) > 1 or claim.nonce not in runs:
                    left = {nonce: runs[nonce] for nonce in runs if nonce != claim.nonce}
                    running[claim.key] = left
                else:
                    del running[claim.key]
            if self._waiters:
                ended = [claim.key for claim in claims if claim.key not in running]
                woken = [wake for key in ended for wake in self._waiters.get(key, ())]
        if woken:
            for wake in woken:
                wake()
            with self._lock:
                for claim in claims:
                    if claim.key not in running:
                        self._waiters.pop(claim.key, None)

    def when_ended(self, key: bytes, wake: Callable[[], None]) -> bool:
        """Call `wake` when the run of this key in this process ends; False if there is no run."""
        with self._lock:
            if key not in self._running:
                return False
            self._waiters.setdefault(key, []).append(wake)
            return True

    def was_busy_here(self, claims: Sequence[Claim]) -> bool:
        """Whether one of these keys ran in this process when it was last claimed; True once."""
        asked = [(claim.key, claim.nonce) for claim in claims]
        with self._lock:
            return bool([one for one in asked if self._busy_here.pop(one, self) is None])

    def take_back(self, leased: LeasedRuns) -> None:
        """Wait for the runs that the timer is settling now, and take the others back from it. After
        this only the engine settles the runs."""
        with self._lock:
            while leased.taken:
                self._wake.wait(SETTLE_INTERVAL)
            leased.finished.clear()

    def held(self) -> list[Run]:
        """Return all runs whose leases are renewed."""
        with self._lock:
            return [run for leased in list(self._leased) for run in leased.runs]

    def salvage(self, runs: Sequence[Run]) -> None:
        """Settle finished runs and free the others after an interruption, if the store answers.

        A run in a transaction is freed, too: its completion is part of the transaction, and can
        still be committed until another run of the key starts. A suspect keeps its lease: freed, it
        would run beside others.
        """
        for run in runs:
            # The engine may not know the token yet. In the child of a fork the token becomes 0.
            run.token = self._running.get(run.claim.key, {}).get(run.claim.nonce, 0)
        # Of several versions of one subject, all but the latest are settled already. A copy in the
        # same batch asks with the same nonce, so it has the token of the run that it follows.
        ordered = sorted(runs, key=attrgetter("token", "finished", "suspect"))
        latest = {run.claim.key: run for run in ordered if run.token}
        settlements = [
            _salvaged(run) for run in latest.values() if run.kept is None and not run.suspect
        ]
        if settlements:
            with suppress(StoreError):
                self._settlements.ask(settlements)

    def close(self) -> None:
        """Stop the timer. While there are runs, of an inline batch in another thread for example,
        the timer goes on, and then ends by itself."""
        with self._lock:
            if not self._leased:
                self._timer, self._timer_due = None, inf
                self._wake.notify_all()

    def _grant(self, claims: Sequence[Claim]) -> list[Verdict]:
        """Claim in the store, and note the granted runs before any caller gets its answer."""
        running = self._running
        here = {claim.key for claim in claims if claim.key in running} if running else ()
        meter = self.meter
        if meter is None:
            verdicts = self.store.claim(claims)
        else:
            verdicts = meter.claim(self.store.claim, claims)
        nonce = token = 0
        runs: Mapping[int, int] = {}
        with self._lock:
            for claim, verdict in zip(claims, verdicts, strict=True):
                key = claim.key
                if verdict.token:
                    if claim.nonce != nonce or verdict.token != token:
                        nonce, token = claim.nonce, verdict.token
                        runs = {nonce: token}
                    running[key] = {**running[key], **runs} if key in running else runs
                elif verdict.kind == "busy" and key in here:
                    self._busy_here[key, claim.nonce] = None
                    if len(self._busy_here) > MOST_ITEMS:
                        del self._busy_here[next(iter(self._busy_here))]
        return verdicts

    def _tell(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        meter = self.meter
        if meter is None:
            return self.store.settle(settlements)
        return meter.settle(self.store.settle, settlements)

    def _free(self, claims: Sequence[Claim], verdicts: Sequence[Verdict]) -> None:
        """Return to the store the granted runs whose caller is gone."""
        granted = [
            Settlement(claim, verdict.token, "return")
            for claim, verdict in zip(claims, verdicts, strict=True)
            if verdict.token
        ]
        if granted:
            with suppress(StoreError):
                self._settlements.ask(granted)
            self.let_go(None, [one.claim for one in granted])

    def _due_again(self, leased: LeasedRuns, now: float) -> float:
        """Return when the timer visits these runs again: when the first lease is due, and within a
        second where a finished run may have to wait for others."""
        due = min([_due(run) for run in leased.runs])
        return min(due, now + SETTLE_INTERVAL) if leased.shared else due

    def _start_or_wake(self, due: float) -> None:
        # A thread whose start was interrupted is not alive.
        if self._timer is None or not self._timer.is_alive():
            self._timer = threading.Thread(target=self._tick, name="eventonce-gate", daemon=True)
            self._timer.start()
        else:
            self._wake.notify_all()
        # Last: if a signal interrupts this earlier, the next batch tries again.
        self._timer_due = due

    def _tick(self) -> None:
        own = threading.current_thread()
        try:
            while self._timer is own:
                self._tend(own)
        finally:
            with self._lock:
                if self._timer is own:
                    self._timer, self._timer_due = None, inf

    def _tend(self, own: threading.Thread) -> None:
        """Sleep until some runs are due; then renew and settle, in one call."""
        with self._lock:
            now = time.monotonic()
            if self._timer is not own:
                return
            ready = self._ready(now)
            if not ready:
                self._sleep(own, now)
                return
            due = [run for leased in ready for run in leased.runs if _due(run) <= now]
            overdue = [run for run in due if not run.finished and is_overdue(run, now)]
            for run in due:
                run.renewed = now
            finished: list[tuple[LeasedRuns, Run]] = []
            for leased in ready:
                finished += [(leased, run) for run in self._take(leased)]
                leased.due = self._due_again(leased, now)
            stopped = {run for leased in ready for run in _stopped(leased)}
            for run in stopped.intersection(due):
                run.stalled = run.job is None
            resting = stopped.union(overdue, [run for _, run in finished])
            live = [run for run in due if run not in resting and _needs_its_lease(run)]
        for run in overdue:
            log().warning(
                "%s: the handler has run for longer than the timeout of its rule, %s; its lease is "
                "no longer renewed, so that another run may start",
                effect_id(run.claim),
                run.plan.rule.name,
            )
        self._renew_and_settle(live, finished)
        for leased in ready:
            if leased.starter is not None:
                leased.starter.end_stopped()

    def _ready(self, now: float) -> list[LeasedRuns]:
        """Return the runs that are due, the earliest first, as far as one call takes them. Not a
        part of `_tend`, whose variables would keep an ended batch while the timer sleeps."""
        ready: list[LeasedRuns] = []
        size = 0
        for leased in sorted(self._leased, key=attrgetter("due")):
            size += len(leased.runs)
            # The others are visited next, without a sleep.
            if leased.due > now or (ready and size > MOST_ITEMS):
                break
            ready.append(leased)
        return ready

    def _sleep(self, own: threading.Thread, now: float) -> None:
        """Sleep until the next runs are due. Only a batch that is due earlier wakes the timer: a
        wake-up for every batch would cost more than a quick handler."""
        # With `inf`, a batch that comes during this visit waits for the lock and wakes the timer.
        self._timer_due = inf
        dues = [leased.due for leased in list(self._leased)]
        self._timer_due = min([*dues, now + TIMER_IDLE])
        called = self._wake.wait(self._timer_due - now)
        if not called and self._timer is own:
            # As above, until the timer has visited the runs.
            self._timer_due = inf
            if not self._leased:
                # A consumer that was dropped without `close` must not keep a thread.
                self._timer = None

    def _outage_at(self, now: float) -> Outage:
        """Return the outage that lasts, or a new one: the runs of the last one may have ended
        before a renewal succeeded."""
        if now > self._failed + OUTAGE_GAP:
            self._outage = Outage()
        return self._outage

    def _take(self, leased: LeasedRuns) -> list[Run]:
        """Take the finished runs that can be settled before their batch ends. A run that raised
        waits for the engine, which writes its dead letter first if the run is given up."""
        if not leased.shared:
            return []
        finished = [leased.finished.pop(0) for _ in range(len(leased.finished))]
        taken = [run for run in finished if run.error is None and run.token and run.kept is None]
        leased.taken += len(taken)
        return taken

    def _renew_and_settle(self, live: list[Run], finished: list[tuple[LeasedRuns, Run]]) -> None:
        now = time.monotonic()
        asked = [Settlement(_renewal(run, now), run.token, "extend") for run in live]
        asked += [settlement(run) for _, run in finished]
        answers: list[SettleResult] = []
        outage = self._outage_at(now)
        try:
            if asked:
                answers = self._settlements.ask(asked)
        except Exception as error:  # noqa: BLE001  the timer must go on, whatever a store raises
            self._failed = now
            if outage.tells():
                log().warning(
                    "leases not renewed: %d; runs not settled yet: %d; trying again: %s",
                    len(live),
                    len(finished),
                    error,
                )
        else:
            lasted = outage.ended() if asked else None
            if lasted is not None:
                log().info("leases are renewed again, after %.0f s", lasted)
        finally:
            with self._lock:
                for leased, run in finished:
                    leased.taken -= 1
                    if not answers:
                        leased.finished.append(run)
                if finished:
                    for (_, run), kept in zip(finished, answers[len(live) :], strict=False):
                        run.kept = kept
                    self._wake.notify_all()
        for run, kept in zip(live, answers, strict=False):
            if kept != "kept" and not run.finished:
                # Not logged here: the outcome `fenced` has its own line.
                run.lose()


def _salvaged(run: Run) -> Settlement:
    if not run.finished or run.in_transaction:
        return Settlement(run.claim, run.token, "return")
    if run.outcome.status == "dead":
        # Not `bury`: its dead letter may not be stored. If it is buried already, that stays.
        return Settlement(run.claim, run.token, "release")
    return settlement(run)


def is_overdue(run: Run, now: float) -> bool:
    """Whether the handler of this run has run for longer than its rule allows."""
    timeout = run.plan.rule.timeout
    return bool(timeout and run.started) and now > run.started + timeout / 1000


def _due(run: Run) -> float:
    """Return when the lease of this run must be renewed; `inf` for never."""
    if run.plan.covered or not run.token or run.lost:
        return inf
    if not run.finished and is_overdue(run, run.renewed):
        return inf
    # A claim of another run cuts a longer lease down to `LONGEST_LEASE`.
    return run.renewed + min(run.claim.lease, LONGEST_LEASE) / 1000 / RENEWALS


def _needs_its_lease(run: Run) -> bool:
    """Whether this run still needs its lease: a finished run may wait for its batch or its dead
    letter. Not while its transaction may be committing: the record is locked, or completed."""
    if not run.finished:
        return True
    return run.kept is None and (run.error is not None or not run.in_transaction)


def _stopped(leased: LeasedRuns) -> list[Run]:
    """Return the runs that wait for a stopped event loop: it may never run again. If it runs in
    time, the next renewal finds their leases.

    While a handler waits for the loop, so do the finished runs of its batch. A plain handler that
    runs waits for no loop, nor does a batch whose async handlers have returned.
    """
    if leased.starter is None or not leased.starter.is_stopped(leased.runs):
        return []
    return [run for run in leased.runs if run.finished or run.plan.asynchronous]


def _renewal(run: Run, now: float) -> Claim:
    """Return the claim for a renewal; its lease ends no later than the process."""
    claim, deadline = run.claim, run.plan.deadline
    if deadline is None or now + claim.lease / 1000 <= deadline.at:
        return claim
    return msgspec.structs.replace(claim, lease=max(1, int((deadline.at - now) * 1000)))
