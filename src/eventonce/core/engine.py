"""The engine: the way of a batch from its plans to its outcomes.

A generator that decides every step and carries out none: it yields a request, and is sent the
answer. `runtime.inline` answers in the caller's thread, `runtime.stages` in threads that make one
call for many batches, the simulator step by step. `outcomes` has the end of each run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from collections.abc import Set as AbstractSet
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec

from eventonce.core.outcomes import (
    again,
    backoff,
    done,
    followed,
    letter_of,
    letter_of_refusal,
    not_done,
    raised,
    suppressed,
)
from eventonce.core.plan import Plan, Refusal, Run
from eventonce.core.ports import HostProcess
from eventonce.core.reasons import NOT_ALONE, REFUSED, reason
from eventonce.core.status import DEAD_LETTERS
from eventonce.errors import EventonceError, SourceUnavailable, StoreError, StoreUnavailable
from eventonce.types import Claim, Letter, Outcome, SettleResult, Verdict

T = TypeVar("T")

PASSING_ERRORS: Final = (StoreUnavailable, SourceUnavailable)
"""The errors of a place of dead letters that is away for a while."""


class Enter(msgspec.Struct, frozen=True, gc=False):
    """Begin to run events in this process: alone, or after a wait for a batch that is alone.

    The answer is whether this batch is alone in the process; None if it cannot be, because another
    batch is alone for too long.
    """

    alone: bool


class Ask(msgspec.Struct, frozen=True, gc=False):
    """Ask the store for these claims, each key once. The answer is a verdict for each."""

    claims: Sequence[Claim]


class Execute(msgspec.Struct, frozen=True, gc=False):
    """Run these, and renew their leases meanwhile. The answer comes when all have finished."""

    runs: Sequence[Run]


class Settle(msgspec.Struct, frozen=True, gc=False):
    """Settle these runs, with retries while the store is away. The answer is a result for each."""

    runs: Sequence[Run]


class Keep(msgspec.Struct, frozen=True, gc=False):
    """Keep these dead letters."""

    letters: Sequence[Letter]


class Wait(msgspec.Struct, frozen=True, gc=False):
    """Wait for the runs that hold the keys of these claims. The answer is whether to ask again."""

    claims: Sequence[Claim]
    times: int
    """The number of waits before this one."""


Request = Enter | Ask | Execute | Settle | Keep | Wait
Steps = Generator[Request, Any, T]


class Batch:
    """The events of one call: their plans, their runs, and the steps to their outcomes."""

    def __init__(
        self, planned: Sequence[Plan | Refusal], consumer: str, clock: Callable[[], int]
    ) -> None:
        """`clock` is for dead letters and retry times; the law uses the clock of the store."""
        self._planned = planned
        self._consumer = consumer
        self._now = clock
        self.runs = [Run(plan, plan.claim) for plan in planned if type(plan) is Plan]

    def steps(self, process: HostProcess | None = None) -> Steps[list[Outcome]]:
        """Bring every event to its outcome, in the order given; a bad event affects no other.
        Without a `process`, the steps yield `Enter` before every claim."""
        runs = self.runs
        if not runs or len(runs) < len(self._planned):
            return self._all(process)
        # Most batches have one event, and each generator between the engine and its caller costs.
        return self._together(runs, process) if len(runs) == 1 else self._in_turn(runs, process)

    def _all(self, process: HostProcess | None) -> Steps[list[Outcome]]:
        planned, runs = self._planned, self.runs
        refused = yield from self._refuse([one for one in planned if type(one) is Refusal])
        if runs:
            yield from self._in_turn(runs, process)
        rest, ended = iter(refused), iter(runs)
        return [next(rest) if type(one) is Refusal else next(ended).outcome for one in planned]

    def _in_turn(self, runs: Sequence[Run], process: HostProcess | None) -> Steps[list[Outcome]]:
        if len({run.claim.key for run in runs}) == len(runs):
            return (yield from self._together(runs, process))
        waiting = _by_key(runs)
        asking: set[Run] = set()
        while waiting:
            leaders, followers = _leaders_and_followers(waiting, asking)
            yield from self._together(leaders, process)
            untold = []
            for run, leader in followers:
                if _tells_the_id(leader, run):
                    run.outcome = followed(run, leader)
                else:
                    untold.append(run)
            # Sorted, so that runs of one transport id are neighbours: the first asks for all.
            for run in sorted(untold, key=attrgetter("claim.by")):
                waiting.setdefault(run.claim.key, deque()).appendleft(run)
            asking.update(untold)
        return [run.outcome for run in runs]

    def _together(  # noqa: PLR0912, PLR0915  below
        self, runs: Sequence[Run], process: HostProcess | None
    ) -> Steps[list[Outcome]]:
        """Bring these runs, each of another key, to their outcomes, in rounds: claim, run, settle.

        One generator for all steps of an ordinary event: another one, with the requests and answers
        that pass through it, would cost as much as the decisions here.
        """
        all_runs, times, alone = runs, 0, False
        busy: list[Run] = []
        suspects: list[Run] = []
        """Runs that ended a process, or ran beside a run that did."""
        while True:
            is_alone: bool | None = False
            if alone or process is None or not process.enter():
                is_alone = yield Enter(alone)
            if is_alone is None:
                # Not returned: the next run must learn that this event may have ended a process.
                for run in runs:
                    run.outcome = again(run, "busy", NOT_ALONE, self._now() + run.claim.lease)
                if process is not None:
                    # A batch that was cancelled may still wait to be alone, and others for it.
                    process.leave([run.claim for run in runs])
            else:
                if is_alone:
                    for run in runs:
                        run.claim = msgspec.structs.replace(run.claim, alone=True)
                older = False
                claims: list[Claim] = []
                for run in runs:
                    claims.append(run.claim)
                    if run.plan.older:
                        older = True
                try:
                    verdicts = (yield from _verdicts(runs)) if older else (yield Ask(claims))
                except StoreUnavailable as error:
                    verdicts = [Verdict("error", error=error)] * len(runs)
                if alone:
                    runs[0].suspect = False
                granted: list[Run] = []
                refused: list[Run] = []
                for run, verdict in zip(runs, verdicts, strict=True):
                    if verdict.kind == "run" and not run.claim.peek:
                        run.token = verdict.token
                        run.attempt = verdict.attempt
                        run.spared = verdict.spared
                        # In the round that asks to be alone, a suspect runs in any case.
                        if verdict.alone and not alone:
                            run.suspect = True
                            suspects.append(run)
                        else:
                            granted.append(run)
                    elif _runs_anyway(run, verdict):
                        _unguard(run, verdict)
                        granted.append(run)
                    else:
                        run.same_id = verdict.same_id
                        run.outcome = suppressed(run, verdict, self._now)
                        refused.append(run)
                        if verdict.kind == "busy":
                            busy.append(run)
                if refused:
                    yield from self._keep_letters(refused)
                if granted:
                    yield Execute(granted)
                    failed, settling = self._ended(granted)
                    if failed:
                        # Before the burial: a crash between the two leaves the dead letter.
                        yield from self._keep_letters(failed)
                    if settling:
                        try:
                            answers: Sequence[SettleResult] = yield Settle(settling)
                        except StoreError as error:
                            self._not_settled(settling, error)
                        else:
                            self._settled(settling, answers)
                # After an exception the caller frees its leases first, and then leaves.
                if process is not None:
                    if suspects and not alone:
                        # Copies of a suspect wait for its run here, and not for its lease.
                        claims = [run.claim for run in runs if not run.suspect]
                    process.leave(claims)
            if suspects:
                # Claimed again, alone: no other lease is held that would be lost with the process.
                runs, alone = [suspects.pop(0)], True
                continue
            # This batch holds no lease now, so two batches cannot wait for each other (deadlock).
            if not busy or not (yield Wait([run.claim for run in busy], times)):
                return [run.outcome for run in all_runs]
            for run in busy:
                run.claim = msgspec.structs.replace(run.claim, alone=False)
            runs, busy, alone = busy, [], False
            times += 1

    def _refuse(self, refusals: Sequence[Refusal]) -> Steps[list[Outcome]]:
        """Keep refused input as dead letters; return the outcomes after that."""
        now = self._now()
        letters = [
            letter_of_refusal(one, self._consumer, now)
            for one in refusals
            if one.outcome.status in DEAD_LETTERS
        ]
        lost = (yield from _keep(letters)) if letters else None
        if lost is None:
            return [one.outcome for one in refusals]
        return [
            one.outcome
            if one.outcome.status not in DEAD_LETTERS
            else msgspec.structs.replace(
                one.outcome,
                status="failed",
                reason=f"{one.outcome.reason}; and its dead letter could not be kept: {lost}",
                error=lost,
                retry_at=now + backoff(1),
            )
            for one in refusals
        ]

    def _ended(self, runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
        """Decide the outcomes of these runs. Return the failed runs, whose dead letters are kept
        first, and the runs to settle."""
        failed: list[Run] = []
        settling: list[Run] = []
        for run in runs:
            if run.error is not None:
                run.outcome = raised(run, run.error, self._now())
                failed.append(run)
            elif run.unguarded or run.kept in REFUSED:
                run.outcome = not_done(run, self._now())
            else:
                run.outcome = done(run)
            if run.token and run.kept is None:
                settling.append(run)
        return failed, settling

    def _settled(self, runs: Sequence[Run], answers: Sequence[SettleResult]) -> None:
        for run, kept in zip(runs, answers, strict=True):
            run.kept = kept
            if kept != "kept":
                run.outcome = again(run, "fenced", REFUSED[kept], self._now() + backoff(1))

    def _not_settled(self, runs: Sequence[Run], error: StoreError) -> None:
        for run in runs:
            if run.outcome.ack:
                why = f"ran, but its completion could not be stored: {error}"
                run.outcome = again(run, "failed", why, self._now() + backoff(1), error)

    def _keep_letters(self, runs: Sequence[Run]) -> Steps[None]:
        """Keep the dead letters of these runs; if that fails, their events must come again."""
        lettered = [run for run in runs if run.outcome.status in DEAD_LETTERS]
        if not lettered:
            return
        now = self._now()
        letters = [letter_of(run, self._consumer, now) for run in lettered]
        lost = yield from _keep(letters)
        if lost is not None:
            for run in lettered:
                run.letter_away = isinstance(lost, PASSING_ERRORS)
                why = f"{run.outcome.reason}; and its dead letter could not be kept: {lost}"
                run.outcome = again(run, "failed", why, now + backoff(1), lost)


def _keep(letters: Sequence[Letter]) -> Steps[EventonceError | None]:
    try:
        yield Keep(letters)
    except EventonceError as error:
        return error
    return None


def _by_key(runs: Sequence[Run]) -> dict[bytes, deque[Run]]:
    waiting: dict[bytes, deque[Run]] = {}
    for run in runs:
        waiting.setdefault(run.claim.key, deque()).append(run)
    return waiting


def _leaders_and_followers(
    waiting: dict[bytes, deque[Run]], asking: AbstractSet[Run]
) -> tuple[list[Run], list[tuple[Run, Run]]]:
    """Return the runs that ask the store now (leaders), and the copies that get the outcome of a
    leader (followers), each with its leader. The other runs wait.

    Two versions of one subject cannot hold its lease at once, so the second waits for the first:
    a batch has the same outcomes as its events one by one. A run in `asking` has followed a leader
    whose verdict did not say if the ids are the same; it now follows only a run with its own id.
    """
    leaders: list[Run] = []
    followers: list[tuple[Run, Run]] = []
    for key, queue in list(waiting.items()):
        leader = queue.popleft()
        leaders.append(leader)
        while queue and _is_copy(queue[0], leader) and not _asks(queue[0], leader, asking):
            followers.append((queue.popleft(), leader))
        if queue:
            # A new nonce: otherwise the store would return the previous version's grant.
            queue[0].claim = msgspec.structs.replace(queue[0].claim, nonce=leader.claim.nonce + 1)
        else:
            del waiting[key]
    return leaders, followers


def _is_copy(run: Run, leader: Run) -> bool:
    mine, first = run.claim, leader.claim
    same = (first.order, first.digest, first.peek) == (mine.order, mine.digest, mine.peek)
    return same and not run.plan.rule.shadow


def _asks(run: Run, leader: Run, asking: AbstractSet[Run]) -> bool:
    return run in asking and run.claim.by != leader.claim.by


def _tells_the_id(leader: Run, run: Run) -> bool:
    """Whether the leader's verdict also tells if this copy has the transport id of the record."""
    if leader.outcome.status != "duplicate":
        return True
    return leader.same_id is True or leader.claim.by == run.claim.by


