"""Programs that each found a fault once, in a first version of the law or in another library.

They are played against the law like any other program; a store that implements the law in its own
language most often fails here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from eventonce.core.ledger import KEPT_DIGESTS, LONGEST_LEASE, NEWER_WAIT_LEASES, UNSETTLED
from eventonce.testing.cases.samples import DAY, EPOCH, HOUR, MINUTE, SECOND
from eventonce.testing.cases.steps import (
    Ask,
    AskAgain,
    Ending,
    Forget,
    Program,
    Settle,
    Step,
    Sweep,
    Wait,
    WaitFor,
)
from eventonce.types import MAX_ORDER, Claim

A: Final = b"A-------"
B: Final = b"B-------"


def _fact(**terms: Any) -> Ask:
    return Ask((replace(Claim(b"f1", 0, MINUTE, 10 * DAY, 3), **terms),))


def _state(order: int, digest: bytes = A, **terms: Any) -> Ask:
    claim = Claim(b"s1", 0, MINUTE, 10 * DAY, 3, digest=digest, order=order)
    return Ask((replace(claim, **{"at": EPOCH, "unchanged_within": 500, **terms}),))


DONE: Final = Settle((Ending("complete", 0, "every byte"),))
FREED: Final = Settle((Ending("release"),))
RETURNED: Final = Settle((Ending("return"),))
BURIED: Final = Settle((Ending("bury"),))
RENEWED: Final = Settle((Ending("extend"),))
LATE_DONE: Final = Settle((Ending("complete", 1, "empty"),))
LATE_FREED: Final = Settle((Ending("release", 1),))
LATE_BURIED: Final = Settle((Ending("bury", 1),))
LATE_RENEWED: Final = Settle((Ending("extend", 1),))
CRASHED: Final = Wait(MINUTE)


def _ties(count: int, ending: Settle) -> list[Step]:
    return [step for tie in range(count) for step in (_state(1, b"%08d" % tie), ending)]


HOLES: Final[Mapping[str, Program]] = {
    "a state is not unchanged while another run is unsettled": [
        *(_state(1, A), DONE),
        _state(2, B),
        CRASHED,
        _state(3, A),
    ],
    "nor when that run was released": [*(_state(1, A), DONE), *(_state(2, B), FREED), _state(3, A)],
    "A, B, A passes as the order rises": [
        *(_state(1, A), DONE),
        *(_state(2, B), DONE),
        *(_state(3, A), DONE),
    ],
    "unchanged goes by the events' own times": [
        *(_state(1, at=EPOCH), DONE, Wait(HOUR)),
        _state(2, at=EPOCH + 499),
        _state(2, at=EPOCH + 499),
        _state(3, at=EPOCH + 500),
        *(_state(4, at=EPOCH - 1), DONE),
        _state(5, at=EPOCH - 1, unchanged_within=0),
    ],
    "unchanged advances the order": [
        *(_state(1), DONE, _state(5)),
        *(_state(4, B), _state(5), _state(6, B)),
        DONE,
    ],
    "the completion before an unchanged is kept when repeated": [
        *(_state(1), DONE, _state(5), DONE),
        _state(4, B),
    ],
    "an unchanged version leaves the ties before it behind": [
        *(_state(1, B), DONE, _state(1, A), DONE),
        *(_state(2, A), _state(2, A), _state(2, B), DONE),
    ],
    "and does not shorten the memory": [
        *(_state(1, A), DONE, _state(2, A, remember=500), Wait(10 * DAY - 1), _state(1, B)),
    ],
    "what is stale does not wait for a newer version that runs": [
        *(_state(2, A), DONE, _state(3, B), _state(1, A), DONE),
    ],
    "a token does not return after its record expired": [
        *(_fact(), Wait(10 * DAY), Sweep(), _fact()),
        *(LATE_FREED, LATE_RENEWED, LATE_BURIED, LATE_DONE, _fact(), DONE),
    ],
    "a lease may be longer than the memory": [
        *(_fact(lease=2 * UNSETTLED, remember=500), Wait(2 * UNSETTLED - 1), Sweep()),
        *(_fact(), DONE, _fact(), Wait(10 * DAY - 1), _fact(), Wait(1), _fact()),
    ],
    "a lost reply does not lock out its owner": [
        *(_fact(), AskAgain(), Wait(MINUTE - 1), AskAgain(), _fact(), AskAgain(1)),
        *(Wait(1), AskAgain(1), AskAgain(2)),
    ],
    "a completion repeated is kept": [
        _fact(),
        DONE,
        DONE,
        Wait(HOUR),
        DONE,
        FREED,
        BURIED,
        RENEWED,
    ],
    "who outlived the lease settles nothing": [
        *(_fact(), CRASHED, _fact(by=b"next")),
        *(LATE_DONE, LATE_FREED, LATE_BURIED, LATE_RENEWED, _fact(), DONE, _fact()),
    ],
    "nor does the old token of an ask that was granted again": [
        *(_fact(), CRASHED, AskAgain(), LATE_RENEWED, LATE_FREED, LATE_BURIED, LATE_DONE),
    ],
    "what is forgotten is unknown": [
        *(_fact(), Wait(10 * DAY), DONE, FREED, BURIED, RENEWED, _fact(), Forget(b"f1"), DONE),
    ],
    "a late completion that nobody overtook is kept": [_fact(), Wait(HOUR), DONE, _fact()],
    "a late renewal takes no lease back": [_fact(), FREED, RENEWED, _fact(), FREED, FREED],
    "an older state does not follow a newer one that crashed": [
        *(_state(1, A), DONE, _state(3, B), CRASHED, _state(2, A)),
        *(_state(3, B), DONE, _state(2, A)),
    ],
    "and does not wait for ever": [
        *(
            _state(3, B),
            Wait(MINUTE),
            _state(2, A),
            Wait(NEWER_WAIT_LEASES * MINUTE - 1),
            _state(2, A),
        ),
        *(Wait(1), _state(2, A), _state(3, B), BURIED, _state(2, A), _state(3, B)),
    ],
    "a new version does not inherit the attempts of the one before": [
        *(_state(1, attempts=2), FREED, _state(1, attempts=2), FREED, _state(1, attempts=2)),
        *(_state(2, B, attempts=2), FREED, _state(2, B, attempts=2), FREED),
        *(_state(2, B, attempts=2), _state(2, A, attempts=2)),
    ],
    "nor if its state is the same": [
        *(_state(1, attempts=1), FREED, _state(2, attempts=1), FREED, _state(1, attempts=1)),
    ],
    "a crash counts as an attempt": [
        *(_fact(), CRASHED, _fact(), CRASHED, _fact(), CRASHED, _fact(), _fact()),
        *(Wait(10 * DAY - 1), Sweep(), _fact(), Wait(1), _fact()),
    ],
    "with as many crashes of a run that was alone as there are attempts it is given up": [
        *(_fact(attempts=2, alone=True), Wait(MINUTE - 1), _fact(attempts=2), Wait(1)) * 2,
        *(_fact(attempts=2), CRASHED, _fact(attempts=2), _fact(attempts=2, redrive=True)),
    ],
    "what was given up stays so, and redrive passes it": [
        *(_fact(remember=500), BURIED, BURIED, Wait(UNSETTLED - 1), _fact(remember=500)),
        *(_fact(redrive=True, remember=500), FREED, _fact(remember=500)),
    ],
    "redrive passes nothing but what is dead": [
        *(_fact(), _fact(redrive=True), DONE, _fact(redrive=True)),
        *(_state(2), DONE, _state(2, redrive=True), _state(1, redrive=True)),
        *(_state(3, B), BURIED, _state(3, B), _state(3, B, redrive=True), DONE, _state(3, B)),
    ],
    "two versions at one order each run once": [
        *(_state(1, A), DONE, _state(1, B), DONE, _state(1, A), _state(1, B)),
        *(_state(2, B), DONE, _state(1, A)),
    ],
    "ties beyond the kept ones drop the oldest": [
        *_ties(KEPT_DIGESTS + 1, DONE),
        *(_state(1, b"%08d" % 1), _state(1, b"%08d" % KEPT_DIGESTS), _state(1, b"%08d" % 0)),
    ],
    "and so do ties given up": [
        *_ties(KEPT_DIGESTS + 1, BURIED),
        *(_state(1, b"%08d" % 1), _state(1, b"%08d" % KEPT_DIGESTS), _state(1, b"%08d" % 0)),
    ],
    "without a transport id nobody knows whether it is the same": [
        *(_fact(), DONE, _fact(by=b"here"), _fact()),
        *(_state(1), DONE, _state(1)),
    ],
    "an empty result is a result": [
        *(_fact(), Settle((Ending("complete", 0, "empty"),)), _fact()),
        *(_state(1), Settle((Ending("complete", 0, "nothing"),)), _state(1)),
    ],
    "the same transport id and another one are told apart": [
        *(_fact(by=b"here"), DONE, _fact(by=b"here"), _fact(by=b"back"), _fact()),
    ],
    "other content under the same key is a conflict": [
        *(_fact(digest=A), DONE, _fact(digest=B), _fact(digest=A), _fact()),
    ],
    "half a second is half a second": [
        *(_fact(remember=500), DONE, Wait(499), _fact(remember=500), Wait(1)),
        *(_fact(remember=500), DONE, WaitFor(b"f1", "expires", -1), _fact(remember=500)),
        *(_fact(remember=500, lease=500), WaitFor(b"f1", "expires"), _fact(lease=500)),
        *(Wait(499), _fact(), Wait(1), _fact()),
    ],
    "a sliding window starts again with every copy": [
        *(_fact(sliding=True, remember=SECOND), DONE),
        *(Wait(999), _fact(sliding=True, remember=SECOND)) * 3,
        *(Wait(SECOND), _fact(sliding=True, remember=SECOND)),
    ],
    "and a fixed one does not": [
        *(_fact(remember=SECOND), DONE, Wait(999), _fact(remember=SECOND)),
        *(Wait(1), _fact(remember=SECOND)),
    ],
    "a peek leaves nothing behind": [
        *(_fact(peek=True), _fact(), _fact(peek=True), DONE, _fact(peek=True, sliding=True)),
    ],
    "an attempt that is returned does not count": [
        *(_fact(attempts=1), RETURNED, _fact(attempts=1), RETURNED, _fact(attempts=1)),
        *(FREED, _fact(attempts=1)),
        *(_state(3, attempts=1), RETURNED, RETURNED) * 3,
    ],
    "a crash counts only for a run that was alone": [
        *(_fact(attempts=1), CRASHED) * 4,
        *(_fact(attempts=1, alone=True), AskAgain(), CRASHED, _fact(attempts=1)),
    ],
    "an event's own time ends no lease": [
        *(_state(EPOCH), Wait(MINUTE - 1), _state(EPOCH + DAY, at=EPOCH + DAY)),
        *(_state(EPOCH, at=EPOCH + DAY), _state(EPOCH + 1, at=0)),
    ],
    "a renewal holds off the takeover": [
        *(_fact(), Wait(MINUTE - 1), RENEWED, Wait(MINUTE - 1), _fact(), Wait(1), _fact()),
    ],
    "orders reach from end to end": [
        *(_state(-MAX_ORDER, A), DONE, _state(-MAX_ORDER, A), _state(-1, B), DONE),
        *(_state(0, A, unchanged_within=0), DONE, _state(-1, B), _state(MAX_ORDER - 1, B), DONE),
        *(_state(MAX_ORDER, A), DONE, _state(MAX_ORDER - 1, B), _state(MAX_ORDER, A)),
    ],
    "a clock set back leaves every lease": [
        *(_fact(), Wait(-5 * MINUTE), _fact(), Wait(5 * MINUTE), CRASHED, _fact()),
        *(Wait(-5 * MINUTE), LATE_DONE, DONE, _fact()),
    ],
    "nor do tokens go back with it": [
        *(_fact(), FREED, Wait(-5 * MINUTE), _fact(), Wait(5 * MINUTE), _fact()),
        *(Wait(-5 * MINUTE), LATE_DONE, FREED, _fact(), DONE),
    ],
    "a lease from a clock that was ahead is cut down": [
        *(_fact(), _state(1), Wait(-3 * DAY), _fact(), _state(1), RENEWED),
        *(Wait(LONGEST_LEASE - 1), _fact(), _state(1), Wait(1), _fact(), _state(1)),
    ],
    "and is renewed by the clock as it is now": [
        *(_fact(), Wait(-3 * DAY), _fact()),
        *(RENEWED, _fact(), Wait(LONGEST_LEASE // 2)) * 4,
    ],
    "each key of a batch is judged alone": [
        Ask((*_fact().claims, *_state(2).claims)),
        Settle((Ending("release", 0), Ending("complete", 1, "64 KiB"))),
        Ask((*_state(2).claims, *_fact().claims)),
        Settle((Ending("complete", 0), Ending("complete", 0, off=1))),
        Ask((*_state(1).claims, *_fact().claims)),
    ],
}
"""The programs by the sentence that each one checks."""
