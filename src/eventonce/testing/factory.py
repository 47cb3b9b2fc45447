"""How the contract suite reaches the store under test: here, in a thread, in another process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from eventonce.core.ports import Store, StoreAdmin

EXAMPLES: Final = 400
"""Programs the property test plays: enough to catch every store of `test_contract_catches.py`,
and a few seconds on a local store."""


class StoreFactory(msgspec.Struct, frozen=True):
    """How to open one store again and again, and what may be asked of it.

    The store must be the suite's alone: the suite sweeps it at instants in the future, which would
    drop what others remember. It need not be empty; every case makes keys of its own.
    """

    open: Callable[[], Store]
    """A new handle on the same store. Picklable, such as `partial(SQLiteStore, path)`, if other
    processes are to call it."""
    processes: bool = True
    """Whether other processes reach the store; False where it lives and dies with this one."""
    sweeps: bool = True
    """Whether `sweep` is what drops expired records; False where the server does it by itself."""
    counts: bool = True
    """Whether `stats` counts exactly; False where the server only estimates."""
    own_clock: bool = False
    """Whether a server tells the time, so that a worker's wrong clock can end no lease."""
    examples: int = EXAMPLES
    """Fewer for a slow server; `EVENTONCE_EXAMPLES` in the environment overrules it."""


@contextmanager
def opened(factory: StoreFactory) -> Iterator[Store]:
    """A handle of its own, closed at the end."""
    store = factory.open()
    try:
        yield store
    finally:
        admin_of(store).close()


def admin_of(store: Store) -> StoreAdmin:
    """The same handle, for the questions of the command line and the dashboard."""
    assert isinstance(store, StoreAdmin), f"{type(store).__name__} is no StoreAdmin"
    return store
