"""What `eventonce.toml` says: store, name and rules, the sinks, and how worker and receiver run."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from eventonce.consumer import Consumer, RuleSpec
from eventonce.errors import ConfigError
from eventonce.rules import Rule, parse_rules
from eventonce.sinks import Sink, open_sink

FILE: Final = Path("eventonce.toml")
"""Read where it stands, if no other is named."""

DEFAULT_STORE: Final = "sqlite:///eventonce.db"

_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")


class Worker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[worker]`: where `eventonce run` receives, and how much it does at once."""

    queue: str = ""


class Serve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[serve]`: where `eventonce serve` listens, and whom it believes."""

    host: str = "127.0.0.1"
    port: int = 8080


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything the file says; its own rules stand apart, in `own_rules`."""

    store: str = ""
    name: str = ""
    rules: str | list[str] = "auto"
    secrets: list[str] = []
    rule: list[Any] = []
    sink: list[Sink] = []
    letters: str = ""
    """Where letters go: empty for the store itself, or `sqs://queue`."""
    worker: Worker = Worker()
    serve: Serve = Serve()
    own_rules: tuple[Rule, ...] = ()

    def ruling(self, rules: Sequence[str] = ()) -> list[RuleSpec]:
        """Rules of one's own first, then the presets that were named here or in the file."""
        named = [self.rules] if isinstance(self.rules, str) else self.rules
        return [*self.own_rules, *(rules or named)]

    def consumer(
        self,
        *,
        store: str | None = None,
        name: str | None = None,
        rules: Sequence[str] = (),
    ) -> Consumer:
        """The consumer the file describes, its sinks as handlers; arguments win over the file."""
        consumer = Consumer(
            store or self.store or DEFAULT_STORE,
            name=name or self.name or None,
            rules=self.ruling(rules),
            secrets=[secret.encode() for secret in self.secrets],
        )
        for sink in self.sink:
            consumer.on(sink.match)(open_sink(sink))
        return consumer


def load(path: Path | None = None) -> Config:
    """What the file says; nothing if there is no file and none was named.

    `${NAME}` in a string stands for that environment variable, so that no secret need be written.
    """
    if path is None:
        if not FILE.exists():
            return Config()
        path = FILE
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    own = parse_rules(text, name=str(path))
    document = tomllib.loads(text)
    rules = document.pop("rule", [])
    try:
        read = msgspec.convert(_filled(document, str(path)), Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from error
    return msgspec.structs.replace(read, rule=rules, own_rules=tuple(own))


def _filled(value: Any, place: str) -> Any:
    """The same with its variables filled in."""
    if isinstance(value, dict):
        return {name: _filled(inner, f"{place}: {name}") for name, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, place) for inner in value]
    if not isinstance(value, str):
        return value

    def fill(found: re.Match[str]) -> str:
        if found[1] not in os.environ:
            raise ConfigError(f"{place}: the environment has no variable {found[1]}")
        return os.environ[found[1]]

    return _VARIABLE.sub(fill, value)
