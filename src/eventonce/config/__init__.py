"""The file `eventonce.toml`: store, name, rules, sinks, and the settings of worker and receiver.

`checks` beside this module finds values that have the right type and cannot work.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from eventonce import presets
from eventonce.aws import sqs as address
from eventonce.config.references import References
from eventonce.consumer import Consumer
from eventonce.core.masking import masked
from eventonce.core.ports import Store, Transactional
from eventonce.errors import ConfigError, unreadable
from eventonce.infra.topology import Infra
from eventonce.rules import TRANSPORT, Rule, Ruleset, tomltext
from eventonce.rules.keys import check_secrets, key_of
from eventonce.rules.rule import each_checked
from eventonce.rules.tomltext import Document, Fault, Place, holds_tables, label, rules_in
from eventonce.sinks import Sink, open_sink

T = TypeVar("T", bound=msgspec.Struct)

FILE: Final = Path("eventonce.toml")
"""The file that is read if no other is named and it exists in the working directory."""

DEFAULT_STORE: Final = "sqlite:///eventonce.db"

DEFAULT_NAME: Final = "default"
"""The name of a consumer on an embedded store that was given no name."""

CIRCULAR: Final = (
    "letters: dead letters must not go to the queue that events come from: each would be received "
    "again for ever. Name another queue, or remove the field to keep dead letters in the store"
)


class WorkerTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[worker]`: the queue of `eventonce run`, and how much is done at once.

    Durations are seconds or texts such as `"5m"`.
    """

    queue: str = ""
    """`sqs://NAME?region=…`, or the queue's URL."""
    concurrency: int = 10
    """Handlers that run at the same time."""
    receivers: int = 2
    """Receive requests at the same time, each for at most ten messages."""
    visibility: float | str = "60s"
    """How long the messages of a dead worker stay hidden; a living worker renews its own."""
    wait: float | str = "5s"
    """How long a receive request waits for a message. An idle worker ends this late at most."""
    drain: float | str = "25s"
    """How long running handlers have after SIGTERM; orchestrators usually kill after 30 seconds."""
    health: str | int = ""
    """`HOST:PORT`, or a port on loopback, of the health endpoint; empty for none."""
    metrics: bool = True
    """Whether the health endpoint has /metrics too, where the extra `metrics` is installed."""


class Serve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[serve]`: address, authentication and limits of `eventonce serve`.

    Durations are seconds or texts such as `"5m"`.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: list[str] = []
    """Several during a rotation; the same is true of all secrets below."""
    api_key_header: str = "x-api-key"
    users: dict[str, str] = {}
    """Names and passwords for Basic authentication."""
    webhook_secrets: list[str] = []
    """Standard Webhooks and Svix: `whsec_` and base64."""
    stripe_secrets: list[str] = []
    """The signing secret of each endpoint, with its `whsec_`."""
    shopify_secrets: list[str] = []
    """The client secret of each app."""
    github_secrets: list[str] = []
    """The secret of each webhook."""
    webhook_tolerance: float | str = "5m"
    sns_topics: list[str] = []
    """ARNs of the topics whose subscriptions are confirmed and whose messages are accepted."""
    sns_tolerance: float | str = "1d"
    """The age of the oldest SNS message accepted. SNS retries for an hour, later if throttled."""
    anyone_may_send_events: bool = False
    """Whether to listen on other addresses than loopback although no authentication is set."""
    max_body: int = 2 << 20
    """Bytes of one request: the largest event there is, or some thousand usual ones."""
    max_events: int = 1_000
    """Events of one request: each may become a dead letter and has its line in the answer."""
    concurrency: int = 64
    """Requests in progress."""
    max_in_flight: int = 8 << 20
    """Bytes of all bodies in progress. One body takes about five times its size in memory."""
    header_timeout: float | str = "10s"
    body_timeout: float | str = "10s"
    answer_within: float | str = "4.5s"
    """When to answer at the latest: EventBridge waits five seconds. A longer run goes on."""
    drain: float | str = "25s"
    """How long requests in progress have after SIGTERM."""
    metrics: bool = True
    """Whether there is /metrics, where the extra `metrics` is installed."""

    def __repr__(self) -> str:
        """The secrets are left out: settings end up in logs."""
        return f"Serve(host={self.host!r}, port={self.port!r})"


class HistoryTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[history]`: where `run` and `serve` keep what they decide, and for how long."""

    store: str = ""
    """`sqlite:///PATH` or `postgresql://…`; empty for no history."""
    keep: float | str = "30d"
    """How long a decision is kept."""
    most: int = 5_000_000
    """Decisions that are kept at most."""

    def __repr__(self) -> str:
        """The password is left out: settings end up in logs."""
        return f"HistoryTable(store={masked(self.store)!r}, keep={self.keep!r}, most={self.most!r})"


class DashboardTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[dashboard]`: where people watch and act, and who may."""

    listen: str | int = ""
    """`HOST:PORT`, or a port on loopback, of the dashboard of `run` and `serve`; empty for none."""
    viewers: dict[str, str] = {}
    """Names and passwords of those who may look."""
    operators: dict[str, str] = {}
    """Names and passwords of those who may also redrive and drop dead letters."""
    viewers_see_values: bool = False
    """Whether viewers are shown the content of events, which names people and their numbers."""

    def __repr__(self) -> str:
        """The passwords are left out: settings end up in logs."""
        return f"DashboardTable(listen={self.listen!r})"


class PrivacyTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[privacy]`: how personal values are kept."""

    sealing_keys: list[str] = []
    """The keys that dead letters and results are encrypted with: the first seals, all of them open.
    Each is 32 bytes in base64 or hexadecimal, or `kms://KEY?region=…`; none stores in clear."""
    digests: bool = True
    """Whether the history has keyed digests in place of ids, where there are `secrets`."""

    def __repr__(self) -> str:
        """The keys are left out: settings end up in logs."""
        return f"PrivacyTable({len(self.sealing_keys)} sealing_keys, digests={self.digests!r})"


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of the file."""

    store: str = ""
    name: str = ""
    presets: list[str] = msgspec.field(default_factory=lambda: [presets.AUTO])
    """Names of presets, tried in turn after all other rules."""
    rules: list[str] = []
    """Files of `[[rule]]` tables, tried in turn after the file's own."""
    secrets: list[str] = []
    override: dict[str, Any] = {}
    """Fields that replace those of every rule, the presets' too, such as `remember`."""
    sink: list[Sink] = []
    letters: str = ""
    """The queue for dead letters, `sqs://NAME`; empty to keep them in the store."""
    keep_letters: float | str = ""
    """How long dead letters stay in the store, such as `"90d"`; empty for ever."""
    unhandled: str = "ignore"
    """The policy for events whose type no sink takes: "ignore", "letter" or "fail"."""
    keep_headers: list[str] = []
    """HTTP headers kept with an event, in addition to the usual ones and those of the rules."""
    tap: str = ""
    """The file that `run` and `serve` write events to as they arrive; empty for none."""
    shadow_log: str = ""
    """The file where `run` and `serve` record what rules with `shadow` decide; empty for none."""
    audit: str = ""
    """The file that gets a line for each action on dead letters; empty for none."""
    history: HistoryTable = HistoryTable()
    privacy: PrivacyTable = PrivacyTable()
    worker: WorkerTable = WorkerTable()
    serve: Serve = Serve()
    dashboard: DashboardTable = DashboardTable()
    infra: Infra = Infra()
    rule: tuple[Rule, ...] = ()

    def __repr__(self) -> str:
        """Secrets and passwords are left out: settings end up in logs."""
        return f"Config(store={masked(self.store)!r}, name={self.name!r})"

    @property
    def circular(self) -> bool:
        """Whether dead letters go to the queue that events come from, by whatever URI."""
        try:
            return address.same(address.parse(self.letters), address.parse(self.worker.queue))
        except ConfigError:
            # One of the two is absent or wrong; a wrong one is reported when it is opened.
            return False

    @property
    def secret_bytes(self) -> list[bytes]:
        """The secrets as digests take them."""
        return [secret.encode() for secret in self.secrets]

    def all_rules(self) -> list[Rule]:
        """The rules in the order they are tried: the file's own, those of other files, presets."""
        found = [*self.rule]
        for field in ("rules", "presets"):
            for spec in getattr(self, field):
                found += resolved(field, spec)
        if not self.override:
            return found
        # TRANSPORT too: in shadow mode no event at all may be dropped.
        return presets.overridden([*found, *TRANSPORT], **self.override)

    def ruleset(self, name: str = "") -> Ruleset:
        """The rules, to make the keys of a consumer with this name."""
        named = name or self.name or DEFAULT_NAME
        return Ruleset(self.all_rules(), name=named, secrets=self.secret_bytes)

    def consumer(self, *, store: str | Store | None = None, name: str | None = None) -> Consumer:
        """The consumer of this file, with its sinks as handlers; arguments win over the file."""
        if self.circular:
            raise ConfigError(CIRCULAR)
        handlers = [(sink.match, open_sink(sink)) for sink in self.sink]
        consumer = Consumer(
            store or self.store or DEFAULT_STORE,
            name=name or self.name or None,
            rules=self.all_rules(),
            secrets=self.secret_bytes,
            letters=self.letters or None,
            keep_letters=self.keep_letters,
            unhandled=self.unhandled,
            keep_headers=self.keep_headers,
            sealing_keys=self.privacy.sealing_keys,
        )
        for sink in self.sink:
            if sink.to.startswith("table:") and not isinstance(consumer.store, Transactional):
                consumer.close()
                raise ConfigError(table_needs(sink))
        for match, handler in handlers:
            consumer.on(match)(handler)
            close = getattr(handler, "close", None)
            if close is not None:
                consumer.runtime.on_close(close)
        return consumer


