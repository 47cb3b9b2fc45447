"""The consumers that run dead letters again, and the forecast of a dry run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from msgspec.structs import replace

from eventonce.aws.dlq import Held
from eventonce.cli.options import Settings
from eventonce.cli.output import standard_output, write_whole
from eventonce.consumer import Consumer
from eventonce.core.plan import Handler, Refusal
from eventonce.core.reasons import reason
from eventonce.errors import ConfigError
from eventonce.sinks import imported
from eventonce.sinks.json_lines import line_of
from eventonce.types import Job


class Runners:
    """The consumers that run dead letters, one for each name, opened when first needed."""

    def __init__(self, handler: str | None, settings: Settings) -> None:
        target: Any = None if handler is None else imported(handler)
        self.own: Consumer | None = target if isinstance(target, Consumer) else None
        """The consumer that `--handler` names, with its own store, name and rules."""
        if self.own is not None and settings.given_store is not None:
            raise ConfigError(f"--handler: {handler} has its own store; remove --store")
        if self.own is None and target is not None and not callable(target):
            raise ConfigError(f"--handler: {handler} is neither a function nor a Consumer")
        self.to_stdout = target is None and not settings.file.sink
        self._handler: Handler | None = _to_stdout if self.to_stdout else target
        self._settings = settings
        self._made: dict[str, Consumer] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for consumer in self._made.values():
            consumer.close()

    def of(self, name: str) -> Consumer:
        """The consumer for dead letters of this name: yours, or one with the file's rules."""
        if name not in self._made:
            self._made[name] = self.own or self._opened(name)
        return self._made[name]

    def _opened(self, name: str) -> Consumer:
        file = self._settings.file
        file = file if self._handler is None else replace(file, sink=[])
        consumer = file.consumer(store=self._settings.open_store(), name=name)
        if self._handler is not None:
            consumer.on()(self._handler)
        return consumer


def by_consumer(held: Sequence[Held]) -> dict[str, list[Held]]:
    """The dead letters of each consumer."""
    found: dict[str, list[Held]] = {}
    for one in held:
        found.setdefault(one.letter.consumer, []).append(one)
    return found


def foreseen(consumer: Consumer, held: Held) -> tuple[str, str]:
    """The verdict that a redrive of this dead letter would get, and why; the store is only read."""
    letter = held.letter
    if not held.whole:
        return "invalid", letter.reason
    (planned,) = consumer.runtime.plan([letter.event], redrive=True)
    if isinstance(planned, Refusal):
        return planned.outcome.status, planned.outcome.reason
    claims = [replace(one, peek=True) for one in (*planned.older, planned.claim)]
    for asked, verdict in zip(claims, consumer.store.claim(claims), strict=True):
        if verdict.kind != "run":
            return verdict.kind, reason(asked, verdict)
    return "run", ""


def _to_stdout(job: Job) -> None:
    write_whole(standard_output(), line_of(job.event.raw))
