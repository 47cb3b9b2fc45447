"""The consumers that run dead letters again, and the verdicts that a redrive would get."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

from msgspec.structs import replace

from eventonce.aws.dlq import FoundLetter
from eventonce.config import Config
from eventonce.consumer import Consumer
from eventonce.core.plan import Handler, Refusal
from eventonce.core.planner import REDRIVEN
from eventonce.core.reasons import reason
from eventonce.errors import ConfigError, EventonceError
from eventonce.history import History
from eventonce.log import log
from eventonce.types import Outcome


class Runners:
    """The consumers that run dead letters, one for each name, opened when needed; thread-safe."""

    def __init__(
        self,
        file: Config,
        open_store: Callable[[], Any],
        handler: Handler | None = None,
        own: Consumer | None = None,
        open_history: Callable[[], History] | None = None,
    ) -> None:
        """The consumers have the rules of the file, and its sinks unless there is a handler. `own`
        is the caller's consumer: it runs only its own dead letters, and the caller closes it.
        Decisions are kept in the history, if there is one."""
        self.own = own
        self._file = file if handler is None else replace(file, sink=[])
        self._open_store = open_store
        self._handler = handler
        self._made: dict[str, Consumer] = {}
        self._lock = threading.Lock()
        self._recorded = _Recorded(open_history) if open_history is not None else None
        if own is not None:
            self._record(own)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._made:
            self._made.popitem()[1].close()
        if self._recorded is not None:
            self._recorded.close()

    def of(self, name: str) -> Consumer:
        """Return the consumer for dead letters of this name."""
        if self.own is not None:
            if name != self.own.name:
                raise ConfigError(f"{self.own.name!r} cannot run dead letters of {name!r}")
            return self.own
        with self._lock:
            if name not in self._made:
                consumer = self._file.consumer(store=self._open_store(), name=name)
                if self._handler is not None:
                    consumer.on()(self._handler)
                self._record(consumer)
                self._made[name] = consumer
            return self._made[name]

    def _record(self, consumer: Consumer) -> None:
        if self._recorded is not None:
            consumer.observers.append(self._recorded.by(consumer))


class _Recorded:
    """The history of redrives, opened after the first run: a dry run writes nothing."""

    def __init__(self, open_history: Callable[[], History]) -> None:
        self._open = open_history
        self._lock = threading.Lock()
        self._history: History | None = None
        self._failed = False

    def by(self, consumer: Consumer) -> Callable[[Outcome, float], None]:
        """Return an observer for this consumer."""

        def keep(outcome: Outcome, seconds: float) -> None:
            history = self._opened()
            if history is not None:
                history.observer(consumer, REDRIVEN).batch([outcome], seconds)

        return keep

    def close(self) -> None:
        """Write the queued decisions, and close the history."""
        with self._lock:
            if self._history is not None:
                self._history.close()

    def _opened(self) -> History | None:
        with self._lock:
            if self._history is None and not self._failed:
                try:
                    self._history = self._open()
                except EventonceError as error:
                    self._failed = True
                    log().warning("history: redrives are not recorded: %s", error)
            return self._history


def by_consumer(batch: Sequence[FoundLetter]) -> dict[str, list[FoundLetter]]:
    """Return the dead letters by the name of their consumer."""
    found: dict[str, list[FoundLetter]] = {}
    for one in batch:
        found.setdefault(one.letter.consumer, []).append(one)
    return found


def foreseen(consumer: Consumer, found: FoundLetter) -> tuple[str, str]:
    """Return the verdict that a redrive would get, and the reason; the store is only read."""
    letter = found.letter
    if not found.whole:
        return "invalid", letter.reason
    (planned,) = consumer.runtime.plan([letter.event], redrive=True)
    if isinstance(planned, Refusal):
        return planned.outcome.status, planned.outcome.reason
    claims = [replace(one, peek=True) for one in (*planned.older, planned.claim)]
    for asked, verdict in zip(claims, consumer.runtime.gate.claim(claims), strict=True):
        if verdict.kind != "run":
            return verdict.kind, reason(asked, verdict)
    return "run", ""
