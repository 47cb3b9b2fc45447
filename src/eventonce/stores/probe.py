"""Two questions to a store of any kind: whether it answers, and whether it takes a write."""

from __future__ import annotations

import secrets
from contextlib import closing, suppress
from typing import Final

from eventonce.core.ports import Finding, Store, StoreAdmin, offers
from eventonce.errors import EventonceError, StoreUnavailable
from eventonce.stores import open_store
from eventonce.types import Claim, Settlement

PROBE: Final = Claim(b"eventonce probe\0", 1, 1_000, 1_000, 1, peek=True)
"""A claim that only reads: it writes nothing, and shows that the store answers. A store that is
full, or that this user may only read, answers it too."""

TRIAL_ATTEMPTS: Final = 1_000_000
"""More than the times that a process dies between the claim of a trial and its settlement."""

CAN_WRITE: Final = "a record can be written and settled"


def new_trial_key() -> bytes:
    """Return the key of a trial record, which no event has and no other process uses."""
    return secrets.token_bytes(16)


def read_trial(store: Store) -> None:
    """Ask the store for the probe's record, which no store has; raise its error if that fails."""
    (verdict,) = store.claim([PROBE])
    if verdict.error is not None:
        raise verdict.error


def write_trial(store: Store, key: bytes) -> None:
    """Write a record under this key, and settle it; raise the store's error if that fails.

    The settled record is remembered for one millisecond, and deleted if the store can do so. At
    most one record per key is left behind, however often the store fails midway.
    """
    # The lease of one millisecond lets the next trial begin at once. The nonce is new: otherwise
    # the store would return the grant of the last trial, and write nothing.
    claim = Claim(key, secrets.randbits(52) | 1, 1, 1, TRIAL_ATTEMPTS)
    (verdict,) = store.claim([claim])
    if verdict.error is not None:
        raise verdict.error
    kept = store.settle([Settlement(claim, verdict.token, "complete")]) if verdict.token else []
    if kept != ["kept"]:
        said = kept[0] if kept else verdict.kind
        raise StoreUnavailable(
            f"the store did not keep a trial record ({said}): check its clock, and whether "
            f"something else changes its records"
        )
    if offers(store, StoreAdmin):
        with suppress(EventonceError):  # the work does not need the right to delete
            store.forget([key])


def write_finding(uri: str) -> Finding:
    """Return whether the store of this URI, which exists, takes a write."""
    try:
        with closing(open_store(uri)) as store:
            write_trial(store, new_trial_key())
    except EventonceError as error:
        return Finding(CAN_WRITE, str(error))
    return Finding(CAN_WRITE)
