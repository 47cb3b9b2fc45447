"""What `eventonce.toml` says: store, name and rules, the sinks, and how worker and receiver run.

`shape` makes the tables of its values, `meaning` finds what can be read and cannot work.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from eventonce import presets
from eventonce.aws import sqs as address
from eventonce.config import convert as shape
from eventonce.consumer import Consumer, RuleSpec
from eventonce.core.ports import Store, Transactional
from eventonce.errors import ConfigError
from eventonce.infra.plan import Infra
from eventonce.rules import TRANSPORT, Rule, tomltext
from eventonce.rules.keys import key_of
from eventonce.rules.rule import each_checked
from eventonce.rules.rulefile import holds_tables, rules_in
from eventonce.rules.tomltext import Document, Fault
from eventonce.sinks import Sink, open_sink

FILE: Final = Path("eventonce.toml")
"""Read where it stands, if no other is named."""

DEFAULT_STORE: Final = "sqlite:///eventonce.db"

CIRCULAR: Final = (
    "letters: this is the very queue that events come from: they would come round for ever. "
    "Name another, or leave it out to keep them in the store"
)


class Worker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[worker]`: where `eventonce run` receives, and how much it does at once.

    Durations are seconds or texts such as `"5m"`.
    """

    queue: str = ""
    """`sqs://NAME?region=…`, or the queue's URL."""
    concurrency: int = 10
    """Handlers side by side."""
    receivers: int = 2
    """Requests for messages side by side, each for ten at the most."""
    visibility: float | str = "60s"
    """How long a dead worker's messages stay with it; a living one's are renewed."""
    wait: float | str = "5s"
    """How long a request waits for a message: an idle worker asks this often and ends this late."""
    drain: float | str = "25s"
    """After SIGTERM: a little less than what an orchestrator usually gives before it kills."""
    health: str | int = ""
    """`HOST:PORT` or a port on loopback, for the health endpoint; empty for none."""


class Serve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[serve]`: where `eventonce serve` listens, whom it believes, what it bears.

    Durations are seconds or texts such as `"5m"`.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: list[str] = []
    """Several while one is being exchanged for another; the same for all below."""
    api_key_header: str = "x-api-key"
    users: dict[str, str] = {}
    """Names and passwords for Basic authentication."""
    webhook_secrets: list[str] = []
    """Standard Webhooks and Svix: `whsec_` and base64."""
    stripe_secrets: list[str] = []
    """The signing secret of each endpoint, `whsec_` and all."""
    shopify_secrets: list[str] = []
    """The client secret of each app."""
    github_secrets: list[str] = []
    """The secret of each webhook."""
    webhook_tolerance: float | str = "5m"
    sns_topics: list[str] = []
    """The ARNs of the topics whose subscriptions are confirmed, and whose messages are taken."""
    sns_tolerance: float | str = "1d"
    """SNS tries for an hour, after what a throttled subscription waits; what is recorded and sent
    again within this time is a duplicate."""
    anyone_may_send_events: bool = False
    """Without any of the above: whether to listen elsewhere than on loopback all the same."""
    max_body: int = 2 << 20
    """Bytes: the largest event there is, or some thousand usual ones."""
    max_events: int = 1_000
    """In one request: each may become a letter, and each has its line in the answer."""
    concurrency: int = 64
    """Requests under way."""
    max_in_flight: int = 8 << 20
    """Bytes of all bodies under way: what is made of one takes about five times as much memory."""
    header_timeout: float | str = "10s"
    body_timeout: float | str = "10s"
    answer_within: float | str = "4.5s"
    """EventBridge waits five seconds; what runs longer goes on, and its sender may ask again."""
    drain: float | str = "25s"
    """After SIGTERM: as the worker's."""

    def __repr__(self) -> str:
        """Without the secrets: settings end up in logs."""
        return f"Serve(host={self.host!r}, port={self.port!r})"


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything the file says; its own rules stand apart, in `own_rules`."""

    store: str = ""
    name: str = ""
    rules: str | list[str] = "auto"
    secrets: list[str] = []
    rule: list[Any] = []
    override: dict[str, Any] = {}
    """Fields in place of every rule's own, the presets' too, such as `remember` or `shadow`."""
    sink: list[Sink] = []
    letters: str = ""
    """Where letters go: empty for the store itself, or `sqs://queue`."""
    unhandled: str = "ignore"
    """What becomes of events whose type no sink takes: "ignore", "letter" or "fail"."""
    keep_headers: list[str] = []
    """HTTP headers that stay with an event beside the usual ones and those that the rules name."""
    worker: Worker = Worker()
    serve: Serve = Serve()
    infra: Infra = Infra()
    own_rules: tuple[Rule, ...] = ()

    @property
    def circular(self) -> bool:
        """Whether letters go to the queue that events come from, by whatever URI."""
        try:
            return address.same(address.parse(self.letters), address.parse(self.worker.queue))
        except ConfigError:
            # One of them is not said, or not well; who opens it says so.
            return False

    def ruling(self, rules: Sequence[str] = ()) -> list[RuleSpec]:
        """The rules that are named here, and no others; or else those of the file, its own first
        and then what it names."""
        named = [self.rules] if isinstance(self.rules, str) else self.rules
        chosen: list[RuleSpec] = [*rules] or [*self.own_rules, *named]
        if not self.override:
            return chosen
        # With what takes all that no rule does: in shadow mode nothing at all is to be dropped.
        return [*presets.overridden([*chosen, *TRANSPORT], **self.override)]

    def consumer(
        self,
        *,
        store: str | Store | None = None,
        name: str | None = None,
        rules: Sequence[str] = (),
    ) -> Consumer:
        """The consumer the file describes, its sinks as handlers; arguments win over the file."""
        if self.circular:
            raise ConfigError(CIRCULAR)
        handlers = [(sink.match, open_sink(sink)) for sink in self.sink]
        consumer = Consumer(
            store or self.store or DEFAULT_STORE,
            name=name or self.name or None,
            rules=self.ruling(rules),
            secrets=[secret.encode() for secret in self.secrets],
            letters=self.letters or None,
            unhandled=self.unhandled,
            keep_headers=self.keep_headers,
        )
        for sink in self.sink:
            if sink.to.startswith("table:") and not isinstance(consumer.store, Transactional):
                consumer.close()
                raise ConfigError(table_needs(sink))
        for match, handler in handlers:
            consumer.on(match)(handler)
            close = getattr(handler, "close", None)
            if close is not None:
                consumer.on_close(close)
        return consumer


