"""Claim, run, settle: the way of one batch from its plans to its outcomes.

One coroutine that awaits what `ports.Effects` offers and decides everything itself; `runners`
drives it inline and around a `with` block, `aio` on a loop, the simulator step by step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from eventonce import envelope
from eventonce.core.ports import Effects, Task
from eventonce.core.reasons import NOT_ALONE, NOT_STARTED, REFUSED, given_up_after, reason
from eventonce.errors import EventonceError, Reject, Retry, StoreError, StoreUnavailable
from eventonce.types import (
    Claim,
    Letter,
    Outcome,
    Settlement,
    Status,
    Verdict,
    effect_id,
)

MAX_RESULT: Final = 65_536
"""Bytes of a handler's result kept for copies: well under every store's limit for one record."""

LONGEST_BACKOFF: Final = 900_000
"""A quarter of an hour, the longest an SQS message timer can wait."""

LETTERED: Final = frozenset[str](("dead", "conflict", "invalid"))
"""The statuses under which the whole event is kept: nobody will deliver it again."""

REPORTED: Final = frozenset[str](("run", "dead", "conflict"))
"""Of a replay that is only reported: the verdicts that would run it or keep a letter."""


async def process(tasks: Sequence[Task], effects: Effects, consumer: str) -> None:
    """Bring every task to its outcome; one bad event never spoils its batch."""
    if len(tasks) == 1 or len({task.claim.key for task in tasks}) == len(tasks):
        await _together(tasks, effects, consumer)
        return
    waiting = _by_key(tasks)
    asking: set[Task] = set()
    while waiting:
        leaders, followers = _line_up(waiting, asking)
        await _together(leaders, effects, consumer)
        untold = []
        for task, leader in followers:
            if _tells_the_cause(leader, task):
                task.outcome = _followed(task, leader)
            else:
                untold.append(task)
        # Those of one transport id side by side: the first of them asks for all.
        for task in sorted(untold, key=_transport_id):
            waiting.setdefault(task.claim.key, deque()).appendleft(task)
        asking.update(untold)


async def _together(tasks: Sequence[Task], effects: Effects, consumer: str) -> None:
    for task in await _round(tasks, effects, consumer, alone=False):
        # It ended a process, or stood beside one that did. It is asked for again, alone, so that
        # nothing is held meanwhile that would be lost with it.
        await _round([task], effects, consumer, alone=True)


async def refuse(
    raw: Sequence[bytes], outcomes: Sequence[Outcome], effects: Effects, consumer: str
) -> list[Outcome]:
    """Keep what is not an event, or has no key, as letters; the outcomes as they are after that."""
    now = effects.now()
    letters = [
        _letter(_nameless(bytes_, consumer), bytes_, outcome, consumer, now)
        for bytes_, outcome in zip(raw, outcomes, strict=True)
    ]
    lost = await _shelved(letters, effects)
    if lost is None:
        return list(outcomes)
    return [
        msgspec.structs.replace(
            outcome,
            status="failed",
            reason=f"{outcome.reason}; and its dead letter could not be kept: {lost}",
            error=lost,
            retry_at=now + backoff(1),
        )
        for outcome in outcomes
    ]


def _by_key(tasks: Sequence[Task]) -> dict[bytes, deque[Task]]:
    waiting: dict[bytes, deque[Task]] = {}
    for task in tasks:
        waiting.setdefault(task.claim.key, deque()).append(task)
    return waiting


def _transport_id(task: Task) -> bytes:
    return task.claim.by


def _line_up(
    waiting: dict[bytes, deque[Task]], asking: AbstractSet[Task]
) -> tuple[list[Task], list[tuple[Task, Task]]]:
    """Who asks the store now, and who follows a copy that asks; the rest waits for its turn.

    Two versions of one subject cannot hold its lease at once, so the second waits for the first:
    a batch gives what its events would give one by one. Those who are `asking` followed one who
    could not tell their cause, and follow nobody now but their own redelivery.
    """
    leaders: list[Task] = []
    followers: list[tuple[Task, Task]] = []
    for key, line in list(waiting.items()):
        leader = line.popleft()
        leaders.append(leader)
        while line and _is_copy(line[0], leader) and not _asks(line[0], leader, asking):
            followers.append((line.popleft(), leader))
        if line:
            # A new nonce: otherwise the store would return the previous version's grant.
            line[0].claim = msgspec.structs.replace(line[0].claim, nonce=leader.claim.nonce + 1)
        else:
            del waiting[key]
    return leaders, followers


def _is_copy(task: Task, leader: Task) -> bool:
    mine, first = task.claim, leader.claim
    same = (first.order, first.digest, first.peek) == (mine.order, mine.digest, mine.peek)
    return same and not task.rule.shadow


def _asks(task: Task, leader: Task, asking: AbstractSet[Task]) -> bool:
    return task in asking and task.claim.by != leader.claim.by


def _tells_the_cause(leader: Task, task: Task) -> bool:
    """Whether what is known of the leader says of its copy, too, what it is a copy of."""
    if leader.outcome.status != "duplicate":
        return True
    return leader.redelivery is True or leader.claim.by == task.claim.by


def _followed(task: Task, leader: Task) -> Outcome:
    """What a copy in the same batch becomes: it is as safe to forget as its leader is."""
    led = leader.outcome
    if led.status in ("done", "unguarded", "duplicate"):
        mine, first = task.claim.by, leader.claim.by
        if led.status == "duplicate" and mine == first:
            again = leader.redelivery
        else:
            again = mine == first if mine and first else None
        why = reason(task.claim, Verdict("duplicate", redelivery=again))
        return _made(task, "duplicate", why, led)
    if led.ack:
        return _made(task, led.status, led.reason, led)
    return _made(task, "busy", f"its copy in the same batch is {led.status}", led)


async def _round(
    tasks: Sequence[Task], effects: Effects, consumer: str, *, alone: bool
) -> list[Task]:
    """Claim, run and settle these; those that should run alone are given back, and not run."""
    is_alone = await effects.enter(alone=alone)
    if is_alone is None:
        # Not returned: whoever takes it over when its lease has ended must know what it is.
        for task in tasks:
            task.outcome = _again(task, "busy", NOT_ALONE, effects.now() + task.claim.lease)
        return []
    try:
        if is_alone:
            for task in tasks:
                task.claim = msgspec.structs.replace(task.claim, alone=True)
        running, suspects = await _claimed(tasks, effects, consumer)
        if alone:
            # Alone, or, where others did not end in time, beside them.
            running, suspects = running + suspects, []
        while running:
            # Asked, not looked at: others finish while these are settled.
            finished = await effects.run(running)
            if len(finished) == len(running):
                await _settle(running, effects, consumer)
                break
            some = set(finished)
            await _settle([task for task in running if task in some], effects, consumer)
            running = [task for task in running if task not in some]
        return suspects
    finally:
        effects.leave(alone=is_alone)


async def _claimed(
    tasks: Sequence[Task], effects: Effects, consumer: str
) -> tuple[list[Task], list[Task]]:
    """Those to run, and those to run alone; all others have their outcome."""
    running: list[Task] = []
    suspects: list[Task] = []
    refused: list[Task] = []
    for task, verdict in zip(tasks, await _verdicts(tasks, effects), strict=True):
        if verdict.kind == "run" and not task.claim.peek:
            task.token = verdict.token
            task.attempt = verdict.attempt
            if verdict.spared:
                task.spared = verdict.spared
            if verdict.alone:
                suspects.append(task)
            else:
                running.append(task)
        elif _runs_anyway(task, verdict):
            shadow = "shadow: " if task.rule.shadow else ""
            task.unguarded = f"{shadow}{reason(task.claim, verdict)}"
            running.append(task)
        else:
            task.outcome = _suppressed(task, verdict, effects)
            task.redelivery = verdict.redelivery
            refused.append(task)
    if refused:
        await _keep_letters(refused, effects, consumer)
    return running, suspects


async def _verdicts(tasks: Sequence[Task], effects: Effects) -> Sequence[Verdict]:
    """The store's verdicts; an older key that already had its effect decides before the own one."""
    older = [(index, claim) for index, task in enumerate(tasks) for claim in task.also]
    if not older:
        return await _asked([task.claim for task in tasks], effects)
    decided: dict[int, Verdict] = {}
    while older:
        # A call holds each key once, and two events may have had one key under an older rule.
        first = {pair[1].key: pair for pair in reversed(older)}
        older = [pair for pair in older if first[pair[1].key] is not pair]
        peeked = await _asked([claim for _, claim in first.values()], effects)
        for (index, _), verdict in zip(first.values(), peeked, strict=True):
            if verdict.kind != "run":
                decided.setdefault(index, verdict)
    asking = [index for index in range(len(tasks)) if index not in decided]
    verdicts = await _asked([tasks[index].claim for index in asking], effects)
    decided.update(zip(asking, verdicts, strict=True))
    return [decided[index] for index in range(len(tasks))]


