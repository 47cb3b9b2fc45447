"""The next moves in a `world`: workers do their work, or anything that can fail fails."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from eventonce.types import Action, Settlement, SettleResult
from tests.simulation import promises
from tests.simulation.world import Broken, Echo, Faults, Phase, Runtime, State, Worker, put

Move = tuple[str, State]


def moves(world: Runtime, state: State) -> Iterator[Move]:
    """All that may happen next, faults included."""
    quiet = not state.workers
    if len(state.workers) < world.scenario.workers:
        for version, here in enumerate(state.here):
            if here:
                kind, after = _ask(world, *_hire(state, version))
                if kind != "busy":
                    quiet = False
                    yield f"v{version} is asked for: {kind}", after
                    yield from _unheard(world, *_hire(state, version))
            if state.letters[version] and state.faults.redrive:
                kind, after = _ask(world, *_hire(_spend(state, "redrive"), version, redrive=True))
                yield f"v{version} is redriven: {kind}", after
    for index, worker in enumerate(state.workers):
        if worker not in state.workers[:index]:
            yield from _work(world, state, worker)
    for echo in state.echoes:
        yield f"{echo.action} of v{echo.version} arrives late", _arrive(world, state, echo)
    yield from _transport(state)
    yield from _time(world, state, quiet=quiet)


def calm(world: Runtime, state: State, *, newest_first: bool) -> State | None:
    """The next state if nothing goes wrong any more; None when all is done, and done well."""
    if state.echoes:
        return replace(state, echoes=())
    if state.workers:
        return next(_work(world, state, state.workers[0]))[1]
    waiting = [version for version, here in enumerate(state.here) if here]
    if not waiting:
        promises.ended(world, state)
        return None
    for version in reversed(waiting) if newest_first else waiting:
        kind, after = _ask(world, *_hire(state, version))
        if kind != "busy":
            return after
    return _pass(state, _soonest(world, state))


def _transport(state: State) -> Iterator[Move]:
    for version, here in enumerate(state.here):
        if here and state.faults.gone:
            ghost = replace(state.ghost, gone=put(state.ghost.gone, (version,), value=True))
            lost = replace(_spend(state, "gone"), ghost=ghost)
            yield f"v{version} never comes", _deliver(lost, version, here=False)
        if not here and state.faults.copy:
            yield f"v{version} comes again", _deliver(_spend(state, "copy"), version)


def _time(world: Runtime, state: State, *, quiet: bool) -> Iterator[Move]:
    if quiet and any(state.here):
        yield "the busy ones wait", _pass(state, _soonest(world, state))
    elif state.faults.pause:
        for until in _instants(world, state):
            yield f"{until - state.now} ms pass", _pass(_spend(state, "pause"), until)
    # Not after the key was forgotten: set back far enough, a clock brings back what had expired.
    if state.faults.back and not state.ghost.forgot:
        lease = world.scenario.versions[0].lease
        yield "the clock is set back", replace(_spend(state, "back"), now=state.now - lease)


def _soonest(world: Runtime, state: State) -> int:
    """When the first of the busy ones was told to come again."""
    told = []
    for version, here in enumerate(state.here):
        if here:
            claim = replace(world.scenario.versions[version], nonce=_nonce(state))
            told.append(world.law.judge(state.record, claim, state.now)[0].wait)
    if min(told) <= 0:
        raise Broken("busy without end: told to come again at an instant that has passed")
    return state.now + min(told)


def _instants(world: Runtime, state: State) -> list[int]:
    """When something ends, or is in the middle of it."""
    claim = world.scenario.versions[0]
    ends = {worker.until for worker in state.workers}
    if claim.sliding:
        ends.add(state.now + claim.remember // 2)
    if state.record is not None:
        held_until = state.record.held_until
        ends |= {held_until, held_until + 3 * claim.lease, state.record.expires}
    return sorted(end for end in ends if end > state.now)


def _pass(state: State, until: int) -> State:
    for worker in state.workers:
        if worker.until <= until and not worker.redrive:
            state = _deliver(state, worker.version)
    return promises.passed(replace(state, now=until))


def _work(world: Runtime, state: State, worker: Worker) -> Iterator[Move]:
    """The moves of this worker; first the one that it makes when nothing goes wrong."""
    left = state.faults
    who = f"v{worker.version}#{worker.nonce}"
    attempts = world.scenario.versions[worker.version].attempts
    gives_up: Phase = "burying" if worker.attempt >= attempts else "failing"
    match worker.phase:
        case "asking":
            kind, after = _ask(world, state, worker)
            yield f"{who} asks again: {kind}", after
            yield from _unheard(world, state, worker)
        case "running":
            after = promises.applied(world, state, worker)
            yield f"{who} has its effect", _turn(after, worker, "applied")
        case "applied" | "completing":
            yield from _settle(world, state, worker, "complete")
        case "failing":
            yield from _settle(world, state, worker, "release")
        case "returning":
            yield from _settle(world, state, worker, "return")
        case "burying":
            yield from _settle(world, state, worker, "bury")
        case "writing":
            letters = put(state.letters, (worker.version,), value=True)
            yield f"{who} writes its letter", _leave(replace(state, letters=letters), worker)
    if left.fail and worker.phase in {"running", "applied"}:
        yield f"{who} fails ({worker.phase})", _turn(_spend(state, "fail"), worker, gives_up)
    if left.spare and worker.phase in {"running", "applied"}:
        yield f"{who} is spared", _turn(_spend(state, "spare"), worker, "returning")
    if left.echo and worker.phase in {"running", "applied"}:
        yield f"{who} sends a renewal", _echo(state, worker, "extend")
    if left.crash:
        yield f"{who} crashes ({worker.phase})", _leave(_spend(state, "crash"), worker, again=True)


def _unheard(world: Runtime, state: State, worker: Worker) -> Iterator[Move]:
    """The same ask, but its reply is lost; which matters only if something was written."""
    if state.faults.lost:
        kind, after = _ask(world, _spend(state, "lost"), worker, heard=False)
        if after.record is not state.record:
            yield f"v{worker.version} is asked for: {kind}, but the reply is lost", after


def _ask(world: Runtime, state: State, worker: Worker, *, heard: bool = True) -> tuple[str, State]:
    claim = replace(
        world.scenario.versions[worker.version], nonce=worker.nonce, redrive=worker.redrive
    )
    verdict, written = world.law.judge(state.record, claim, state.now)
    after = state if written is None else replace(state, record=written)
    if verdict.kind == "run":
        if written is None:
            promises.granted_again(worker, verdict)
        else:
            after = promises.granted(world, after, worker, verdict)
        holding = replace(
            worker,
            phase="running" if heard else "asking",
            token=verdict.token,
            attempt=verdict.attempt,
            until=state.now + verdict.wait,
            latest=True,
        )
        return verdict.kind, _seat(after, worker, holding)
    if verdict.kind == "busy":
        promises.held_off(state, worker)
        return verdict.kind, _leave(after, worker, again=True)
    after = promises.judged(world, after, worker, verdict, wrote=written is not None)
    if not heard:
        return verdict.kind, after
    if verdict.kind in {"dead", "conflict"}:
        return verdict.kind, _turn(after, worker, "writing")
    promises.acknowledged(world, after, worker.version)
    return verdict.kind, _leave(after, worker)


def _settle(world: Runtime, state: State, worker: Worker, action: Action) -> Iterator[Move]:
    kept, after = _settled(world, state, worker, action)
    heard = _told(world, after, worker, action, kept)
    what = f"v{worker.version}#{worker.nonce} settles, {action}: {kept}"
    yield what, heard
    if kept == "kept" and state.faults.lost:
        again = _spend(after, "lost")
        if action == "complete":
            again = _turn(again, worker, "completing")
        yield f"{what}, but the reply is lost", again
    if kept == "kept" and state.faults.echo:
        yield f"{what}, and arrives once more", _echo(heard, worker, action)


def _settled(
    world: Runtime, state: State, worker: Worker | Echo, action: Action
) -> tuple[SettleResult, State]:
    claim = replace(world.scenario.versions[worker.version], nonce=worker.nonce)
    settlement = Settlement(claim, worker.token, action)
    kept, written = world.law.settle(state.record, settlement, state.now)
    if kept != "kept":
        promises.refused(state, worker, action, kept)
        return kept, state
    promises.overtaken(worker, action)
    if written is None:
        return kept, state
    return kept, promises.believed(world, replace(state, record=written), worker, action)


def _told(
    world: Runtime, state: State, worker: Worker, action: Action, kept: SettleResult
) -> State:
    if action == "complete" and kept == "kept":
        promises.acknowledged(world, state, worker.version)
        return _leave(state, worker)
    if action == "bury" and kept == "kept":
        return _turn(state, worker, "writing")
    return _leave(state, worker, again=True)


def _arrive(world: Runtime, state: State, echo: Echo) -> State:
    rest = list(state.echoes)
    rest.remove(echo)
    return _settled(world, replace(state, echoes=tuple(rest)), echo, echo.action)[1]


def _hire(state: State, version: int, *, redrive: bool = False) -> tuple[State, Worker]:
    worker = Worker(version, "asking", _nonce(state), redrive=redrive)
    if not redrive:
        state = _deliver(state, version, here=False)
    return replace(state, workers=tuple(sorted((*state.workers, worker)))), worker


def _nonce(state: State) -> int:
    """The lowest nonce not in use, so that states that differ in nothing else are one."""
    used = {worker.nonce for worker in state.workers} | {echo.nonce for echo in state.echoes}
    if state.record is not None:
        used.add(state.record.nonce)
    return next(nonce for nonce in range(1, 99) if nonce not in used)


def _seat(state: State, worker: Worker, successor: Worker | None) -> State:
    workers = [other for other in state.workers if other.nonce != worker.nonce]
    if successor is not None:
        workers.append(successor)
    return replace(state, workers=tuple(sorted(workers)))


def _turn(state: State, worker: Worker, phase: Phase) -> State:
    return _seat(state, worker, replace(worker, phase=phase))


def _leave(state: State, worker: Worker, *, again: bool = False) -> State:
    state = _seat(state, worker, None)
    return _deliver(state, worker.version) if again and not worker.redrive else state


def _deliver(state: State, version: int, *, here: bool = True) -> State:
    return replace(state, here=put(state.here, (version,), here))


def _echo(state: State, worker: Worker, action: Action) -> State:
    echo = Echo(worker.version, action, worker.nonce, worker.token, worker.latest)
    return replace(_spend(state, "echo"), echoes=tuple(sorted((*state.echoes, echo))))


def _spend(state: State, fault: str) -> State:
    left: int = getattr(state.faults, fault)
    return replace(state, faults=replace(state.faults, **{fault: left - 1}))


def without_faults(state: State) -> State:
    """The same, but nothing goes wrong from now on."""
    return replace(state, faults=Faults())
