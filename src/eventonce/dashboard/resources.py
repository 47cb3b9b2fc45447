"""Resources: the store, the history and the dead letters that a dashboard shows and acts on. All
calls here may block."""

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
from eventonce.letters.selection import Selection, quoted, unnaming
from eventonce.letters.sources import STORE, LetterSource, StoreLetterSource, open_queue
from eventonce.privacy import Sealer
from eventonce.stores.probe import PROBE

NO_HISTORY: Final = (
    "No history is kept, so there are no rates and no stories. Name a database in eventonce.toml: "
    '[history] store = "sqlite:///history.db"'
)


class Resources:
    """A store, and what belongs to it."""

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
        """`store` opens the store, both a `Store` and a `StoreAdmin`. `history` is its URI, empty
        for none, and `secrets` are those of its digests and of the ids of groups. `consumer` and
        `state` are those of the worker or receiver of this process, None elsewhere. `runners` run
        dead letters again: without them the consumer does, or nothing. `letters` is the queue of
        dead letters, empty for none, and `sealer` opens what is sealed there. `audit` is the file
        for audit lines, empty for the log alone. The options name the same file of settings, the
        same store, the same history and the handler of a redrive in a command, each word as a shell
        takes it."""
        self.name = name
        self.group_of = grouping(secrets)
        """From the reason of a dead letter to the id of its group."""
        self.unnamed = unnaming(secrets)
        """From the id of a conversation to what stands for it in the audit."""
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
        self._sealer = sealer
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
        """The store, opened when first asked for; that of the consumer where there is one."""
        if self.consumer is not None:
            return self.consumer.admin
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    @property
    def looking(self) -> History:
        """The history, for what takes little time: a search has a connection of its own."""
        if not self.history:
            raise ConfigError(NO_HISTORY)
        with self._lock:
            if self._looking is None:
                self._looking = History(self.history, look=True, secrets=self._secrets)
            return self._looking

    @contextmanager
    def searching(self) -> Iterator[History]:
        """The history, for what may take long: the next look need not wait for it."""
        if not self.history:
            raise ConfigError(NO_HISTORY)
        with History(self.history, look=True, secrets=self._secrets) as history:
            yield history

    def probe(self) -> float:
        """Milliseconds that the store takes to answer a claim that writes nothing."""
        store = self.consumer.store if self.consumer is not None else self.store
        began = time.perf_counter()
        store.claim([PROBE])
        return (time.perf_counter() - began) * 1000

    def stats(self) -> Stats:
        """How full the store is."""
        found: Stats = self.store.stats()
        return found

    def place(self, selection: Selection, *, from_queue: bool, to_change: bool) -> LetterSource:
        """The place of dead letters: the store, or their queue."""
        if not from_queue:
            return StoreLetterSource(self.store, selection.consumer, close=False)
        if not self.letters:
            raise ConfigError("`letters` of eventonce.toml names no queue")
        sealer = self._sealer or Sealer([])
        return open_queue(self.letters, selection.consumer, sealer, to_change=to_change)

    def source(self, *, from_queue: bool) -> str | None:
        """The same place as `--from` of the command line names it, which reads the queue first."""
        if from_queue:
            return self.letters
        return STORE if self.letters else None

    def letters_command(
        self, *words: str, selection: Selection, from_queue: bool, limit: int | None = None
    ) -> str:
        """The command line about the same dead letters."""
        source = self.source(from_queue=from_queue)
        return self.command("letters", *words, *selection.arguments(source=source, limit=limit))

    def command(self, *words: str) -> str:
        """A command line about the same settings, store and history, as a shell takes it."""
        # The last two look into files that the settings name.
        history = self._history_options
        options = {"history": history, "workers": history, "audit": (), "shadow": ()}
        told = [*self._config_options, *options.get(words[0], self._store_options)]
        if words[:2] == ("letters", "redrive"):
            told += self._redrive_options
        # What follows the two dashes is no option.
        at = words.index("--") if "--" in words else len(words)
        shown = [quoted(word) for word in words]
        return " ".join(["eventonce", *shown[:at], *told, *shown[at:]])

    def close(self) -> None:
        """Close what was opened here."""
        with self._lock:
            if self._looking is not None:
                self._looking.close()
            if self._opened is not None:
                self._opened.close()