async def _asked(claims: Sequence[Claim], effects: Effects) -> Sequence[Verdict]:
    if not claims:
        return ()
    try:
        return await effects.claim(claims)
    except StoreUnavailable as error:
        return [Verdict("error", error=error)] * len(claims)


def _runs_anyway(task: Task, verdict: Verdict) -> bool:
    if task.claim.peek:
        # A replay that is only reported, or of which nobody knows whether it took effect.
        return False
    if verdict.kind == "error":
        return task.rule.on_store_error == "run"
    return task.rule.shadow and verdict.kind != "run"


def _suppressed(task: Task, verdict: Verdict, effects: Effects) -> Outcome:
    why = reason(task.claim, verdict)
    if verdict.kind == "run":
        why = task.forgotten or why
    if task.claim.peek and task.rule.on_replay == "report" and verdict.kind in REPORTED:
        return _made(task, "ignored", f"replay, reported only: {why}")
    if verdict.kind == "run":
        return _made(task, "dead", why)
    if verdict.kind == "error":
        return _again(task, "failed", why, effects.now() + backoff(1), verdict.error)
    if verdict.kind == "busy":
        return _again(task, "busy", why, effects.now() + verdict.wait)
    outcome = _made(task, verdict.kind, why)
    if verdict.result is None:
        return outcome
    return msgspec.structs.replace(outcome, result=msgspec.json.decode(verdict.result))


