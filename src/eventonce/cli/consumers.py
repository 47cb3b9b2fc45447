"""The consumer that a command runs: the file's with its sinks, or one's own."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from eventonce.config import Config
from eventonce.consumer import Consumer
from eventonce.errors import ConfigError
from eventonce.sinks import imported


def consumer(
    said: Config,
    handler: str | None,
    *,
    command: str,
    store: str | None,
    name: str | None,
    rules: Sequence[str],
) -> Consumer:
    """The file's consumer; with a handler (`module:name`) in place of its sinks, or the `Consumer`
    that is called so, which brings its own store, name and rules."""
    if handler is None:
        if not said.sink:
            raise ConfigError(
                f"{command}: there is nobody to give events to: write a [[sink]] table into "
                f"eventonce.toml, or name a handler with --handler MODULE:NAME"
            )
        return said.consumer(store=store, name=name, rules=rules)
    target = imported(handler)
    if isinstance(target, Consumer):
        return target
    made = msgspec.structs.replace(said, sink=[]).consumer(store=store, name=name, rules=rules)
    made.on()(target)
    return made
