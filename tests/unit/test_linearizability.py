"""The checker of histories, on histories written by hand: which have an order, and which have none.

A line is one operation: when it was called and returned (`...` if it never returned), the client,
the question, the answer, and the instant at which the store judged.
"""

from __future__ import annotations

import random
from types import EllipsisType
from typing import Final

import pytest
from msgspec.structs import replace

from eventonce.testing.cases.histories import ACTIONS, _claim
from eventonce.testing.cases.samples import SECOND
from eventonce.testing.linearizability import Answer, Operation, law, violation
from eventonce.testing.recorder import OperationHistory, timeline
from eventonce.types import Action, Claim, Settlement, Verdict

T: Final = 1_000_000
"""The instant at which these histories begin; a token is a thousand times the instant."""
LEASE: Final = 100
DAYS: Final = 10 * 86_400_000

BUSY: Final = Verdict("busy", wait=LEASE)
COPY: Final = Verdict("duplicate")


def fact(nonce: int, **other: object) -> Claim:
    return replace(Claim(b"key", nonce, LEASE, DAYS, 5), **other)


def version(nonce: int, order: int) -> Claim:
    return fact(nonce, order=order)


def run(at: int = 0, attempt: int = 1, token: int = 0) -> Verdict:
    """A grant at this instant after the beginning; a further attempt follows a crash, unless its
    token says that it follows a release."""
    crashed = attempt > 1 and not token
    token = token or (T + at) * 1_000
    return Verdict("run", token, attempt, LEASE, alone=crashed, spared=(attempt - 1) * crashed)


def end(claim: Claim, grant: Verdict, action: Action = "complete") -> Settlement:
    return Settlement(claim, grant.token, action)


def op(
    called: int,
    returned: int | EllipsisType,
    who: str,
    ask: Claim | Settlement,
    answer: Answer | None = None,
    at: int | tuple[int, int] | None = None,
) -> Operation:
    """Without `at` the instant is anywhere between the call and the return."""
    if at is None:
        at = (called, called + 10_000) if isinstance(returned, EllipsisType) else (called, returned)
    earliest, latest = at if isinstance(at, tuple) else (at, at)
    back = None if isinstance(returned, EllipsisType) else returned
    return Operation(who, ask, answer, called, back, T + earliest, T + latest)


A, B, C = fact(1), fact(2), fact(3)

EXPLAINED: Final = {
    "one after the other": [
        op(0, 1, "a", A, run(), at=0),
        op(2, 3, "b", B, BUSY, at=0),
        op(4, 5, "a", end(A, run()), "kept", at=0),
        op(6, 7, "b", B, COPY, at=0),
    ],
    "overlapping, the later call first": [
        op(0, 9, "a", A, BUSY, at=0),
        op(1, 8, "b", B, run(), at=0),
    ],
    "an open completion that happened": [
        op(0, 1, "a", A, run(), at=0),
        op(2, ..., "a", end(A, run()), at=0),
        op(4, 5, "b", B, COPY, at=0),
    ],
    "an open completion that never happened": [
        op(0, 1, "a", A, run(), at=0),
        op(2, ..., "a", end(A, run()), at=0),
        op(4, 5, "b", B, BUSY, at=0),
        op(6, 7, "b", B, run(LEASE, attempt=2), at=LEASE),
    ],
    "an open completion that happened long after its client was gone": [
        op(0, 1, "a", A, run(), at=0),
        op(2, ..., "a", end(A, run()), at=0),
        op(4, 5, "b", B, BUSY, at=0),
        op(6, 7, "b", B, COPY, at=LEASE),
    ],
    "a grant whose answer was lost": [
        op(0, ..., "a", A, at=0),
        op(2, 3, "b", B, BUSY, at=0),
        op(4, 5, "b", B, run(LEASE, attempt=2), at=LEASE),
    ],
    "a grant whose answer was lost, at an unknown instant": [
        op(0, ..., "a", A),
        op(7, 9, "b", B, Verdict("busy", wait=LEASE - 3)),
        op(104, 106, "b", B, run(105, attempt=2)),
    ],
    "the same ask again, after its reply was lost": [
        op(0, ..., "a", A, at=0),
        op(2, 3, "a", A, run(), at=0),
    ],
    "a takeover within the millisecond of a release": [
        op(0, 1, "a", A, run(), at=0),
        op(2, 3, "a", end(A, run(), "release"), "kept", at=0),
        op(4, 5, "b", B, run(0, 2, run().token + 1), at=0),
        op(6, 7, "a", end(A, run()), "fenced", at=0),
    ],
    "a lease that ends by the store's clock, somewhere in the call": [
        op(0, 2, "a", A, run(1)),
        op(90, 120, "b", B, Verdict("busy", wait=LEASE - 94)),
        op(95, 121, "c", C, run(110, attempt=2)),
    ],
    "an older version that waits from a release at an unknown instant": [
        op(0, 1, "a", version(1, order=5), run(), at=0),
        op(10, 30, "a", end(version(1, order=5), run(), "release"), "kept"),
        op(40, 41, "b", version(2, order=4), Verdict("busy", wait=3 * LEASE - 17, order=5)),
    ],
    "a renewal at an unknown instant, and an older version that waits": [
        op(0, 1, "a", version(1, order=5), run(), at=0),
        op(10, 30, "a", end(version(1, order=5), run(), "extend"), "kept"),
        op(200, 201, "b", version(2, order=4), Verdict("busy", wait=4 * LEASE - 177, order=5)),
    ],
    "a busy of a store that did not wait for the other call": [
        op(0, 9, "a", A, run(), at=0),
        op(1, 5, "b", B, Verdict("busy", wait=1_000), at=0),
    ],
    "a busy for longer than the lease, which ended while the call waited": [
        op(0, 1, "a", A, run(), at=0),
        op(LEASE - 10, LEASE + 90, "b", B, Verdict("busy", wait=1_000)),
        op(LEASE + 100, LEASE + 101, "b", B, run(LEASE + 100, attempt=2)),
    ],
    "a fact that is forgotten, and completed again": [
        op(0, 1, "a", fact(1, remember=50), run(), at=0),
        op(2, 3, "a", end(fact(1, remember=50), run()), "kept", at=0),
        op(4, 5, "b", fact(2, remember=50), run(50), at=50),
        op(6, 7, "b", end(fact(2, remember=50), run(50)), "kept", at=50),
    ],
}

