"""Promises that must hold in a `world`, said without looking at the law or its record.

Each function gets one thing that happened; it raises `Broken` if that must not be, and returns the
state that remembers it.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from eventonce.types import Action, Claim, SettleResult, Verdict
from tests.simulation.world import Broken, Echo, Runtime, State, Worker, put

DAY: Final = 86_400_000
"""How long a key without an effect is remembered; repeated, so that the law cannot change it."""


def granted(world: Runtime, state: State, worker: Worker, verdict: Verdict) -> State:
    """A run that was not granted before."""
    versions, version, ghost = world.scenario.versions, worker.version, state.ghost
    claim = versions[version]
    kin = _kin(versions, version)
    if verdict.token <= ghost.top:
        raise Broken("a token returned")
    if state.now < ghost.held:
        raise Broken("two runs hold a lease at once")
    if state.now < max(ghost.buried[each] for each in kin) and not worker.redrive:
        raise Broken("what was given up ran afresh")
    for other, until in enumerate(ghost.settled):
        if state.now < until and (other == version or _supersedes(versions[other], claim)):
            raise Broken("what was settled, or is older than what was, ran again")
    # A run that others shared its process with, and that ended with it, is no attempt.
    crashed = ghost.running in kin and not claim.alone and not worker.redrive
    spared = crashed + (0 if worker.redrive else ghost.spared[version])
    runs = 1 if worker.redrive else ghost.runs[version] + 1
    tied = claim.order is not None and sum(claim.order == it.order for it in versions) > 1
    # Two poisoned versions of one order that come by turns restart each other's count: a known
    # limit, said in docs/states.md.
    if runs - spared > claim.attempts and not tied:
        raise Broken("a version ran more often than its attempts")
    ghost = replace(
        ghost,
        top=verdict.token,
        held=state.now + verdict.wait,
        running=version,
        remembered=max(ghost.remembered, state.now + max(claim.remember, DAY, verdict.wait)),
        buried=put(ghost.buried, kin, 0),
        runs=put(ghost.runs, kin, runs),
        spared=put(ghost.spared, kin, spared),
    )
    return replace(
        state,
        workers=tuple(replace(other, latest=False) for other in state.workers),
        echoes=tuple(replace(echo, latest=False) for echo in state.echoes),
        ghost=ghost,
    )


def granted_again(worker: Worker, verdict: Verdict) -> None:
    """A grant that is repeated."""
    if not worker.latest or verdict.token != worker.token:
        raise Broken("a grant was repeated to one who never had it")


def held_off(state: State, worker: Worker) -> None:
    """The verdict `busy`: another worker holds the lease."""
    if worker.latest and state.now < state.ghost.held:
        raise Broken("a worker was locked out by its own lost reply")


def judged(world: Runtime, state: State, worker: Worker, verdict: Verdict, *, wrote: bool) -> State:
    """Any verdict but run and busy."""
    versions, version, ghost = world.scenario.versions, worker.version, state.ghost
    claim = versions[version]
    until = state.now + claim.remember
    match verdict.kind:
        case "dead" if verdict.order is not None:
            if not any(
                (ghost.runs[other] or ghost.buried[other]) and _supersedes(newer, claim)
                for other, newer in enumerate(versions)
            ):
                raise Broken("given up for a newer version that never ran")
        case "dead" if wrote:
            # To give up again what is given up already is idle, but harms nobody.
            counted = ghost.runs[version] - ghost.spared[version]
            if counted < claim.attempts and not ghost.buried[version]:
                raise Broken("given up before its own attempts were used")
            return _buried(world, state, version)
        case "dead":
            if not any(ghost.buried[each] for each in _kin(versions, version)):
                raise Broken("called given up, but never was")
        case "unchanged":
            applied = versions[ghost.last] if ghost.last >= 0 else None
            if applied is None or applied.digest != claim.digest:
                raise Broken("called unchanged, but another state was applied last")
            if not 0 <= claim.at - applied.at < claim.unchanged_within:
                raise Broken("called unchanged, but too far apart by the events' own times")
            settled = put(ghost.settled, (version,), until)
            remembered = max(ghost.remembered, until)
            return replace(state, ghost=replace(ghost, settled=settled, remembered=remembered))
        case "duplicate" | "stale" if claim.sliding:
            settled = tuple(max(it, until) if it > state.now else it for it in ghost.settled)
            remembered = max(ghost.remembered, until)
            return replace(state, ghost=replace(ghost, settled=settled, remembered=remembered))
    return state


def applied(world: Runtime, state: State, worker: Worker) -> State:
    """The sink took the worker's write, or refused it for its token."""
    versions = world.scenario.versions
    if worker.token < state.sink_token:
        if worker.latest:
            raise Broken("the sink refused the latest run")
        return state
    order = versions[worker.version].order
    before = versions[state.sink].order if state.sink >= 0 else None
    if not worker.forgotten and order is not None and before is not None and order < before:
        raise Broken("the sink saw its subject go backwards")
    sink = -1 if worker.forgotten else worker.version
    return replace(state, sink_token=worker.token, sink=sink)


