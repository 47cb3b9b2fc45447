"""The plan: what the resources are called and which events they are for, from the table `[infra]`.

`template` turns it into the parameters of the two templates, `iam` into policies.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec

from eventonce import presets
from eventonce.aws.sqs import Address, parse, same
from eventonce.core.masking import split
from eventonce.errors import ConfigError
from eventonce.infra import targets
from eventonce.infra.targets import ANY, DEFAULT_BUS, Target
from eventonce.stores import adapter_of

NAME: Final = "eventonce"
PARTNER: Final = "aws.partner/"
"""What the names of partner buses begin with; such a bus is called like its event source."""

RESERVED: Final = "aws."
"""What sources begin with that nobody but AWS and its partners may put events under."""

FIFO: Final = ".fifo"

VISIBILITY_TIMEOUTS: Final = 6
"""Times the function's timeout: what Lambda asks for, so that a batch which is tried again while
the function is throttled does not come back in the middle of it."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,55}")
"""A role has 64 characters, and the function's ends with `-function`."""

_QUEUE: Final = re.compile(r"[A-Za-z0-9_-]{1,68}(\.fifo)?")
"""A queue has 80 characters, and one of those beside it ends with `-undelivered`."""

_ENDPOINT: Final = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]+/?")
_CODE: Final = re.compile(r"s3://[A-Za-z0-9.-]+/[A-Za-z0-9!_.*'()/-]+")
_TABLE: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_RULE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_BUS: Final = re.compile(r"[A-Za-z0-9_./-]{1,256}")