def table_needs(sink: Sink) -> str:
    """The complaint about a table beside a store that has no transactions."""
    return (
        f"sink {sink.to!r} for {sink.match!r}: a table is written in the store's own transaction; "
        f"it needs a store of sqlite: or postgresql:"
    )


def load(path: Path | None = None) -> Config:
    """What the file says; nothing if there is no file and none was named.

    `${NAME}` in a string stands for that environment variable, so that no secret need be written.
    ConfigError names every fault that no argument could mend, each with its line.
    """
    if path is None:
        if not FILE.exists():
            return Config()
        path = FILE
    reading = read(path)
    if reading.faults:
        raise reading.document.complaint(reading.faults)
    return reading.config


class Reading(NamedTuple):
    """A file that was read, whatever is wrong with it."""

    document: Document
    values: dict[str, Any]
    """The document's, with variables filled in."""
    config: Config
    """Without what is wrong."""
    faults: list[Fault]


def read(path: Path) -> Reading:
    """All there is in the file, and all that is wrong with it by itself."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    document = tomltext.read(text, name=str(path))
    own, faults = rules_in(document)
    values = dict(document.values)
    rules = values.pop("rule", [])
    if holds_tables(values.get("rules")):
        del values["rules"]
        misspelt = "rules: expected names of presets or files; a rule of your own is a [[rule]]"
        faults.append(Fault(("rules",), misspelt))
    values = shape.filled(values, faults)
    said = shape.converted(Config, values, faults, unwritten="own_rules")
    faults += _override_faults(said.get("override", {}))
    faults += _secret_faults(said.get("secrets", []))
    config = Config(**said, rule=rules, own_rules=tuple(own))
    return Reading(document, values, config, faults)


def _override_faults(given: dict[str, Any]) -> list[Fault]:
    takes = f"it takes {', '.join(presets.OVERRIDABLE)}"
    unknown = [name for name in given if name not in presets.OVERRIDABLE]
    wrong = [
        (name, f"cannot be set for all rules{tomltext.meant(name, presets.OVERRIDABLE)}; {takes}")
        for name in unknown
    ]
    wrong += each_checked({name: given[name] for name in given if name not in unknown})[1]
    return [Fault(("override", name), f"override.{name}: {said}") for name, said in wrong]


def _secret_faults(secrets: Sequence[str]) -> list[Fault]:
    faults = []
    for number, secret in enumerate(secrets):
        try:
            key_of(secret.encode())
        except ConfigError as error:
            faults.append(Fault(("secrets", number), f"secrets: {error}"))
    return faults
