"""What goes on beside the work: deliveries are held, let go of, and the store is asked after."""

from __future__ import annotations

import time
from typing import Final

from eventonce.core.ports import Source, Store
from eventonce.errors import EventonceError, StoreError, StoreMismatch
from eventonce.stores.probe import PROBE
from eventonce.worker.crew import Crew
from eventonce.worker.desk import Desk
from eventonce.worker.leaving import BATCH, Leaving
from eventonce.worker.pulse import Pulse

SHARE: Final = 4
"""Deliveries are held anew four times in the time they are held for: two of those may fail."""

TICK: Final = 1.0
"""Seconds after which a thread that waits looks whether it is still needed."""

LONG: Final = 0.5
"""Seconds one handler may keep those waiting that were taken with it, before others take them."""

PROBED: Final = 10.0
"""Seconds of silence after which the store is asked whether it is there."""


def hold(source: Source, desk: Desk, crew: Crew, queue: Pulse) -> None:
    """Keep what is at hand from coming to others, until the crew is stopping.

    The store's leases are renewed meanwhile by the consumer itself: who outlives one of the two is
    still guarded by the other.
    """
    share = source.hold / SHARE
    while not crew.sleep(share):
        now = time.monotonic()
        kept = desk.kept_since(now - share)
        for start in range(0, len(kept), BATCH):
            some = kept[start : start + BATCH]
            try:
                source.postpone([(one, source.hold) for one in some])
            except EventonceError as error:
                queue.failed(error)
                break
            queue.answered()
            for one in some:
                one.held = now


def let_go(leaving: Leaving, crew: Crew) -> None:
    """Send off what a hand did not, until the crew is stopping."""
    while not crew.stopping:
        if leaving.wait(TICK):
            crew.sleep(leaving.send())


def share(desk: Desk, crew: Crew) -> None:
    """Call idle hands to those that are held up, until the crew is stopping."""
    while not crew.sleep(LONG):
        desk.call_help(time.monotonic() - LONG)


def look_after(store: Store, crew: Crew, pulse: Pulse) -> None:
    """Ask the store now and then whether it is there, until the crew is stopping."""
    pause = 0.0
    while not crew.sleep(pause):
        pause = probe(store, pulse) if pulse.away or pulse.silent_for() > PROBED else TICK


def probe(store: Store, pulse: Pulse) -> float:
    """Ask the store whether it is there; the seconds until it shall be asked again."""
    try:
        (verdict,) = store.claim([PROBE])
    except StoreMismatch:
        raise
    except StoreError as error:
        return pulse.failed(error)
    if verdict.error is not None:
        return pulse.failed(verdict.error)
    pulse.answered()
    return TICK
