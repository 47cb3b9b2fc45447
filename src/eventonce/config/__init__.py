"""The file `eventonce.toml`: store, name, rules, sinks, and the settings of worker and receiver.

`checks` beside this module finds values that have the right type but cannot work.
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
from eventonce.core.ports import Store, Transactional, offers
from eventonce.errors import ConfigError, unreadable
from eventonce.infra.topology import Infra
from eventonce.rules import TRANSPORT, Rule, Ruleset, tomltext
from eventonce.rules.keys import check_secrets, key_of
from eventonce.rules.rule import each_checked
from eventonce.rules.tomltext import Document, Fault, Place, holds_tables, label, rules_in
from eventonce.sinks import Sink, open_sink

T = TypeVar("T", bound=msgspec.Struct)

DEFAULT_FILE: Final = Path("eventonce.toml")
"""The file that is read if no other is named and it exists in the working directory."""

DEFAULT_STORE: Final = "sqlite:///eventonce.db"

DEFAULT_NAME: Final = "default"
"""The name of a consumer on an embedded store without a name of its own."""

CIRCULAR: Final = (
    "letters: dead letters must not go to the queue that events come from: each would be received "
    "again for ever. Name another queue, or remove the field to keep dead letters in the store"
)


class WorkerTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[worker]`: the queue and the limits of `eventonce run`.

    Durations are seconds or texts such as `"5m"`.
    """

    queue: str = ""
    """`sqs://NAME?region=…`, or the queue's URL."""
    concurrency: int = 10
    """Handlers that run at the same time."""
    receivers: int = 2
    """Receive requests at the same time, each for at most ten messages."""
    visibility: float | str = "60s"
    """The time that messages of a dead worker stay hidden; a living worker renews its own."""
    wait: float | str = "5s"
    """The time that a receive request waits for a message. An idle worker ends within it."""
    drain: float | str = "25s"
    """The time that handlers have after SIGTERM; orchestrators usually kill after 30 seconds."""
    health: str | int = ""
    """`HOST:PORT`, or a port on loopback, of the health endpoint; empty for none."""
    metrics: bool = True
    """Whether the health endpoint has /metrics too, if the extra `metrics` is installed."""


class Serve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[serve]`: address, authentication and limits of `eventonce serve`.

    Durations are seconds or texts such as `"5m"`.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: list[str] = []
    """The API keys; several during a rotation, as with all secrets below."""
    api_key_header: str = "x-api-key"
    users: dict[str, str] = {}
    """Names and passwords for Basic authentication."""
    webhook_secrets: list[str] = []
    """The secrets of Standard Webhooks and Svix: `whsec_` and base64."""
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
    """The largest age of an SNS message. SNS retries for an hour, and longer if throttled."""
    anyone_may_send_events: bool = False
    """Whether to listen on other addresses than loopback even without authentication."""
    max_body: int = 2 << 20
    """The most bytes of one request: the largest possible event, or some thousand usual ones."""
    max_events: int = 1_000
    """The most events of one request: each may become a dead letter, and is in the answer."""
    concurrency: int = 64
    """The most requests under way."""
    max_in_flight: int = 8 << 20
    """The most bytes of all bodies under way. A body takes about five times its size in memory."""
    header_timeout: float | str = "10s"
    body_timeout: float | str = "10s"
    answer_within: float | str = "4.5s"
    """The longest time to an answer: EventBridge waits five seconds. A longer run goes on."""
    drain: float | str = "25s"
    """The time that requests under way have after SIGTERM."""
    metrics: bool = True
    """Whether there is /metrics, if the extra `metrics` is installed."""

    def __repr__(self) -> str:
        """Return a text without the secrets: settings appear in logs."""
        return f"Serve(host={self.host!r}, port={self.port!r})"


class HistoryTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[history]`: where `run` and `serve` keep their decisions, and for how long."""

    store: str = ""
    """`sqlite:///PATH` or `postgresql://…`; empty for no history."""
    keep: float | str = "30d"
    """The time that a decision is kept."""
    most: int = 5_000_000
    """The most decisions that are kept."""

    def __repr__(self) -> str:
        """Return a text without the password: settings appear in logs."""
        return f"HistoryTable(store={masked(self.store)!r}, keep={self.keep!r}, most={self.most!r})"


class DashboardTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[dashboard]`: its address, and the people who may look and act."""

    listen: str | int = ""
    """`HOST:PORT`, or a port on loopback, of the dashboard of `run` and `serve`; empty for none."""
    viewers: dict[str, str] = {}
    """Names and passwords of people who may look."""
    operators: dict[str, str] = {}
    """Names and passwords of people who may also redrive and drop dead letters."""
    viewers_see_values: bool = False
    """Whether viewers see the content of events, which has names and numbers of people."""

    def __repr__(self) -> str:
        """Return a text without the passwords: settings appear in logs."""
        return f"DashboardTable(listen={self.listen!r})"


class PrivacyTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[privacy]`: how personal values are kept."""

    sealing_keys: list[str] = []
    """The keys that encrypt dead letters and results: the first key seals, all keys open. Each is
    32 bytes in base64 or hexadecimal, or `kms://KEY?region=…`. Without a key, nothing is sealed."""
    digests: bool = True
    """Whether the history has keyed digests in place of ids, if there are `secrets`."""

    def __repr__(self) -> str:
        """Return a text without the keys: settings appear in logs."""
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
    """Fields that replace those of every rule, also of presets, such as `remember`."""
    sink: list[Sink] = []
    letters: str = ""
    """The queue for dead letters, `sqs://NAME`; empty to keep them in the store."""
    keep_letters: float | str = ""
    """The time that dead letters stay in the store, such as `"90d"`; empty for ever."""
    unhandled: str = "ignore"
    """The policy for events whose type no sink takes: "ignore", "letter" or "fail"."""
    keep_headers: list[str] = []
    """HTTP headers kept with an event, in addition to the usual ones and those of the rules."""
    tap: str = ""
    """The file that `run` and `serve` write events to as they arrive; empty for none."""
    shadow_log: str = ""
    """The file where `run` and `serve` record decisions of rules with `shadow`; empty for none."""
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
        """Return a text without secrets and passwords: settings appear in logs."""
        return f"Config(store={masked(self.store)!r}, name={self.name!r})"

    @property
    def circular(self) -> bool:
        """Whether dead letters go to the queue of events, even if the two URIs differ."""
        try:
            return address.same(address.parse(self.letters), address.parse(self.worker.queue))
        except ConfigError:
            # One URI is missing or wrong; a wrong URI is reported when it is opened.
            return False

    @property
    def secret_bytes(self) -> list[bytes]:
        """The secrets as bytes, for digests."""
        return [secret.encode() for secret in self.secrets]

    def all_rules(self) -> list[Rule]:
        """Return the rules in their order: the file's own, those of other files, presets."""
        found = [*self.rule]
        for field in ("rules", "presets"):
            for spec in getattr(self, field):
                found += resolved(field, spec)
        if not self.override:
            return found
        # TRANSPORT too: if all rules are in shadow mode, no event may be dropped.
        return presets.overridden([*found, *TRANSPORT], **self.override)

    def possible_rules(self) -> list[Rule]:
        """Return every rule that an event may go by: all rules, and those of last resort."""
        # An override changes the rules of last resort, too, so they are among the file's rules.
        return [*self.all_rules(), *(() if self.override else TRANSPORT)]

    def ruleset(self, name: str = "") -> Ruleset:
        """Return the ruleset that makes the keys of a consumer with this name."""
        named = name or self.name or DEFAULT_NAME
        return Ruleset(self.all_rules(), name=named, secrets=self.secret_bytes)

    def consumer(self, *, store: str | Store | None = None, name: str | None = None) -> Consumer:
        """Return the consumer of this file, with its sinks as handlers; arguments win."""
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
            if sink.to.startswith("table:") and not offers(consumer.store, Transactional):
                consumer.close()
                raise ConfigError(table_needs(sink))
        for match, handler in handlers:
            consumer.on(match)(handler)
            close = getattr(handler, "close", None)
            if close is not None:
                consumer.runtime.on_close(close)
        return consumer


def resolved(field: str, spec: str) -> list[Rule]:
    """Return the rules of an entry of `presets` or `rules`."""
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
    """Return the remedy for a wrong value of `presets` or `rules`."""
    if not isinstance(value, str):
        return "a rule of your own is a [[rule]] table"
    if "." in value and not presets.is_file(value):
        # No preset has a dot in its name: the value is a file that is not TOML.
        return "rules are [[rule]] tables in a file such as mine.toml"
    return f'write {"rules" if presets.is_file(value) else "presets"} = ["{value}"]'


def table_needs(sink: Sink) -> str:
    """Return the message about a table sink whose store has no transactions."""
    return (
        f"sink {sink.to!r} for {sink.match!r}: a table is written in the store's transaction; "
        f"use a store of sqlite: or postgresql:"
    )


def load(path: str | PathLike[str] | None = None) -> Config:
    """Return the settings of the file; the defaults if no file is named and none exists.

    `${NAME}` in a string is replaced by that environment variable; `${file:…}`, `${ssm:…}` and
    `${secretsmanager:…}` are replaced by the value in that place, so that the file has no secrets.
    ConfigError names every fault that no argument could correct, each with its line.
    """
    if path is None:
        if not DEFAULT_FILE.exists():
            return Config()
        path = DEFAULT_FILE
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
    """The places of references whose service was not asked."""


def read(path: Path, *, ask: bool = True) -> Reading:
    """Return the content of the file, and every fault that shows in the file alone. `ask` is
    whether services are asked for the values of references."""
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
    # The text of a reference that was not replaced is not a secret, and is not checked as one.
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
"""The words for msgspec's names of types; all other types are dates and times."""

_MISMATCH: Final = re.compile(r"Expected `(.+?)`, got `(.+?)`(?: - at `\$(\[\d+\])?.*)?")


def _converted(
    kind: type[T], given: Mapping[str, Any], faults: list[Fault], place: Place = ()
) -> T | None:
    """Return the table without its wrong fields, which are added to the faults; None if a required
    field is wrong.

    Fields are converted one by one: `msgspec.convert` of the whole stops at the first fault.
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
    """Return the fault in words, without the value, which may be a secret."""
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