def _verdicts(runs: Sequence[Run]) -> Steps[Sequence[Verdict]]:
    """Return the store's verdicts; a verdict on an older key of an event, unless it is `run`,
    decides before the event's own key."""
    older = [(index, claim) for index, run in enumerate(runs) for claim in run.plan.older]
    decided: dict[int, Verdict] = {}
    while older:
        # A call has each key once, and two events may have the same older key.
        first = {pair[1].key: pair for pair in reversed(older)}
        older = [pair for pair in older if first[pair[1].key] is not pair]
        peeked = yield from _asked([claim for _, claim in first.values()])
        for (index, _), verdict in zip(first.values(), peeked, strict=True):
            if verdict.kind != "run":
                decided.setdefault(index, verdict)
    asking = [index for index in range(len(runs)) if index not in decided]
    verdicts = yield from _asked([runs[index].claim for index in asking])
    decided.update(zip(asking, verdicts, strict=True))
    return [decided[index] for index in range(len(runs))]


def _asked(claims: Sequence[Claim]) -> Steps[Sequence[Verdict]]:
    if not claims:
        return ()
    try:
        answers: Sequence[Verdict] = yield Ask(claims)
    except StoreUnavailable as error:
        return [Verdict("error", error=error)] * len(claims)
    return answers


def _runs_anyway(run: Run, verdict: Verdict) -> bool:
    if run.claim.peek:
        # A replay that is only reported, or of which it is not known whether it took effect.
        return False
    if verdict.kind == "error":
        return run.plan.rule.on_store_error == "run"
    return run.plan.rule.shadow


def _unguard(run: Run, verdict: Verdict) -> None:
    shadow = "shadow: " if run.plan.rule.shadow else ""
    run.unguarded = f"{shadow}{reason(run.claim, verdict)}"
    if shadow:
        run.shadowed = verdict.kind