class Infra(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[infra]`: what is not said follows from the rest of the file."""

    name: str = ""
    """What the resources are called after; the consumer's name, if empty."""
    bus: str = DEFAULT_BUS
    pattern: dict[str, Any] = {}
    """The rule's whole event pattern."""
    source: str = ""
    """Or only what the events' source begins with."""
    queue: str = ""
    rule: str = ""
    fifo: bool = False
    timeout: int = 60
    """Seconds a run of the function may take; the queue's visibility is six times as long."""
    receives: int = 100
    """Times a message may be received before SQS itself gives it up. The consumer counts attempts
    of its own and keeps letters, so this is for what never reaches it: with six minutes of
    visibility a store may be away for ten hours."""
    region: str = ""
    account: str = ""
    """The account's number; `apply` asks AWS for it."""
    endpoint: str = ""
    profile: str = ""
    code: str = ""
    """The place of the function's code, `s3://BUCKET/KEY`, for `apply`; a worker needs none."""
    parameters: dict[str, str] = {}
    """Parameters of the template by their names, over what follows from the rest."""


class Table(msgspec.Struct, frozen=True):
    """The store's table."""

    name: str
    key: str = ""
    expiry: str = ""
    """The names of the two attributes, where the URI says others than the store's own."""
    region: str = ""
    elsewhere: bool = False
    """Whether its endpoint is another than that of the other resources."""

    def is_in(self, region: str) -> bool:
        """Whether the table stands beside resources of this region."""
        return not self.elsewhere and (region == ANY or self.region in ("", region))


class Plan(msgspec.Struct, frozen=True):
    """All names and numbers, nothing left open."""

    name: str
    """What the resources are called after."""
    consumer: str
    """The consumer's own name, which is part of every key."""
    bus: str
    pattern: dict[str, Any]
    rule: str
    queue: str
    timeout: int
    receives: int
    table: Table | None = None
    """None where the store is not DynamoDB."""
    embedded: str = ""
    """The scheme of a store that only one machine sees, such as a file; or empty."""
    letters: Target | None = None
    """The queue that letters are sent to, where they do not stay in the store."""
    sends: tuple[Target, ...] = ()
    """Queues that sinks send to."""
    puts: tuple[Target, ...] = ()
    """Buses that sinks put events on."""

    @property
    def fifo(self) -> bool:
        """Whether the queue keeps an order."""
        return self.queue.endswith(FIFO)

    @property
    def dead(self) -> str:
        """The queue for what was received too often."""
        return self.queue.removesuffix(FIFO) + "-dead" + (FIFO if self.fifo else "")

    @property
    def undelivered(self) -> str:
        """The queue for what EventBridge could not deliver: never FIFO, which it does not take."""
        return self.queue.removesuffix(FIFO) + "-undelivered"

    @property
    def letter_queue(self) -> str:
        """The queue for dead letters, where it is none of these and not elsewhere; or empty."""
        letters = self.letters
        if letters is None or letters.region or letters.account:
            return ""
        return "" if letters.name in (self.queue, self.dead, self.undelivered) else letters.name

    @property
    def theirs(self) -> bool:
        """Whether nobody but AWS or a partner can put the events meant on this bus."""
        found = _beginnings(self.pattern)
        reserved = bool(found) and all(one.startswith(RESERVED) for one in found)
        return reserved or self.bus.startswith(PARTNER)

    @property
    def warnings(self) -> list[str]:
        """What this plan leaves to its user."""
        found = [self.misplaced] if self.misplaced else []
        letters = self.letters
        if letters is not None and (letters.region or letters.account):
            found.append(
                f"dead letters go to the queue {letters.name}, whose URI says where it is: create "
                f"it there"
            )
        return found

    @property
    def misplaced(self) -> str:
        """That the rule waits for a partner's events on a bus where none arrive; or empty."""
        found = _beginnings(self.pattern)
        partners = bool(found) and all(one.startswith(PARTNER) for one in found)
        if not partners or self.bus.startswith(PARTNER):
            return ""
        partner = "/".join(found[0].split("/")[:2])
        return (
            f"the rule {self.rule} on the bus {self.bus}: the events of {partner} arrive only on "
            f"the bus that is called like their source, so it matches none of them unless you "
            f'forward them to {self.bus}. Write that bus into [infra], as in bus = "{partner}/…"; '
            f"`aws events list-event-sources --name-prefix {partner}` names it in full"
        )

    @property
    def visibility(self) -> int:
        """Seconds until a message that was received and not deleted shows again."""
        return VISIBILITY_TIMEOUTS * self.timeout


def planned(
    infra: Infra,
    *,
    name: str = "",
    store: str = "",
    rules: Sequence[presets.Spec] = (),
    letters: str = "",
    sinks: Sequence[str] = (),
    matching: bool = True,
) -> Plan:
    """The plan that a table `[infra]` stands for, beside what else the file says.

    Which events are meant must be said, unless it does not matter: `matching` is False then.
    """
    called = infra.name or name or NAME
    _check("name", called, _NAME, "1 to 55 letters, digits, '-' and '_'; [infra] may say another")
    queue = infra.queue or called
    if infra.fifo and not queue.endswith(FIFO):
        queue += FIFO
    _check("queue", queue, _QUEUE, "1 to 68 letters, digits, '-' and '_', maybe with .fifo")
    rule = infra.rule or called
    _check("rule", rule, _RULE, "1 to 64 letters, digits, '.', '-' and '_'")
    _check("bus", infra.bus, _BUS, "a bus' name, such as default, and not its ARN")
    _check_endpoint(infra.endpoint)
    if infra.code and not _CODE.fullmatch(infra.code):
        raise ConfigError(
            f"infra: code is {infra.code!r}, s3://BUCKET/KEY was expected: put the function's zip "
            f"file there, such as by `aws s3 cp`"
        )
    if not 1 <= infra.timeout <= 900:
        raise ConfigError(f"infra: timeout is {infra.timeout}, 1 to 900 seconds were expected")
    if not 1 <= infra.receives <= 1000:
        raise ConfigError(f"infra: receives is {infra.receives}, 1 to 1000 were expected")
    ours = Address(queue, region=infra.region or None, endpoint=infra.endpoint or None)
    if letters and same(parse(letters), ours):
        raise ConfigError(
            f"infra: letters go to {letters}, the very queue that events come from: they would be "
            f"taken for events again. Name another queue, or none, and the store keeps them"
        )
    return Plan(
        name=called,
        consumer=name or called,
        bus=infra.bus,
        pattern=infra.pattern or _pattern(infra, rules, matching=matching),
        rule=rule,
        queue=queue,
        timeout=infra.timeout,
        receives=infra.receives,
        table=_table(store or f"dynamodb://{called}", infra),
        embedded=_embedded(store),
        letters=_here(targets.queue(letters), infra) if letters else None,
        sends=tuple(targets.queue(sink) for sink in sinks if sink.startswith("sqs:")),
        puts=tuple(targets.bus(sink) for sink in sinks if sink.startswith("events:")),
    )


def _check(what: str, name: str, allowed: re.Pattern[str], expected: str) -> None:
    if not allowed.fullmatch(name):
        raise ConfigError(f"infra: the {what} cannot be called {name!r}: expected {expected}")


def _check_endpoint(endpoint: str) -> None:
    if endpoint and not _ENDPOINT.fullmatch(endpoint):
        # Not repeated: what stands before an @ is a secret.
        raise ConfigError(
            "infra: the endpoint must be like http://127.0.0.1:4566, with no user or password in it"
        )


def _here(target: Target, infra: Infra) -> Target:
    """The same; without its region, where that is the one of all the rest."""
    here = target.region == infra.region
    return msgspec.structs.replace(target, region="") if here else target


def _pattern(infra: Infra, rules: Sequence[presets.Spec], *, matching: bool) -> dict[str, Any]:
    """What the rule matches, if no pattern was given: a rule without one would take everything
    that happens in the account."""
    sources = _sources(infra, rules)
    if matching and not sources:
        raise ConfigError(
            "infra: which events? Give a source (what theirs begins with, such as "
            "aws.partner/genesys.com), a whole pattern, or rules that all know their source, such "
            "as the preset genesys"
        )
    return {"source": sources} if sources else {}


def _sources(infra: Infra, rules: Sequence[presets.Spec]) -> list[Any]:
    """The sources that are meant, none if that is not said."""
    if infra.source:
        return [{"prefix": infra.source}]
    if infra.bus.startswith(PARTNER):
        return [{"prefix": infra.bus}]
    known = [_known(spec) for spec in rules]
    if not all(known):
        return []
    return [_matcher(glob) for glob in dict.fromkeys(glob for globs in known for glob in globs)]


def _known(spec: presets.Spec) -> list[str]:
    """The sources that a preset or a rule is for, as far as it says so; `auto` is for any."""
    if spec == presets.AUTO:
        return []
    return [glob for rule in presets.resolve(spec) for glob in rule.match.source]


def _matcher(glob: str) -> Any:
    literal, star, rest = glob.partition("*")
    if not star:
        return glob
    return {"wildcard": glob} if rest else {"prefix": literal}


def _beginnings(pattern: dict[str, Any]) -> list[str]:
    """What each source of the pattern begins with: an empty text if it may begin with anything."""
    sources = pattern.get("source")
    return [_beginning(matcher) for matcher in sources] if isinstance(sources, list) else []


def _beginning(matcher: Any) -> str:
    if isinstance(matcher, dict):
        matcher = matcher.get("prefix", matcher.get("wildcard"))
    return matcher.partition("*")[0] if isinstance(matcher, str) else ""


def _embedded(store: str) -> str:
    return store.partition(":")[0] if store and adapter_of(store).extra is None else ""


def _table(store: str, infra: Infra) -> Table | None:
    parts = split(store)
    if parts.scheme != "dynamodb":
        return None
    said = dict(parse_qsl(parts.query))
    name = unquote(parts.netloc)
    _check("table", name, _TABLE, "3 to 255 letters, digits, '_', '-' and '.'")
    return Table(
        name,
        said.get("key", ""),
        said.get("expiry", ""),
        said.get("region", infra.region),
        elsewhere=said.get("endpoint", infra.endpoint) != infra.endpoint,
    )
