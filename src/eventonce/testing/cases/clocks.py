"""Clocks that are hours off: leases go by the store's time, safety by tokens.

A store with a server is asked the time by its server, and a worker's clock is nothing to it. An
embedded store has no other clock than the machine's, which all its workers share; should that
clock jump, a lease may end early, and the token then keeps the two runs apart.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from eventonce.testing.cases.samples import HOUR, fact, new_keys
from eventonce.testing.factory import StoreFactory, opened
from eventonce.types import Settlement


def a_worker_whose_clock_is_ahead_completes_no_others_run(factory: StoreFactory) -> None:
    """Two hours ahead it sees a lease of one hour end early, if its clock is asked at all."""
    _two_workers(factory, ahead=2 * HOUR)


def a_worker_whose_clock_is_behind_completes_no_others_run(factory: StoreFactory) -> None:
    """Two hours behind it sees a lease that is live still longer live."""
    _two_workers(factory, ahead=-2 * HOUR)


def _two_workers(factory: StoreFactory, ahead: int) -> None:
    with opened(factory) as right, opened(factory) as wrong:
        (key,) = new_keys(1)
        first, second = fact(key, lease=HOUR), fact(key, lease=HOUR)
        (run,) = right.claim([first])
        with machine_clock_off_by(ahead):
            (other,) = wrong.claim([second])
            if other.kind == "run":
                assert ahead > 0, "a clock that is behind took a live lease"
                assert not factory.own_clock, "a worker's clock ended a lease of the server's"
                assert other.token > run.token
            else:
                assert other.kind == "busy"
        ended = right.settle([Settlement(first, run.token, "complete")])
        if other.kind == "run":
            with machine_clock_off_by(ahead):
                ended += wrong.settle([Settlement(second, other.token, "complete")])
            assert ended == ["fenced", "kept"]
        else:
            assert ended == ["kept"]


@contextmanager
def machine_clock_off_by(ms: int) -> Iterator[None]:
    """For whoever asks this process the time."""
    now, now_ns = time.time, time.time_ns
    with (
        patch("time.time", lambda: now() + ms / 1_000),
        patch("time.time_ns", lambda: now_ns() + ms * 1_000_000),
    ):
        yield