NO_ORDER: Final = "the law explains no order of its operations"

REFUSED: Final = {
    "two grants of one key": (
        NO_ORDER,
        [op(0, 9, "a", A, run(), at=0), op(1, 8, "b", B, run(1), at=1)],
    ),
    "two grants with one token": (
        "one token was given to two runs, of a and of b",
        [op(0, 9, "a", A, run(), at=0), op(1, 8, "b", B, run(), at=0)],
    ),
    "a busy with a token": (
        "b got busy with a token",
        [op(0, 9, "a", A, run(), at=0), op(1, 8, "b", B, replace(BUSY, token=5), at=0)],
    ),
    "a busy without any other call": (
        NO_ORDER,
        [
            op(0, 1, "a", A, run(), at=0),
            op(2, 3, "a", end(A, run(), "release"), "kept", at=0),
            op(4, 5, "b", B, Verdict("busy", wait=1_000), at=0),
        ],
    ),
    "a busy for longer than the lease, which ended before the call": (
        NO_ORDER,
        [
            op(0, 1, "a", A, run(), at=0),
            op(LEASE, LEASE + 1, "b", B, Verdict("busy", wait=1_000)),
        ],
    ),
    "a run that was overtaken, and kept": (
        NO_ORDER,
        [
            op(0, 1, "a", A, run(), at=0),
            op(2, 3, "b", B, run(LEASE, attempt=2), at=LEASE),
            op(4, 5, "a", end(A, run()), "kept", at=LEASE),
        ],
    ),
    "two runs of one fact, both kept": (
        "more than one run completed this fact, of a and of b",
        [
            op(0, 1, "a", A, run(), at=0),
            op(2, 3, "b", B, run(LEASE, attempt=2), at=LEASE),
            op(4, 9, "a", end(A, run()), "kept", at=LEASE),
            op(5, 8, "b", end(B, run(LEASE)), "kept", at=LEASE),
        ],
    ),
    "an acknowledged completion that is lost": (
        NO_ORDER,
        [
            op(0, 1, "a", A, run(), at=0),
            op(2, 3, "a", end(A, run()), "kept", at=0),
            op(4, 5, "b", B, run(LEASE, attempt=2), at=LEASE),
        ],
    ),
    "a copy before any completion": (
        NO_ORDER,
        [
            op(0, 1, "a", A, run(), at=0),
            op(2, 3, "b", B, COPY, at=0),
            op(4, ..., "a", end(A, run()), at=0),
        ],
    ),
    "an answer that depends on a later call": (
        NO_ORDER,
        [op(0, 1, "a", A, BUSY, at=0), op(2, 3, "b", B, run(), at=0)],
    ),
    "an open completion that both happened and did not": (
        NO_ORDER,
        [
            op(0, 1, "a", A, run(), at=0),
            op(2, ..., "a", end(A, run()), at=0),
            op(4, 5, "b", B, COPY, at=0),
            op(6, 7, "c", C, run(LEASE, attempt=2), at=LEASE),
        ],
    ),
    "a lease that ended before any clock allows": (
        NO_ORDER,
        [op(0, 2, "a", A, run(1)), op(50, 60, "b", B, run(101, attempt=2))],
    ),
    "a subject that went back": (
        NO_ORDER,
        [
            op(0, 1, "a", version(1, order=5), run(), at=0),
            op(2, 3, "a", end(version(1, order=5), run()), "kept", at=0),
            op(4, 5, "b", version(2, order=4), run(1), at=1),
        ],
    ),
}