def resolved(field: str, spec: str) -> list[Rule]:
    """The rules that an entry of `presets` or `rules` stands for."""
    if presets.is_file(spec) != (field == "rules"):
        kind = "a file" if field == "presets" else "not a .toml file"
        raise ConfigError(f"{field}: {spec!r} is {kind}; {_instead(spec)}")
    try:
        return presets.resolve(spec)
    except ConfigError as error:
        if field == "rules":
            raise
        raise ConfigError(f"{field}: {str(error).removeprefix('rules: ')}") from error


def _instead(value: object) -> str:
    """The text to write in place of a wrong value of `presets` or `rules`."""
    if not isinstance(value, str):
        return "a rule of your own is a [[rule]] table"
    if "." in value and not presets.is_file(value):
        # No preset has a dot in its name: it is a file of something else.
        return "rules are [[rule]] tables in a file such as mine.toml"
    return f'write {"rules" if presets.is_file(value) else "presets"} = ["{value}"]'


def table_needs(sink: Sink) -> str:
    """The message about a table sink whose store has no transactions."""
    return (
        f"sink {sink.to!r} for {sink.match!r}: a table is written in the store's transaction; "
        f"use a store of sqlite: or postgresql:"
    )


def load(path: str | PathLike[str] | None = None) -> Config:
    """The settings of the file; the defaults if no file is named and there is none.

    `${NAME}` in a string stands for that environment variable, `${file:…}`, `${ssm:…}` and
    `${secretsmanager:…}` for what is kept there, so that no secret need be written.
    ConfigError names every fault that no argument could correct, each with its line.
    """
    if path is None:
        if not FILE.exists():
            return Config()
        path = FILE
    elif not isinstance(path, str | PathLike):
        raise ConfigError(f"load: expected the path of a file, not {type(path).__name__}")
    reading = read(Path(path))
    if reading.faults:
        raise reading.document.complaint(reading.faults)
    return reading.config