def refused(state: State, worker: Worker | Echo, action: Action, kept: SettleResult) -> None:
    """A settlement that was refused."""
    repeated = isinstance(worker, Echo) or worker.phase == "completing"
    known = state.ghost.settled[worker.version] if repeated else state.ghost.remembered
    if action == "complete" and worker.latest and state.now < known:
        raise Broken(f"a completion that nobody overtook is {kept}")


def believed(world: Runtime, state: State, worker: Worker | Echo, action: Action) -> State:
    """A settlement that was accepted, and changed the record."""
    claim, ghost = world.scenario.versions[worker.version], state.ghost
    match action:
        case "complete":
            return _completed(world, state, worker.version)
        case "bury":
            return _buried(world, state, worker.version)
        case "release":
            return replace(state, ghost=replace(ghost, held=0, running=-1))
        case "return":
            kin = _kin(world.scenario.versions, worker.version)
            spared = put(ghost.spared, kin, ghost.spared[worker.version] + 1)
            return replace(state, ghost=replace(ghost, held=0, running=-1, spared=spared))
        case "extend":
            held = max(ghost.held, state.now + claim.lease)
            return replace(state, ghost=replace(ghost, held=held))


def overtaken(worker: Worker | Echo, action: Action) -> None:
    """A settlement that was accepted: its run must be the latest."""
    if not worker.latest:
        raise Broken(f"{action} of an overtaken run was believed")


def passed(state: State) -> State:
    """Time passed: a key that need not be known any more may be forgotten."""
    ghost = state.ghost
    if state.now < ghost.remembered or not ghost.top:
        return state
    nothing = (0,) * len(ghost.runs)
    forgotten = replace(ghost, runs=nothing, spared=nothing, running=-1, last=-1, forgot=True)
    workers = tuple(replace(worker, forgotten=True) for worker in state.workers)
    return replace(state, workers=workers, sink=-1, ghost=forgotten)


def acknowledged(world: Runtime, state: State, version: int) -> None:
    """The transport forgets it: it must have had its effect, be overtaken, or be a dead letter."""
    versions = world.scenario.versions
    claim = versions[version]
    for other, until in enumerate(state.ghost.settled):
        if until and (
            other == version
            or (claim.order is None and versions[other].digest == claim.digest)
            or (claim.order is not None and _supersedes(versions[other], claim))
        ):
            return
    if not state.letters[version]:
        raise Broken(f"v{version} was acknowledged without effect, successor or letter")


def ended(world: Runtime, state: State) -> None:
    """No worker has anything left to do."""
    versions, ghost = world.scenario.versions, state.ghost
    for version in range(len(versions)):
        if not ghost.gone[version]:
            acknowledged(world, state, version)
    orders = [claim.order for claim in versions if claim.order is not None]
    if not orders or ghost.forgot:
        return
    newest = [index for index, claim in enumerate(versions) if claim.order == max(orders)]
    if any(
        (state.letters[index] or ghost.gone[index]) and not ghost.settled[index] for index in newest
    ):
        return
    if versions[state.sink].digest not in [versions[index].digest for index in newest]:
        raise Broken("all is settled, but the sink does not hold the newest state")


def _kin(versions: tuple[Claim, ...], version: int) -> tuple[int, ...]:
    """The versions that are given up together: all of a fact, or one of a subject."""
    return tuple(range(len(versions))) if versions[version].order is None else (version,)


def _supersedes(other: Claim, claim: Claim) -> bool:
    """Whether `other`, once settled, suppresses `claim`."""
    return claim.order is None or other.order is None or other.order > claim.order


def _buried(world: Runtime, state: State, version: int) -> State:
    claim, kin = world.scenario.versions[version], _kin(world.scenario.versions, version)
    until = state.now + max(claim.remember, DAY)
    ghost = replace(
        state.ghost,
        held=0,
        running=-1,
        remembered=max(state.ghost.remembered, until),
        buried=put(state.ghost.buried, kin, until),
        runs=put(state.ghost.runs, kin, 0),
        spared=put(state.ghost.spared, kin, 0),
    )
    return replace(state, ghost=ghost)


def _completed(world: Runtime, state: State, version: int) -> State:
    versions, ghost = world.scenario.versions, state.ghost
    claim, kin = versions[version], _kin(versions, version)
    until = state.now + claim.remember
    buried = tuple(
        it if other not in kin and versions[other].order == claim.order else 0
        for other, it in enumerate(ghost.buried)
    )
    remembered = max(until, *buried)
    # Older versions are suppressed by this one now, and no longer than it.
    settled = tuple(min(it, remembered) for it in ghost.settled)
    after = replace(
        ghost,
        held=0,
        running=-1,
        remembered=remembered,
        settled=put(settled, (version,), until),
        buried=buried,
        runs=put(ghost.runs, kin, 0),
        spared=put(ghost.spared, kin, 0),
        last=version,
    )
    return replace(state, ghost=after)
