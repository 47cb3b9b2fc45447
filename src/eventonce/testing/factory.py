"""The factory of the store under test: for this thread, another thread, or another process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from eventonce.core.ports import Store, StoreAdmin, offers

EXAMPLES: Final = 400
"""The programs that the property test plays: enough to catch every store of
`test_contract_catches.py`, in a few seconds on a local store."""


class StoreFactory(msgspec.Struct, frozen=True):
    """How to open the store, many times, and which cases it can take.

    Only the suite may use the store: the suite sweeps it at instants in the future, which deletes
    the records of others. The store need not be empty; every case makes its own keys.
    """

    open: Callable[[], Store]
    """Returns a new handle on the same store. It must be picklable, such as
    `partial(SQLiteStore, path)`, if other processes are to call it."""
    processes: bool = True
    """Whether other processes can reach the store; False if it exists only in this process."""
    sweeps: bool = True
    """Whether `sweep` deletes expired records; False if the server does it by itself."""
    counts: bool = True
    """Whether `stats` counts exactly; False if the server only estimates."""
    own_clock: bool = False
    """Whether a server gives the time, so that a worker's wrong clock cannot end a lease."""
    examples: int = EXAMPLES
    """The number of programs; fewer for a slow server. `EVENTONCE_EXAMPLES` overrides it."""


@contextmanager
def opened(factory: StoreFactory) -> Iterator[Store]:
    """Open a new handle, and close it at the end of the block."""
    store = factory.open()
    try:
        yield store
    finally:
        admin_of(store).close()


def admin_of(store: Store) -> StoreAdmin:
    """Return the same handle as a StoreAdmin."""
    assert offers(store, StoreAdmin), f"{type(store).__name__} is no StoreAdmin"
    return store