class Reading(NamedTuple):
    """The content of a file, right or wrong."""

    document: Document
    config: Config
    """The settings without the wrong ones."""
    sinks: list[Sink | None]
    """The `[[sink]]` tables by their numbers; None for a wrong one."""
    faults: list[Fault]
    unasked: list[Place]
    """The places of values that a service was not asked for."""


def read(path: Path, *, ask: bool = True) -> Reading:
    """The content of the file, and every fault that can be seen in the file alone. `ask`: whether
    services are asked for the secrets that it refers to."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error
    document = tomltext.read(text, name=str(path))
    own, faults = rules_in(document)
    # Rules are left as they are: a key does not depend on the environment.
    without = {name: value for name, value in document.values.items() if name != "rule"}
    references = References(ask=ask)
    given = references.filled(without)
    faults += references.faults
    for field in ("presets", "rules"):
        value = given.get(field)
        if isinstance(value, str) or holds_tables(value):
            del given[field]
            faults.append(Fault((field,), f"{field}: expected a list; {_instead(value)}"))
    sinks: list[Sink | None] = []
    tables = given.get("sink")
    if isinstance(tables, list) and all(isinstance(one, dict) for one in tables):
        sinks = [_converted(Sink, one, faults, ("sink", at)) for at, one in enumerate(tables)]
        given["sink"] = [sink for sink in sinks if sink is not None]
    config = _converted(Config, given, faults) or Config()
    faults += _override_faults(config.override)
    # Of a reference that stayed as it is, the text is no secret to be judged.
    left = {*references.unasked, *(fault.place for fault in references.faults)}
    faults += [one for one in _secret_faults(config.secrets) if one.place not in left]
    config = msgspec.structs.replace(config, rule=tuple(own))
    return Reading(document, config, sinks, faults, references.unasked)


_KINDS: Final[Mapping[str, str]] = {
    "float | str": 'a number of seconds, or a duration such as "5m"',
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
"""The names that msgspec gives to types, and the words for them; the others are dates and times."""

_MISMATCH: Final = re.compile(r"Expected `(.+?)`, got `(.+?)`(?: - at `\$(\[\d+\])?.*)?")


def _converted(
    kind: type[T], given: Mapping[str, Any], faults: list[Fault], place: Place = ()
) -> T | None:
    """The table without its wrong fields, which join the faults; None if a required one is wrong.

    Each field by itself: `msgspec.convert` of the whole stops at the first fault.
    """
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    kept: dict[str, Any] = {}
    for name, value in given.items():
        where = (*place, name)
        if name not in fields:
            known = f"{tomltext.meant(name, fields)}; the fields are {', '.join(fields)}"
            faults.append(Fault(where, f"{label(where)}: there is no such field{known}"))
        elif isinstance(value, dict) and isinstance(fields[name].default, msgspec.Struct):
            kept[name] = _converted(fields[name].type, value, faults, where)
        else:
            try:
                kept[name] = msgspec.convert(value, fields[name].type)
            except msgspec.ValidationError as error:
                faults.append(Fault(where, _mismatch(label(where), error)))
    required = {name for name, field in fields.items() if field.required}
    faults.extend(
        Fault(place, f"{label((*place, name))}: is missing; the fields are {', '.join(fields)}")
        for name in required - set(given)
    )
    return kind(**kept) if required <= set(kept) else None


def _mismatch(name: str, error: msgspec.ValidationError) -> str:
    """The fault in words, without the value, which may be a secret."""
    found = _MISMATCH.fullmatch(str(error))
    assert found is not None, error
    expected = _KINDS.get(found[1]) or " or ".join(_KINDS[one] for one in found[1].split(" | "))
    return (
        f"{name}{found[3] or ''}: expected {expected}, not {_KINDS.get(found[2], 'a date or time')}"
    )


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
            if number == 0:
                check_secrets([secret.encode()])
            else:
                key_of(secret.encode())
        except ConfigError as error:
            faults.append(Fault(("secrets", number), str(error)))
    return faults