@pytest.mark.parametrize("history", EXPLAINED)
def test_the_law_explains_a_correct_history(history: str) -> None:
    found = violation(EXPLAINED[history])
    assert found is None, timeline(found)


@pytest.mark.parametrize("history", REFUSED)
def test_the_law_does_not_explain_a_wrong_history(history: str) -> None:
    reason, operations = REFUSED[history]
    found = violation(operations)
    assert found is not None
    assert found.reason == reason


def test_each_key_is_checked_separately_and_a_violation_is_reported_as_a_timeline() -> None:
    history = OperationHistory()
    for operation in EXPLAINED["a grant whose answer was lost"]:
        history.add(operation)
    history.check()
    assert history.reached == {"open", "busy", "takeover"}
    _, operations = REFUSED["an acknowledged completion that is lost"]
    for it in operations:
        claim = replace(it.claim, key=b"other")
        ask = claim if isinstance(it.ask, Claim) else replace(it.ask, claim=claim)
        history.add(replace(it, ask=ask))
    with pytest.raises(AssertionError) as caught:
        history.check()
    told = [" ".join(line.split()) for line in str(caught.value).splitlines()]
    assert told[0] == f"key {b'other'.hex()}: {NO_ORDER}"
    assert told[2].startswith("1. |")
    assert told[2].endswith(
        "a claim c1 lease=100 attempts=5 now=+0 -> run token=+0 attempt=1 wait=100"
    )
    assert told[3].endswith("a complete c1 token=+0 now=+0 -> kept")
    assert told[4].endswith("-> run token=+100000 attempt=2 wait=100 alone=True spared=1")
    assert told[5] == "the law says duplicate"


def test_a_search_that_must_try_every_order_ends_soon() -> None:
    """Twenty calls at once: calls that change nothing are not tried in every order."""
    many = [op(0, 99, f"c{i}", fact(i), BUSY, at=0) for i in range(1, 20)]
    assert violation([*many, op(0, 99, "winner", A, run(), at=0)]) is None
    assert violation([*many, op(0, 99, "winner", A, run(5), at=0)]) is not None


def drawn(seed: int, *, exact: bool) -> list[Operation]:
    """Four clients whose calls overlap: the law answers one at a time, some replies are lost."""
    chance = random.Random(seed)
    record, moment, now = None, 0, T
    free = dict.fromkeys("abcd", 0)
    runs: list[tuple[str, Claim, Verdict]] = []
    operations = []
    for _ in range(16):
        who = chance.choice("abcd")
        moment += chance.randrange(1, 8)
        now += chance.choice((0, 1, SECOND - 1, SECOND) if exact else (0, 1, 5, 24, 25, 60))
        called = max(free[who], moment - chance.randrange(20))
        if called > moment:
            continue
        mine = [(claim, grant) for it, claim, grant in runs if it == who]
        ask: Claim | Settlement = _claim(chance, b"key", state=seed % 2 == 1, exact=exact)
        if mine and chance.random() < 0.6:
            ask = chance.choice((mine[-1][0], end(*chance.choice(mine), chance.choice(ACTIONS))))
        answer, written = law(record, ask, now)
        lost = chance.random() < 0.1
        if written is not None and not (lost and chance.random() < 0.5):
            record = written
        if lost:
            free[who] = 10**9
            late = 0 if exact else 100_000
            operations.append(Operation(who, ask, None, called, None, now, now + late))
            continue
        free[who] = (returned := moment + chance.randrange(20)) + 1
        early, late = (0, 0) if exact else (chance.randrange(10), chance.randrange(10))
        it = Operation(who, ask, answer, called, returned, now - early, now + late)
        operations.append(it)
        if it.granted and isinstance(answer, Verdict):
            runs.append((who, it.claim, answer))
    return operations


@pytest.mark.parametrize("exact", [True, False])
def test_answers_that_the_law_gave_one_at_a_time_are_explained(exact: bool) -> None:
    for seed in range(400):
        found = violation(drawn(seed, exact=exact))
        assert found is None, timeline(found)


def test_one_wrong_token_in_any_history_is_found() -> None:
    wrong = 0
    for seed in range(400):
        operations = drawn(seed, exact=True)
        for i, it in enumerate(operations):
            if it.granted and isinstance(it.answer, Verdict):
                token = it.answer.token + 1
                operations[i] = replace(it, answer=replace(it.answer, token=token))
                assert violation(operations) is not None
                wrong += 1
                break
    assert wrong > 300
