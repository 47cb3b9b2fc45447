"""Thousands of seeded schedules of whole consumers over the real engine."""

from __future__ import annotations

import os

import pytest

from eventonce.testing.simulator import simulate

SEEDS = int(os.environ.get("EVENTONCE_SEEDS", "3000"))


@pytest.mark.parametrize("share", range(8))
def test_every_promise_holds_under_every_schedule(share: int) -> None:
    for seed in range(share, SEEDS, 8):
        simulate(seed)