async def _settle(tasks: Sequence[Task], effects: Effects, consumer: str) -> None:
    """Settle what ran. A letter is written before its burial: a crash between the two leaves it."""
    now = effects.now()
    # Before anything is said of them: a renewal may settle one at any moment, and be refused.
    settling = [task for task in tasks if task.token and task.kept is None]
    failed = []
    for task in tasks:
        if task.error is None:
            task.outcome = _returned(task, now)
        else:
            task.outcome = _raised(task, task.error, now)
            failed.append(task)
    if failed:
        await _keep_letters(failed, effects, consumer)
    if not settling:
        return
    try:
        answers = await effects.settle([settlement(task) for task in settling])
    except StoreError as error:
        for task in settling:
            if task.outcome.ack:
                why = f"ran, but that could not be stored: {error}"
                task.outcome = _again(task, "failed", why, now + backoff(1), error)
        return
    for task, kept in zip(settling, answers, strict=True):
        if kept != "kept":
            task.outcome = _again(task, "fenced", REFUSED[kept], now + backoff(1))


def settlement(task: Task) -> Settlement:
    """What the store is told of a task that ran."""
    if task.error is None:
        return Settlement(task.claim, task.token, "complete", task.result)
    if task.outcome.status == "dead":
        return Settlement(task.claim, task.token, "bury")
    # A handler that never began, or that the store or the network failed, made no attempt.
    spared = task.job is None or task.blameless
    return Settlement(task.claim, task.token, "return" if spared else "release")


def _returned(task: Task, now: int) -> Outcome:
    if task.lost and task.job is None:
        return _again(task, "fenced", NOT_STARTED, now + backoff(1))
    if task.kept in REFUSED:
        return _again(task, "fenced", REFUSED[task.kept], now + backoff(1))
    status: Status = "unguarded" if task.unguarded else "done"
    why = task.unguarded or task.note
    return Outcome(task.event, status, why, task.rule.name, task.claim.key, task.value)


