"""The resources of a dashboard: the store, the history and the dead letters. All calls here may
block."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from eventonce.stores.probe import PROBE

NO_HISTORY: Final = (
    "No history is kept, so there are no rates and no stories. Name a database in eventonce.toml: "
    '[history] store = "sqlite:///history.db"'
)


class Resources:
    """A store, with its history, its dead letters and its consumer."""

    def __init__(
        self,
        store: Callable[[], Any],
        *,
        name: str = "",
        history: str = "",
        secrets: Sequence[bytes] = (),
        consumer: Consumer | None = None,
        state: Callable[[], Mapping[str, Any]] | None = None,
        shadow_log: str = "",
        runners: Runners | None = None,
        letters: str = "",
        sealer: Sealer | None = None,
        audit: str = "",
        config_options: Sequence[str] = (),
        redrive_options: Sequence[str] = (),
        store_options: Sequence[str] = (),
        history_options: Sequence[str] = (),
    ) -> None:
        """`store` opens the store, which is both a `Store` and a `StoreAdmin`. `history` is the URI
        of the history, empty for none; `secrets` are those of its digests and of the ids of groups.
        `consumer` and `state` are those of the worker or receiver of this process, otherwise None.
        `runners` redrive dead letters; the default is the consumer, if there is one. `letters` is
        the dead-letter queue, empty for none, and `sealer` opens its sealed letters. `audit` is the
        file for audit lines, empty for the log alone. The options are those of a command for the
        same settings, store, history and redrive handler, quoted for a shell."""
        self.name = name
        self.group_of = grouping(secrets)
        """A function from the reason of a dead letter to the id of its group."""
        self.unnamed = unnaming(secrets)
        """A function from the id of a conversation to its digest in the audit."""
        self.consumer = consumer
        self.state = state
        self.history = history
        self._secrets = secrets
        self.shadow_log = shadow_log
        if runners is None and consumer is not None:
            runners = Runners(Config(), store, own=consumer)
        self.runners = runners
        self.letters = letters
        self.audit = audit
        self.sealer = sealer or Sealer([])
        self._config_options = config_options
        self._redrive_options = redrive_options
        self._store_options = store_options
        self._history_options = history_options
        self._open = store
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
                self._opened = self._open()
            return self._opened

    @property
    def looking(self) -> History:
        """The history, for quick queries; use `searching` for slow ones."""
        if not self.history:
            raise ConfigError(NO_HISTORY)
        with self._lock:
            if self._looking is None:
                self._looking = History(self.history, look=True, secrets=self._secrets)
            return self._looking

    @contextmanager
    def searching(self) -> Iterator[History]:
        """Open the history on a connection of its own, for slow queries: quick ones need not wait
        for them."""
        if not self.history:
            raise ConfigError(NO_HISTORY)
        with History(self.history, look=True, secrets=self._secrets) as history:
            yield history

    def probe(self) -> float:
        """Return the milliseconds that the store takes for a claim that writes nothing."""
        store = self.consumer.store if self.consumer is not None else self.store
        began = time.perf_counter()
        store.claim([PROBE])
        return (time.perf_counter() - began) * 1000

    def stats(self) -> Stats:
        """Return the counts and the size of the store."""
        found: Stats = self.store.stats()
        return found

    def command(self, *words: str) -> str:
        """Return a command line for the same settings, store and history, quoted for a shell."""
        # `audit` and `shadow` read files that the settings name.
        history = self._history_options
        options = {"history": history, "workers": history, "audit": (), "shadow": ()}
        told = [*self._config_options, *options.get(words[0], self._store_options)]
        if words[:2] == ("letters", "redrive"):
            told += self._redrive_options
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
