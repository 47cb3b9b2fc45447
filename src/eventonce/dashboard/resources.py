"""The resources of a dashboard: the store, the history and the dead letters. All calls here may
block."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

from eventonce.config import Config
from eventonce.consumer import Consumer
from eventonce.core.ports import Stats
from eventonce.errors import ConfigError
from eventonce.history import History
from eventonce.letters.reasons import grouping
from eventonce.letters.runners import Runners
from eventonce.letters.selection import quoted, unnaming
from eventonce.privacy import Sealer
from eventonce.stores.probe import read_trial

NO_HISTORY: Final = (
    "No history is kept, so there are no rates and no stories. Name a database in eventonce.toml: "
    '[history] store = "sqlite:///history.db"'
)

READ_BY: Final[Mapping[str, Sequence[str]]] = {
    "history": ["history"],
    "workers": ["history"],
    "audit": [],
    "shadow": [],
}
"""The options of commands that do not read the store. `audit` and `shadow` read files that the
settings name."""


@dataclass(eq=False, kw_only=True, repr=False)
class Resources:
    """A store, with its history, its dead letters and its consumer."""

    open_store: Callable[[], Any] = field(kw_only=False)
    """A function that opens the store, which is both a `Store` and a `StoreAdmin`."""
    name: str = ""
    history: str = ""
    """The URI of the history; empty for none."""
    secrets: Sequence[bytes] = ()
    """The secrets of the history's digests and of the ids of groups."""
    consumer: Consumer | None = None
    """The consumer of the worker or receiver of this process; None in other processes."""
    state: Callable[[], Mapping[str, Any]] | None = None
    """A function that returns the state of that worker."""
    shadow_log: str = ""
    runners: Runners | None = None
    """The consumers that redrive dead letters; the default is the consumer, if there is one."""
    letters: str = ""
    """The dead-letter queue; empty for none."""
    sealer: Sealer = field(default_factory=lambda: Sealer([]))
    """Opens the sealed dead letters of the queue."""
    audit: str = ""
    """The file for audit lines; empty for the log alone."""
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The options of another command for the same settings (`config`), `store`, `history`, and
    handler of `redrive`, quoted for a shell."""

    def __post_init__(self) -> None:
        self.group_of = grouping(self.secrets)
        """A function from the reason of a dead letter to the id of its group."""
        self.unnamed = unnaming(self.secrets)
        """A function from the id of a conversation to its digest in the audit."""
        if self.runners is None and self.consumer is not None:
            self.runners = Runners(Config(), self.open_store, own=self.consumer)
        self._opened: Any = None
        self._lock = Lock()
        self._looking: History | None = None

    @property
    def store(self) -> Any:
        """The store, opened at the first use; if there is a consumer, its store."""
        if self.consumer is not None:
            return self.consumer.admin
        with self._lock:
            if self._opened is None:
                self._opened = self.open_store()
            return self._opened

    @property
    def looking(self) -> History:
        """The history, for quick queries; use `searching` for slow ones."""
        with self._lock:
            if self._looking is None:
                self._looking = self.searching()
            return self._looking

    def searching(self) -> History:
        """Open the history on a connection of its own, for slow queries: quick ones need not wait
        for them. The caller closes it."""
        if not self.history:
            raise ConfigError(NO_HISTORY)
        return History(self.history, look=True, secrets=self.secrets)

    def probe(self) -> float:
        """Return the milliseconds that the store takes for a claim that writes nothing."""
        store = self.consumer.store if self.consumer is not None else self.store
        began = time.perf_counter()
        read_trial(store)
        return (time.perf_counter() - began) * 1000

    def stats(self) -> Stats:
        """Return the counts and the size of the store."""
        found: Stats = self.store.stats()
        return found

    def command(self, *words: str) -> str:
        """Return a command line for the same settings, store and history, quoted for a shell."""
        kinds = ["config", *READ_BY.get(words[0], ["store"])]
        if words[:2] == ("letters", "redrive"):
            kinds.append("redrive")
        told = [option for kind in kinds for option in self.options.get(kind, ())]
        # Options must come before `--`.
        at = words.index("--") if "--" in words else len(words)
        shown = [quoted(word) for word in words]
        return " ".join(["eventonce", *shown[:at], *told, *shown[at:]])

    def close(self) -> None:
        """Close the store and the history, if they were opened here."""
        with self._lock:
            if self._looking is not None:
                self._looking.close()
            if self._opened is not None:
                self._opened.close()