def _raised(task: Task, error: Exception, now: int) -> Outcome:
    text = _text(error)
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    attempt = task.attempt
    last = attempt >= task.deliveries
    if task.job is None and not last:
        # It did not come to its turn: no reason to give it up, whichever attempt this was.
        return _again(task, "failed", text, now)
    if isinstance(error, Reject):
        return _made(task, "dead", f"rejected by the handler: {text}", error=error)
    spent = attempt - task.spared >= task.claim.attempts and not task.blameless
    if (spent or last) and not task.unguarded:
        return _made(task, "dead", f"{given_up_after(attempt)}: {said}", error=error)
    after = error.after if isinstance(error, Retry) else None
    delay = backoff(attempt) if after is None else int(after * 1000)
    return _again(task, "failed", said, now + delay, error)


def _text(error: Exception) -> str:
    """What an exception says, as any store can keep it; some cannot even say it."""
    try:
        return str(error).encode(errors="backslashreplace").decode().replace("\0", "\\x00")
    except Exception:  # noqa: BLE001  a handler's exception is a handler's code
        return ""


def backoff(attempt: int) -> int:
    """Milliseconds before the next attempt: doubling from one second; transports add the jitter."""
    return int(min(LONGEST_BACKOFF, 1000 * 2 ** min(attempt - 1, 20)))


def finish(task: Task, value: object = None, error: Exception | None = None) -> None:
    """Note what a handler returned or raised."""
    task.error = error
    if value is not None and error is None:
        task.value = value
        task.result, task.note = _kept_for_copies(value)
    # Last: from here on another thread may settle it as it stands.
    task.finished = True


def _kept_for_copies(value: object) -> tuple[bytes | None, str]:
    """A result as it is kept, or why it is not: that is noted and not fatal, for the effect has
    happened, and running it again would be worse."""
    try:
        result = msgspec.json.encode(value)
    except Exception as refused:  # noqa: BLE001  a result may be anything, and run code of its own
        return None, f"its result is not kept for copies: {refused}"
    if len(result) > MAX_RESULT:
        size = len(result)
        return None, f"its result is not kept for copies: {size} bytes, the limit is {MAX_RESULT}"
    return result, ""


async def _keep_letters(tasks: Iterable[Task], effects: Effects, consumer: str) -> None:
    """Keep what nobody will deliver again; where that fails, it must be delivered again."""
    lettered = [task for task in tasks if task.outcome.status in LETTERED]
    if not lettered:
        return
    now = effects.now()
    letters = []
    for task in lettered:
        name = effect_id(task.claim)
        if task.claim.order is None and task.claim.digest:
            # Other content under the same key is another letter, whatever became of the first.
            name += f"-{task.claim.digest.hex()}"
        letters.append(
            _letter(name, envelope.kept(task.event), task.outcome, consumer, now, task.attempt)
        )
    lost = await _shelved(letters, effects)
    if lost is not None:
        for task in lettered:
            why = f"{task.outcome.reason}; and its dead letter could not be kept: {lost}"
            task.outcome = _again(task, "failed", why, now + backoff(1), lost)


async def _shelved(letters: Sequence[Letter], effects: Effects) -> EventonceError | None:
    try:
        await effects.shelve(letters)
    except EventonceError as error:
        return error
    return None


def _nameless(raw: bytes, consumer: str) -> str:
    """The id of a letter that has no key: the same again, with the headers that are kept of it, is
    the same letter."""
    from hashlib import blake2b  # noqa: PLC0415  slow to import, and few events are none

    return blake2b(consumer.encode() + b"\0" + raw, digest_size=16).hexdigest()


def _letter(
    name: str, raw: bytes, outcome: Outcome, consumer: str, now: int, attempt: int = 0
) -> Letter:
    return Letter(
        id=name,
        consumer=consumer,
        status=outcome.status,
        reason=outcome.reason,
        rule=outcome.rule,
        key=outcome.key,
        event=raw,
        at=now,
        attempt=attempt,
    )


def _made(
    task: Task,
    status: Status,
    why: str,
    led: Outcome | None = None,
    error: BaseException | None = None,
) -> Outcome:
    return Outcome(
        event=task.event,
        status=status,
        reason=why,
        rule=task.rule.name,
        key=task.claim.key,
        result=None if led is None else led.result,
        error=error if led is None else led.error,
        retry_at=None if led is None else led.retry_at,
    )


def _again(
    task: Task, status: Status, why: str, retry_at: int, error: BaseException | None = None
) -> Outcome:
    return msgspec.structs.replace(_made(task, status, why, error=error), retry_at=retry_at)
